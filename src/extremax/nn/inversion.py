"""Draws by inverting cumulative sums, in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch import Tensor

# Bytes per block of rows: gathered tree nodes, or scores of all classes.
_BLOCK_BYTES = 256 << 20


class StepRandom:
    """Random numbers of one step of a layer on a GPU, from its seed and the number of the step,
    which lies on the device; see `extremax.kernels.gpu.draws`."""

    def __init__(self, seed: int, step: Tensor) -> None:
        self.seed, self.step, self.device = seed, step, step.device
        self._n_calls = 0

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        """Random numbers in [0, 1), in float64, new ones in every call."""
        from extremax.kernels.gpu import draws

        self._n_calls += 1
        return draws.uniform(shape, draws.Clock(self.seed, self.step), self._n_calls)


#: Where random numbers come from.
Random: TypeAlias = torch.Generator | StepRandom


def blocks(n: int, floats_per_row: int) -> Iterator[slice]:
    size = max(1, _BLOCK_BYTES // (4 * max(floats_per_row, 1)))
    for start in range(0, n, size):
        yield slice(start, start + size)


def uniform(shape: tuple[int, ...], generator: Random) -> Tensor:
    """Random numbers in [0, 1), in float64 for the tails of distributions over 10⁶ classes."""
    if isinstance(generator, StepRandom):
        return generator.uniform(shape)
    return torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)


def draw(cumulative: Tensor, shape: tuple[int, int], generator: Random) -> Tensor:
    """Indices with probabilities in proportion to the increments of ``cumulative``."""
    # A product with a number below one is less than the last sum: no index without increment.
    return locate(cumulative, uniform(shape, generator) * cumulative[..., -1:])


def locate(cumulative: Tensor, positions: Tensor) -> Tensor:
    """Indices of the increments of ``cumulative`` that contain the positions."""
    indices = torch.searchsorted(cumulative, positions, right=True)
    return indices.clamp(max=cumulative.shape[-1] - 1)
