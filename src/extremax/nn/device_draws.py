"""Noises sampled on the device of the hidden states, without a round trip to the CPU.

q is the same as on the CPU, computed by torch operations; the random numbers differ. The exception
is quartic noise: here q ∝ ξ⁴ + 1 exactly, while the CPU descends a tree by a bound on that mass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from extremax.noise import (
    FrequencyNoise,
    LogUniformNoise,
    MixtureNoise,
    Noise,
    QuadraticNoise,
    QuarticNoise,
    SoftmaxNoise,
    TreeNoise,
    UniformNoise,
)

# Bytes per block of rows: gathered tree nodes, or scores of all classes.
_BLOCK_BYTES = 256 << 20


class DeviceNoise(Protocol):
    """q(y|h) for rows h (n, F) on a device."""

    def sample(self, hidden: Tensor, m: int, generator: torch.Generator) -> Tensor:
        """Drawn classes, (n, m)."""

    def log_prob(self, hidden: Tensor, classes: Tensor) -> Tensor:
        """log q of classes (n, j), same shape."""


class Table:
    """A noise that does not read rows: one log q per class, drawn by inverting its sums."""

    def __init__(self, noise: Noise, weight: Tensor, bias: Tensor | None) -> None:
        self.log_q = noise.log_prob_all(torch.empty((1, 0)))[0].to(weight.device)
        self.cumulative = self.log_q.double().exp().cumsum(0)

    def sample(self, hidden: Tensor, m: int, generator: torch.Generator) -> Tensor:
        return _draw(self.cumulative, (len(hidden), m), generator)

    def log_prob(self, hidden: Tensor, classes: Tensor) -> Tensor:
        return self.log_q[classes]


class Tree:
    """`TreeNoise`; all walks of a block descend together (`extremax.kernels.cpu.tree`)."""

    def __init__(self, noise: TreeNoise, weight: Tensor, bias: Tensor | None) -> None:
        device = weight.device
        self.nodes = noise.soft_nodes_.to(device)
        self.order, self.position = noise.order_.to(device), noise.position_.to(device)
        self.mean = noise.pca_.mean_.to(device)
        self.projection = noise.pca_.projection_.to(device)
        self.depth = math.ceil(math.log2(max(len(noise.order_), 1)))

    def sample(self, hidden: Tensor, m: int, generator: torch.Generator) -> Tensor:
        def goes_right(middle: Tensor, activation: Tensor, inner: Tensor) -> Tensor:
            uniform = torch.rand(middle.shape, generator=generator, device=middle.device)
            return uniform < torch.sigmoid(activation)

        blocks = self._contexts(hidden, m)
        return torch.cat([self.order[self._descend(z, m, goes_right)] for _, z in blocks])

    def log_prob(self, hidden: Tensor, classes: Tensor) -> Tensor:
        blocks = self._contexts(hidden, classes.shape[1])
        return torch.cat([self._log_prob(z, self.position[classes[rows]]) for rows, z in blocks])

    def _log_prob(self, z: Tensor, leaves: Tensor) -> Tensor:
        total = torch.zeros(leaves.shape, device=z.device)

        def goes_right(middle: Tensor, activation: Tensor, inner: Tensor) -> Tensor:
            right = leaves >= middle
            signed = torch.where(right, activation, -activation)
            total.add_(torch.where(inner, torch.nn.functional.logsigmoid(signed), 0.0))
            return right

        self._descend(z, leaves.shape[1], goes_right)
        return total

    def _contexts(self, hidden: Tensor, m: int) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of rows, small enough for m nodes per row, and the projections of the rows."""
        z = (hidden.detach().float() - self.mean) @ self.projection
        return ((rows, z[rows]) for rows in _blocks(len(z), m * self.nodes.shape[1]))

    def _descend(self, z: Tensor, m: int, goes_right: Callable[..., Tensor]) -> Tensor:
        """The leaves, (n, m), that m walks per row reach.

        goes_right:  which walks turn right, from the middles of their ranges of leaves, the
                     activations there, and whether a range still has two classes.
        """
        low = torch.zeros((len(z), m), dtype=torch.int64, device=z.device)
        high = torch.full_like(low, len(self.order))
        for _ in range(self.depth):
            middle, inner = low + (high - low) // 2, high - low > 1
            node = self.nodes[middle]
            activation = torch.einsum("nmk,nk->nm", node[..., :-1], z) + node[..., -1]
            right = goes_right(middle, activation, inner)
            low = torch.where(inner & right, middle, low)
            high = torch.where(inner & ~right, middle, high)
        return low


def _tree(noise: TreeNoise, weight: Tensor, bias: Tensor | None) -> Tree | None:
    """None if classes were added after the fit: they are not in the tree."""
    return None if noise.n_late_ else Tree(noise, weight, bias)


class Scores:
    """A noise that follows its layer, from the scores of all classes.

    O(C) per row, but a matrix product, and no tree to keep up to date. float64 for sums over 10⁶
    classes.

    log_mass:  log of the unnormalized q, from the noise and its scores.
    """

    def __init__(
        self, log_mass: Callable[[Any, Tensor], Tensor], noise: Noise, weight: Tensor,
        bias: Tensor | None,
    ) -> None:  # fmt: skip
        self.log_mass, self.noise, self.weight, self.bias = log_mass, noise, weight, bias

    def sample(self, hidden: Tensor, m: int, generator: torch.Generator) -> Tensor:
        classes = []
        for _, log_mass in self._log_masses(hidden):
            cumulative = torch.softmax(log_mass, 1).cumsum(1)
            classes.append(_draw(cumulative, (len(log_mass), m), generator))
        return torch.cat(classes)

    def log_prob(self, hidden: Tensor, classes: Tensor) -> Tensor:
        return torch.cat([
            torch.log_softmax(log_mass, 1).gather(1, classes[rows]).float()
            for rows, log_mass in self._log_masses(hidden)
        ])  # fmt: skip

    def _log_masses(self, hidden: Tensor) -> Iterator[tuple[slice, Tensor]]:
        weight = self.weight.detach()
        hidden = hidden.detach().to(weight.dtype)
        for rows in _blocks(len(hidden), 4 * len(weight)):
            scores = hidden[rows] @ weight.T
            if self.bias is not None:
                scores = scores + self.bias.detach()
            yield rows, self.log_mass(self.noise, scores.double())


class Mixture:
    """Each part makes its share of the draws, as on the CPU; log q is that of the mixture."""

    def __init__(self, noise: MixtureNoise, parts: list[DeviceNoise], device: torch.device) -> None:
        self.noise, self.parts = noise, parts
        self.log_weights = torch.as_tensor(noise.log_weights_, dtype=torch.float32, device=device)

    def sample(self, hidden: Tensor, m: int, generator: torch.Generator) -> Tensor:
        counts, chances, n_left = self.noise.shares(m)
        pairs = zip(self.parts, counts.tolist(), strict=True)
        drawn = [part.sample(hidden, n, generator) for part, n in pairs if n]
        cumulative = torch.from_numpy(np.cumsum(chances)).to(hidden.device)
        for _ in range(n_left):
            candidates = torch.cat([part.sample(hidden, 1, generator) for part in self.parts], 1)
            chosen = _draw(cumulative, (len(hidden), 1), generator)
            drawn.append(candidates.gather(1, chosen))
        return torch.cat(drawn, 1)

    def log_prob(self, hidden: Tensor, classes: Tensor) -> Tensor:
        log_q = torch.stack([part.log_prob(hidden, classes) for part in self.parts], -1)
        return torch.logsumexp(log_q + self.log_weights, -1)


def _mixture(noise: MixtureNoise, weight: Tensor, bias: Tensor | None) -> Mixture | None:
    """None if a part has no form for the device."""
    forms = [device_noise(part, weight, bias) for part in noise.parts_]
    parts = [form for form in forms if form is not None]
    return Mixture(noise, parts, weight.device) if len(parts) == len(forms) else None


#: Device forms by the class of the noise; other noises, subclasses included, draw on the CPU.
DEVICE_FORMS: dict[type[Noise], Callable[[Any, Tensor, Tensor | None], DeviceNoise | None]] = {
    UniformNoise: Table,
    FrequencyNoise: Table,
    LogUniformNoise: Table,
    TreeNoise: _tree,
    SoftmaxNoise: partial(Scores, lambda noise, scores: scores),
    QuadraticNoise: partial(
        Scores, lambda noise, scores: torch.log1p(noise.alpha * scores.square())
    ),
    QuarticNoise: partial(Scores, lambda noise, scores: torch.log1p(scores.square().square())),
    MixtureNoise: _mixture,
}


def device_noise(noise: Noise, weight: Tensor, bias: Tensor | None) -> DeviceNoise | None:
    """The noise on the device of the weight, or None if it can only be sampled on the CPU."""
    form = DEVICE_FORMS.get(type(noise))
    return None if form is None else form(noise, weight, bias)


def _blocks(n: int, floats_per_row: int) -> Iterator[slice]:
    size = max(1, _BLOCK_BYTES // (4 * max(floats_per_row, 1)))
    for start in range(0, n, size):
        yield slice(start, start + size)


def _draw(cumulative: Tensor, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Indices with probabilities in proportion to the increments of ``cumulative``."""
    # float64, for the tails of distributions over 10⁶ classes.
    uniform = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
    indices = torch.searchsorted(cumulative, uniform * cumulative[..., -1:], right=True)
    return indices.clamp(max=cumulative.shape[-1] - 1)
