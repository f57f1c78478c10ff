"""Softmax classification when there are too many classes for softmax.

One idea: every method is an objective times a noise distribution over one head.
The head scores classes, the noise proposes a few of them and knows the log-probability
of whatever it proposes, the objective turns their scores into a gradient and says how
trained scores become softmax logits.

Names below are imported when first used, so that ``import extremax`` costs nothing:
torch and numba are loaded by the first object that needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from extremax._version import __version__

if TYPE_CHECKING:
    from extremax import discrete, nn
    from extremax.classifier import ExtremeClassifier

_HOME = {"ExtremeClassifier": "extremax.classifier"}
_MODULES = ("discrete", "nn")

__all__ = ["ExtremeClassifier", "__version__", "discrete", "nn"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _MODULES:
        return import_module(f"extremax.{name}")
    raise AttributeError(f"module 'extremax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
