"""Training steps: draw → score → gradient on the scores → touched rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from extremax.kernels.cpu.threads import one_torch_thread, parallel
from extremax.model import Model
from extremax.objectives import Pairs, given_others, shared_draw_weights
from extremax.random import Purpose, Stream
from extremax.training.data import Examples
from extremax.training.shared import SharedDraws, beside_truths, from_noise

# Draws are kept up to this size; beyond it the same ones are drawn again in every epoch.
_KEPT_BYTES = 2**30
# Scores whose loss and gradient fit the cache: 1,024 shared draws for 1,024 rows took 86 ms a step
# all at once, of which half was the loss.
_CACHED_SCORES = 2**16
# A decay of every weight comes after this many visits per class, so that it costs little beside
# the steps; and at most so many times an epoch: float32 would round very small changes away.
_VISITS_PER_DECAY, _DECAYS_PER_EPOCH = 4, 64


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

    def part(self, rows: slice) -> Batch:
        """Some of the examples."""
        weights = None if self.weights is None else self.weights[rows]
        stream = Stream(self.stream.key, self.stream.rows[rows])
        return Batch(self.numbers[rows], self.truth[rows], weights, stream, self.epoch)


@dataclass
class Steps:
    """Takes steps of a model's objective on examples.

    per_example:  what the objective keeps for each example, once training has begun.
    shared:       whether a batch shares its draws (`extremax.training.shared`).
    counts_truths:  whether the true classes of a batch count for all of its rows, too.
    """

    model: Model
    examples: Examples
    n_negatives: int
    batch_size: int
    seed: int
    per_example: torch.Tensor | None = None
    shared: bool = False
    counts_truths: bool = False

    def __post_init__(self) -> None:
        objective, noise, head = self.model.objective, self.model.noise, self.model.head
        #: Many steps in one kernel, or None if there is none for them.
        self.fused: Callable[[Batch, np.ndarray], np.ndarray] | None = None
        logistic = objective.logistic(self.n_negatives)
        if not noise.follows_head and not self.shared:
            if logistic is not None and head.fuses_steps:
                form = *logistic, float(objective.adds_log_q), objective.regularization
                self.fused = partial(self._logistic_steps, form)
            elif objective.is_softmax_of_draws and head.fuses_softmax:
                self.fused = self._softmax_steps
        n_kept = len(self.examples) if noise.draws_once else 0
        if not kept_draws_bytes(n_kept, self.n_negatives):
            n_kept = 0
        #: Classes of every row and their log q, where they are drawn once; −1 before that.
        self._kept_classes = torch.full((n_kept, 1 + self.n_negatives), -1, dtype=torch.int64)
        self._kept_log_q = torch.empty((n_kept, 1 + self.n_negatives))

    @property
    def at_once(self) -> int:
        """Steps per call of `take`: one, or many where one kernel runs them all."""
        if self.fused is None:
            return 1
        n_examples = self.model.head.fused_examples(self.examples.rows, 1 + self.n_negatives)
        return max(1, n_examples // self.batch_size)

    def expect(self, numbers: np.ndarray) -> None:
        """Examples that `take` will get next, for whoever can prepare them."""

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
        with nullcontext() if self.model.head.uses_torch or self.shared else one_torch_thread():
            if self.fused is None:
                loss = self._sampled(batch, learning_rates[0])
                return loss, total_weight, int(np.isfinite(loss))
            losses = self.fused(batch, learning_rates)
        good = np.isfinite(losses)
        n_done = len(learning_rates) if good.all() else int(np.argmin(good)) // self.batch_size
        return float(losses.sum()), total_weight, n_done

    def per_decay(self, n_steps: int) -> int:
        """Steps from one `decay` to the next, where an epoch has ``n_steps``."""
        n_classes = self.model.n_classes
        n_columns = 1 + self.n_negatives if self.model.objective.samples else n_classes
        n_decays = n_steps * self.batch_size * n_columns // (_VISITS_PER_DECAY * n_classes)
        return max(1, -(-n_steps // int(np.clip(n_decays, 1, _DECAYS_PER_EPOCH))))

    def decay(self, amount: float) -> None:
        """A proximal step of the penalty (amount/2)‖W‖² on every weight, touched or not.

        Decaying a class only when it is drawn would be too weak for classes drawn rarely. To make
        up for that by a counter per class, every kernel would have to read it before it scores.
        """
        self.model.head.decay(amount)
        self.model.noise.refresh(torch.arange(self.model.n_classes))

    def rate_sum(self, numbers: np.ndarray, learning_rates: np.ndarray) -> float:
        """Σ learning rate × weight over the examples of consecutive steps."""
        weights = self.examples.weights
        chosen = np.ones(len(numbers)) if weights is None else weights[numbers].astype(np.float64)
        first = np.arange(0, len(numbers), self.batch_size)
        return float(learning_rates @ np.add.reduceat(chosen, first))

    def _dropout(self, batch: Batch) -> Stream:
        return Stream.of(self.seed, Purpose.DROPOUT, batch.epoch, rows=batch.numbers)

    def _inputs(self, batch: Batch) -> object:
        return self.model.head.inputs(self.examples.rows, batch.numbers, self._dropout(batch))

    def _exact(self, batch: Batch, rate: float) -> float:
        return self.model.head.exact_step(
            self._inputs(batch), batch.truth[:, 0], batch.weights,
            self.model.objective.regularization, rate,
        )  # fmt: skip

    def _logistic_steps(
        self, form: tuple[float, ...], batch: Batch, rates: np.ndarray
    ) -> np.ndarray:
        """`_sampled` many times, in one kernel."""
        classes, log_q = self._draw(batch)
        weights = None if batch.weights is None else batch.weights.numpy()
        return self.model.head.logistic_steps(
            self._inputs(batch), classes, log_q, weights, form, self.batch_size, rates
        )

    def _softmax_steps(self, batch: Batch, rates: np.ndarray) -> np.ndarray:
        """`_sampled` many times, in one kernel."""
        classes, log_q = self._draw(batch)
        weights = None if batch.weights is None else batch.weights.numpy()
        return self.model.head.softmax_steps(
            self.examples.rows, batch.numbers, self._dropout(batch), classes, log_q, weights,
            self.batch_size, rates,
        )  # fmt: skip

    def _sampled(self, batch: Batch, rate: float) -> float:
        """One step; nothing is touched if the loss is not finite."""
        head, inputs = self.model.head, self._inputs(batch)
        if self.shared:
            return self._sampled_shared(batch, inputs, rate)
        classes, log_q = self._draw(batch)
        hits = classes[:, 1:] == batch.truth
        total, gradient = self._loss(batch, head.scores(inputs, classes), log_q, hits)
        if np.isfinite(total):
            head.step(inputs, classes, gradient, rate)
            self.model.noise.refresh(classes)
        return total

    def _sampled_shared(self, batch: Batch, inputs: object, rate: float) -> float:
        """`_sampled` with draws for the whole batch, a few rows at a time: a score for every row
        and draw leaves the cache."""
        head, draws = self.model.head, self._draw_shared(batch)
        scores = head.scores_shared(inputs, draws.own, draws.shared)
        gradient = torch.empty_like(scores)
        size = max(1, _CACHED_SCORES // scores.shape[1])
        losses = np.empty(-(-len(scores) // size))
        self._per_example_of(batch)  # Threads must not make it.

        def differentiate(start: int, stop: int) -> None:
            torch.set_num_threads(1)
            for i in range(start, stop):
                part = slice(i * size, (i + 1) * size)
                losses[i], slope = self._loss(
                    batch.part(part), *draws.of_rows(scores, part), draws.place is None
                )
                gradient[part] = draws.on_classes(slope, part)

        with one_torch_thread():
            parallel(differentiate, len(losses), 1)
        total = float(losses.sum())
        if np.isfinite(total):
            head.step_shared(inputs, draws.own, draws.shared, gradient, rate)
        return total

    def _loss(
        self,
        batch: Batch,
        scores: torch.Tensor,
        log_q: torch.Tensor,
        hits: torch.Tensor,
        from_all: bool = False,
    ) -> tuple[float, torch.Tensor]:
        """The summed loss of these rows, and its gradient on their scores.

        from_all:  whether shared draws are from all of q, not from the classes other than y.
        """
        objective, weights = self.model.objective, batch.weights
        pairs = Pairs(scores, log_q, hits, self._per_example_of(batch))
        if objective.per_example_size:
            self._update_per_example(pairs, batch)
            pairs = pairs._replace(per_example=objective.current_per_example(pairs))
        if from_all and objective.draws_others:
            more = shared_draw_weights(pairs)
            weights = more if weights is None else weights * more
            pairs = pairs._replace(log_q=given_others(log_q))
        loss, gradient = objective.loss_and_gradient(pairs)
        loss = loss.double()
        if weights is not None:
            loss, gradient = loss * weights, gradient * weights[:, None]
        return float(loss.sum()), gradient

    # Draws ------------------------------------------------------------------------------------

    def _draw_shared(self, batch: Batch) -> SharedDraws:
        noise, draw = self.model.noise, beside_truths if self.counts_truths else from_noise
        part = noise.shared_part(self.examples.context_of(noise, batch.numbers))
        return draw(*part, batch.truth, self.n_negatives, batch.stream)

    def _draw(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The true class and the drawn ones, and log q of each; cached if the noise draws once."""
        numbers = torch.from_numpy(batch.numbers)
        if len(self._kept_classes):
            classes = self._kept_classes[numbers]
            if not bool((classes[:, 0] < 0).any()):
                return classes, self._kept_log_q[numbers]
        noise = self.model.noise
        context = self.examples.context_of(noise, batch.numbers)
        objective = self.model.objective
        if objective.draws_others:
            draw = noise.sample_others(context, batch.truth, self.n_negatives, batch.stream)
        else:
            draw = noise.sample(context, self.n_negatives, batch.stream)
        classes = torch.cat([batch.truth, draw.labels], 1)
        true_log_q = torch.full(batch.truth.shape, torch.nan)
        if objective.reads_true_log_q:
            true_log_q = noise.log_prob(context, batch.truth)
        log_q = torch.cat([true_log_q, draw.log_q], 1)
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
