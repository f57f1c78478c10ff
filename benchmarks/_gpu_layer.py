"""For `gpu_step.py`: steps of `ExtremeSoftmax` on a GPU, through autograd, against its peers.

A step is forward pass, backward pass to hidden states and parameters, and optimizer; K = 512 and
C = 217,240. Ours runs in float32 with `RowAdagrad`, peers with torch's Adagrad: negative sampling
by ``Embedding(sparse=True)`` in float32, and exact cross-entropy in bfloat16 by torch,
cut-cross-entropy and Liger, where these are installed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from _common import say
from torch import nn
from torch.nn import functional

from extremax.nn import ExtremeSoftmax, RowAdagrad

WIDTH, CLASSES, N_ROWS = 512, 217_240, 1 << 18
BATCHES = (256, 8_192, 65_536)
SAMPLED = {
    "m = 1": {"objective": "negative_sampling", "n_negatives": 1},
    "m = 100": {"objective": "sampled_softmax", "n_negatives": 100},
    "m = 1,024 shared": {"objective": "sampled_softmax", "n_negatives": 1024, "shared": True},
}

Step = Callable[[], Any]


class Data:
    """Hidden states and labels on the GPU; a batch of them, new in every step."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.hidden = torch.randn((N_ROWS, WIDTH), device="cuda", dtype=dtype)
        self.labels = torch.randint(CLASSES, (N_ROWS,), device="cuda")

    def __call__(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.randint(N_ROWS, (n,), device="cuda")
        return self.hidden[rows].requires_grad_(), self.labels[rows]


def step_of(loss_of: Callable, optimizer: torch.optim.Optimizer, data: Data, n: int) -> Step:
    def step() -> None:
        hidden, target = data(n)
        optimizer.zero_grad(set_to_none=True)
        loss_of(hidden, target).backward()
        optimizer.step()

    return step


def layer(data: Data, n: int, **settings: Any) -> Step:
    module = ExtremeSoftmax(WIDTH, CLASSES, noise="uniform", device="cuda", **settings)
    optimizer = RowAdagrad(module.parameters(), lr=0.01, initial_accumulator_value=1.0)
    return step_of(module, optimizer, data, n)


def torch_sampled(data: Data, n: int) -> Step:
    """Negative sampling with one uniform draw per example, the mean over examples as ours."""
    weight = nn.Embedding(CLASSES, WIDTH, sparse=True, device="cuda")
    bias = nn.Embedding(CLASSES, 1, sparse=True, device="cuda")
    parameters = [*weight.parameters(), *bias.parameters()]
    optimizer = torch.optim.Adagrad(parameters, lr=0.01, initial_accumulator_value=1.0)
    sign = torch.tensor([1.0, -1.0], device="cuda")

    def loss_of(hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        drawn = torch.randint(CLASSES, (n,), device="cuda")
        classes = torch.stack([target, drawn], 1)
        scores = (weight(classes) @ hidden[:, :, None])[:, :, 0] + bias(classes)[:, :, 0]
        return -functional.logsigmoid(scores * sign).sum(1).mean()

    return step_of(loss_of, optimizer, data, n)


def exact_losses() -> dict[str, Callable]:
    """Cross-entropy of hidden states, weight and labels, of every peer that is installed."""
    found: dict[str, Callable] = {
        "torch": lambda x, w, y: functional.cross_entropy(functional.linear(x, w), y)
    }
    if find_spec("cut_cross_entropy"):
        from cut_cross_entropy import linear_cross_entropy

        found["cut-cross-entropy"] = linear_cross_entropy
    if find_spec("liger_kernel"):
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

        def liger(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = liger_fused_linear_cross_entropy(x, w, y)
            return loss[0] if isinstance(loss, tuple) else loss

        found["liger"] = liger
    return found


def exact(loss: Callable, data: Data, n: int) -> Step:
    weight = nn.Parameter(0.01 * torch.randn((CLASSES, WIDTH), device="cuda").bfloat16())
    optimizer = torch.optim.Adagrad([weight], lr=0.01, initial_accumulator_value=1.0)
    return step_of(lambda x, y: loss(x, weight, y), optimizer, data, n)


def measure(
    seconds: Callable[[Step, int], float],
    captured: Callable[[Step], Step],
    figures: dict[str, dict[str, float]],
) -> dict[str, float]:
    """Add millions of examples per second to the figures; return the headline.

    seconds:   of a step, timed over a number of repetitions.
    captured:  a step as a CUDA graph.
    """

    def rate(name: str, make: Callable[[], Step], n: int, graph: bool = False) -> float:
        step = make()
        found = n / seconds(step, 30 if n < 8_192 else 10) / 1e6
        figures.setdefault(name, {})[str(n)] = found
        line = f"{name}, batch {n:,}: {found:.3f} M examples/s"
        if graph:
            replayed = n / seconds(captured(step), 30 if n < 8_192 else 10) / 1e6
            figures.setdefault(f"{name}, graph", {})[str(n)] = replayed
            line += f", as a graph {replayed:.3f}"
        say(line)
        del step
        gc.collect()
        torch.cuda.empty_cache()
        return found

    data = Data()
    ratios = []
    for n in BATCHES:
        theirs = rate("torch, hidden states too", lambda n=n: torch_sampled(data, n), n)
        ours = rate("layer, m = 1", lambda n=n: layer(data, n, **SAMPLED["m = 1"]), n, True)
        ratios.append(ours / theirs)
    sampled = {
        (name, n): rate(f"layer, {name}", lambda n=n, m=name: layer(data, n, **SAMPLED[m]), n, True)
        for name in ("m = 100", "m = 1,024 shared")
        for n in (256, 8_192)
    }
    data = Data(torch.bfloat16)
    peers = {
        (name, n): rate(f"exact, {name}", lambda loss=loss, n=n: exact(loss, data, n), n)
        for name, loss in exact_losses().items()
        for n in ((256,) if name == "liger" else (256, 8_192))
    }
    headline = {
        "layer_ns_over_torch": min(ratios),
        "shared_over_exact_256": sampled["m = 1,024 shared", 256]
        / max(peers[key] for key in peers if key[1] == 256),
    }
    if ("cut-cross-entropy", 8_192) in peers:
        headline["ss100_over_exact"] = sampled["m = 100", 8_192] / peers["cut-cross-entropy", 8_192]
    return headline
