"""For `gpu_step.py`: exact softmax on a GPU, ours against cut-cross-entropy.

A step is forward pass, backward pass to hidden states and weight, and torch's Adagrad; bfloat16,
no bias, K = 512, a batch of 8,192. Sums run in float32, and gradients are stored in bfloat16.
cut-cross-entropy leaves out gradients that it deems too small to matter, as is its default; the
figure without that stands beside it. Peaks are of forward and backward pass, weight and gradient
included.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from _common import say
from torch import nn

from extremax.nn import ExtremeSoftmax

WIDTH, BATCH = 512, 8_192
CLASSES = (217_240, 1_000_000)


def ours(n_classes: int) -> tuple[Callable, nn.Parameter]:
    layer = ExtremeSoftmax(
        WIDTH, n_classes, "exact", bias=False, device="cuda", dtype=torch.bfloat16
    )
    return layer, layer.weight


def theirs(n_classes: int, **options: Any) -> tuple[Callable, nn.Parameter]:
    from cut_cross_entropy import linear_cross_entropy

    weight = nn.Parameter(0.04 * torch.randn((n_classes, WIDTH), device="cuda").bfloat16())
    return lambda x, y: linear_cross_entropy(x, weight, y, **options), weight


def measured(
    make: Callable, n_classes: int, seconds: Callable[[Callable, int], float]
) -> tuple[float, float]:
    """Millions of examples per second, and the peak in MiB."""
    gc.collect()
    torch.cuda.empty_cache()
    loss_of, weight = make(n_classes)
    hidden = torch.randn((BATCH, WIDTH), device="cuda", dtype=torch.bfloat16)
    target = torch.randint(n_classes, (BATCH,), device="cuda")

    def passes() -> None:
        weight.grad = None
        loss_of(hidden.detach().requires_grad_(), target).backward()

    passes()
    weight.grad = None
    torch.cuda.reset_peak_memory_stats()
    passes()
    peak = torch.cuda.max_memory_allocated() / 2**20
    optimizer = torch.optim.Adagrad([weight], lr=0.01, initial_accumulator_value=1.0)

    def step() -> None:
        passes()
        optimizer.step()

    return BATCH / seconds(step, 10) / 1e6, peak


def exact_over_cce(
    seconds: Callable[[Callable, int], float], figures: dict[str, dict[str, float]]
) -> dict[str, float]:
    """Add speeds and peaks to the figures; return the headline, the worse of both sizes."""
    contenders = {"extremax": ours}
    if find_spec("cut_cross_entropy"):
        contenders["cut-cross-entropy"] = theirs
        contenders["cut-cross-entropy, all gradients"] = partial(theirs, filter_eps=None)
    for n_classes in CLASSES:
        for name, make in contenders.items():
            rate, peak = measured(make, n_classes, seconds)
            figures.setdefault(f"exact step, {name}", {})[str(n_classes)] = rate
            figures.setdefault(f"exact peak MiB, {name}", {})[str(n_classes)] = peak
            say(f"exact, {name}, C = {n_classes:,}: {rate:.3f} M examples/s, peak {peak:,.0f} MiB")
    if len(contenders) == 1:
        return {}

    def ratios(what: str) -> list[float]:
        mine, other = (figures[f"exact {what}, {who}"] for who in ("extremax", "cut-cross-entropy"))
        return [mine[key] / other[key] for key in mine]

    return {
        "exact_over_cce": min(ratios("step")),
        "exact_peak_over_cce": max(ratios("peak MiB")),
    }
