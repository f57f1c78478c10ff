"""Log-uniform noise: Zipf's law over ranks, drawn from its formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from extremax.noise import LogUniformNoise
from extremax.random import Stream

NOTHING = torch.empty(1, 0)


def fit(labels: np.ndarray, n_classes: int) -> LogUniformNoise:
    return LogUniformNoise().fit(np.empty((len(labels), 0), np.float32), labels, n_classes)


def sample(noise: LogUniformNoise, n: int, m: int = 1) -> np.ndarray:
    stream = Stream.of(4, rows=np.arange(n))
    return noise.sample(torch.empty(n, 0), m, stream).labels.numpy().ravel()


def test_classes_are_ranked_by_frequency_then_by_number() -> None:
    # Classes 3 and 0 have two rows each, 2 has three, 1 and 4 none.
    noise = fit(np.array([2, 2, 2, 3, 3, 0, 0]), 5)
    assert noise.by_rank_.tolist() == [2, 0, 3, 1, 4]
    expected = np.empty(5)
    expected[[2, 0, 3, 1, 4]] = np.log([2 / 1, 3 / 2, 4 / 3, 5 / 4, 6 / 5]) / np.log(6)
    np.testing.assert_allclose(noise.log_prob_all(NOTHING)[0].exp(), expected, rtol=1e-6)


def test_how_often_a_class_occurs_does_not_matter_but_its_rank() -> None:
    few, many = fit(np.array([0, 1, 1]), 3), fit(np.repeat([0, 1, 2], [5, 1000, 1]), 3)
    assert torch.equal(few.log_q_, many.log_q_)


@pytest.mark.parametrize("n_classes", [1, 2, 3, 7, 1000])
def test_draws_follow_the_law(n_classes: int) -> None:
    noise = fit(np.zeros(0, np.int64), n_classes)
    p = np.diff(np.log(np.arange(1, n_classes + 2))) / np.log(n_classes + 1)
    observed = np.bincount(sample(noise, 40_000, 2), minlength=n_classes)
    assert len(observed) == n_classes
    enough = 80_000 * p > 10
    observed = np.append(observed[enough], observed[~enough].sum())
    expected = 80_000 * np.append(p[enough], p[~enough].sum())
    if n_classes > 1:
        keep = expected > 0
        assert stats.chisquare(observed[keep], expected[keep]).pvalue > 1e-4


def test_ten_million_classes() -> None:
    n = 10_000_000
    noise = fit(np.zeros(0, np.int64), n)
    assert float(noise.log_q_.double().exp().sum()) == pytest.approx(1.0, abs=1e-6)
    drawn = sample(noise, 200_000, 2)
    assert drawn.min() >= 0
    assert drawn.max() < n
    # log(rank + 1) is uniform, seen through whole numbers: by edges that are whole, exactly.
    edges = np.unique(np.floor(np.exp(np.linspace(0, np.log(n + 1), 41))))
    edges[-1] = n + 1
    share = np.diff(np.log(edges)) / np.log(n + 1)
    observed = np.histogram(drawn + 1, bins=edges)[0]
    assert stats.chisquare(observed, 400_000 * share).pvalue > 1e-4
    # Among the last ranks, where a float32 would tell no odd from even beyond 2^24 / 2.
    last = drawn[drawn > n // 2]
    assert stats.binomtest(int((last % 2).sum()), len(last)).pvalue > 1e-4


def test_late_classes_take_the_next_ranks() -> None:
    noise = fit(np.array([1, 1, 0, 2, 2, 2]), 4)
    noise.extend(6)
    assert noise.by_rank_.tolist() == [2, 1, 0, 3, 4, 5]
    expected = np.log([6 / 5, 7 / 6]) / np.log(7)
    np.testing.assert_allclose(noise.log_q_[4:].exp(), expected, rtol=1e-6)
