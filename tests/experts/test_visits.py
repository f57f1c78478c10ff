"""The experts that count visits, against plain loops over sessions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from extremax.errors import ModelFileError
from extremax.experts import VisitedAfter, VisitedTogether
from extremax.experts.pairs import PairExpert
from extremax.features import Sequences
from extremax.labels import LabelIndex
from extremax.rows import SequenceRows
from extremax.tensors import Tensors

N_ITEMS = 12
Kind = type[PairExpert]


def sessions(n: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(N_ITEMS, size=rng.integers(2, 9)).tolist() for _ in range(n)]


def examples(lists: list[list[int]]) -> tuple[SequenceRows, np.ndarray]:
    prefixes, following = Sequences.of(lists).prefixes()
    return prefixes.rows(LabelIndex(np.arange(N_ITEMS))), following


def together(lists: list[list[int]]) -> np.ndarray:
    """Sessions with both items; on the diagonal with one."""
    numbers = np.zeros((N_ITEMS, N_ITEMS))
    for session in map(set, lists):
        for one in session:
            for other in session:
                numbers[one, other] += 1
    return numbers


def after(lists: list[list[int]]) -> np.ndarray:
    """1/distance, summed over visits of the second item after the first."""
    numbers = np.zeros((N_ITEMS, N_ITEMS))
    for session in lists:
        for later in range(len(session)):
            for earlier in range(later):
                numbers[session[earlier], session[later]] += 1 / (later - earlier)
    return numbers


def similar_together(lists: list[list[int]]) -> np.ndarray:
    numbers = together(lists)
    scale = 1 / np.sqrt(np.diag(numbers) + 20)
    return scale[:, None] * numbers * scale


def similar_after(lists: list[list[int]]) -> np.ndarray:
    numbers = after(lists)
    return numbers / (numbers.sum(1, keepdims=True) + 20)


LOOPS = {
    VisitedTogether: (together, similar_together),
    VisitedAfter: (after, similar_after),
}
of_every_kind = pytest.mark.parametrize("kind", LOOPS)


def learned(kind: Kind, lists: list[list[int]]) -> PairExpert:
    expert = kind()
    expert.learn(*examples(lists), N_ITEMS)
    return expert


@of_every_kind
def test_every_pair_of_a_session_counts(kind: Kind) -> None:
    lists = sessions(60)
    count, _ = LOOPS[kind]
    np.testing.assert_allclose(learned(kind, lists).numbers.toarray(), count(lists), rtol=1e-6)


@of_every_kind
def test_order_and_portions_of_examples_do_not_matter(kind: Kind) -> None:
    lists = sessions(60)
    rows, labels = examples(lists)
    order = np.random.default_rng(1).permutation(len(rows))
    expert, (count, _) = kind(), LOOPS[kind]
    for part in np.array_split(order, 5):
        expert.learn(rows[part], labels[part], N_ITEMS)
    np.testing.assert_allclose(expert.numbers.toarray(), count(lists), rtol=1e-6)


@of_every_kind
def test_evidence_is_what_the_items_of_a_row_say_by_their_weights(kind: Kind) -> None:
    lists = sessions(60)
    expert, (rows, _) = learned(kind, lists), examples(sessions(20, seed=3))
    similar = LOOPS[kind][1](lists)
    expected = np.zeros((len(rows), N_ITEMS))
    for i in range(len(rows)):
        _, items, steps = rows[np.array([i])].visits()
        bag = np.zeros(N_ITEMS)
        np.add.at(bag, items, 0.7**steps)
        expected[i] = bag / np.linalg.norm(bag) @ similar
    np.testing.assert_allclose(expert.evidence(rows).toarray(), expected, rtol=1e-5)

    np.testing.assert_allclose(expert.reach(rows), np.log1p(expected.sum(1)), rtol=1e-4)

    logits = torch.zeros(len(rows), N_ITEMS)
    expert.add_to(logits, rows, 0.5)
    np.testing.assert_allclose(logits, 0.5 * np.log1p(expected / expert.little), rtol=1e-4)
    classes = torch.randint(-1, N_ITEMS, (len(rows), 5), generator=torch.Generator())
    at = expert.at(rows, classes)
    wanted = torch.where(classes < 0, 0.0, 2 * logits.gather(1, classes.clamp(min=0)))
    torch.testing.assert_close(at, wanted, rtol=1e-4, atol=1e-5)


def test_order_matters_to_one_expert_alone() -> None:
    one_way, rows = [[0, 1]] * 10, examples([[1, 2]])[0]
    assert learned(VisitedTogether, one_way).evidence(rows)[0, 0] > 0
    assert learned(VisitedAfter, one_way).evidence(rows).nnz == 0


@of_every_kind
def test_a_row_without_items_has_no_evidence(kind: Kind) -> None:
    nothing = SequenceRows(np.empty(0, np.int32), np.zeros(2, np.int64), np.zeros(2, np.int64), 12)
    expert = learned(kind, sessions(10))
    assert expert.evidence(nothing).nnz == 0
    assert not expert.at(nothing, torch.tensor([[1, -1], [2, 3]])).any()


@of_every_kind
def test_later_items_find_room(kind: Kind) -> None:
    expert = learned(kind, sessions(30))
    expert.extend(N_ITEMS + 3)
    rows, _ = examples([[1, 2, 3]])
    assert expert.evidence(rows).shape == (2, N_ITEMS + 3)


@of_every_kind
def test_a_restored_expert_is_the_same_and_damage_is_refused(kind: Kind) -> None:
    lists = sessions(40)
    expert = learned(kind, lists)
    state = expert.state()
    kind.validate(Tensors(state, "expert"), N_ITEMS, N_ITEMS)
    restored = kind.restore(state)
    assert type(restored) is kind
    rows, _ = examples(lists)
    assert (restored.evidence(rows) != expert.evidence(rows)).nnz == 0
    for name, value in (("items", N_ITEMS), ("items", -1), ("numbers", -1.0), ("first", 10**6)):
        damaged = {key: tensor.clone() for key, tensor in state.items()}
        damaged[name][3] = value
        with pytest.raises(ModelFileError, match=name):
            kind.validate(Tensors(damaged, "expert"), N_ITEMS, N_ITEMS)
    unordered = state | {"items": state["items"].flip(0).contiguous()}
    with pytest.raises(ModelFileError, match="must rise"):
        kind.validate(Tensors(unordered, "expert"), N_ITEMS, N_ITEMS)
