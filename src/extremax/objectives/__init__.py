"""Training objectives. A new one is a file here and a line in ``OBJECTIVES``."""

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
    "fit_exact",
]
