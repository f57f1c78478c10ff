"""Noise distributions q(y|x). A new one is a file here and a line in ``NOISES``; `base` is the
contract, `search` that of a sublinear search."""

from extremax.noise.base import Context, Draw, Noise
from extremax.noise.bigram import BigramNoise
from extremax.noise.fourier import FourierNoise
from extremax.noise.frequency import FrequencyNoise
from extremax.noise.kernel import QuadraticNoise, QuarticWalkNoise
from extremax.noise.log_uniform import LogUniformNoise
from extremax.noise.mixture import MixtureNoise
from extremax.noise.registry import (
    NOISES,
    describe_noise,
    incompatibility,
    make_noise,
    noise_name,
    paired_objective,
    with_components,
    with_seed,
)
from extremax.noise.softmax import QuarticNoise, SoftmaxNoise
from extremax.noise.sparse_tree import SparseTreeNoise
from extremax.noise.tree import TreeNoise
from extremax.noise.uniform import UniformNoise

NOISES |= {
    "tree": TreeNoise,
    "sparse_tree": SparseTreeNoise,
    "uniform": UniformNoise,
    "frequency": FrequencyNoise,
    "log_uniform": LogUniformNoise,
    "bigram": BigramNoise,
    "quadratic": QuadraticNoise,
    "quartic": QuarticNoise,
    "quartic_walk": QuarticWalkNoise,
    "fourier": FourierNoise,
    "softmax": SoftmaxNoise,
    "mixture": MixtureNoise,
}

__all__ = [
    "NOISES",
    "BigramNoise",
    "Context",
    "Draw",
    "FourierNoise",
    "FrequencyNoise",
    "LogUniformNoise",
    "MixtureNoise",
    "Noise",
    "QuadraticNoise",
    "QuarticNoise",
    "QuarticWalkNoise",
    "SoftmaxNoise",
    "SparseTreeNoise",
    "TreeNoise",
    "UniformNoise",
    "describe_noise",
    "incompatibility",
    "make_noise",
    "noise_name",
    "paired_objective",
    "with_components",
    "with_seed",
]
