"""Throughput and curves from the history of a run; the bias where there is one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from extremax.comparison import Problem, machine
from extremax.comparison.measures import bias, thinned, throughput
from extremax.objectives import SampledSoftmax


def history(n: int, start: float = 2.0) -> list[dict]:
    return [
        {"seconds": start + 0.5 * i, "log_likelihood": -1.0 - abs(i - 700) / 1000, "accuracy": 0.5}
        for i in range(n)
    ]


def test_throughput_leaves_out_the_start_and_the_epoch_cut_short():
    assert throughput(history(5), 100) == pytest.approx(100 / 0.5)
    assert throughput(history(2), 100) == pytest.approx(100 / 2.0)
    assert throughput(history(1), 100) is None


def test_throughput_counts_examples_where_the_history_does():
    records = [dict(r, examples=40 * (i + 1)) for i, r in enumerate(history(3))]
    assert throughput(records, 100) == pytest.approx(40 / 0.5)
    assert throughput(records[:1], 100) == pytest.approx(40 / 2.0)


def test_a_long_curve_keeps_its_ends_and_its_best():
    short = thinned(history(50))
    assert len(short) == 50
    assert set(short[0]) == {"seconds", "log_likelihood", "accuracy"}
    records = history(2000)
    kept = thinned(records)
    assert len(kept) < 150
    seconds = [r["seconds"] for r in kept]
    assert seconds == sorted(set(seconds))
    assert (seconds[0], seconds[-1]) == (2.0, records[-1]["seconds"])
    assert max(r["log_likelihood"] for r in kept) == -1.0


def test_one_class_has_no_bias():
    X, y = np.ones((9, 2), np.float32), np.zeros(9, np.int64)
    model = SimpleNamespace(objective_=SampledSoftmax(), n_jobs=1, noise_=None, _scorer=None)
    assert bias(model, Problem.split(X, y, test=(X, y))) is None


def test_the_peak_begins_anew():
    machine.forget_peak()
    before = machine.peak_memory()
    big = bytearray(200_000_000)
    big[::4096] = b"x" * len(big[::4096])
    assert machine.peak_memory() > before + 150_000_000
