"""Training objectives. A new one is a file here and a line in ``OBJECTIVES``."""

from extremax.objectives.base import Objective
from extremax.objectives.exact import fit_exact
from extremax.objectives.negative_sampling import NegativeSampling

OBJECTIVES: dict[str, type[Objective]] = {"negative_sampling": NegativeSampling}

__all__ = ["OBJECTIVES", "NegativeSampling", "Objective", "fit_exact"]
