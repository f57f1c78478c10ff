"""Tree noise on the device of the hidden states: all walks of a block descend together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from extremax.nn.inversion import Random, blocks, draw, uniform
from extremax.noise import TreeNoise


class Step(NamedTuple):
    """One step of all walks of a block down a tree.

    middle:      (n, m), where the range of leaves of each walk is split.
    activation:  (n, m), log-odds of turning right.
    inner:       (n, m), whether a range still has two classes.
    """

    level: int
    middle: Tensor
    activation: Tensor
    inner: Tensor


class Tree:
    """`TreeNoise`; all walks of a block descend together (`extremax.kernels.cpu.tree`)."""

    def __init__(self, noise: TreeNoise, weight: Tensor, bias: Tensor | None) -> None:
        device = weight.device
        self.nodes = noise.soft_nodes_.to(device)
        self.order, self.position = noise.order_.to(device), noise.position_.to(device)
        self.mean = noise.pca_.mean_.to(device)
        self.projection = noise.pca_.projection_.to(device)
        self.depth = math.ceil(math.log2(max(len(noise.order_), 1)))

    def sample(self, hidden: Tensor, m: int, generator: Random) -> Tensor:
        def goes_right(step: Step) -> Tensor:
            return _turns_right(step.activation, generator)

        contexts = self._contexts(hidden, m)
        return torch.cat([self.order[self._descend(z, m, goes_right)] for _, z in contexts])

    def log_prob(self, hidden: Tensor, classes: Tensor) -> Tensor:
        contexts = self._contexts(hidden, classes.shape[1])
        return torch.cat([self._log_prob(z, self.position[classes[rows]]) for rows, z in contexts])

    def _log_prob(self, z: Tensor, leaves: Tensor) -> Tensor:
        total = torch.zeros(leaves.shape, device=z.device)

        def goes_right(step: Step) -> Tensor:
            right = leaves >= step.middle
            signed = torch.where(right, step.activation, -step.activation)
            total.add_(torch.where(step.inner, logsigmoid(signed), 0.0))
            return right

        self._descend(z, leaves.shape[1], goes_right)
        return total

    def sample_others(self, hidden: Tensor, target: Tensor, m: int, generator: Random) -> Tensor:
        """Each walk chooses the level at which it leaves the target's path; below, it is free."""
        classes = []
        for rows, z in self._contexts(hidden, m):
            leaf = self.position[target[rows]]
            cumulative = torch.softmax(self._log_leaving(z, leaf).double(), 1).cumsum(1)
            leaving = draw(cumulative, (len(z), m), generator)
            goes_right = partial(_beside, leaf, leaving, generator)
            classes.append(self.order[self._descend(z, m, goes_right)])
        return torch.cat(classes)

    def log_prob_others(self, hidden: Tensor, target: Tensor, classes: Tensor) -> Tensor:
        log_leaving = torch.cat([
            self._log_leaving(z, self.position[target[rows]])
            for rows, z in self._contexts(hidden, 1)
        ])  # fmt: skip
        return self.log_prob(hidden, classes) - log_leaving.logsumexp(1, keepdim=True)

    def _log_leaving(self, z: Tensor, leaf: Tensor) -> Tensor:
        """Log-probability of leaving the path to a leaf (n, 1) at each level, (n, depth)."""
        stayed = torch.zeros(leaf.shape, device=z.device)
        levels = []

        def goes_right(step: Step) -> Tensor:
            right = leaf >= step.middle
            signed = torch.where(right, step.activation, -step.activation)
            levels.append(torch.where(step.inner, stayed + logsigmoid(-signed), -torch.inf))
            stayed.add_(logsigmoid(signed))
            return right

        self._descend(z, 1, goes_right)
        return torch.cat(levels, 1)

    def _contexts(self, hidden: Tensor, m: int) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of rows, small enough for m nodes per row, and the projections of the rows."""
        z = (hidden.detach().float() - self.mean) @ self.projection
        return ((rows, z[rows]) for rows in blocks(len(z), m * self.nodes.shape[1]))

    def _descend(self, z: Tensor, m: int, goes_right: Callable[[Step], Tensor]) -> Tensor:
        """The leaves, (n, m), that m walks per row reach.

        goes_right:  which walks turn right.
        """
        low = torch.zeros((len(z), m), dtype=torch.int64, device=z.device)
        high = torch.full_like(low, len(self.order))
        for level in range(self.depth):
            middle, inner = low + (high - low) // 2, high - low > 1
            node = self.nodes[middle]
            activation = torch.einsum("nmk,nk->nm", node[..., :-1], z) + node[..., -1]
            right = goes_right(Step(level, middle, activation, inner))
            low = torch.where(inner & right, middle, low)
            high = torch.where(inner & ~right, middle, high)
        return low


def _turns_right(activation: Tensor, generator: Random) -> Tensor:
    """True with probability σ(activation)."""
    return uniform(tuple(activation.shape), generator) < torch.sigmoid(activation)


def _beside(leaf: Tensor, leaving: Tensor, generator: Random, step: Step) -> Tensor:
    """Turns of walks that follow the path to a leaf (n, 1) and leave it at a level (n, m)."""
    toward = leaf >= step.middle
    free = _turns_right(step.activation, generator)
    return torch.where(step.level > leaving, free, toward ^ (step.level == leaving))
