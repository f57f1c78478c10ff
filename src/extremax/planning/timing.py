"""How long training will take on this machine, from a trial of a few seconds.

Each part of `fit` runs on synthetic rows of the real width, over as many classes as fit the trial,
and is scaled up by what it does: examples for steps, the noise's own measure of work for its fit,
scores for evaluations. Expect it to be right within a factor of two or so: the data decide how
many penalties the fit of a tree tries and how many weights it keeps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone

from extremax.evaluation import evaluate
from extremax.features import Encoder, SparseSVD
from extremax.kernels.cpu import threads
from extremax.labels import ClassLabels, LabelIndex, one_label_per_row
from extremax.model import Model
from extremax.planning.memory import choice_of, held_out_rows, rows_per_evaluation
from extremax.planning.workload import Workload
from extremax.prediction.blend import Blend, is_product
from extremax.preparation import Parameters, head_options, seconds_per_model, settings_for
from extremax.random import Stream
from extremax.training.calibration import blend_rows, fit_blend
from extremax.training.data import Examples
from extremax.training.loop import Trainer

# Bytes of the trial's head: well beyond a processor's cache, as the real one.
_HEAD_BYTES = 1 << 27
_MOST_ROWS, _MOST_CLASSES = 16_384, 1 << 16
_SECONDS = 0.5
# Scores of an evaluation in the trial, and rows on which it blends head and noise.
_SCORES, _BLEND_ROWS = 4_000_000, 500


@dataclass(frozen=True)
class Step:
    """A part of the run and the seconds it should take."""

    name: str
    seconds: float


def estimate_time(work: Workload, parameters: Parameters) -> list[Step]:
    """The parts of the run in order, if it does not stop early."""
    with threads.limit(parameters.n_jobs):
        steps = []
        if work.encoded.width < work.features:
            steps.append(Step("projecting the rows", _projecting_seconds(work)))
        trial = Rehearsal(work, parameters)
        fitting = trial.noise_seconds()
        rate = trial.examples_per_second()
        per_epoch = (work.rows - held_out_rows(work, parameters)) / rate
        epochs = float(trial.settings.epochs)
        limit = seconds_per_model(parameters)
        if limit is not None:
            epochs = min(epochs, max(0.0, limit - fitting) / per_epoch)
        evaluations = math.ceil(epochs) * trial.evaluation_seconds()
        blending = trial.blending_seconds()
    # Two digits of the rate: no more are known.
    training = f"{math.ceil(epochs)} epochs at {float(f'{rate:.2g}'):,.0f} examples/s"
    n_models = parameters.n_models
    if n_models > 1:
        training = f"{n_models} times {training}"
    steps += [
        Step("fitting the noise", n_models * fitting),
        Step(training, n_models * epochs * per_epoch),
        Step("evaluating held-out rows", n_models * evaluations),
    ]
    return steps + ([Step("blending the experts", n_models * blending)] if blending else [])


def _seconds(call: Callable[..., Any], *arguments: Any) -> float:
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start


def _seconds_per_call(at_least: float, call: Callable[[], Any]) -> float:
    """Median seconds of calls that take ``at_least`` together; the first one, which compiles and
    loads, is not counted."""
    call()
    seconds: list[float] = []
    while sum(seconds) < at_least:
        seconds.append(_seconds(call))
    return float(np.median(seconds))


class Rehearsal:
    """Synthetic rows, and a head and a noise that nobody has trained: as slow as real ones."""

    def __init__(self, work: Workload, parameters: Parameters) -> None:
        self.work, self.parameters = work, parameters
        self.random = np.random.default_rng(0)
        self.choice = choice_of(work, parameters)
        self.settings = settings_for(parameters, self.choice, work.rows)
        n_rows = min(work.rows, _MOST_ROWS)
        encoded = work.encoded
        rows = encoded.rows.synthetic(n_rows, encoded.width, encoded.nonzeros, self.random)
        self.n_classes = self._n_classes(rows.n_features)
        if rows.consists_of_classes:
            rows = encoded.rows.synthetic(n_rows, self.n_classes, encoded.nonzeros, self.random)
        self.labels = self.random.integers(0, self.n_classes, len(rows))
        noise = clone(self.choice.noise).stand_in(rows, self.labels, self.n_classes, work.sizes)
        options = head_options(parameters, self.choice, 1.0, 0)
        everything = np.arange(len(rows))
        head = self.choice.head.create(rows, self.labels, everything, self.n_classes, options)
        # Written once, so that the trial does not pay for the first touch of every page.
        for tensor in head.state().values():
            tensor.add_(0)
        labels = ClassLabels(LabelIndex(np.arange(self.n_classes)))
        kinds = self.choice.experts(work.sizes, parameters.similar_rows)
        experts = tuple(kind() for kind in kinds)
        for expert in experts:
            expert.learn(rows, self.labels, self.n_classes)
        blend = Blend.start(self.choice.objective, noise, len(experts))
        self.model = Model(Encoder(), labels, head, noise, self.choice.objective, blend, experts)
        self.model.attach()
        self.examples = Examples(rows, self.labels)
        if self.choice.objective.samples:
            self.examples.keep_context(noise)

    def _n_classes(self, n_features: int) -> int:
        """As many as the job has, or as fit the trial."""
        n_classes = max(2, min(self.work.classes, _MOST_CLASSES))
        options = head_options(self.parameters, self.choice, 1.0, 0)
        sizes = self.work.sizes._replace(rows=_MOST_ROWS, features=n_features)
        while n_classes > 2:
            if (
                self.choice.head.needs(sizes._replace(classes=n_classes), options).kept
                <= _HEAD_BYTES
            ):
                break
            n_classes //= 2
        return n_classes

    def examples_per_second(self) -> float:
        """By real steps on batches of the real size."""
        n_rows = len(self.labels)
        size = min(self.settings.batch_size, n_rows)
        trainer = Trainer(self.model, self.examples, self.settings, seed=0)
        n_steps = max(1, min(n_rows, 8192) // size)
        key = Stream.of(0, rows=np.arange(0)).key

        def steps() -> None:
            numbers = self.random.choice(n_rows, n_steps * size, replace=False)
            trainer.train(numbers, key, np.full(n_steps, 1e-3))

        return n_steps * size / _seconds_per_call(_SECONDS, steps)

    def evaluation_seconds(self) -> float:
        """One evaluation of held-out rows."""
        n = max(1, min(2048, len(self.labels), _SCORES // self.n_classes))
        rows, truth = self.examples.rows[:n], one_label_per_row(self.labels[:n])

        def evaluation() -> None:
            evaluate(self.model, rows, truth, self.parameters.memory_budget)

        per_score = _seconds_per_call(_SECONDS / 2, evaluation) / (n * self.n_classes)
        n_rows = rows_per_evaluation(self.work, self.parameters)
        return per_score * self.work.classes * n_rows

    def blending_seconds(self) -> float:
        """Weighting head and noise on the held-out rows."""
        n_rows = held_out_rows(self.work, self.parameters)
        is_blended = is_product(self.model.objective, self.model.noise) or self.model.experts
        if not n_rows or not is_blended:
            return 0.0
        numbers, counts = np.arange(min(len(self.labels), _BLEND_ROWS)), np.ones(self.n_classes)
        arguments = self.model, self.examples.rows, self.labels
        # The first time compiles and loads. Part of a fit takes the same time, whatever the rows.
        fit_blend(*arguments, numbers[:8], counts)
        few = numbers[: max(8, len(numbers) // 4)]
        less, more = (_seconds(fit_blend, *arguments, rows, counts) for rows in (few, numbers))
        per_row = max(0.0, more - less) / max(1, len(numbers) - len(few))
        most = blend_rows(len(self.model.blend.levels))
        return more + per_row * max(0.0, min(n_rows, most) - len(numbers))

    def noise_seconds(self) -> float:
        """Fit to more and more rows, until a fit takes long enough to tell."""
        work, n_threads, n = self.work, threads.active(), 1000
        rows, n_rows = self.examples.rows, len(self.labels)
        while True:
            n = min(n, n_rows)
            n_classes = max(2, min(self.n_classes, n * work.classes // work.rows))
            noise = clone(self.choice.noise)
            seconds = _seconds(noise.fit, rows[:n], self.labels[:n] % n_classes, n_classes)
            # The very first fit compiles and loads, whatever it takes.
            if n == n_rows or (n > 1000 and seconds > _SECONDS / 2):
                break
            n *= 2
        trial = work.sizes._replace(rows=n, classes=n_classes, features=rows.n_features)
        scale = noise.fit_work(work.sizes, n_threads) / noise.fit_work(trial, n_threads)
        return seconds * scale


def _projecting_seconds(work: Workload) -> float:
    """A truncated SVD costs so much per column and so much per value: two small ones tell."""
    columns, random = min(work.features, 4096), np.random.default_rng(0)
    measured = []
    for n_rows in (512, 2048):
        n_rows = max(n_rows, work.encoded.width + 1)
        density = min(1.0, max(1, round(work.nonzeros)) / columns)
        matrix = sparse.random(n_rows, columns, density, "csr", np.float32, random)
        measured.append((_seconds(SparseSVD(work.encoded.width).fit, matrix), matrix.nnz))
    (few, few_values), (many, many_values) = measured
    per_value = max(0.0, many - few) / max(1, many_values - few_values)
    per_column = max(0.0, few - per_value * few_values) / columns
    visits = SparseSVD.visits(work.rows)
    return per_column * work.features + per_value * work.nonzeros * visits
