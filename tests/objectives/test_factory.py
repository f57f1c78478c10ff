"""Objectives from names, and descriptions of objectives for JSON."""

from __future__ import annotations

from typing import Any

import pytest

from extremax.errors import ArgumentError, ModelFileError
from extremax.objectives import (
    OBJECTIVES,
    NegativeSampling,
    SampledSoftmax,
    describe_objective,
    make_objective,
)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_name_makes_its_objective(name: str) -> None:
    assert type(make_objective(name)) is OBJECTIVES[name]


@pytest.mark.parametrize("given", ["hinge", None, ["nce"], NegativeSampling])
def test_other_values_are_refused_with_all_names(given: Any) -> None:
    with pytest.raises(ValueError, match="objective must be one of 'negative_sampling'") as caught:
        make_objective(given)
    assert all(repr(name) in str(caught.value) for name in OBJECTIVES)
    assert str(caught.value).endswith(f"got {given!r}")


def test_a_text_makes_an_objective_with_parameters() -> None:
    made = make_objective("sampled_softmax(absolute=True, regularization=1e-3)")
    assert made.get_params() == {"absolute": True, "regularization": 1e-3}
    with pytest.raises(ArgumentError, match="absolute of SampledSoftmax must be True or False"):
        make_objective("sampled_softmax(absolute=1)")
    with pytest.raises(ArgumentError, match="regularization must be a number"):
        make_objective("nce(regularization=much)")


def test_a_description_has_the_name_and_the_settings() -> None:
    described = describe_objective(SampledSoftmax(absolute=True, regularization=0.5))
    settings = {"absolute": True, "regularization": 0.5}
    assert described == {"objective": "sampled_softmax", **settings}
    assert make_objective(described).get_params() == settings


def test_an_unlisted_class_cannot_be_described() -> None:
    class Mine(NegativeSampling):
        pass

    with pytest.raises(ModelFileError, match="Mine is not in extremax"):
        describe_objective(Mine())


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({}, "objective must be one of"),
        ({"objective": "hinge"}, "got {'objective': 'hinge'"),
        ({"objective": ["nce"]}, "objective must be one of"),
        ({"objective": "nce", "power": 2}, "NCE has no parameter 'power'"),
        ({"objective": "nce", "regularization": -1}, "regularization must be a number"),
    ],
)
def test_invalid_descriptions_are_refused(description: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_objective(description)
