"""The votes of similar rows, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax.errors import ModelFileError
from extremax.experts import SimilarRows
from extremax.rows import SparseRows
from extremax.tensors import Tensors

N, F, C = 60, 25, 7


def problem(n: int = N, seed: int = 0) -> tuple[SparseRows, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = sparse.random(n, F, 0.15, "csr", np.float32, rng, rng.standard_normal)
    return SparseRows.of(x), rng.integers(0, C, n)


def expected_votes(known: SparseRows, labels: np.ndarray, rows: SparseRows) -> np.ndarray:
    """Σ max(0, cos)³ by class, without the small values of the rows."""

    def unit(rows: SparseRows) -> np.ndarray:
        x = rows.matrix.toarray().astype(float)
        return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30)

    x = unit(rows)
    x[np.abs(x) < SimilarRows.share * np.abs(x).max(1, keepdims=True)] = 0.0
    cosines = np.maximum(x @ unit(known).T, 0.0)
    return cosines**3 @ np.eye(C)[labels]


def learned(rows: SparseRows, labels: np.ndarray, parts: int = 1) -> SimilarRows:
    expert = SimilarRows()
    for part in np.array_split(np.arange(len(rows)), parts):
        expert.learn(rows[part], labels[part], C)
    return expert


@pytest.mark.parametrize("parts", [1, 3])
def test_votes_are_cubed_cosines_summed_by_class(parts: int) -> None:
    known, labels = problem()
    rows, _ = problem(40, seed=5)
    expert = learned(known, labels, parts)
    expected = np.log1p(expected_votes(known, labels, rows) / expert.little)
    logits = torch.zeros(40, C)
    expert.add_to(logits, rows, 0.7)
    np.testing.assert_allclose(logits, 0.7 * expected, rtol=1e-4, atol=1e-5)
    classes = torch.from_numpy(np.random.default_rng(2).integers(-1, C, (40, 5)))
    found = expert.at(rows, classes)
    wanted = np.take_along_axis(expected, np.maximum(classes.numpy(), 0), 1)
    wanted[classes.numpy() < 0] = 0.0
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_reach_of_a_row_counts_the_rows_with_its_features() -> None:
    known, labels = problem()
    rows, _ = problem(40, seed=5)
    x = np.abs(rows.matrix.toarray().astype(float))
    counts = (known.matrix.toarray() != 0).sum(0)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30)
    x[x < SimilarRows.share * x.max(1, keepdims=True)] = 0.0
    expected = np.log1p(x**3 @ counts)
    np.testing.assert_allclose(learned(known, labels).reach(rows), expected, rtol=1e-5)


def test_rows_without_values_have_no_vote_and_get_none() -> None:
    nothing = SparseRows.of(sparse.csr_matrix((3, F), dtype=np.float32))
    expert = learned(nothing, np.array([0, 1, 1]))
    rows, labels = problem(5)
    assert not expert.at(rows, torch.zeros(5, 2, dtype=torch.int64)).any()
    expert.learn(rows, labels, C)
    assert not expert.at(nothing, torch.zeros(3, 2, dtype=torch.int64)).any()
    assert not expert.reach(nothing).any()
    logits = torch.zeros(3, C)
    expert.add_to(logits, nothing, 1.0)
    assert not logits.any()


def test_later_classes_find_room_and_vote() -> None:
    known, labels = problem()
    expert = learned(known, labels)
    expert.extend(C + 2)
    assert not expert.at(known[:3], torch.full((3, 1), C + 1)).any()
    expert.learn(known[:3], np.full(3, C + 1), C + 2)
    assert (expert.at(known[:3], torch.full((3, 1), C + 1)) > 5).all()


def test_a_restored_expert_is_the_same_and_damage_is_refused() -> None:
    known, labels = problem()
    expert = learned(known, labels)
    state = expert.state()
    SimilarRows.validate(Tensors(state, "expert"), C, F)
    classes = torch.arange(C).repeat(N, 1)
    restored = SimilarRows.restore(state)
    assert torch.equal(restored.at(known, classes), expert.at(known, classes))
    for name, value in (
        ("row", 1000), ("row", -1), ("row", 0), ("first", 10**6), ("rows", -1),
        ("values", torch.nan), ("rows", 2**30),
    ):  # fmt: skip
        damaged = {key: tensor.clone() for key, tensor in state.items()}
        damaged[name][3] = value
        with pytest.raises(ModelFileError, match=name):
            SimilarRows.validate(Tensors(damaged, "expert"), C, F)


def test_examples_are_the_rows_that_were_learned_at_the_length_asked_for() -> None:
    rows, labels = problem()
    expert = learned(rows, labels, parts=3)
    known, owners = expert.examples(2.5)
    x = rows.matrix.toarray().astype(float)
    x *= 2.5 / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30)
    order = np.argsort(labels, kind="stable")
    np.testing.assert_array_equal(owners, labels[order])
    np.testing.assert_allclose(known.matrix.toarray(), x[order], atol=1e-6)
    assert known.matrix.has_sorted_indices
