"""Top-5 of 8,192 rows over 10⁶ classes on a GPU, ours against torch; part of `gpu_step`.

Ours: `extremax.kernels.gpu.topk`, exact log-probabilities included. Peer: blocks of classes, a
matrix product and ``torch.topk`` each, whose results are merged; no probabilities. The best of
several sizes of blocks counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from _common import say

ROWS, WIDTH, CLASSES, BEST = 8_192, 512, 1_000_000, 5
BLOCKS = (1 << 14, 1 << 16, 1 << 18)
#: Name, type, and torch's precision of products of float32.
PRODUCTS = (
    ("bfloat16", torch.bfloat16, "highest"),
    ("TF32", torch.float32, "high"),
    ("float32", torch.float32, "highest"),
)

#: Seconds per call of what is timed, which is called some times in a row.
Clock = Callable[[Callable[[], Any], int], float]


@contextmanager
def precision(name: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def torch_topk(weight: torch.Tensor, x: torch.Tensor, size: int) -> torch.Tensor:
    """The best classes, (n, k), by blocks of ``size`` classes."""
    values, classes = [], []
    for start in range(0, len(weight), size):
        best = (x @ weight[start : start + size].T).topk(BEST, 1)
        values.append(best.values)
        classes.append(best.indices + start)
    place = torch.cat(values, 1).topk(BEST, 1).indices
    return torch.cat(classes, 1).gather(1, place)


def our_topk(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    from extremax.kernels.gpu.topk import rank_and_score

    none = torch.empty((len(x), 0), dtype=torch.int64, device=x.device)
    return rank_and_score(weight, None, x, 1.0, none, BEST, 1.0)[0]


def peak(work: Callable[[], Any]) -> float:
    """Megabytes that the work needs at most, beside what there was before."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def figures_of(weight: torch.Tensor, x: torch.Tensor, clock: Clock) -> dict[str, float]:
    times = {size: clock(partial(torch_topk, weight, x, size), 1) for size in BLOCKS}
    size = min(times, key=times.__getitem__)
    ours, peer = partial(our_topk, weight, x), partial(torch_topk, weight, x, size)
    seconds = clock(ours, 3)
    return {
        "ms": 1e3 * seconds,
        "torch_ms": 1e3 * times[size],
        "torch_block": size,
        "ratio": times[size] / seconds,
        "same_classes": float((ours() == peer()).float().mean()),
        "peak_mb": peak(ours),
        "torch_peak_mb": peak(peer),
    }


def topk_over_torch(clock: Clock) -> tuple[float, dict[str, dict[str, float]]]:
    """How many times as fast as torch, the worst of `PRODUCTS`, and the figures of each."""
    figures = {}
    for name, dtype, of_products in PRODUCTS:
        generator = torch.Generator("cuda").manual_seed(0)
        weight = torch.randn((CLASSES, WIDTH), device="cuda", generator=generator).to(dtype)
        x = torch.randn((ROWS, WIDTH), device="cuda", generator=generator) / math.sqrt(WIDTH)
        with precision(of_products):
            found = figures_of(weight, x.to(dtype), clock)
        figures[f"top-{BEST}, {name}"] = found
        say(f"top-{BEST}, {name}: {found['ms']:.1f} ms, torch {found['torch_ms']:.1f} ms")
        del weight
    return min(found["ratio"] for found in figures.values()), figures
