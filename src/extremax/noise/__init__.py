"""Noise distributions q(y|x). A new one is a file here and a line in ``NOISES``, and one in
``SPARSE_NOISES`` if it needs no dense features."""

from extremax.noise.base import Draw, Noise
from extremax.noise.bigram import BigramNoise
from extremax.noise.fourier import FourierNoise
from extremax.noise.frequency import FrequencyNoise
from extremax.noise.kernel import QuadraticNoise, QuarticNoise
from extremax.noise.log_uniform import LogUniformNoise
from extremax.noise.mixture import MixtureNoise
from extremax.noise.softmax import SoftmaxNoise
from extremax.noise.sparse_tree import SparseTreeNoise
from extremax.noise.tree import TreeNoise
from extremax.noise.uniform import UniformNoise

NOISES: dict[str, type[Noise]] = {
    "tree": TreeNoise,
    "uniform": UniformNoise,
    "frequency": FrequencyNoise,
    "log_uniform": LogUniformNoise,
    "bigram": BigramNoise,
    "quadratic": QuadraticNoise,
    "quartic": QuarticNoise,
    "fourier": FourierNoise,
    "softmax": SoftmaxNoise,
    "mixture": MixtureNoise,
}

# What these names mean on sparse rows. The others look at dense features.
SPARSE_NOISES: dict[str, type[Noise]] = {
    "tree": SparseTreeNoise,
    "uniform": UniformNoise,
    "frequency": FrequencyNoise,
    "log_uniform": LogUniformNoise,
}

__all__ = [
    "NOISES",
    "SPARSE_NOISES",
    "BigramNoise",
    "Draw",
    "FourierNoise",
    "FrequencyNoise",
    "LogUniformNoise",
    "MixtureNoise",
    "Noise",
    "QuadraticNoise",
    "QuarticNoise",
    "SoftmaxNoise",
    "SparseTreeNoise",
    "TreeNoise",
    "UniformNoise",
]
