"""Softmax classification when there are too many classes for softmax.

One idea: every method is an objective times a noise distribution over one head. The head scores
classes, the noise proposes a few of them and knows the log-probability of whatever it proposes, the
objective turns their scores into a gradient and says how trained scores become softmax logits.

Names below are imported when first used, so that ``import extremax`` costs nothing: torch and numba
are loaded by the first object that needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from extremax._version import __version__

if TYPE_CHECKING:
    from extremax import (
        comparison,
        data,
        diagnostics,
        discrete,
        evaluation,
        experts,
        features,
        heads,
        nn,
        noise,
        objectives,
        planning,
        softmax,
    )
    from extremax.classifier import ExtremeClassifier
    from extremax.recommender import SessionRecommender

__all__ = [
    "ExtremeClassifier",
    "SessionRecommender",
    "__version__",
    "comparison",
    "data",
    "diagnostics",
    "discrete",
    "evaluation",
    "experts",
    "features",
    "heads",
    "nn",
    "noise",
    "objectives",
    "planning",
    "softmax",
]

# The module of each.
_ESTIMATORS = {"ExtremeClassifier": "classifier", "SessionRecommender": "recommender"}


def __getattr__(name: str) -> Any:
    if name in _ESTIMATORS:
        return getattr(import_module(f"extremax.{_ESTIMATORS[name]}"), name)
    if name in __all__:
        return import_module(f"extremax.{name}")
    raise AttributeError(f"module 'extremax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
