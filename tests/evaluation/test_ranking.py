"""Ranking metrics against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from extremax.evaluation import RankingTally, inverse_propensity, tally_ranking
from extremax.labels import LabelLists


def lists(rows: list[list[int]]) -> LabelLists:
    flat = np.array([label for row in rows for label in row], np.int64)
    return LabelLists(flat, np.cumsum([0, *(len(row) for row in rows)]))


def plain(
    ranked: list[list[int]], truth: list[list[int]], counts: list[int], n_rows: int, k: int
) -> dict[str, float]:
    """The definitions, in loops."""

    def inverse(label: int) -> float:
        seen = counts[label] if label >= 0 else 0
        c = (math.log(n_rows) - 1) * (1.5 + 1) ** 0.55
        return 1 + c * math.exp(-0.55 * math.log(seen + 1.5))

    precision, recall, ndcg = [], [], []
    scored = best = 0.0
    for order, labels in zip(ranked, truth, strict=True):
        if not labels:
            continue
        hits = [label for label in order[:k] if label >= 0 and label in labels]
        precision.append(len(hits) / k)
        recall.append(len(hits) / len(labels))
        dcg = sum(1 / math.log2(2 + j) for j, la in enumerate(order[:k]) if la in hits)
        ndcg.append(dcg / sum(1 / math.log2(2 + j) for j in range(min(k, len(labels)))))
        scored += sum(inverse(label) for label in hits) / k
        best += sum(sorted((inverse(label) for label in labels), reverse=True)[:k]) / k
    return {
        "precision": sum(precision) / len(precision),
        "recall": sum(recall) / len(recall),
        "ndcg": sum(ndcg) / len(ndcg),
        "scored_precision": scored / best,
    }


@pytest.mark.parametrize("seed", range(20))
def test_metrics_follow_their_definitions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, n_classes, width = int(rng.integers(1, 30)), int(rng.integers(6, 25)), 6
    ranked = np.array([rng.permutation(n_classes)[:width] for _ in range(n)])
    if seed % 3 == 0:
        ranked[:, -2:] = -1
    truth = [
        [*rng.choice(n_classes, rng.integers(0, 6), replace=False).tolist(), *[-1] * extra]
        for extra in rng.integers(0, 3, n)
    ]
    truth[0] = [int(ranked[0, 0])]
    counts, n_rows = rng.integers(1, 500, n_classes), int(rng.integers(500, 5000))
    tally = tally_ranking(ranked, lists(truth), counts, n_rows)
    assert tally.rows == sum(bool(row) for row in truth)
    for k in range(1, width + 1):
        expected = plain(ranked.tolist(), truth, counts.tolist(), n_rows, k)
        for name, value in expected.items():
            assert getattr(tally, name)[k - 1] == pytest.approx(value, rel=1e-12), (name, k)
    cut = n // 2
    parts = [
        tally_ranking(ranked[part], lists(truth)[part], counts, n_rows)
        for part in (slice(0, cut), slice(cut, None))
    ]
    total = sum(parts, RankingTally())
    assert total.rows == tally.rows
    for name in ("precision", "recall", "ndcg", "scored_precision"):
        np.testing.assert_allclose(getattr(total, name), getattr(tally, name), rtol=1e-12)


def test_a_case_by_hand() -> None:
    # Row 0 finds two of its three labels, on ranks 1 and 3; row 1 its one on rank 2.
    ranked = np.array([[4, 0, 2], [1, 3, 0]])
    truth = lists([[2, 4, 5], [3]])
    tally = tally_ranking(ranked, truth, np.full(6, 10), 100)
    np.testing.assert_allclose(tally.precision, [1 / 2, 2 / 4, 3 / 6])
    np.testing.assert_allclose(tally.recall, [(1 / 3 + 0) / 2, (1 / 3 + 1) / 2, (2 / 3 + 1) / 2])
    second, third = 1 / math.log2(3), 1 / 2
    ndcg = [(1 + 0) / 2, (1 / (1 + second) + second) / 2]
    ndcg.append(((1 + third) / (1 + second + third) + second) / 2)
    np.testing.assert_allclose(tally.ndcg, ndcg)
    # All labels weigh the same: of at most 2, 3 and 4 hits there are 1, 2 and 3.
    np.testing.assert_allclose(tally.scored_precision, [1 / 2, 2 / 3, 3 / 4])


def test_a_rare_label_weighs_more() -> None:
    # With N = e² and A = 0.55, B = 1.5: C = 2.5^0.55, so 1/p of N_l = 1 is 1 + (2.5/2.5)^0.55.
    n_rows = math.exp(2)
    weights = inverse_propensity(np.array([1, 0, 8.5]), n_rows)
    np.testing.assert_allclose(weights, [2, 1 + (2.5 / 1.5) ** 0.55, 1 + 0.25**0.55])
    counts = np.array([1, 1000])
    one = tally_ranking(np.array([[0]]), lists([[0, 1]]), counts, 10_000)
    other = tally_ranking(np.array([[1]]), lists([[0, 1]]), counts, 10_000)
    assert one.scored_precision.tolist() == [1.0]
    rare, common = inverse_propensity(counts, 10_000)
    assert other.scored_precision[0] == pytest.approx(common / rare)
    assert common < rare


def test_two_training_rows_give_no_negative_weights() -> None:
    assert inverse_propensity(np.array([0, 1, 2]), 2).tolist() == [1, 1, 1]


def test_rows_without_labels_are_left_out() -> None:
    tally = tally_ranking(np.array([[0], [1], [1]]), lists([[0], [], [0]]), np.array([2, 3]), 9)
    assert tally.rows == 2
    assert tally.precision.tolist() == [0.5]
    nothing = tally_ranking(np.array([[0, 1]]), lists([[]]), np.array([2, 3]), 9)
    assert nothing.rows == 0
    for name in ("precision", "recall", "ndcg", "scored_precision"):
        assert getattr(nothing, name).tolist() == [0, 0]


def test_different_numbers_of_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="ranked has 2 rows but truth has 1"):
        tally_ranking(np.array([[0], [1]]), lists([[0]]), np.array([1, 1]), 2)
