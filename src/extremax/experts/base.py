"""The contract of a further expert: evidence for a few classes of each row, to be blended in.

    logits = … + Σ_e d_e log(1 + v_y/ε),

v_y >= 0 the expert's evidence for class y, which is zero for most classes, and ε what counts as
little. `extremax.prediction.blend` owns the formula; held-out rows give the weight d.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from extremax.rows import Needs, Rows, Sizes
from extremax.tensors import Tensors


class Expert(ABC):
    """Evidence for classes, learned from examples by counting rather than by steps."""

    #: ε, the evidence that counts as little.
    little: float
    #: Whether it keeps training rows, which may be confidential.
    keeps_rows: bool = False

    @classmethod
    def suits(cls, sizes: Sizes) -> bool:
        """Whether it is worth its time on a problem of this size."""
        return True

    @abstractmethod
    def learn(self, rows: Rows, labels: np.ndarray, n_classes: int) -> None:
        """Add these examples to what is known; classes may be new."""

    def examples(self, length: float) -> tuple[Rows, np.ndarray] | None:
        """All examples learned, if it keeps them: rows, scaled to this length, and labels."""
        return None

    @abstractmethod
    def add_to(self, logits: torch.Tensor, rows: Rows, weight: float) -> None:
        """Add weight · log(1 + v/ε) to the logits of every class, (n, C), in place."""

    @abstractmethod
    def at(self, rows: Rows, classes: torch.Tensor) -> torch.Tensor:
        """log(1 + v/ε) of classes[i, j], same shape; 0 for −1, no class."""

    @abstractmethod
    def reach(self, rows: Rows) -> torch.Tensor:
        """A number for each row, (n,), that grows with the evidence for all classes together. It
        must cost less than the evidence itself."""

    @abstractmethod
    def extend(self, n_classes: int) -> None:
        """Make room for classes that appear later."""

    @classmethod
    @abstractmethod
    def needs(cls, sizes: Sizes) -> Needs:
        """Bytes of an expert for a problem of this size."""

    @abstractmethod
    def state(self) -> dict[str, torch.Tensor]:
        """Everything learned."""

    @classmethod
    @abstractmethod
    def validate(cls, tensors: Tensors, n_classes: int, n_features: int) -> None:
        """Check a state that comes from a file before anything of it reaches a kernel."""

    @classmethod
    @abstractmethod
    def restore(cls, state: dict[str, torch.Tensor]) -> Expert:
        """The expert that `state` came from; the state has been validated."""
