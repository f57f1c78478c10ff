"""Macro recall and coverage against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.evaluation import ClassTally, tally_classes
from extremax.labels import LabelLists


def lists(rows: list[list[int]]) -> LabelLists:
    flat = np.array([label for row in rows for label in row], np.int64)
    return LabelLists(flat, np.cumsum([0, *(len(row) for row in rows)]))


def plain(ranked: list[list[int]], truth: list[list[int]], k: int) -> tuple[float, float]:
    """The definitions, in loops."""
    shares = []
    for label in sorted({label for row in truth for label in row} - {-1}):
        found = [
            label in order[:k] for order, row in zip(ranked, truth, strict=True) if label in row
        ]
        shares.append(sum(found) / len(found))
    return sum(shares) / len(shares), sum(share > 0 for share in shares) / len(shares)


@pytest.mark.parametrize("seed", range(10))
def test_metrics_follow_their_definitions_and_blocks_add_up(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, n_classes, width = int(rng.integers(2, 40)), int(rng.integers(6, 25)), 6
    ranked = np.array([rng.permutation(n_classes)[:width] for _ in range(n)])
    if seed % 3 == 0:
        ranked[:, -2:] = -1
    truth = [
        [*rng.choice(n_classes, rng.integers(0, 6), replace=False).tolist(), *[-1] * extra]
        for extra in rng.integers(0, 3, n)
    ]
    truth[0] = [int(ranked[0, 0])]
    tally = tally_classes(ranked, lists(truth))
    for k in range(1, width + 1):
        recall, coverage = plain(ranked.tolist(), truth, k)
        assert tally.macro_recall[k - 1] == pytest.approx(recall, rel=1e-12)
        assert tally.coverage[k - 1] == pytest.approx(coverage, rel=1e-12)
    parts = (slice(0, n // 2), slice(n // 2, n // 2), slice(n // 2, None))
    total = sum((tally_classes(ranked[p], lists(truth)[p]) for p in parts), ClassTally())
    assert total == tally


def test_a_case_by_hand() -> None:
    # Class 0 is found in one of its two rows, and in the other only among the two best; class 1 in
    # none of its rows; class 2 does not occur; −1 was never seen.
    ranked = np.array([[0, 2], [2, 0], [2, 0]])
    tally = tally_classes(ranked, lists([[0], [0, 1], [1, -1]]))
    assert tally.macro_recall.tolist() == [1 / 4, 1 / 2]
    assert tally.coverage.tolist() == [1 / 2, 1 / 2]


def test_nothing_known_is_zero() -> None:
    tally = tally_classes(np.array([[0, 1]]), lists([[-1]]))
    assert tally.macro_recall.tolist() == tally.coverage.tolist() == [0.0, 0.0]
    assert ClassTally() + tally == tally


def test_evaluate_counts_as_many_ranks_as_asked_for() -> None:
    X, y = clustered(900, 30, 6, seed=0, noise=0.5)
    model = ExtremeClassifier(epochs=2, random_state=0, n_jobs=1).fit(X[:600], y[:600])
    usual, more = model.evaluate(X[600:], y[600:]), model.evaluate(X[600:], y[600:], k=20)
    order = np.argsort(-model.predict_proba(X[600:]), axis=1)
    names = model.classes_[order]
    for k in (1, 5, 20):
        hit = (names[:, :k] == y[600:, None]).any(1)
        assert more.ranking.recall[k - 1] == pytest.approx(hit.mean())
        each = [hit[y[600:] == label].mean() for label in np.unique(y[600:])]
        assert more.by_class.macro_recall[k - 1] == pytest.approx(np.mean(each))
        assert more.by_class.coverage[k - 1] == pytest.approx(np.mean(np.array(each) > 0))
    np.testing.assert_allclose(more.ranking.recall[:5], usual.ranking.recall)
    assert more.top5_accuracy == usual.top5_accuracy < more.ranking.recall[-1]
    # One rank is asked for, and five are counted.
    assert model.evaluate(X[600:], y[600:], k=1) == usual
    # More than there are classes.
    assert model.evaluate(X[600:], y[600:], k=40).ranking.recall[-1] == 1.0
    for bad in (0, 2.5, "3"):
        with pytest.raises(ValueError, match="k must be an integer >= 1"):
            model.evaluate(X[600:], y[600:], k=bad)
