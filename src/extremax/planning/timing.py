"""How long training will take on this machine, from a trial of a few seconds.

Each part of `fit` runs on made-up rows of the real width, over as many classes as fit the trial,
and is scaled up by what it does: examples for steps, examples × levels for the tree, scores for
held-out figures. Expect it to be right within a factor of two. Rows that stay sparse have a trial
of their own, `extremax.planning.sparse_timing`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from extremax.classifier import default_batch_size
from extremax.features import SparseSVD
from extremax.head import LinearHead
from extremax.kernels.cpu import threads
from extremax.noise import Noise, TreeNoise
from extremax.planning.memory import held_out_rows, rows_apart
from extremax.planning.problem import Problem
from extremax.prediction.blocks import Scorer, likelihood
from extremax.random import Stream
from extremax.training.checkpoint import Checkpoint
from extremax.training.loop import Examples, Settings, Trainer
from extremax.training.progress import Progress

if TYPE_CHECKING:
    from extremax import ExtremeClassifier

# Weights of the trial's head: well beyond a processor's cache, as the real one.
HEAD_FLOATS = 1 << 24
MOST_ROWS = 16_384
SECONDS = 0.5


@dataclass(frozen=True)
class Step:
    """A part of the run and the seconds it should take."""

    name: str
    seconds: float


def estimate_time(problem: Problem, model: ExtremeClassifier) -> list[Step]:
    """The parts of the run in order, if it does not stop early."""
    with threads.limit(model.n_jobs):
        steps = []
        if problem.stays_sparse:
            from extremax.planning.sparse_timing import SparseTrial

            trial: Trial = SparseTrial(problem, model)
        else:
            if problem.kind != "dense":
                steps.append(Step("projecting the rows", _projecting_seconds(problem)))
            trial = Trial(problem, model)
        fitting = trial.noise_seconds()
        rate = trial.examples_a_second()
        an_epoch = (problem.rows - rows_apart(problem, model)) / rate
        epochs = float(model._epochs)
        if model.max_seconds is not None:
            epochs = min(epochs, max(0.0, model.max_seconds - fitting) / an_epoch)
        looks = math.ceil(epochs) * trial.look_seconds()
        last = trial.last_steps()
    return [
        *steps,
        Step("fitting the noise", fitting),
        Step(f"{math.ceil(epochs)} epochs at {_rounded(rate):,} examples/s", epochs * an_epoch),
        Step("looking at held-out rows", looks),
        *last,
    ]


def _rounded(value: float) -> int:
    """To two digits: there is no more in it."""
    digits = max(0, int(math.log10(max(value, 1.0))) - 1)
    return int(round(value, -digits))


def _until(seconds: float, work: Callable[[], Any]) -> float:
    """Mean seconds of ``work``, repeated for a while; the first time does not count."""
    work()
    start, n = time.perf_counter(), 0
    while n == 0 or time.perf_counter() - start < seconds:
        work()
        n += 1
    return (time.perf_counter() - start) / n


class Trial:
    """Made-up rows, and a head and a noise nobody has trained: as slow as real ones."""

    def __init__(self, problem: Problem, model: ExtremeClassifier) -> None:
        self.problem, self.model = problem, model
        self.random = np.random.default_rng(0)
        self.objective, self.unfitted = model._parts(
            problem.rows, problem.width, problem.classes, problem.stays_sparse
        )
        self.classes = max(2, min(problem.classes, self._most_classes()))
        self.features = self._features()
        self.rows = len(self.features)
        self.labels = self.random.integers(0, self.classes, self.rows)
        self.noise = self._noise()
        head = self._head()
        self.noise.attach(head)
        self.scorer = Scorer(head, self.noise, self.objective)

    def _most_classes(self) -> int:
        return HEAD_FLOATS // self.problem.width

    def _features(self) -> Any:
        width = self.problem.width
        rows = max(64, min(self.problem.rows, MOST_ROWS, (1 << 25) // width))
        return self.random.standard_normal((rows, width), dtype=np.float32)

    def _head(self) -> Any:
        head = LinearHead(self.classes, self.problem.width, self.model.accumulator_start)
        # Written once, so that the trial does not pay for the first touch of every page.
        head.weight.fill_(1e-3)
        return head

    def _unfitted(self) -> Noise:
        from sklearn.base import clone

        return clone(self.unfitted)

    def _context(self) -> torch.Tensor | None:
        return self.noise.context(self.features) if self.noise.keeps_context else None

    def _noise(self) -> Noise:
        noise = self._unfitted()
        if not isinstance(noise, TreeNoise):
            return noise.fit(self.features, self.labels, self.classes)
        k = min(noise.n_components, self.problem.width)
        nodes = self.random.standard_normal((self.classes, k + 1), dtype=np.float32) / k
        noise.load_state(
            {
                "nodes": torch.from_numpy(nodes),
                "order": torch.from_numpy(self.random.permutation(self.classes)),
                "n_classes": torch.tensor(self.classes),
                "penalties": torch.zeros(0),
                "sharpness": torch.tensor(0.5),
                "pca_mean": torch.zeros(self.problem.width),
                "pca_projection": torch.randn((self.problem.width, k)) / self.problem.width**0.5,
            }
        )
        return noise

    def examples_a_second(self) -> float:
        """By real steps on batches of the real size."""
        model = self.model
        size = model.batch_size or default_batch_size(
            self.problem.rows, self.scorer.objective, self.problem.stays_sparse
        )
        size = min(size, self.rows)
        bag = self.problem.stays_sparse and self.scorer.objective.samples
        dropout = model.feature_dropout if bag else 0.0
        settings = Settings(
            model._n_negatives, model.learning_rate, model.schedule, 1, size, None, 1, dropout
        )
        trainer = Trainer(
            scorer=self.scorer,
            examples=Examples(self.features, self.labels, None, self._context()),
            settings=settings,
            seed=0,
            progress=Progress(0),
            checkpoint=Checkpoint(None, {}),
        )

        n_steps = max(1, min(self.rows, 8192) // size)
        key = Stream.of(0, rows=np.arange(0)).key

        def steps() -> None:
            rows = self.random.choice(self.rows, n_steps * size, replace=False)
            trainer.train(rows, key, np.full(n_steps, 1e-3))

        return n_steps * size / _until(SECONDS, steps)

    def look_seconds(self) -> float:
        """One look at the held-out rows."""
        n = max(1, min(2048, self.rows, 10_000_000 // self.classes))
        few, truth = self.features[:n], self.labels[:n]

        def look() -> None:
            likelihood(self.scorer, few, truth, self.model.memory_budget)

        a_score = _until(SECONDS / 2, look) / (n * self.classes)
        return a_score * self.problem.classes * held_out_rows(self.problem, self.model)

    def last_steps(self) -> list[Step]:
        """What comes after training."""
        return []

    def noise_seconds(self) -> float:
        """A fit to ever more rows, until one takes long enough to tell."""
        n = 1000
        while True:
            n = min(n, self.rows)
            classes = max(2, min(self.classes, n * self.problem.classes // self.problem.rows))
            start = time.perf_counter()
            self._unfitted().fit(self.features[:n], self.labels[:n] % classes, classes)
            took = time.perf_counter() - start
            if took > SECONDS / 2 or n == self.rows:
                break
            n *= 2
        return took * _fit_work(self.problem.rows, self.problem.classes) / _fit_work(n, classes)


def _fit_work(rows: int, classes: int) -> float:
    """What fitting a tree costs, up to a factor.

    On each level every example is visited to split the nodes, at most 32,768 of a node; and
    again, for at most 400 nodes and 8,192 examples of each, to choose the penalty.
    """
    total = 0.0
    for level in range(max(1, math.ceil(math.log2(classes)))):
        nodes = 2.0**level
        tried = min(nodes, 400.0)
        total += min(rows, 32_768 * nodes) + 1.5 * min(rows * tried / nodes, 8_192 * tried)
    return total


def _projecting_seconds(problem: Problem) -> float:
    """A truncated SVD costs so much a column and so much an entry: two small ones tell."""
    from scipy import sparse

    columns = min(problem.features, 4096)
    seconds = []
    for rows in (512, 2048):
        rows = max(rows, problem.width + 1)
        entries = max(1, round(problem.nonzeros))
        made = sparse.random(
            rows, columns, min(1.0, entries / columns), "csr", np.float32, np.random.default_rng(0)
        )
        start = time.perf_counter()
        SparseSVD(problem.width).fit(made)
        seconds.append((time.perf_counter() - start, made.nnz))
    (few, few_entries), (many, many_entries) = seconds
    an_entry = max(0.0, many - few) / max(1, many_entries - few_entries)
    a_column = max(0.0, few - an_entry * few_entries) / columns
    # The fit goes nine times over the rows it takes, the projection once over all.
    visits = min(problem.rows, 200_000) + problem.rows / 9
    return a_column * problem.features + an_entry * problem.nonzeros * visits
