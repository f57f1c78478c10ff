"""Classes that appear after a tree was fitted: they are added beside it.

Late classes share the probability n_late/C equally; the tree's own classes keep their proportions.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch

from extremax.errors import ArgumentError
from extremax.noise.base import Draw, Noise
from extremax.random import Stream
from extremax.tensors import Tensors


class TreeWithLateClasses(Noise):
    """A noise tree, and classes that appeared after its fit.

    Methods turn q over the classes of the tree, which come first, into q over all classes.
    """

    #: Classes that the tree was fitted to.
    n_tree_classes_: int

    @property
    def n_late_(self) -> int:
        """Number of classes that appeared after the fit."""
        return self.n_classes_ - self.n_tree_classes_

    @property
    def log_share_(self) -> float:
        """log of the probability of all of the tree's own classes."""
        return math.log(self.n_tree_classes_ / self.n_classes_)

    def _with_late_draws(self, draw: Draw, stream: Stream) -> Draw:
        """Draws of the tree, some of them replaced by late classes."""
        if not self.n_late_:
            return draw
        # A walk uses numbers 0..64m−1 of a row's stream; late classes use the next ones.
        m = draw.labels.shape[1]
        uniform = torch.from_numpy(stream.uniform(65 * m)[:, 64 * m :])
        scaled = (uniform * self.n_classes_).long()
        is_late = scaled >= self.n_tree_classes_
        labels = torch.where(is_late, scaled, draw.labels)
        return Draw(labels, self._with_late(draw.log_q, labels))

    def _inside(self, labels: torch.Tensor) -> torch.Tensor:
        """Labels with class 0 in place of every late class, for the tree to look up."""
        return torch.where(labels >= self.n_tree_classes_, 0, labels).contiguous()

    def _with_late(self, log_q: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """log q of labels, given the tree's log q of `_inside`."""
        if not self.n_late_:
            return log_q
        is_late = labels >= self.n_tree_classes_
        return torch.where(is_late, -math.log(self.n_classes_), log_q + self.log_share_)

    def check_state(self, tensors: Tensors, n_classes: int, n_features: int) -> None:
        super().check_state(tensors, n_classes, n_features)
        n_tree = len(tensors.permutation("order"))
        if not 1 <= n_tree <= n_classes:
            raise ArgumentError(f"order has {n_tree} classes, expected 1 to {n_classes}")


class BinaryTreeNoise(TreeWithLateClasses):
    """A tree in the layout of `extremax.kernels.cpu.tree`: all that a search through it reads."""

    nodes_: torch.Tensor
    order_: torch.Tensor
    sharpness_: float

    @abstractmethod
    def context(self, features: Any) -> torch.Tensor:
        """z, (n, k)."""
