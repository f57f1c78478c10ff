"""Training objectives: one file per loss and one line per loss in ``OBJECTIVES``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sklearn.base import clone

from extremax.errors import ModelFileError
from extremax.objectives.augment_reduce import AugmentReduce
from extremax.objectives.augment_reduce_noise import AugmentReduceLogistic, AugmentReduceProbit
from extremax.objectives.base import Objective, Pairs
from extremax.objectives.exact import fit_exact
from extremax.objectives.exact_softmax import ExactSoftmax
from extremax.objectives.nce import NCE
from extremax.objectives.negative_sampling import NegativeSampling
from extremax.objectives.one_vs_each import OneVsEach
from extremax.objectives.sampled_softmax import SampledSoftmax

OBJECTIVES: dict[str, type[Objective]] = {
    "negative_sampling": NegativeSampling,
    "nce": NCE,
    "sampled_softmax": SampledSoftmax,
    "one_vs_each": OneVsEach,
    "augment_reduce": AugmentReduce,
    "augment_reduce_probit": AugmentReduceProbit,
    "augment_reduce_logistic": AugmentReduceLogistic,
    "exact": ExactSoftmax,
}


def make_objective(given: str | Objective) -> Objective:
    """Create an objective from its name in ``OBJECTIVES``, or clone an objective."""
    if isinstance(given, Objective):
        return clone(given)
    if isinstance(given, str) and given in OBJECTIVES:
        return OBJECTIVES[given]()
    names = ", ".join(map(repr, OBJECTIVES))
    raise ValueError(f"objective must be one of {names} or an Objective, got {given!r}")


def describe_objective(objective: Objective) -> dict[str, Any]:
    """Describe an objective as ``{"name": ..., "settings": {...}}``, ready for JSON."""
    for name, kind in OBJECTIVES.items():
        if type(objective) is kind:
            return {"name": name, "settings": objective.get_params(deep=False)}
    raise ModelFileError(
        f"{type(objective).__name__} is not in extremax.objectives.OBJECTIVES, so a saved model "
        "could not be loaded again; add the class to OBJECTIVES before saving"
    )


def restore_objective(description: Mapping[str, Any]) -> Objective:
    """Create the objective that `describe_objective` described."""
    name, settings = description.get("name"), description.get("settings")
    if not isinstance(name, str) or name not in OBJECTIVES or not isinstance(settings, dict):
        names = ", ".join(map(repr, OBJECTIVES))
        raise ModelFileError(
            f"expected the name of an objective ({names}) and its settings, got {description!r}"
        )
    try:
        return OBJECTIVES[name](**settings)
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"invalid settings of the objective {name!r}: {error}") from error


__all__ = [
    "NCE",
    "OBJECTIVES",
    "AugmentReduce",
    "AugmentReduceLogistic",
    "AugmentReduceProbit",
    "ExactSoftmax",
    "NegativeSampling",
    "Objective",
    "OneVsEach",
    "Pairs",
    "SampledSoftmax",
    "describe_objective",
    "fit_exact",
    "make_objective",
    "restore_objective",
]
