"""Training steps: draw → score → gradient on the scores → touched rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from extremax.kernels.cpu.threads import one_torch_thread
from extremax.model import Model
from extremax.objectives import Pairs
from extremax.random import Purpose, Stream
from extremax.training.data import Examples

# Draws are kept up to this size; beyond it the same ones are drawn again in every epoch.
_KEPT_BYTES = 2**30


def kept_draws_bytes(n_examples: int, n_negatives: int) -> float:
    """Bytes of the draws of every example, where a noise draws once; 0 if they are not kept."""
    size = 12.0 * n_examples * (1 + n_negatives)
    return size if size <= _KEPT_BYTES else 0.0


class Batch(NamedTuple):
    """Some examples: their numbers, true classes (n, 1), weights and random numbers."""

    numbers: np.ndarray
    truth: torch.Tensor
    weights: torch.Tensor | None
    stream: Stream
    epoch: int


@dataclass
class Steps:
    """Takes steps of a model's objective on examples.

    per_example:  what the objective keeps for each example, once training has begun.
    """

    model: Model
    examples: Examples
    n_negatives: int
    batch_size: int
    seed: int
    per_example: torch.Tensor | None = None

    def __post_init__(self) -> None:
        objective, noise, head = self.model.objective, self.model.noise, self.model.head
        #: Coefficients for the fused logistic kernel, or None if it does not apply.
        self.form: tuple[float, ...] | None = None
        logistic = objective.logistic(self.n_negatives)
        if logistic is not None and head.fuses_steps and not noise.follows_head:
            self.form = *logistic, float(objective.adds_log_q), objective.regularization
        n_kept = len(self.examples) if noise.draws_once else 0
        if not kept_draws_bytes(n_kept, self.n_negatives):
            n_kept = 0
        #: Classes of every row and their log q, where they are drawn once; −1 before that.
        self._kept_classes = torch.full((n_kept, 1 + self.n_negatives), -1, dtype=torch.int64)
        self._kept_log_q = torch.empty((n_kept, 1 + self.n_negatives))

    @property
    def at_once(self) -> int:
        """Steps per call of `take`: one, or many where one kernel runs them all."""
        if self.form is None:
            return 1
        n_examples = self.model.head.fused_examples(self.examples.rows, 1 + self.n_negatives)
        return max(1, n_examples // self.batch_size)

    def take(
        self, numbers: np.ndarray, key: np.uint64, learning_rates: np.ndarray, epoch: int
    ) -> tuple[float, float, int]:
        """Steps on consecutive batches of the numbered examples, at most `at_once` of them.

        Returns the summed loss, the summed weight, and the steps done: fewer than all if the loss
        of the next one is not finite.
        """
        weights = self.examples.weights
        batch = Batch(
            numbers,
            torch.from_numpy(self.examples.labels[numbers])[:, None],
            None if weights is None else torch.from_numpy(weights[numbers]),
            Stream(key, numbers),
            epoch,
        )
        total_weight = float(len(numbers)) if weights is None else float(weights[numbers].sum())
        if not self.model.objective.samples:
            loss = self._exact(batch, learning_rates[0])
            return loss, total_weight, int(np.isfinite(loss))
        with one_torch_thread():
            if self.form is None:
                loss = self._sampled(batch, learning_rates[0])
                return loss, total_weight, int(np.isfinite(loss))
            losses = self._fused(batch, self.form, learning_rates)
        good = np.isfinite(losses)
        n_done = len(learning_rates) if good.all() else int(np.argmin(good)) // self.batch_size
        return float(losses.sum()), total_weight, n_done

    def _inputs(self, batch: Batch) -> object:
        dropout = Stream.of(self.seed, Purpose.DROPOUT, batch.epoch, rows=batch.numbers)
        return self.model.head.inputs(self.examples.rows, batch.numbers, dropout)

    def _exact(self, batch: Batch, rate: float) -> float:
        return self.model.head.exact_step(
            self._inputs(batch), batch.truth[:, 0], batch.weights,
            self.model.objective.regularization, rate,
        )  # fmt: skip

    def _fused(self, batch: Batch, form: tuple[float, ...], rates: np.ndarray) -> np.ndarray:
        """`_sampled` many times, in one kernel."""
        classes, log_q = self._draw(batch)
        weights = None if batch.weights is None else batch.weights.numpy()
        return self.model.head.logistic_steps(
            self._inputs(batch), classes, log_q, weights, form, self.batch_size, rates
        )

    def _sampled(self, batch: Batch, rate: float) -> float:
        """One step; nothing is touched if the loss is not finite."""
        noise, head, objective = self.model.noise, self.model.head, self.model.objective
        classes, log_q = self._draw(batch)
        inputs = self._inputs(batch)
        scores = head.scores(inputs, classes)
        hits = classes[:, 1:] == batch.truth
        pairs = Pairs(scores, log_q, hits, self._per_example_of(batch))
        if objective.per_example_size:
            self._update_per_example(pairs, batch)
            pairs = pairs._replace(per_example=objective.current_per_example(pairs))
        loss, gradient = objective.loss(pairs).double(), objective.gradient(pairs)
        if batch.weights is not None:
            loss, gradient = loss * batch.weights, gradient * batch.weights[:, None]
        total = float(loss.sum())
        if np.isfinite(total):
            head.step(inputs, classes, gradient, rate)
            noise.refresh(classes)
        return total

    # Draws ------------------------------------------------------------------------------------

    def _draw(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The true class and the drawn ones, and log q of each; cached if the noise draws once."""
        numbers = torch.from_numpy(batch.numbers)
        if len(self._kept_classes):
            classes = self._kept_classes[numbers]
            if not bool((classes[:, 0] < 0).any()):
                return classes, self._kept_log_q[numbers]
        noise = self.model.noise
        context = self.examples.context_of(noise, batch.numbers)
        if self.model.objective.draws_others:
            draw = noise.sample_others(context, batch.truth, self.n_negatives, batch.stream)
        else:
            draw = noise.sample(context, self.n_negatives, batch.stream)
        classes = torch.cat([batch.truth, draw.labels], 1)
        log_q = torch.cat([noise.log_prob(context, batch.truth), draw.log_q], 1)
        if len(self._kept_classes):
            self._kept_classes[numbers], self._kept_log_q[numbers] = classes, log_q
        return classes, log_q

    # What the objective keeps for each example --------------------------------------------------

    def _per_example_of(self, batch: Batch) -> torch.Tensor:
        if self.per_example is None:
            self.per_example = self.model.objective.per_example_start(len(self.examples))
        return self.per_example[torch.from_numpy(batch.numbers)]

    def _update_per_example(self, pairs: Pairs, batch: Batch) -> None:
        objective = self.model.objective
        stream = Stream.of(self.seed, Purpose.PER_EXAMPLE, batch.epoch, rows=batch.numbers)
        uniform = torch.from_numpy(stream.uniform(objective.per_example_size))
        updated = objective.update_per_example(pairs, batch.epoch, uniform)
        assert self.per_example is not None
        self.per_example[torch.from_numpy(batch.numbers)] = updated
