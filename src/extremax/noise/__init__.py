"""Noise distributions q(y|x). A new one is a file here and a line in ``NOISES``."""

from extremax.noise.base import Draw, Noise
from extremax.noise.bigram import BigramNoise
from extremax.noise.fourier import FourierNoise
from extremax.noise.frequency import FrequencyNoise
from extremax.noise.kernel import QuadraticNoise, QuarticNoise
from extremax.noise.log_uniform import LogUniformNoise
from extremax.noise.mixture import MixtureNoise
from extremax.noise.softmax import SoftmaxNoise
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

__all__ = [
    "NOISES",
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
    "TreeNoise",
    "UniformNoise",
]
