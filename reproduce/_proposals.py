"""Shared by kernel_sampling.py and kernel_recommender.py: cells, training, tables and pictures."""

from __future__ import annotations

import argparse
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import Cell, coverage, group, markdown_table, parser, picture, run_cells, spread
from torch import Tensor, nn

from extremax.nn import ExtremeSoftmax, RowAdam
from extremax.noise import NOISES, BigramNoise
from extremax.objectives import SampledSoftmax

#: Names of noises in the paper that have others here.
OURS = {"unigram": "frequency"}
#: The references: all classes at every step, with logits ξ and |ξ|.
FULL, FULL_ABSOLUTE = "full softmax", "full softmax of |ξ|"
#: Noises in tables and pictures.
ORDER = ("uniform", "unigram", "bigram", "quadratic", "quartic", "softmax", FULL, FULL_ABSOLUTE)
#: Nats above full softmax in the picture of what is near it.
NEAR = 0.35
# Points of a convergence curve.
_POINTS = 12
_CLIP = 0.25
Line = tuple[np.ndarray, np.ndarray, np.ndarray]
Records = Sequence[dict[str, Any]]


def is_even(noise: str) -> bool:
    """Whether a noise has p ∝ exp|ξ|."""
    kind = NOISES.get(OURS.get(noise, noise))
    return noise == FULL_ABSOLUTE or (kind is not None and kind().is_even)


def output_layer(noise: str, m: int, units: int, n_classes: int) -> ExtremeSoftmax:
    if noise == FULL:
        return ExtremeSoftmax(units, n_classes, "exact")
    if noise == FULL_ABSOLUTE:
        # `Task.loss` takes log p of all classes; there are no draws.
        return ExtremeSoftmax(units, n_classes, SampledSoftmax(absolute=True), n_negatives=1)
    given = BigramNoise() if noise == "bigram" else OURS.get(noise, noise)
    return ExtremeSoftmax(units, n_classes, "sampled_softmax", given, m)


# Training -------------------------------------------------------------------------------------


class Task(nn.Module):
    """A network, the data it learns from, and its output layer."""

    embedding: nn.Embedding
    output: ExtremeSoftmax

    @abstractmethod
    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Hidden states, targets, and what the noise reads instead of hidden states."""

    @abstractmethod
    def validation_loss(self) -> float:
        """Exact mean −log p."""

    @abstractmethod
    def test(self) -> dict[str, float]:
        """Exact mean −log p as "loss", and other measures."""

    def loss(self, step: int, noise: str) -> Tensor:
        hidden, target, context = self.batch(step)
        if noise == FULL_ABSOLUTE:
            return -self.output.log_prob(hidden, target).mean()
        return self.output(hidden, target, context)


def train(task: Task, cell: Cell) -> dict[str, Any]:
    """The curve of the validation loss, the final measures, and seconds until the curve ends.

    Adam with a rate that falls to zero.
    """
    rows = [task.embedding.weight, *task.output.parameters()]
    others = [p for p in task.parameters() if all(p is not row for row in rows)]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(others), RowAdam(rows)]
    steps, seconds, begun = cell["steps"], 0.0, time.perf_counter()
    looks = {round(steps * (i + 1) / _POINTS) for i in range(_POINTS)}
    curve = []
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
            for parameters in optimizer.param_groups:
                parameters["lr"] = cell["rate"] * (1.0 - step / steps)
        task.loss(step, cell["noise"]).backward()
        nn.utils.clip_grad_norm_(others, _CLIP)
        for optimizer in optimizers:
            optimizer.step()
        if step + 1 in looks:
            task.eval()
            with torch.no_grad():
                loss = task.validation_loss()
                # Now, because reading the loss has waited for the device.
                seconds += time.perf_counter() - begun
                curve.append((step + 1, loss))
                final = task.test() if step + 1 == steps else {}
            task.train()
            begun = time.perf_counter()
    return {"curve": curve, **final, "seconds": round(seconds, 2)}


# Cells ----------------------------------------------------------------------------------------


def arguments(
    description: str, noises: Sequence[str], negatives: Sequence[int], repeated: Sequence[int],
    steps: int,
) -> argparse.ArgumentParser:  # fmt: skip
    made = parser(description)
    made.add_argument("--data", type=Path, help="folder with the data sets")
    made.add_argument("--device", default="cpu")
    made.add_argument("--steps", type=int, default=steps, help="training steps of every run")
    made.add_argument("--noises", nargs="+", choices=noises, default=list(noises))
    made.add_argument("--negatives", nargs="+", type=int, default=list(negatives), help="m")
    made.add_argument(
        "--repeated", nargs="*", type=int, default=list(repeated),
        help="the m with --seeds repetitions, as full softmax has; the others have one",
    )  # fmt: skip
    return made


def check(options: argparse.Namespace, made: argparse.ArgumentParser) -> None:
    """Refuse what is missing, and set the sizes of --quick."""
    if options.report is None and options.output is None:
        made.error("--output or --report must be given")
    if options.report is None and options.data is None and not options.quick:
        made.error("--data must name the folder with the data sets, unless --quick is given")
    if options.quick:
        options.data, options.steps = None, 60
        options.negatives, options.repeated, options.seeds = [5, 20], [20], 2


def cells(options: argparse.Namespace, **common: Any) -> Iterator[Cell]:
    """One repetition of everything first; expensive cells before cheap ones."""
    common |= {"steps": options.steps, "quick": options.quick}
    for seed in range(options.seeds):
        for noise in (FULL, FULL_ABSOLUTE):
            yield {"noise": noise, "m": 0, "seed": seed} | common
        for m in sorted(options.negatives, reverse=True):
            for noise in options.noises if seed == 0 or m in options.repeated else ():
                yield {"noise": noise, "m": m, "seed": seed} | common


def run_all(
    work: Callable[[Cell], dict[str, Any]], wanted: Iterable[Cell], file: Path,
    options: argparse.Namespace,
) -> None:  # fmt: skip
    deadline = time.monotonic() + options.stop_after
    for record in run_cells(work, wanted, file, options.jobs, deadline):
        cell, result = record["cell"], record["result"]
        measures = ", ".join(f"{k} {v:.3f}" for k, v in result.items() if k != "curve")
        print(f"{cell['noise']} m={cell['m']} seed={cell['seed']}: {measures}")


# Report ---------------------------------------------------------------------------------------


def report_coverage(records: Records, wanted: Iterable[Cell]) -> str:
    """How many runs there are, and how many are missing at each m."""

    def name(cell: Cell) -> str:
        return f"m = {cell['m']}" if cell["m"] else cell["noise"]

    return coverage((name(r["cell"]) for r in records), map(name, wanted))


def by_noise(records: Records) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Results by noise and m, in the order of `ORDER`."""
    groups = group(records, "noise", "m")
    return {key: groups[key] for key in sorted(groups, key=lambda k: (ORDER.index(k[0]), k[1]))}


def table(records: Records, measure: str, digits: int, exponential: bool = False) -> str:
    """A measure by noise and m, and in the last column of full softmax with the same logits.

    The number of seeds is in parentheses where there are several.
    """
    found = {}
    for key, results in by_noise(records).items():
        values = [math.exp(r[measure]) if exponential else r[measure] for r in results]
        seeds = f" ({len(values)})" if len(values) > 1 else ""
        found[key] = spread(values).text(digits) + seeds
    sizes = sorted({m for _, m in found if m})
    rows = []
    for noise in dict.fromkeys(noise for noise, m in found if m):
        full = found.get((reference(noise), 0), "not run")
        rows.append([noise, *(found.get((noise, m), "not run") for m in sizes), full])
    return markdown_table(["proposal", *(f"m = {m}" for m in sizes), "full softmax"], rows)


def reference(noise: str) -> str:
    """The full softmax with the logits of a noise."""
    return FULL_ABSOLUTE if is_even(noise) else FULL


def lines_by_m(records: Records, measure: str) -> dict[str, Line]:
    """A measure against m for each noise, and level lines of full softmax."""
    groups = by_noise(records)
    sizes = sorted({m for _, m in groups if m})
    lines = {}
    for noise in dict.fromkeys(noise for noise, _ in groups):
        own = [(m, 0 if noise in (FULL, FULL_ABSOLUTE) else m) for m in sizes]
        points = [
            (m, *spread(r[measure] for r in groups[noise, o]))
            for m, o in own
            if (noise, o) in groups
        ]
        lines[noise] = _line(points)
    return lines


def draw_by_m(path: Path, records: Records, titles: dict[str, str]) -> None:
    """Measures against m; the loss a second time, for lines near full softmax.

    titles:  panels by measure.
    """
    panels: dict[str, dict[str, Any]] = {}
    for measure, title in titles.items():
        lines = panels[title] = lines_by_m(records, measure)
        full = [lines[name][1].min() for name in (FULL, FULL_ABSOLUTE) if name in lines]
        if measure == "loss" and full:
            panels["the same, near full softmax"] = {
                name: tuple(values[line[1] <= min(full) + NEAR] for values in line)
                for name, line in lines.items()
            }
    picture(path, panels, "m", references=(FULL, FULL_ABSOLUTE))


def curves(results: Sequence[dict[str, Any]]) -> Line:
    """Validation loss against steps, over seeds."""
    points = [result["curve"] for result in results]
    spreads = [spread(loss for _, loss in at_step) for at_step in zip(*points, strict=True)]
    steps = [step for step, _ in points[0]]
    return _line([(s, *v) for s, v in zip(steps, spreads, strict=True)])


def _line(points: list[tuple[float, float, float]]) -> Line:
    x, mean, error = np.array(points, float).T
    return x, mean, np.nan_to_num(error)


def draw_curves(records: Records, images: Path, prefix: str) -> None:
    """Convergence by noise with a line for each m, three panels a picture, and the reverse."""
    lines = {key: curves(results) for key, results in by_noise(records).items()}
    noises = list(dict.fromkeys(noise for noise, m in lines if m))
    sizes = sorted({m for _, m in lines if m})
    options: dict[str, Any] = {
        "x_title": "steps", "y_title": "validation loss, nats", "log_x": False,
        "references": [FULL],
    }  # fmt: skip

    def full_softmax(noise: str) -> dict[str, Line]:
        key = (reference(noise), 0)
        return {FULL: lines[key]} if key in lines else {}

    for part, start in enumerate(range(0, len(noises), 3), 1):
        panels = {
            noise: {f"m = {m}": lines[noise, m] for m in sizes if (noise, m) in lines}
            | full_softmax(noise)
            for noise in noises[start : start + 3]
        }
        picture(images / f"{prefix}_curves_{part}.png", panels, **options)
    full = full_softmax(FULL)
    panels = {
        f"m = {m}": {noise: lines[noise, m] for noise in noises if (noise, m) in lines} | full
        for m in sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})
    }
    # A noise that fails would squeeze the other curves into one line.
    most = float(full[FULL][1].max()) + 0.1 if full else None
    picture(images / f"{prefix}_noises.png", panels, most=most, **options)
