"""Class frequencies where a model is used: what the user may pass, and what it becomes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from extremax.errors import ArgumentError
from extremax.labels import ClassLabels, LabelIndex, Prior


def labels(values: list[Any], counts: list[int]) -> ClassLabels:
    made = ClassLabels(LabelIndex(np.array(values)))
    made.counts = np.array(counts)
    return made


ABC = labels(["a", "b", "c"], [6, 2, 0])


def test_a_class_without_examples_counts_as_one_with_one() -> None:
    prior = Prior.of(ABC, [1, 1, 2], None)
    np.testing.assert_allclose(prior.before, [6 / 9, 2 / 9, 1 / 9])
    np.testing.assert_allclose(prior.after, [0.25, 0.25, 0.5])
    expected = [math.log(0.25 * 9 / 6), math.log(0.25 * 9 / 2), math.log(4.5)]
    np.testing.assert_allclose(prior.log_ratio, expected, rtol=1e-6)


def test_by_label_in_any_order_and_scale() -> None:
    prior = Prior.of(ABC, {"c": 2e300, "nobody": 7, "a": 1e300, "b": 0}, None)
    np.testing.assert_allclose(prior.after, [1 / 3, 0, 2 / 3])
    assert prior.log_ratio[1] == -np.inf
    numbers = Prior.of(labels([10, 20], [1, 3]), {20: 1, 10: 3}, None)
    np.testing.assert_allclose(numbers.after, [0.75, 0.25])


@pytest.mark.parametrize("tau", [-10, -0.5, 0, 0.3, 1, 2.5, 10])
def test_tau_is_a_power_of_the_training_frequencies(tau: float) -> None:
    prior = Prior.of(ABC, None, tau)
    ratio = prior.log_ratio - prior.log_ratio[0]
    expected = [-tau * math.log(share / 6) for share in (6, 2, 1)]
    np.testing.assert_allclose(ratio, expected, rtol=1e-5, atol=1e-6)
    assert prior.after.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("shares", "tau", "message"),
    [
        (None, None, "pass either prior or tau"),
        ([1, 1, 1], 1.0, "pass either prior or tau"),
        (None, math.nan, "tau must be a number from −10 to 10"),
        (None, "1", "tau must be a number from −10 to 10"),
        (None, 11, "tau must be a number from −10 to 10"),
        ([1, 1], None, r"one number for each of the 3 classes, got shape \(2,\)"),
        ([1, -1, 1], None, "at least 0, got -1.0 in place 1"),
        ([1, 1, math.nan], None, "at least 0, got nan in place 2"),
        ([0, 0, 0], None, "zero for every class"),
        ("abc", None, "one number per class"),
        ({"a": 1, "b": "much", "c": 1}, None, "one number per class"),
        ({"a": 1}, None, "no share of 'b' and 1 more; give 0"),
        ({"a": 1, "c": 1}, None, "no share of 'b'; give 0"),
        ({"a": 0, "b": 0, "c": 0, "d": 1}, None, "zero for every class"),
        ({}, None, "zero for every class"),
    ],
)
def test_what_is_refused(shares: Any, tau: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Prior.of(ABC, shares, tau)
