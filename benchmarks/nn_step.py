"""Step time of `ExtremeSoftmax` against exact cross-entropy and adaptive softmax, on the CPU.

A step is forward, backward (into the hidden states as well) and the optimiser of the output layer,
Adagrad for all: `RowAdagrad` for ours, torch's for the others. Ours is sampled softmax with
uniform noise in two forms, m = 100 shared across the batch and m = 20 for each example; ratios are
those of the slower form. Adaptive softmax has the faster of two settings of its cutoffs. Labels
follow Zipf's law, which is the case adaptive softmax is made for. Every time is
the best of its repetitions with one torch thread or all, whichever is faster: torch's threads spin
while they wait, so that on a busy machine a small step is far slower with two than with one.
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
SHARED, EACH = 100, 20
# The head of the adaptive softmax and its first cluster end at these parts of the classes.
CUTOFFS = ((100, 10), (50, 5))


class Batches:
    """Hidden states and labels of rank r with p ∝ 1/r, new ones every step."""

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
    layer = ExtremeSoftmax(n_features, n_classes, n_samples=m, shared=shared)
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


def best_step(made: tuple[Callable, object], batches: Batches, budget: float, most: int) -> float:
    """Seconds of the fastest step, of as many as fit the budget, with all threads and with one."""
    loss_of, optimizer = made
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
            "each": lambda s=sizes: ours(*s, EACH, False),
            "exact": lambda s=sizes: exact(*s),
        }
        for parts in CUTOFFS:
            makers[f"adaptive 1/{parts[0]} 1/{parts[1]}"] = lambda s=sizes, p=parts: adaptive(*s, p)
        found: dict[str, float] = {}
        for name, make in makers.items():
            # One at a time: exact softmax over 10⁶ classes takes 8 GB.
            batches = Batches(given.rows, given.features, n)
            found[name] = 1e3 * best_step(make(), batches, budget, most)
            say(f"{n:>9,} classes, {name}: {found[name]:,.2f} ms a step")
            gc.collect()
        slower = max(found["shared"], found["each"])
        headline[f"speedup_{key}"] = found["exact"] / slower
        if key == "1e5":
            best = min(ms for name, ms in found.items() if name.startswith("adaptive"))
            headline["over_adaptive_1e5"] = best / slower
        ms[key] = found
    for name, value in headline.items():
        say(f"{name}: {value:.1f}")
    finish(
        given,
        headline,
        {"ms_a_step": ms},
        {"numbers_of_classes": classes, "m_shared": SHARED, "m_each": EACH},
    )


if __name__ == "__main__":
    main()
