"""Classes that appear after a tree was fitted: they hang beside it.

Together they get the share of probability that their number has among all classes, evenly.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from extremax.noise.base import Draw
from extremax.random import Stream


class Late(NamedTuple):
    """So many classes are in the tree, and so many are there in all."""

    n_tree: int
    n_classes: int

    @property
    def any(self) -> bool:
        return self.n_classes > self.n_tree

    @property
    def log_share(self) -> float:
        """log of the share of probability that the tree's own classes have."""
        return math.log(self.n_tree / self.n_classes)

    def draws(self, draw: Draw, stream: Stream) -> Draw:
        """Draws of the tree, some of them replaced by late classes."""
        if not self.any:
            return draw
        # A walk uses numbers 0..64m−1 of a row's stream; the late branch uses the next ones.
        m = draw.labels.shape[1]
        uniform = torch.from_numpy(stream.uniform(65 * m)[:, 64 * m :])
        scaled = (uniform * self.n_classes).long()
        late = scaled >= self.n_tree
        return Draw(
            torch.where(late, scaled, draw.labels),
            torch.where(late, -math.log(self.n_classes), draw.log_q + self.log_share),
        )

    def inside(self, labels: torch.Tensor) -> torch.Tensor:
        """Labels that the tree can be asked for: some class of its own in place of a late one."""
        return torch.where(labels >= self.n_tree, 0, labels).contiguous()

    def log_prob(self, log_q: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """What the tree said of `inside`, made that of the labels."""
        if not self.any:
            return log_q
        late = labels >= self.n_tree
        return torch.where(late, -math.log(self.n_classes), log_q + self.log_share)
