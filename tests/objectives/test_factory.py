"""Objectives from names, and descriptions of objectives for JSON."""

from __future__ import annotations

from typing import Any

import pytest

from extremax.errors import ModelFileError
from extremax.objectives import (
    OBJECTIVES,
    NegativeSampling,
    SampledSoftmax,
    describe_objective,
    make_objective,
    restore_objective,
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


def test_a_description_has_the_name_and_the_settings() -> None:
    described = describe_objective(SampledSoftmax(absolute=True, regularization=0.5))
    settings = {"absolute": True, "regularization": 0.5}
    assert described == {"name": "sampled_softmax", "settings": settings}


def test_an_unlisted_class_cannot_be_described() -> None:
    class Mine(NegativeSampling):
        pass

    with pytest.raises(ModelFileError, match="Mine is not in extremax"):
        describe_objective(Mine())


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({}, "expected the name of an objective"),
        ({"name": "hinge", "settings": {}}, "got {'name': 'hinge'"),
        ({"name": ["nce"], "settings": {}}, "expected the name of an objective"),
        ({"name": "nce"}, "and its settings"),
        ({"name": "nce", "settings": {"power": 2}}, "invalid settings of the objective 'nce'"),
        ({"name": "nce", "settings": {"regularization": -1}}, "regularization must be a number"),
    ],
)
def test_invalid_descriptions_are_refused(description: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        restore_objective(description)
