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

    # Draws among the other classes ---------------------------------------------------------------

    @abstractmethod
    def _sample_tree_others(
        self, context: Any, labels: torch.Tensor, m: int, stream: Stream
    ) -> tuple[Draw, torch.Tensor]:
        """Draws from the tree without the label, and log(1 − q_y) of the tree in float64, (n, 1).

        Labels are −1 where the label is no class of the tree.
        """

    @abstractmethod
    def _log_tree_others(self, context: Any, labels: torch.Tensor) -> torch.Tensor:
        """log(1 − q_y) of the tree, as `_sample_tree_others` returns it."""

    def _in_tree(self, labels: torch.Tensor) -> torch.Tensor:
        """Labels, −1 for every late class."""
        return torch.where(labels >= self.n_tree_classes_, -1, labels).contiguous()

    def _log_masses(
        self, labels: torch.Tensor, log_others: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """log q of the tree's classes together and of the late ones, the label left out."""
        n_late = self.n_late_ - (labels >= self.n_tree_classes_).double()
        return log_others + self.log_share_, torch.log(n_late / self.n_classes_)

    def _sample_others(self, context: Any, labels: torch.Tensor, m: int, stream: Stream) -> Draw:
        draw, log_others = self._sample_tree_others(context, self._in_tree(labels), m, stream)
        if not self.n_late_:
            return draw
        log_tree, log_late = self._log_masses(labels, log_others)
        log_total = torch.logaddexp(log_tree, log_late)
        # As in `_with_late_draws`, numbers that no walk uses.
        uniform = torch.from_numpy(stream.uniform(65 * m)[:, 64 * m :])
        share, is_late_label = (log_late - log_total).exp(), labels >= self.n_tree_classes_
        is_late = uniform < share
        n_choices = self.n_late_ - is_late_label.long()
        chosen = (torch.where(is_late, uniform / share, 0.0) * n_choices).long()
        late = self.n_tree_classes_ + torch.minimum(chosen, n_choices - 1)
        late += is_late_label & (late >= labels)
        log_q_tree = draw.log_q.double() + log_tree - log_total
        log_q = torch.where(is_late, -math.log(self.n_classes_) - log_total, log_q_tree)
        return Draw(torch.where(is_late, late, draw.labels), log_q.float())

    def log_prob_others(
        self, context: Any, labels: torch.Tensor, others: torch.Tensor
    ) -> torch.Tensor:
        log_others = self._log_tree_others(context, self._in_tree(labels))
        log_total = torch.logaddexp(*self._log_masses(labels, log_others))
        return (self.log_prob(context, others).double() - log_total).float()

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
