"""Training steps on a GPU: the same objective, draws and updates as `extremax.training.steps`, with
weights, rows and labels on the device.

Draws come from torch's generator of the device, seeded by the stream of the epoch and the first
example of the batch: the same again in a run that is resumed, on the same kind of GPU. A noise
without a form for devices (`extremax.nn.device_draws`) draws on the CPU. Nothing waits for the
device until the losses of many steps are read together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from extremax.heads import DeviceHead
from extremax.nn.device_draws import DeviceNoise, device_noise
from extremax.nn.device_tables import Table
from extremax.nn.device_tree import Tree
from extremax.objectives import Pairs
from extremax.random import Stream
from extremax.training.steps import Batch, Steps

# Steps between two readings of the losses, and of the clock.
_AT_ONCE = 64
_MASK = 2**63 - 1
# Noises whose draws ask nothing of the host, so that a graph can hold them. Those of a mixture read
# an array of the host, and a graph with the others was never tried.
_RECORDED = (Table, Tree)


class DeviceBatch(NamedTuple):
    """A batch on the device: rows, true classes (n,), weights, the numbers of its examples, the
    epoch, and random numbers of its own."""

    inputs: Any
    truth: torch.Tensor
    weights: torch.Tensor | None
    numbers: torch.Tensor
    generator: torch.Generator
    epoch: int


class Columns(NamedTuple):
    """Classes that all rows of a batch share, (m,), of which those below 0 do not count; the log
    weight of each in the sum of a row; and the column of each row's true class, (n, 1)."""

    classes: torch.Tensor
    log_weight: torch.Tensor
    place: torch.Tensor


@dataclass
class DeviceSteps(Steps):
    """Takes steps of a model's objective on a copy of its head on a device."""

    head: DeviceHead = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        device, noise, examples = self.head.device, self.model.noise, self.examples
        self.rows = self.head.rows(examples.rows)
        self.labels = torch.from_numpy(examples.labels).to(device)
        weights = examples.weights
        self.weights = None if weights is None else torch.from_numpy(weights).to(device)
        self.device_noise: DeviceNoise | None = None
        if self.model.objective.samples:
            if self.shared:
                # A part of a mixture may be the one that draws for a batch.
                noise, _ = noise.shared_part(examples.context_of(noise, np.zeros(1, np.int64)))
            self.device_noise = device_noise(noise, self.head.weight, self.head.bias)
        if self.per_example is not None:
            self.per_example = self.per_example.to(device)
        elif self.model.objective.per_example_size:
            start = self.model.objective.per_example_start(len(examples))
            self.per_example = start.to(device)
        self.generator = torch.Generator(device)
        self._records = (
            device.type == "cuda"
            and self.rows.is_resident
            and not self.model.objective.per_example_size
            and (not self.model.objective.samples or type(self.device_noise) in _RECORDED)
        )
        self._n_steps = 0
        self._graph: tuple[torch.cuda.CUDAGraph, torch.Tensor] | None = None

    @property
    def at_once(self) -> int:
        return _AT_ONCE

    def expect(self, numbers: np.ndarray) -> None:
        self.rows.expect(numbers)

    def take(
        self, numbers: np.ndarray, key: np.uint64, learning_rates: np.ndarray, epoch: int
    ) -> tuple[float, float, int]:
        device, size = self.head.device, self.batch_size
        on_device = torch.from_numpy(numbers).to(device)
        rates = torch.from_numpy(learning_rates.astype(np.float32)).to(device)
        total_weight = float(len(numbers))
        if self.examples.weights is not None:
            total_weight = float(self.examples.weights[numbers].sum())
        drawn = self._drawn_by_host(numbers, key, epoch)
        losses = torch.empty(len(rates), dtype=torch.float64, device=device)
        for i, inputs in enumerate(self.rows.batches(numbers, size)):
            part = slice(i * size, (i + 1) * size)
            seed = (int(key) ^ (int(numbers[i * size]) * 0x9E3779B97F4A7C15)) & _MASK
            self.generator.manual_seed(seed)
            if self._is_recorded(len(on_device[part])):
                losses[i] = self._replayed(on_device[part], rates[i], epoch)
                continue
            batch = self._batch(inputs, on_device[part], epoch)
            given = None if drawn is None else (drawn[0][part], drawn[1][part])
            losses[i] = self._step(batch, given, rates[i])
        found = losses.cpu().numpy()
        good = np.isfinite(found)
        n_done = len(found) if good.all() else int(np.argmin(good))
        return float(found.sum()), total_weight, n_done

    def _batch(self, inputs: Any, numbers: torch.Tensor, epoch: int) -> DeviceBatch:
        """These rows with what belongs to their examples."""
        weights = None if self.weights is None else self.weights[numbers]
        inputs = self.head.dropped(inputs, self.generator)
        return DeviceBatch(inputs, self.labels[numbers], weights, numbers, self.generator, epoch)

    # A step as a graph --------------------------------------------------------------------------

    def _is_recorded(self, n: int) -> bool:
        """Whether a step on n examples is replayed as a CUDA graph: it consists of dozens of small
        kernels, which take longer to start than to run. All but the first step of a run, which
        compiles them, and those whose sizes vary."""
        if not self._records or n != self.batch_size:
            return False
        self._n_steps += 1
        return self._n_steps > 1

    def _replayed(self, numbers: torch.Tensor, rate: torch.Tensor, epoch: int) -> torch.Tensor:
        """The summed loss of a step by a graph, which reads its numbers and rate from memory of its
        own."""
        if self._graph is None:
            self._numbers, self._rate = numbers.clone(), rate.clone()
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self.generator)
            with torch.cuda.graph(graph):
                inputs = self.rows.of(self._numbers)
                loss = self._step(self._batch(inputs, self._numbers, epoch), None, self._rate)
            self._graph = graph, loss
        self._numbers.copy_(numbers)
        self._rate.copy_(rate)
        self._graph[0].replay()
        return self._graph[1]

    def _drawn_by_host(
        self, numbers: np.ndarray, key: np.uint64, epoch: int
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Draws of all steps, where the noise has no form for the device."""
        if not self.model.objective.samples or self.device_noise is not None:
            return None
        truth = torch.from_numpy(self.examples.labels[numbers])[:, None]
        batch = Batch(numbers, truth, None, Stream(key, numbers), epoch)
        classes, log_q = self._draw(batch)
        return classes.to(self.head.device), log_q.to(self.head.device)

    def _step(
        self,
        batch: DeviceBatch,
        drawn: tuple[torch.Tensor, torch.Tensor] | None,
        rate: torch.Tensor,
    ) -> torch.Tensor:
        """One step; returns the summed loss."""
        head, objective = self.head, self.model.objective
        if not objective.samples:
            losses = head.exact_step(
                batch.inputs, batch.truth, batch.weights, objective.regularization, rate
            )
            return losses.double().sum()
        if self.shared:
            return self._shared_step(batch, rate)
        classes, log_q = self._draw_on_device(batch) if drawn is None else drawn
        hits = classes[:, 1:] == classes[:, :1]
        scores = head.scores(batch.inputs, classes)
        loss, gradient = self._loss_on_device(batch, Pairs(scores, log_q, hits, self._none(batch)))
        head.step(batch.inputs, classes, gradient, rate)
        return loss

    def _draw_on_device(self, batch: DeviceBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """The true class and the drawn ones, and log q of each."""
        noise, objective, truth = self.device_noise, self.model.objective, batch.truth[:, None]
        assert noise is not None
        rows = self._noise_rows(batch)
        if objective.draws_others:
            drawn = noise.sample_others(rows, truth, self.n_negatives, batch.generator)
            log_q = noise.log_prob_others(rows, truth, drawn)
        else:
            drawn = noise.sample(rows, self.n_negatives, batch.generator)
            log_q = noise.log_prob(rows, drawn)
        true_log_q = torch.full(truth.shape, torch.nan, device=truth.device)
        if objective.reads_true_log_q:
            true_log_q = noise.log_prob(rows, truth)
        return torch.cat([truth, drawn], 1), torch.cat([true_log_q, log_q], 1)

    def _noise_rows(self, batch: DeviceBatch) -> torch.Tensor:
        """What the noise reads: the rows themselves, or nothing of each."""
        if self.model.noise.reads_rows or self.model.noise.follows_head:
            return self.head.noise_rows(batch.inputs)
        return torch.empty((len(batch.truth), 0), device=self.head.device)

    def _loss_on_device(
        self, batch: DeviceBatch, pairs: Pairs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The summed loss of these rows, and its gradient on their scores."""
        objective, weights = self.model.objective, batch.weights
        if objective.per_example_size:
            pairs = self._with_per_example(batch, pairs)
        loss, gradient = objective.loss_and_gradient(pairs)
        loss = loss.double()
        if weights is not None:
            loss, gradient = loss * weights, gradient * weights[:, None]
        return loss.sum(), gradient

    # Draws that a batch shares ------------------------------------------------------------------

    def _shared_step(self, batch: DeviceBatch, rate: torch.Tensor) -> torch.Tensor:
        """A step on the true classes of the batch and draws beside them."""
        head, columns = self.head, self._columns(batch)
        scores = head.scores_shared(batch.inputs, columns.classes)
        counts = columns.classes >= 0
        # One column of each row, its true class, does not count a second time.
        n_others = (counts.sum() - 1).clamp(min=1)
        log_q = -columns.log_weight - torch.log(n_others.float())
        hits = (~counts).expand(len(scores), -1).scatter(1, columns.place, True)
        true = scores.gather(1, columns.place)
        all_log_q = torch.cat([torch.zeros_like(true), log_q.expand(len(scores), -1)], 1)
        pairs = Pairs(torch.cat([true, scores], 1), all_log_q, hits, self._none(batch))
        loss, gradient = self._loss_on_device(batch, pairs)
        on_columns = gradient[:, 1:].scatter_add(1, columns.place, gradient[:, :1])
        head.step_shared(batch.inputs, columns.classes, on_columns, rate)
        return loss

    def _columns(self, batch: DeviceBatch) -> Columns:
        """The true classes of the batch, and draws that stand for all others, as
        `extremax.training.shared.beside_truths`; of fixed size, so that nobody waits to know it."""
        drawn, log_q = self._drawn_for_all(batch)
        truths, drawn_order = batch.truth.sort().values, drawn.sort(stable=True)
        drawn, log_q = drawn_order.values, log_q[drawn_order.indices]
        place = torch.searchsorted(truths, batch.truth[:, None])
        counts = torch.searchsorted(drawn, drawn, right=True) - torch.searchsorted(drawn, drawn)
        among = truths[torch.searchsorted(truths, drawn).clamp(max=len(truths) - 1)] == drawn
        counted = _first(drawn) & ~among
        log_weight = counts.float().log() - math.log(self.n_negatives) - log_q
        return Columns(
            torch.cat([truths.where(_first(truths), -1), drawn.where(counted, -1)]),
            torch.cat([torch.zeros(len(truths), device=drawn.device), log_weight]),
            place,
        )

    def _drawn_for_all(self, batch: DeviceBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws (m,) for a whole batch of a noise that does not read rows, and their log q."""
        assert self.device_noise is not None
        nothing = torch.empty((1, 0), device=self.head.device)
        drawn = self.device_noise.sample(nothing, self.n_negatives, batch.generator)
        return drawn[0], self.device_noise.log_prob(nothing, drawn)[0]

    # What the objective keeps for each example --------------------------------------------------

    def _none(self, batch: DeviceBatch) -> torch.Tensor:
        return torch.empty((len(batch.truth), 0), device=self.head.device)

    def _with_per_example(self, batch: DeviceBatch, pairs: Pairs) -> Pairs:
        """The pairs with what is kept for their examples, which is updated."""
        objective = self.model.objective
        assert self.per_example is not None
        pairs = pairs._replace(per_example=self.per_example[batch.numbers])
        shape = len(batch.truth), objective.per_example_size
        uniform = torch.rand(shape, generator=batch.generator, device=self.head.device)
        updated = objective.update_per_example(pairs, batch.epoch, uniform.double())
        self.per_example[batch.numbers] = updated.to(self.per_example.dtype)
        return pairs._replace(per_example=objective.current_per_example(pairs))

    def decay(self, amount: float) -> None:
        self.head.decay(amount)


def _first(ordered: torch.Tensor) -> torch.Tensor:
    """Whether each of some rising numbers is the first of its value."""
    before = ordered.new_full((1,), -1)
    return ordered != torch.cat([before, ordered[:-1]])
