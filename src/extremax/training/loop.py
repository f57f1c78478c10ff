"""The training loop: draw → score → gradient on the scores → touched rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from extremax.errors import DivergedError
from extremax.features.rows import Rows, SparseRows
from extremax.head import LinearHead
from extremax.kernels.cpu.threads import one_torch_thread
from extremax.memory import return_the_rest
from extremax.noise.base import Noise
from extremax.objectives.base import Pairs
from extremax.prediction.blocks import Scorer, likelihood
from extremax.random import Stream
from extremax.training.checkpoint import Checkpoint
from extremax.training.progress import Progress

# Scores computed by one look at the held-out rows: a second or two of work on two cores.
_HELD_OUT_SCORES = 100_000_000
# Memory of such a look: little beside the head, where there are many classes.
HELD_OUT_BYTES = 2**25
# Pairs that one kernel may work through before anybody looks at the clock, and features where they
# must be copied for that.
_PAIRS_AT_ONCE, _FLOATS_AT_ONCE = 2**17, 2**21

# Draws are kept up to this size; beyond it the same ones are made again in every epoch.
_KEPT_BYTES = 2**30

# The next look between is when training has taken so many times as long.
_BETWEEN_LOOKS = 1.5

_SHUFFLE, _NEGATIVES, _LOCAL, _DROPOUT = 1, 2, 6, 7


def looked_at(n_classes: int, blends: bool) -> int:
    """Held-out rows that one look scores. Where the noise is heard, too, a score takes several
    times as long."""
    return max(128, _HELD_OUT_SCORES // (4 if blends else 1) // n_classes)


@dataclass(frozen=True)
class Settings:
    """How to train; see `extremax.ExtremeClassifier` for what each means."""

    n_negatives: int
    learning_rate: float
    schedule: str
    epochs: int
    batch_size: int
    max_seconds: float | None
    patience: int
    #: Share of the features that a step does not see, on sparse rows.
    dropout: float = 0.0


@dataclass
class Examples:
    """Labelled rows as training needs them. ``context`` is the noise's view of each row, where
    the noise thinks that worth keeping."""

    features: Rows
    labels: np.ndarray
    weights: np.ndarray | None
    context: torch.Tensor | None

    def context_of(self, noise: Noise, rows: np.ndarray) -> torch.Tensor:
        if self.context is None:
            return noise.context(self.features[rows])
        return self.context[torch.from_numpy(rows)]

    def batch(self, rows: np.ndarray) -> tuple[Any, np.ndarray]:
        """float32 features and the rows in them: the whole array where that needs no copy."""
        if isinstance(self.features, SparseRows):
            return self.features[rows], np.arange(len(rows))
        if self.as_they_are():
            return np.asarray(self.features), rows
        return np.array(self.features[rows], dtype=np.float32, order="C"), np.arange(len(rows))

    def as_they_are(self) -> bool:
        """Whether kernels can read the features without a copy."""
        features = self.features
        if isinstance(features, SparseRows):
            return False
        return features.dtype == np.float32 and features.flags.c_contiguous


class Batch(NamedTuple):
    """Some examples: their numbers, features[rows], true classes (n, 1), weights and randomness."""

    numbers: np.ndarray
    features: Any
    rows: np.ndarray
    truth: torch.Tensor
    weights: torch.Tensor | None
    stream: Stream


@dataclass
class State:
    """Where a run stands: with head and noise, all that a checkpoint needs.

    ``examples`` counts those of the whole run, ``loss`` and ``weight`` those of this epoch.
    ``best`` is the likelihood of the head that is kept, ``best_epoch`` its epoch: 0 is the start,
    −1 none. Patience looks at epochs alone: the first ones may well be worse than the start.
    """

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    examples: int = 0
    loss: float = 0.0
    weight: float = 0.0
    best: float = -np.inf
    best_epoch: int = -1
    rising: float = -np.inf
    rising_epoch: int = 0
    finished: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)
    #: Records of looks other than at the ends of epochs: at the start, and between where asked.
    looks: list[dict[str, Any]] = field(default_factory=list)


class Clock:
    """Seconds of training; held-out looks and callbacks are not counted."""

    def __init__(self, seconds: float) -> None:
        self._start = time.perf_counter() - seconds

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    @contextmanager
    def stopped(self) -> Iterator[None]:
        before = self.seconds
        yield
        self._start = time.perf_counter() - before


@dataclass
class Trainer:
    scorer: Scorer
    examples: Examples
    settings: Settings
    seed: int
    progress: Progress
    checkpoint: Checkpoint
    callback: Callable[[dict[str, Any]], bool | None] | None = None
    state: State = field(default_factory=State)
    local: torch.Tensor | None = None
    #: Classes of every row and their log q, where they are drawn once.
    kept: tuple[torch.Tensor, torch.Tensor] | None = None
    #: Look at the held-out rows also within an epoch, each time that training has taken half as
    #: long again: for curves. Training itself does not depend on it.
    looks_between: bool = False

    def run(self, rows: np.ndarray, held_out: np.ndarray) -> State:
        """Train on ``rows``, watch ``held_out``; leaves the best head in the scorer."""
        state, settings = self.state, self.settings
        self.clock = Clock(state.seconds)
        self.held_out = held_out[: looked_at(self.scorer.head.n_classes, bool(self.scorer.blend))]
        n_steps = -(-len(rows) // settings.batch_size)
        with closing(self.checkpoint), self.progress.shown(settings.epochs, len(rows), state):
            with self.checkpoint.signals():
                if not state.finished:
                    if state.best_epoch < 0 and not (state.epoch or state.step):
                        self._keep_start()
                    self.save()
                while not state.finished:
                    self._run_epoch(rows, n_steps)
                    self._end_epoch()
            self._restore_best()
        return state

    def _keep_start(self) -> None:
        """The head as it is before the first step is the one to beat."""
        if not len(self.held_out):
            return
        with self.clock.stopped():
            record = {"epoch": 0, "seconds": self.clock.seconds, **self.evaluate()}
            if np.isfinite(record["log_likelihood"]):
                self.state.looks.append(record)
                self.state.best, self.state.best_epoch = record["log_likelihood"], 0
                self.checkpoint.save_best(self.scorer.head)

    def _run_epoch(self, rows: np.ndarray, n_steps: int) -> None:
        state, settings = self.state, self.settings
        order = np.random.default_rng([self.seed, _SHUFFLE, state.epoch]).permutation(rows)
        epoch = 0 if self.scorer.noise.draws_once else state.epoch
        key = Stream.of(self.seed, _NEGATIVES, epoch, rows=rows[:0]).key
        while state.step < n_steps and not self._out_of_time():
            steps = np.arange(state.step, min(state.step + self._steps_at_once(), n_steps))
            batch = order[state.step * settings.batch_size :][: len(steps) * settings.batch_size]
            done = (state.epoch + steps / n_steps) / settings.epochs
            self._take_steps(batch, key, self.learning_rate(done))
            state.step += len(steps)
            self.progress.advance(len(batch), state.loss / max(state.weight, 1e-300))
            if self.looks_between:
                self._look_between()
            if self.checkpoint.due():
                self.save()

    def _look_between(self) -> None:
        state, looks = self.state, self.state.looks
        last = max((records[-1]["seconds"] for records in (looks, state.history) if records),
                   default=0.0)  # fmt: skip
        if len(self.held_out) and self.clock.seconds > _BETWEEN_LOOKS * last:
            with self.clock.stopped():
                looks.append({"seconds": self.clock.seconds, **self.evaluate()})

    def learning_rate(self, done: np.ndarray) -> np.ndarray:
        """At these shares of the whole training."""
        if self.settings.max_seconds:
            done = np.maximum(done, self.clock.seconds / self.settings.max_seconds)
        falling = self.settings.schedule == "linear"
        return self.settings.learning_rate * (
            np.maximum(0.0, 1.0 - done) if falling else np.ones_like(done)
        )

    def _steps_at_once(self) -> int:
        """Steps between looks at the clock: one, or many where a kernel runs them by itself."""
        if self._form() is None:
            return 1
        n_examples = _PAIRS_AT_ONCE // (1 + self.settings.n_negatives)
        if not self.examples.as_they_are():
            n_examples = min(n_examples, _FLOATS_AT_ONCE // self.examples.features.shape[1])
        return max(1, n_examples // self.settings.batch_size)

    def _form(self) -> tuple[float, ...] | None:
        """What `LinearHead.steps` needs to know of the objective, where it can be used."""
        objective, noise = self.scorer.objective, self.scorer.noise
        logistic = objective.logistic(self.settings.n_negatives)
        if logistic is None or noise.follows_head or not isinstance(self.scorer.head, LinearHead):
            return None
        return *logistic, float(objective.adds_log_q), objective.regularization

    def train(self, rows: np.ndarray, key: np.uint64, learning_rates: np.ndarray) -> None:
        """Steps on consecutive batches of the given rows, one for each learning rate; adds their
        surrogate loss to the tally."""
        size, at_once = self.settings.batch_size, self._steps_at_once()
        for first in range(0, len(learning_rates), at_once):
            rates = learning_rates[first : first + at_once]
            self._take_steps(rows[first * size :][: len(rates) * size], key, rates)

    def _take_steps(self, numbers: np.ndarray, key: np.uint64, rates: np.ndarray) -> None:
        """At most `_steps_at_once` of them."""
        examples, state, form = self.examples, self.state, self._form()
        each = None if examples.weights is None else torch.from_numpy(examples.weights[numbers])
        truth = torch.from_numpy(examples.labels[numbers])[:, None]
        stream = Stream(key, numbers)
        features, rows = examples.batch(numbers)
        if self.settings.dropout:
            chance = Stream.of(self.seed, _DROPOUT, state.epoch, rows=numbers)
            features = features.dropped(self.settings.dropout, chance)
        batch = Batch(numbers, features, rows, truth, each, stream)
        if not self.scorer.objective.samples:
            head, penalty = self.scorer.head, self.scorer.objective.regularization
            total = head.exact_step(
                batch.features, batch.rows, truth[:, 0], each, penalty, rates[0]
            )
        else:
            with one_torch_thread():
                if form is None:
                    total = self._sampled_step(batch, rates[0])
                else:
                    total = self._sampled_steps(batch, form, rates)
        if not np.isfinite(total):
            raise self._diverged("the training loss", f" (learning rate {rates[0]:.3g})")
        state.examples += len(numbers)
        state.loss += total
        state.weight += float(len(numbers)) if each is None else float(each.sum())

    def _sampled_steps(self, batch: Batch, form: tuple[float, ...], rates: np.ndarray) -> float:
        """`_sampled_step` many times, in one kernel."""
        classes, log_q = self._drawn(batch)
        each = None if batch.weights is None else batch.weights.numpy()
        size = self.settings.batch_size
        loss = self.scorer.head.steps(
            batch.features, batch.rows, classes, log_q, each, form, size, rates
        )
        total = float(loss.sum())
        if not np.isfinite(total):
            # Steps after that one were not taken.
            self.state.step += int(np.argmin(np.isfinite(loss))) // size
        return total

    def _sampled_step(self, batch: Batch, rate: float) -> float:
        """draw → score → gradient → touched rows; nothing is touched if the loss is not finite."""
        noise, head, objective = self.scorer.noise, self.scorer.head, self.scorer.objective
        classes, log_q = self._drawn(batch)
        inputs = head.inputs(batch.features)
        scores = head.scores(inputs, batch.rows, classes)
        hits = classes[:, 1:] == batch.truth
        pairs = Pairs(scores, log_q, hits, self._local_of(batch.numbers))
        if objective.local_size:
            pairs = pairs._replace(local=self._visit(pairs, batch.numbers))
        loss, gradient = objective.loss(pairs).double(), objective.gradient(pairs)
        if batch.weights is not None:
            loss, gradient = loss * batch.weights, gradient * batch.weights[:, None]
        total = float(loss.sum())
        if np.isfinite(total):
            head.step(inputs, batch.rows, classes, gradient, rate)
            if noise.follows_head:
                noise.refresh(classes)
        return total

    def _drawn(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The true class and the drawn ones, and log q of each."""
        n, m = len(self.examples.labels), self.settings.n_negatives
        if not self.scorer.noise.draws_once or 12 * n * (1 + m) > _KEPT_BYTES:
            return self._draw(batch)
        if self.kept is None:
            # Rows not drawn for yet have no class.
            self.kept = torch.full((n, 1 + m), -1, dtype=torch.int64), torch.empty((n, 1 + m))
        classes, log_q = (kept[torch.from_numpy(batch.numbers)] for kept in self.kept)
        if bool((classes[:, 0] < 0).any()):
            classes, log_q = self._draw(batch)
            for kept, drawn in zip(self.kept, (classes, log_q), strict=True):
                kept[torch.from_numpy(batch.numbers)] = drawn
        return classes, log_q

    def _draw(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        noise = self.scorer.noise
        context = self.examples.context_of(noise, batch.numbers)
        draw = noise.sample(context, self.settings.n_negatives, batch.stream)
        log_q = torch.cat([noise.log_prob(context, batch.truth), draw.log_q], 1)
        return torch.cat([batch.truth, draw.labels], 1), log_q

    def _local_of(self, batch: np.ndarray) -> torch.Tensor:
        """What the objective keeps for these examples."""
        if self.local is None:
            self.local = self.scorer.objective.local_start(len(self.examples.labels))
        return self.local[torch.from_numpy(batch)]

    def _visit(self, pairs: Pairs, batch: np.ndarray) -> torch.Tensor:
        epoch, objective = self.state.epoch, self.scorer.objective
        uniform = Stream.of(self.seed, _LOCAL, epoch, rows=batch).uniform(objective.local_size)
        local = objective.visit(pairs, epoch, torch.from_numpy(uniform))
        assert self.local is not None
        self.local[torch.from_numpy(batch)] = local
        return local

    def _diverged(self, what: str, where: str = "") -> DivergedError:
        state = self.state
        kept = self.checkpoint.path
        return DivergedError(
            f"{what} is not finite at epoch {state.epoch + 1}, step {state.step + 1}{where}; "
            "the likely cause is too large a learning_rate or features of wildly different scale"
            + (f"; {kept} stays good" if kept else "")
        )

    def _out_of_time(self) -> bool:
        limit = self.settings.max_seconds
        return limit is not None and self.clock.seconds >= limit

    def _end_epoch(self) -> None:
        state, settings = self.state, self.settings
        state.seconds = self.clock.seconds
        record: dict[str, Any] = {
            "epoch": state.epoch + 1,
            "seconds": state.seconds,
            "examples": state.examples,
            "surrogate_loss": state.loss / max(state.weight, 1e-300),
        }
        out_of_time = self._out_of_time()
        if len(self.held_out):
            with self.clock.stopped():
                record |= self.evaluate()
            if not np.isfinite(record["log_likelihood"]):
                raise self._diverged("the held-out log-likelihood")
        state.history.append(record)
        state.epoch, state.step, state.loss, state.weight = state.epoch + 1, 0, 0.0, 0.0
        last = state.epoch >= settings.epochs or out_of_time
        if "log_likelihood" in record:
            if record["log_likelihood"] > state.best:
                state.best, state.best_epoch = record["log_likelihood"], state.epoch
                if not last:
                    self.checkpoint.save_best(self.scorer.head)
            if record["log_likelihood"] > state.rising:
                state.rising, state.rising_epoch = record["log_likelihood"], state.epoch
            last |= state.epoch - state.rising_epoch >= settings.patience
        with self.clock.stopped():
            asked = self.callback(record) if self.callback else None
        state.finished = last or bool(asked)
        self.progress.epoch(record)
        if state.finished:
            self._restore_best()
        self.save()

    def evaluate(self) -> dict[str, float]:
        """Exact held-out figures."""
        features = self.examples.features[np.sort(self.held_out)]
        labels = self.examples.labels[np.sort(self.held_out)]
        budget = max(HELD_OUT_BYTES, self.scorer.bytes_a_row())
        return_the_rest()
        result = likelihood(self.scorer, features, labels, budget)
        return {
            "log_likelihood": float(result.log_prob.double().mean()),
            "accuracy": float(result.correct.double().mean()),
        }

    def _restore_best(self) -> None:
        if self.state.best_epoch not in (-1, self.state.epoch):
            self.checkpoint.load_best(self.scorer.head)

    def save(self) -> None:
        self.state.seconds = self.clock.seconds
        self.checkpoint.save(self.scorer.head, self.scorer.noise, asdict(self.state), self.local)
