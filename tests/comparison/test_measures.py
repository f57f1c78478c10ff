"""Throughput and curves from the history of a run; bias only for objectives that have one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from extremax.comparison import Problem, machine
from extremax.comparison.measures import bias, thinned, throughput
from extremax.objectives import SampledSoftmax


def history(n: int) -> list[dict]:
    return [
        {
            "seconds": 2.0 + 0.5 * i,
            "examples": 40 * (i + 1),
            "log_likelihood": -1.0 - abs(i - 700) / 1000,
            "accuracy": 0.5,
        }
        for i in range(n)
    ]


def test_throughput_excludes_the_first_epoch_unless_it_is_the_only_one():
    assert throughput(history(3)) == pytest.approx(40 / 0.5)
    assert throughput(history(1)) == pytest.approx(40 / 2.0)
    assert throughput([history(1)[0] | {"examples": 0}]) is None


def test_a_long_curve_keeps_its_ends_and_its_best_point():
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
    classifier = SimpleNamespace(model_=SimpleNamespace(objective=SampledSoftmax()))
    assert bias(classifier, Problem.split(X, y, test=(X, y))) is None


def test_the_peak_memory_can_be_reset():
    machine.forget_peak()
    before = machine.peak_memory()
    big = bytearray(200_000_000)
    big[::4096] = b"x" * len(big[::4096])
    assert machine.peak_memory() > before + 150_000_000
