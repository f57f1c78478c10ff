"""Classes that appear after a tree was fitted: they are added beside it.

Late classes share the probability n_late/C equally; the tree's own classes keep their proportions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from extremax.noise.base import Draw, Noise, check_growth
from extremax.random import Stream


class Late(NamedTuple):
    """Turns q over the classes of a tree into q over all classes.

    n_tree:     classes in the tree, which come first.
    n_classes:  all classes.
    """

    n_tree: int
    n_classes: int

    @property
    def any(self) -> bool:
        return self.n_classes > self.n_tree

    @property
    def log_share(self) -> float:
        """log of the probability of all of the tree's own classes."""
        return math.log(self.n_tree / self.n_classes)

    def draws(self, draw: Draw, stream: Stream) -> Draw:
        """Draws of the tree, some of them replaced by late classes."""
        if not self.any:
            return draw
        # A walk uses numbers 0..64m−1 of a row's stream; late classes use the next ones.
        m = draw.labels.shape[1]
        uniform = torch.from_numpy(stream.uniform(65 * m)[:, 64 * m :])
        scaled = (uniform * self.n_classes).long()
        late = scaled >= self.n_tree
        return Draw(
            torch.where(late, scaled, draw.labels),
            torch.where(late, -math.log(self.n_classes), draw.log_q + self.log_share),
        )

    def inside(self, labels: torch.Tensor) -> torch.Tensor:
        """Labels with class 0 in place of every late class, for the tree to look up."""
        return torch.where(labels >= self.n_tree, 0, labels).contiguous()

    def log_prob(self, log_q: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """log q of labels, given the tree's log q of `inside`."""
        if not self.any:
            return log_q
        late = labels >= self.n_tree
        return torch.where(late, -math.log(self.n_classes), log_q + self.log_share)


class TreeWithLateClasses(Noise):
    """A noise tree, and classes that appeared after its fit."""

    #: Classes that the tree was fitted to.
    n_tree_classes_: int

    @property
    def late(self) -> Late:
        return Late(self.n_tree_classes_, self.n_classes_)

    @property
    def n_late_(self) -> int:
        """Number of classes that appeared after the fit."""
        return self.n_classes_ - self.n_tree_classes_

    def extend(self, n_classes: int) -> None:
        check_growth(self, n_classes)
        self.n_classes_ = n_classes
