"""A training step on a GPU: examples per second of our kernels and of what one would use instead.

Steps of negative sampling with one negative per example, drawn uniformly, K = 512 features in
float32 that lie on the GPU. Draws, the gathering of rows and the optimizer are inside the clock.
Ours: `extremax.kernels.gpu`, also replayed as a CUDA graph, which the figures at the top do not
count. Peer: torch's ``Embedding(sparse=True)`` with ``Adagrad``.

ns_over_torch           at C = 217,240 and a batch of 65,536, both with an accumulator per weight
ns_million_per_s        ours there, in millions of examples per second; _1e7 with C = 10⁷
roofline_share          26 KiB per example × examples per second ÷ copy bandwidth, at C = 10⁷ and
                        the best batch
row_bf16_million_per_s  an accumulator per class and weights in bfloat16, C = 217,240, best batch

and of the torch layer, through autograd, see `_gpu_layer.py`:

layer_ns_over_torch     negative sampling, m = 1, over torch's, the smallest of three batches
ss100_over_exact        sampled softmax, m = 100 per example, batch 8,192, over cut-cross-entropy
shared_over_exact_256   sampled softmax, m = 1,024 shared, batch 256, over the fastest exact peer

    python benchmarks/gpu_step.py
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from typing import Any

import _gpu_exact
import _gpu_layer
import _gpu_topk
import torch
from _common import finish, say

WIDTH = 512
CLASSES, MANY = 217_240, 10_000_000
BATCHES = (256, 8_192, 65_536, 262_144, 524_288)
N_ROWS = 1 << 20
#: 13 rows of K floats: three to score, two of x and four of each of w and A to update.
BYTES = 13 * 4 * WIDTH


def seconds(step: Callable[[], Any], repetitions: int) -> float:
    """The median of three timings of some steps, per step."""
    for _ in range(3):
        step()
    found = []
    for _ in range(3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repetitions):
            step()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / 1e3 / repetitions)
    return sorted(found)[1]


def captured(step: Callable[[], Any]) -> Callable[[], Any]:
    """The step as a graph that is replayed."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def bandwidth() -> float:
    """Bytes per second of a copy, read and written."""
    source = torch.randn(1 << 30, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), 10)


class Problem:
    """Rows on the GPU and the numbers and labels of a batch, new ones in every step."""

    def __init__(self, n_classes: int, batch: int, device: str = "cuda") -> None:
        self.n_classes, self.batch, self.device = n_classes, batch, device
        self.features = torch.randn((N_ROWS, WIDTH), device=device)
        self.labels = torch.randint(n_classes, (N_ROWS,), device=device)

    def rows(self) -> torch.Tensor:
        return torch.randint(N_ROWS, (self.batch,), device=self.device)

    def classes(self, rows: torch.Tensor) -> torch.Tensor:
        """The true class and one drawn class of each example."""
        drawn = torch.randint(self.n_classes, (self.batch,), device=self.device)
        return torch.stack([self.labels[rows], drawn], 1)


def ours(problem: Problem, dtype: torch.dtype, one_per_row: bool) -> Callable[[], Any]:
    from extremax.kernels.gpu import head

    n, device = problem.n_classes, problem.device
    vectors = head.Vectors(
        torch.zeros((n, WIDTH), device=device, dtype=dtype),
        torch.ones((n,) if one_per_row else (n, WIDTH), device=device),
        torch.zeros(n, device=device),
        torch.ones(n, device=device),
    )
    log_q = torch.full((problem.batch, 2), -math.log(n), device=device)
    form = (0.0, 0.0, 1.0, 1.0, 0.0)

    def step() -> None:
        rows = problem.rows()
        classes = problem.classes(rows)
        inputs = head.Inputs(problem.features, rows, 1.0)
        _, gradient = head.logistic_pairs(vectors, inputs, classes, log_q, None, form)
        head.update_rows(head.group_by_class(classes), vectors, inputs, gradient, 0.01)

    return step


def torch_embedding(problem: Problem) -> Callable[[], Any]:
    device = problem.device
    weight = torch.nn.Embedding(problem.n_classes, WIDTH, sparse=True, device=device)
    bias = torch.nn.Embedding(problem.n_classes, 1, sparse=True, device=device)
    parameters = [*weight.parameters(), *bias.parameters()]
    optimizer = torch.optim.Adagrad(parameters, lr=0.01, initial_accumulator_value=1.0)
    sign = torch.tensor([1.0, -1.0], device=device)

    def step() -> None:
        rows = problem.rows()
        classes = problem.classes(rows)
        x = problem.features[rows]
        scores = (weight(classes) @ x[:, :, None])[:, :, 0] + bias(classes)[:, :, 0]
        optimizer.zero_grad(set_to_none=True)
        (-torch.nn.functional.logsigmoid(scores * sign).sum()).backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one batch size")
    given = parser.parse_args()
    given.busy_before = os.getloadavg()[0]
    if not torch.cuda.is_available():
        raise SystemExit("gpu_step needs a GPU, and torch finds none")
    copies = bandwidth()
    say(f"copy bandwidth {copies / 1e9:,.0f} GB/s")
    figures: dict[str, dict[str, float]] = {"bandwidth_gb_per_s": {"copy": copies / 1e9}}

    def measured(name: str, n_classes: int, make: Callable[[Problem], Callable]) -> None:
        for batch in BATCHES[2:3] if given.quick else BATCHES:
            problem = Problem(n_classes, batch)
            step = make(problem)
            rate = batch / seconds(step, 20 if batch < 65_536 else 10) / 1e6
            figures.setdefault(name, {})[f"{n_classes} {batch}"] = rate
            line = f"{name}, C = {n_classes:,}, batch {batch:,}: {rate:.2f} M examples/s"
            if "torch" not in name:
                replayed = batch / seconds(captured(step), 20 if batch < 65_536 else 10) / 1e6
                figures.setdefault(f"{name}, graph", {})[f"{n_classes} {batch}"] = replayed
                line += f", as a graph {replayed:.2f}"
            say(line)
            del problem, step
            torch.cuda.empty_cache()

    measured("torch", CLASSES, torch_embedding)
    for n_classes in (CLASSES, MANY):
        measured("float32", n_classes, lambda p: ours(p, torch.float32, False))
    measured("row accumulators", CLASSES, lambda p: ours(p, torch.float32, True))
    measured("row accumulators, bfloat16", CLASSES, lambda p: ours(p, torch.bfloat16, True))
    at = f"{CLASSES} 65536"
    best_many = max(v for k, v in figures["float32"].items() if k.startswith(f"{MANY} "))
    headline = {
        "ns_over_torch": figures["float32"][at] / figures["torch"][at],
        "ns_million_per_s": figures["float32"][at],
        "ns_million_per_s_1e7": best_many,
        "roofline_share": BYTES * best_many * 1e6 / copies,
        "row_bf16_million_per_s": max(figures["row accumulators, bfloat16"].values()),
    }
    headline |= _gpu_layer.measure(seconds, captured, figures)
    headline |= _gpu_exact.exact_over_cce(seconds, figures)
    headline["topk_over_torch"], more = _gpu_topk.topk_over_torch(seconds)
    figures |= more
    finish(given, headline, figures, data="synthetic")


if __name__ == "__main__":
    main()
