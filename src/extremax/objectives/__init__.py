"""Training objectives: one file per loss and one line per loss in ``OBJECTIVES``."""

from __future__ import annotations

from typing import Any

from extremax.named import describe_named, make_named
from extremax.objectives.augment_reduce import AugmentReduce
from extremax.objectives.augment_reduce_noise import AugmentReduceLogistic, AugmentReduceProbit
from extremax.objectives.base import Objective, Pairs, given_others, shared_draw_weights
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


def make_objective(given: str | Objective | dict[str, Any]) -> Objective:
    """Create an objective from its name in ``OBJECTIVES``, with or without parameters, or from
    `describe_objective`'s result, or clone an objective.

    >>> make_objective("nce(regularization=0.01)")
    NCE(regularization=0.01)
    >>> make_objective({"objective": "nce", "regularization": 0.01})
    NCE(regularization=0.01)
    """
    return make_named(Objective, OBJECTIVES, given)


def describe_objective(objective: Objective) -> dict[str, Any]:
    """Name and parameters of an objective as a JSON object, for `make_objective`."""
    return describe_named(Objective, OBJECTIVES, objective, objective.get_params(deep=False))


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
    "given_others",
    "make_objective",
    "shared_draw_weights",
]
