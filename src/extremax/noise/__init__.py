"""Noise distributions q(y|x). A new one is a file here and a line in ``NOISES``."""

from extremax.noise.base import Draw, Noise
from extremax.noise.frequency import FrequencyNoise
from extremax.noise.tree import TreeNoise
from extremax.noise.uniform import UniformNoise

NOISES: dict[str, type[Noise]] = {
    "tree": TreeNoise,
    "uniform": UniformNoise,
    "frequency": FrequencyNoise,
}

__all__ = ["NOISES", "Draw", "FrequencyNoise", "Noise", "TreeNoise", "UniformNoise"]
