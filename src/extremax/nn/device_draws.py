"""Noises drawn where the hidden states are, with no trip to the CPU.

The same q as on the CPU, written in torch's own operations; other random numbers. Quartic noise
alone differs: here it is ∝ ξ⁴ + 1 exactly, there by a bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from extremax.noise import (
    FrequencyNoise,
    MixtureNoise,
    Noise,
    QuadraticNoise,
    QuarticNoise,
    SoftmaxNoise,
    TreeNoise,
    UniformNoise,
)

# Bytes that a block of rows takes: gathered nodes of a tree, or scores of all classes.
_BLOCK_BYTES = 256 << 20


class DeviceNoise(Protocol):
    """q(y|h) for rows h (n, F) on a device."""

    def sample(self, hidden: Tensor, m: int, generator: torch.Generator) -> Tensor:
        """(n, m) classes."""

    def log_prob(self, hidden: Tensor, classes: Tensor) -> Tensor:
        """(n, j) for classes (n, j)."""


class Table:
    """A fixed q: C thresholds and aliases (Walker 1977), and log q."""

    def __init__(self, noise: UniformNoise | FrequencyNoise, device: torch.device) -> None:
        self.n_classes, self.device = noise.n_classes_, device
        self.log_q = noise.log_prob_all(torch.empty((1, 0)))[0].to(device)
        self.threshold: Tensor | None = None
        if isinstance(noise, FrequencyNoise):
            self.threshold = torch.from_numpy(noise._threshold).to(device)
            self.alias = torch.from_numpy(noise._alias).to(device)

    def sample(self, hidden: Tensor, m: int, generator: torch.Generator) -> Tensor:
        shape = (len(hidden), m)
        classes = torch.randint(self.n_classes, shape, generator=generator, device=self.device)
        if self.threshold is not None:
            uniform = _uniform(shape, generator)
            classes = torch.where(uniform < self.threshold[classes], classes, self.alias[classes])
        return classes

    def log_prob(self, hidden: Tensor, classes: Tensor) -> Tensor:
        return self.log_q[classes]


class Tree:
    """`TreeNoise`, all walks of a block going down together (`extremax.kernels.cpu.tree`)."""

    def __init__(self, noise: TreeNoise, device: torch.device) -> None:
        self.nodes = noise._soft.to(device)
        self.order, self.position = noise.order_.to(device), noise.position_.to(device)
        self.mean = noise.pca_.mean_.to(device)
        self.projection = noise.pca_.projection_.to(device)
        self.depth = math.ceil(math.log2(max(len(noise.order_), 1)))

    def sample(self, hidden: Tensor, m: int, generator: torch.Generator) -> Tensor:
        z, classes = self._context(hidden), []
        for rows in _blocks(len(z), m * self.nodes.shape[1]):
            own = z[rows]
            low, high = self._root(len(own), m)
            for _ in range(self.depth):
                middle, a, inside = self._split(own, low, high)
                uniform = torch.rand(a.shape, generator=generator, device=a.device)
                low, high = _descended(low, middle, high, uniform < torch.sigmoid(a), inside)
            classes.append(self.order[low])
        return torch.cat(classes)

    def log_prob(self, hidden: Tensor, classes: Tensor) -> Tensor:
        z, results = self._context(hidden), []
        for rows in _blocks(len(z), classes.shape[1] * self.nodes.shape[1]):
            own, leaf = z[rows], self.position[classes[rows]]
            low, high = self._root(*leaf.shape)
            total = torch.zeros(leaf.shape, device=z.device)
            for _ in range(self.depth):
                middle, a, inside = self._split(own, low, high)
                right = leaf >= middle
                step = torch.nn.functional.logsigmoid(torch.where(right, a, -a))
                total += torch.where(inside, step, 0.0)
                low, high = _descended(low, middle, high, right, inside)
            results.append(total)
        return torch.cat(results)

    def _context(self, hidden: Tensor) -> Tensor:
        return (hidden.detach().float() - self.mean) @ self.projection

    def _root(self, n: int, m: int) -> tuple[Tensor, Tensor]:
        low = torch.zeros((n, m), dtype=torch.int64, device=self.nodes.device)
        return low, torch.full_like(low, len(self.order))

    def _split(self, z: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Where the ranges split, the activations there, and whether there is anything to split."""
        middle = low + (high - low) // 2
        node = self.nodes[middle]
        a = torch.einsum("nmk,nk->nm", node[..., :-1], z) + node[..., -1]
        return middle, a, high - low > 1


class Scores:
    """A noise that follows its layer, from the scores of all classes: O(C) a row, but a product
    of matrices, and no tree to keep up to date. float64, for sums over 10⁶ classes."""

    def __init__(self, noise: Noise, weight: Tensor, bias: Tensor | None) -> None:
        self.noise, self.weight, self.bias = noise, weight, bias

    def sample(self, hidden: Tensor, m: int, generator: torch.Generator) -> Tensor:
        classes = []
        for log_mass in self._log_masses(hidden):
            cumulative = torch.softmax(log_mass, 1).cumsum(1)
            uniform = _uniform((len(log_mass), m), generator)
            found = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
            classes.append(found.clamp(max=log_mass.shape[1] - 1))
        return torch.cat(classes)

    def log_prob(self, hidden: Tensor, classes: Tensor) -> Tensor:
        results, at = [], 0
        for log_mass in self._log_masses(hidden):
            own = classes[at : at + len(log_mass)]
            results.append(torch.log_softmax(log_mass, 1).gather(1, own).float())
            at += len(log_mass)
        return torch.cat(results)

    def _log_masses(self, hidden: Tensor) -> Iterator[Tensor]:
        weight, bias = self.weight.detach(), self.bias
        hidden = hidden.detach().to(weight.dtype)
        for rows in _blocks(len(hidden), 4 * len(weight)):
            scores = hidden[rows] @ weight.T
            scores = (scores if bias is None else scores + bias.detach()).double()
            if isinstance(self.noise, QuadraticNoise):
                scores = torch.log1p(self.noise.alpha * scores.square())
            elif isinstance(self.noise, QuarticNoise):
                scores = torch.log1p(scores.square().square())
            yield scores


class Mixture:
    """Each part makes its share of the draws, as on the CPU; log q is that of the mixture."""

    def __init__(self, parts: list[DeviceNoise], noise: MixtureNoise, device: torch.device) -> None:
        self.parts, self.noise = parts, noise
        self.log_weights = torch.from_numpy(noise._log_weights).to(device)

    def sample(self, hidden: Tensor, m: int, generator: torch.Generator) -> Tensor:
        own, chances, n_left = self.noise._shares(m)
        pairs = list(zip(self.parts, own.tolist(), strict=True))
        drawn = [part.sample(hidden, n, generator) for part, n in pairs if n]
        below = torch.from_numpy(np.cumsum(chances)[:-1]).to(hidden.device)
        for _ in range(n_left):
            each = torch.cat([part.sample(hidden, 1, generator) for part in self.parts], 1)
            chosen = torch.searchsorted(below, _uniform((len(hidden), 1), generator), right=True)
            drawn.append(each.gather(1, chosen))
        return torch.cat(drawn, 1)

    def log_prob(self, hidden: Tensor, classes: Tensor) -> Tensor:
        each = torch.stack([part.log_prob(hidden, classes) for part in self.parts], -1)
        return torch.logsumexp(each + self.log_weights.float(), -1)


def device_noise(noise: Noise, weight: Tensor, bias: Tensor | None) -> DeviceNoise | None:
    """The noise on the device of the weight; None where it can only be drawn on the CPU."""
    # The very classes: one derived from them may draw otherwise.
    kind, device = type(noise), weight.device
    if kind in (UniformNoise, FrequencyNoise):
        return Table(noise, device)
    if kind is TreeNoise and not noise.n_late_:
        return Tree(noise, device)
    if kind in (QuadraticNoise, QuarticNoise, SoftmaxNoise):
        return Scores(noise, weight, bias)
    if isinstance(noise, MixtureNoise) and kind is MixtureNoise:
        parts = [device_noise(part, weight, bias) for part in noise.parts_]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            return Mixture(known, noise, device)
    return None


def _blocks(n: int, floats_a_row: int) -> Iterator[slice]:
    size = max(1, _BLOCK_BYTES // (4 * max(floats_a_row, 1)))
    for start in range(0, n, size):
        yield slice(start, start + size)


def _uniform(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """float64, for the tails of a distribution over 10⁶ classes."""
    return torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)


def _descended(
    low: Tensor, middle: Tensor, high: Tensor, right: Tensor, inside: Tensor
) -> tuple[Tensor, Tensor]:
    """The half that was taken, where there was one to take."""
    return torch.where(inside & right, middle, low), torch.where(inside & ~right, middle, high)
