"""Time per step of `ExtremeSoftmax`, exact cross-entropy and adaptive softmax on the CPU.

A step is the forward pass, the backward pass (including the hidden states) and the optimizer of the
output layer: `RowAdagrad` for ours, torch's Adagrad for the others. Ours is sampled softmax with
uniform noise in two forms, m = 100 shared across the batch and m = 20 per example; ratios use the
slower form. Adaptive softmax uses the faster of two settings of its cutoffs, and labels follow
Zipf's law, the case it is designed for. Each time is the best of its repetitions with one torch
thread or with all threads, whichever is faster: waiting torch threads spin, so on a busy machine a
small step is much slower with two threads than with one.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import numpy as np
import torch
from _common import arguments, finish, say, timed
from torch import nn

from extremax.kernels.cpu import threads
from extremax.nn import ExtremeSoftmax, RowAdagrad

# Batch, largest number of classes, hidden units.
SIZES = ("--rows", "256", "--classes", "1000000", "--features", "256")
KEYS = ("1e4", "1e5", "1e6")
SHARED, PER_EXAMPLE = 100, 20
# The head of the adaptive softmax and its first cluster end at 1/these of the classes.
CUTOFFS = ((100, 10), (50, 5))


class Batches:
    """New hidden states and labels for every step; the label of rank r has p ∝ 1/r."""

    def __init__(self, n_rows: int, n_features: int, n_classes: int) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.shape, self.n_classes = (n_rows, n_features), n_classes

    def __call__(self) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.randn(self.shape, generator=self.generator)
        uniform = torch.rand(self.shape[0], generator=self.generator, dtype=torch.float64)
        rank = torch.exp(uniform * np.log(self.n_classes + 1.0)).long() - 1
        return hidden.requires_grad_(), rank.clamp(max=self.n_classes - 1)


def ours(n_features: int, n_classes: int, m: int, shared: bool) -> tuple[Callable, object]:
    m = min(m, n_classes - 1)
    layer = ExtremeSoftmax(n_features, n_classes, noise="uniform", n_negatives=m, shared=shared)
    return layer, RowAdagrad(layer.parameters(), lr=0.01)


def exact(n_features: int, n_classes: int) -> tuple[Callable, object]:
    layer, loss = nn.Linear(n_features, n_classes), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adagrad(layer.parameters(), lr=0.01)
    return lambda hidden, target: loss(layer(hidden), target), optimizer


def adaptive(n_features: int, n_classes: int, parts: tuple[int, int]) -> tuple[Callable, object]:
    cutoffs = sorted({max(1 + i, n_classes // part) for i, part in enumerate(parts)})
    layer = nn.AdaptiveLogSoftmaxWithLoss(n_features, n_classes, cutoffs)
    optimizer = torch.optim.Adagrad(layer.parameters(), lr=0.01)
    return lambda hidden, target: layer(hidden, target).loss, optimizer


def best_step(method: tuple[Callable, object], batches: Batches, budget: float, most: int) -> float:
    """Seconds of the fastest step within the budget, with all threads and with one."""
    loss_of, optimizer = method
    best = float("inf")
    for n_threads in sorted({threads.available(), 1}, reverse=True):
        torch.set_num_threads(n_threads)
        spent, done = 0.0, 0
        while not done or (spent < budget and done < most):
            hidden, target = batches()

            def step(hidden: torch.Tensor = hidden, target: torch.Tensor = target) -> None:
                optimizer.zero_grad(set_to_none=True)
                loss_of(hidden, target).backward()
                optimizer.step()

            seconds = timed(step)
            best, spent, done = min(best, seconds), spent + seconds, done + 1
    return best


def main() -> None:
    given = arguments(__doc__, {}, [*SIZES, *sys.argv[1:]])
    budget, most = (0.7, 40) if given.quick else (8.0, 300)
    classes = [max(3, given.classes // part) for part in (100, 10, 1)]
    ms: dict[str, dict[str, float]] = {}
    headline: dict[str, float] = {}
    for key, n in zip(KEYS, classes, strict=True):
        sizes = (given.features, n)
        makers = {
            "shared": lambda s=sizes: ours(*s, SHARED, True),
            "each": lambda s=sizes: ours(*s, PER_EXAMPLE, False),
            "exact": lambda s=sizes: exact(*s),
        }
        for parts in CUTOFFS:
            makers[f"adaptive 1/{parts[0]} 1/{parts[1]}"] = lambda s=sizes, p=parts: adaptive(*s, p)
        times: dict[str, float] = {}
        for name, make in makers.items():
            # One method at a time: exact softmax over 10⁶ classes takes 8 GB.
            batches = Batches(given.rows, given.features, n)
            times[name] = 1e3 * best_step(make(), batches, budget, most)
            say(f"{n:>9,} classes, {name}: {times[name]:,.2f} ms per step")
            gc.collect()
        slower = max(times["shared"], times["each"])
        headline[f"speedup_{key}"] = times["exact"] / slower
        if key == "1e5":
            best = min(time for name, time in times.items() if name.startswith("adaptive"))
            headline["over_adaptive_1e5"] = best / slower
        ms[key] = times
    for name, value in headline.items():
        say(f"{name}: {value:.1f}")
    finish(
        given,
        headline,
        {"ms_a_step": ms},
        {"numbers_of_classes": classes, "m_shared": SHARED, "m_each": PER_EXAMPLE},
    )


if __name__ == "__main__":
    main()
