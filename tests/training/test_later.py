"""Classes that come later: counts, rehearsal, passes, and the prior of a pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax.labels import ClassLabels, LabelIndex
from extremax.objectives import NegativeSampling, SampledSoftmax
from extremax.rows import SparseRows
from extremax.training.data import Examples
from extremax.training.later import Known, count_late, learning_rates, prior_of, with_rehearsal
from extremax.training.state import Settings

FIRST, LATE = [0] * 600 + [1] * 300, [2] * 60 + [3] * 40


def model(late: list[int] = LATE, objective: Any = None) -> Any:
    """Two classes that were there first, and two that came later, all biases zero."""
    labels = ClassLabels(LabelIndex(np.array(list("abcd"))))
    labels.count(np.array(FIRST), 900)
    labels.count(np.array(late, int), len(late))
    head = SimpleNamespace(bias=torch.zeros(4))
    one = SimpleNamespace(labels=labels, head=head, objective=objective or SampledSoftmax())
    one.members = (one,)
    return one


def examples(labels: list[int], weights: list[float] | None = None) -> Examples:
    rows = SparseRows.of(sparse.csr_matrix(np.ones((len(labels), 3), np.float32)))
    given = None if weights is None else np.array(weights, np.float32)
    return Examples(rows, np.array(labels), given)


def test_classes_of_the_first_rows_are_not_late_but_announced_ones_are() -> None:
    assert model().labels.is_late.tolist() == [False, False, True, True]


def test_where_shares_are_as_usual_biases_stay() -> None:
    one = model()
    with prior_of(one, np.array((FIRST + LATE) * 3)):
        torch.testing.assert_close(one.head.bias, torch.zeros(4))


def test_late_classes_get_their_log_odds_in_the_pass_over_the_usual_ones() -> None:
    one = model()
    # Half of 100,000 examples, and usually a tenth.
    labels = np.repeat([0, 2], 50_000)
    with prior_of(one, labels):
        expected = torch.tensor([0.0, 0.0, 1.0, 1.0]) * float(np.log(9.0))
        torch.testing.assert_close(one.head.bias, expected, atol=0.005, rtol=0.0)
    torch.testing.assert_close(one.head.bias, torch.zeros(4), atol=1e-6, rtol=0.0)


def test_biases_change_back_after_an_error() -> None:
    one = model()

    def fail() -> None:
        with prior_of(one, np.full(50, 2)):
            raise KeyError(float(one.head.bias[2]))

    with pytest.raises(KeyError) as error:
        fail()
    assert error.value.args[0] > 1.0
    torch.testing.assert_close(one.head.bias, torch.zeros(4), atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("late", [[], LATE])
def test_no_prior_without_late_classes_or_where_scores_are_no_logits(late: list[int]) -> None:
    one = model(late, NegativeSampling() if late else None)
    with prior_of(one, np.array([0, 2])):
        assert not one.head.bias.any()


def test_late_classes_rise_as_their_odds_do_and_fresh_ones_are_left_alone() -> None:
    one = model(LATE[:60])
    count_late(one, np.array([2] * 120 + [0] * 900 + [3] * 7), 1027)
    # Three times as many of the class that was seen, twice as many of the first ones.
    expected = torch.tensor([0.0, 0.0, float(np.log(3.0 / 2.0)), 0.0])
    torch.testing.assert_close(one.head.bias, expected)
    assert one.labels.counts.tolist() == [1500, 300, 180, 7]


def test_as_many_examples_of_first_classes_are_rehearsed() -> None:
    random, known = np.random.default_rng(0), examples(FIRST + LATE)
    known.rows.values[:] = 2.0
    out = with_rehearsal(
        examples([2] * 40 + [0] * 10), Known(known.rows, known.labels), model(), random
    )
    assert len(out) == len(out.rows) == 80
    assert (out.labels[50:] < 2).all()
    assert out.rows.values.tolist() == [1.0] * (3 * 50) + [2.0] * (3 * 30)


@pytest.mark.parametrize(
    ("labels", "late", "expected"),
    [
        ([2] * 10 + [0] * 10, LATE, 20),
        ([0] * 10, LATE, 10),
        # The first classes have a tenth of all examples: a tenth of these is enough.
        ([2] * 100, [2] * 9_000, 110),
    ],
)
def test_no_more_than_needed_is_rehearsed(
    labels: list[int], late: list[int], expected: int
) -> None:
    known = examples(FIRST)
    random = np.random.default_rng(0)
    out = with_rehearsal(examples(labels), Known(known.rows, known.labels), model(late), random)
    assert len(out) == expected


def test_rehearsed_examples_have_the_mean_weight_of_those_that_count() -> None:
    known, given = examples(FIRST), examples([2, 2, 2], [1.0, 3.0, 0.0])
    kept, random = Known(known.rows, known.labels), np.random.default_rng(0)
    out = with_rehearsal(given, kept, model(), random)
    assert out.weights is not None
    assert out.weights.tolist() == [1.0, 3.0, 0.0, 2.0, 2.0, 2.0]


def rates(labels: list[int], objective: Any = None, epochs: int = 3) -> list[np.ndarray]:
    settings = Settings(1, 0.6, "linear", epochs, 10, None, 2)
    fresh = np.array([False, False, False, True])
    return learning_rates(model(objective=objective), settings, examples(labels), fresh)


def test_one_pass_at_a_constant_rate_unless_many_rows_have_a_fresh_class() -> None:
    for labels in ([0] * 25, [2] * 25, [0] * 97 + [3] * 3):
        (only,) = rates(labels)
        assert only.tolist() == [0.6] * -(-len(labels) // 10)
    (only,) = rates([3] * 25, NegativeSampling())
    assert only.tolist() == [0.6] * 3


def test_several_passes_over_fresh_classes_at_falling_rates() -> None:
    passes = rates([3] * 20)
    expected = 0.6 * (1.0 - np.arange(6) / 6).reshape(3, 2)
    np.testing.assert_allclose(np.stack(passes), expected)
    assert len(rates([3] * 20, epochs=50)) == 5
