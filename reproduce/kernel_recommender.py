"""Proposal distributions for sampled softmax in a recommender: the next item of a session.

After the recommender of Blanc & Rendle, "Adaptive sampled softmax with kernel based sampling",
ICML 2018, on other data: a network reads the latest items of a shopping session (diginetica,
43,097 items) and predicts the next one. Final loss and recall@20 against the number m of sampled
items, for uniform, quadratic, quartic and softmax proposals.

    python reproduce/kernel_recommender.py --data DIR --output RUNS --device cuda --jobs 6
    python reproduce/kernel_recommender.py --report RUNS
    python reproduce/kernel_recommender.py --quick --output RUNS  # synthetic sessions

DIR/diginetica holds train_sessions.txt.xz, a session a line, and test_prefix_target.txt.xz, items
of a prefix, a tab, the next item. Finished runs are kept in RUNS; started again, the script does
the missing ones.
"""

from __future__ import annotations

import argparse
import functools
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _common import Cell, read_results
from _proposals import (
    Task,
    arguments,
    cells,
    check,
    draw_by_m,
    draw_curves,
    output_layer,
    report_coverage,
    run_all,
    table,
    train,
)
from torch import Tensor, nn

NOISES = ("uniform", "quadratic", "quartic", "softmax")
NEGATIVES, REPEATED = (10, 40, 160, 640), (40,)
FILE = "kernel_recommender.jsonl"
# Latest items that are read, examples in a step, held-out examples of the curves, and the k of
# recall@k.
LATEST, BATCH, HELD_OUT, TOP = 10, 1_024, 10_000, 20


class Prefixes(NamedTuple):
    """Items before (n, LATEST), the latest first, and the items that follow (n,)."""

    before: Tensor
    target: Tensor


class Sessions(NamedTuple):
    train: Prefixes
    valid: Prefixes
    test: Prefixes
    n_items: int


def prefixes(sessions: list[np.ndarray], n_items: int, last_only: bool = False) -> Prefixes:
    """Each item but the first of a session with those before it; n_items where there are none.

    last_only:  only the last item of each session.
    """
    lengths = np.array([len(session) for session in sessions])
    items, ends = np.concatenate(sessions), np.cumsum(lengths)
    starts = np.repeat(ends - lengths, lengths)
    positions = ends - 1 if last_only else np.flatnonzero(np.arange(len(items)) > starts)
    ages = np.arange(1, LATEST + 1)
    sources = positions[:, None] - ages
    before = np.where(sources >= starts[positions, None], items[sources], n_items)
    return Prefixes(torch.from_numpy(before), torch.from_numpy(items[positions]))


def read_lines(path: Path) -> list[np.ndarray]:
    """Lines of item numbers, from 0."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [np.array(line.split(), np.int64) - 1 for line in lines]


def synthetic(n: int, generator: np.random.Generator) -> list[np.ndarray]:
    """Sessions of items of one kind, ten of the 300 items a kind."""
    kinds = 10 * generator.integers(30, size=n)
    return [kind + generator.integers(10, size=generator.integers(3, 8)) for kind in kinds]


@functools.cache
def sessions_of(data: Path | None) -> Sessions:
    """The test prefixes, and a twentieth of the training sessions held out for the curves."""
    generator = np.random.default_rng(0)
    if data is not None:
        folder = data / "diginetica"
        sessions = read_lines(folder / "train_sessions.txt.xz")
        test = read_lines(folder / "test_prefix_target.txt.xz")
    else:
        sessions, test = synthetic(4_000, generator), synthetic(400, generator)
    n_items = 1 + max(int(session.max()) for session in [*sessions, *test])
    order = generator.permutation(len(sessions))
    n_held_out = len(sessions) // 20
    held_out, rest = ([sessions[i] for i in part] for part in np.split(order, [n_held_out]))
    return Sessions(
        prefixes(rest, n_items),
        Prefixes(*(part[:HELD_OUT] for part in prefixes(held_out, n_items))),
        prefixes(test, n_items, last_only=True),
        n_items,
    )


class NextItem(Task):
    """Two layers over the vector of the last item and the mean of those of the latest items."""

    before: Tensor
    target: Tensor

    def __init__(self, sessions: Sessions, cell: Cell) -> None:
        super().__init__()
        n_items, units = sessions.n_items, cell["units"]
        self.embedding = nn.Embedding(n_items + 1, units, padding_idx=n_items, sparse=True)
        nn.init.uniform_(self.embedding.weight[:n_items], -0.1, 0.1)
        self.network = nn.Sequential(
            nn.Linear(2 * units, 2 * units), nn.ReLU(), nn.Linear(2 * units, units)
        )
        self.output = output_layer(cell["noise"], cell["m"], units, n_items)
        self.output.start_bias(sessions.train.target)
        self.sessions, self.n_items = sessions, n_items
        self.generator = torch.Generator().manual_seed(cell["seed"])
        self.register_buffer("before", sessions.train.before, persistent=False)
        self.register_buffer("target", sessions.train.target, persistent=False)

    def forward(self, before: Tensor) -> Tensor:
        vectors = self.embedding(before)
        n_read = (before != self.n_items).sum(1, keepdim=True)
        return self.network(torch.cat([vectors[:, 0], vectors.sum(1) / n_read], 1))

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        chosen = torch.randint(len(self.target), (BATCH,), generator=self.generator)
        chosen = chosen.to(self.target.device)
        return self(self.before[chosen]), self.target[chosen], None

    def validation_loss(self) -> float:
        return self._mean(self.sessions.valid, self._losses)

    def test(self) -> dict[str, float]:
        test = self.sessions.test
        measures = {"loss": self._losses, f"recall@{TOP}": self._hits}
        return {name: self._mean(test, measure) for name, measure in measures.items()}

    def _losses(self, hidden: Tensor, target: Tensor) -> Tensor:
        return -self.output.log_prob(hidden, target)

    def _hits(self, hidden: Tensor, target: Tensor) -> Tensor:
        return (self.output.topk(hidden, TOP).labels == target[:, None]).any(1)

    def _mean(self, examples: Prefixes, measure: Callable[[Tensor, Tensor], Tensor]) -> float:
        """The mean of a measure of hidden states and targets."""
        parts = [part.to(self.target.device).split(4_096) for part in examples]
        sums = [
            measure(self(before), target).double().sum()
            for before, target in zip(*parts, strict=True)
        ]
        return float(torch.stack(sums).sum()) / len(examples.target)


def run(cell: Cell, data: Path | None, device: str) -> dict[str, Any]:
    torch.manual_seed(cell["seed"])
    return train(NextItem(sessions_of(data), cell).to(device), cell)


def report(options: argparse.Namespace) -> None:
    records = list(read_results(options.report / FILE).values())
    print(report_coverage(records, cells(options)) + "\n")
    print("Test loss in nats, ± standard error and (seeds) where there are several:\n")
    print(table(records, "loss", 3) + "\n")
    recall = f"recall@{TOP}"
    print(f"Recall@{TOP}:\n")
    print(table(records, recall, 3) + "\n")
    titles = {"loss": "test loss, nats", recall: recall}
    draw_by_m(options.images / "kernel_recommender.png", records, titles)
    draw_curves(records, options.images, "kernel_recommender")


def options_of(given: list[str] | None = None) -> argparse.Namespace:
    made = arguments(__doc__.splitlines()[0], NOISES, NEGATIVES, REPEATED, steps=2_000)
    options = made.parse_args(given)
    check(options, made)
    return options


def main() -> None:
    options = options_of()
    if options.report is not None:
        report(options)
        return
    sizes = {"units": 16, "rate": 1e-2} if options.quick else {"units": 64, "rate": 4e-3}
    work = functools.partial(run, data=options.data, device=options.device)
    run_all(work, cells(options, **sizes), options.output / FILE, options)


if __name__ == "__main__":
    main()
