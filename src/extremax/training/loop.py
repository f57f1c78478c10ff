"""The training loop: epochs of steps, held-out evaluations, checkpoints, early stopping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from extremax.errors import DivergedError
from extremax.evaluation import outcomes
from extremax.heads.blocks import BYTES_PER_SCORE
from extremax.labels import one_label_per_row
from extremax.memory import trim_heap
from extremax.model import Model
from extremax.prediction.blend import is_product
from extremax.random import Purpose, Stream
from extremax.training.calibration import fit_temperature
from extremax.training.checkpoint import Checkpoint
from extremax.training.data import Examples
from extremax.training.progress import Progress
from extremax.training.state import Clock, Settings, State
from extremax.training.steps import Steps

# Scores computed by one held-out evaluation: a second or two of work on two cores. A product of
# experts takes several times as long per score.
_HELD_OUT_SCORES, _PRODUCT_COST = 100_000_000, 8
# Rows that an evaluation fits a temperature to, at a cost of several times that of scoring them.
_TEMPERED_ROWS = 128
# Memory of such an evaluation: little beside the head, where there are many classes.
HELD_OUT_BYTES = 2**25
# Evaluate again once the training time has grown by this factor since the last evaluation.
_BETWEEN_EVALUATIONS = 1.5

Callback = Callable[[dict[str, Any]], "bool | None"]


def evaluated_rows(n_classes: int, product: bool) -> int:
    """Held-out rows that one evaluation scores.

    product:  whether head and noise are a product of experts.
    """
    return max(128, _HELD_OUT_SCORES // (_PRODUCT_COST if product else 1) // n_classes)


def evaluation_bytes(n_rows: int, n_classes: int, uses_noise: bool) -> float:
    """Bytes of an evaluation: the scores of a block, and of an eighth of it what the noise
    computes (activations, their logarithms, log q), or else a copy of the scores."""
    block = min(n_rows, max(1, min(4096, HELD_OUT_BYTES // (BYTES_PER_SCORE * n_classes))))
    more = 3 * max(1, block // 8) if uses_noise else block
    return 4.0 * n_classes * (block + more) if block else 0.0


@dataclass
class Trainer:
    """Trains the head of a model in place.

    evaluate_within_epochs:  also evaluate held-out rows within an epoch, each time that training
                             has taken half as long again: for learning curves. Training itself
                             does not depend on it.
    """

    model: Model
    examples: Examples
    settings: Settings
    seed: int
    progress: Progress = field(default_factory=Progress)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    callback: Callback | None = None
    state: State = field(default_factory=State)
    per_example: Any = None
    evaluate_within_epochs: bool = False

    def __post_init__(self) -> None:
        settings, twin = self.settings, self.model.twin
        given = (
            self.model, self.examples, settings.n_negatives, settings.batch_size, self.seed,
            self.per_example, settings.shares_draws, settings.counts_truths,
        )  # fmt: skip
        if twin is None:
            self.steps = Steps(*given)
        else:
            # Draws on a device are the torch layer's, which is slow to load.
            from extremax.training.device_steps import DeviceSteps

            self.steps = DeviceSteps(*given, head=twin)
        #: Whether a device remembers the best head.
        self._kept = False

    def run(self, train: np.ndarray, held_out: np.ndarray) -> State:
        """Train on some examples and watch others, by their numbers; leaves the best head."""
        state, settings, model = self.state, self.settings, self.model
        self.clock = Clock(state.seconds)
        product = is_product(model.objective, model.noise)
        self.held_out = np.sort(held_out[: evaluated_rows(model.n_classes, product)])
        n_steps = -(-len(train) // settings.batch_size)
        with self.progress.shown(settings.epochs, len(train), state):
            with self.checkpoint.signals():
                if not state.finished:
                    if state.best_epoch < 0 and not (state.epoch or state.step):
                        self._keep_start()
                    self.save()
                while not state.finished:
                    self._run_epoch(train, n_steps)
                    self._end_epoch()
            self._restore_best()
        return state

    def _keep_start(self) -> None:
        """The head before the first step is the one to beat."""
        record = self._evaluate_now(epoch=0)
        if record is not None:
            self.state.best, self.state.best_epoch = record["log_likelihood"], 0
            with self.clock.stopped():
                self._save_best()

    def _evaluate_now(self, **record: Any) -> dict[str, Any] | None:
        """Held-out figures other than at the end of an epoch, if there are any and are finite."""
        if not len(self.held_out):
            return None
        with self.clock.stopped():
            record |= {"seconds": self.clock.seconds, **self.evaluate()}
        if not np.isfinite(record["log_likelihood"]):
            return None
        self.state.evaluations.append(record)
        return record

    def _run_epoch(self, train: np.ndarray, n_steps: int) -> None:
        state, settings = self.state, self.settings
        order = np.random.default_rng([self.seed, Purpose.SHUFFLE, state.epoch]).permutation(train)
        epoch = 0 if self.model.noise.draws_once else state.epoch
        key = Stream.of(self.seed, Purpose.NEGATIVES, epoch, rows=train[:0]).key
        at_once, per_decay = self._pace(n_steps)
        while state.step < n_steps and not self._out_of_time():
            steps = np.arange(state.step, min(state.step + at_once, n_steps))
            size = len(steps) * settings.batch_size
            batch, after = np.split(order[state.step * settings.batch_size :], [size])
            self.steps.expect(after[: at_once * settings.batch_size])
            done = (state.epoch + steps / n_steps) / settings.epochs
            if settings.max_seconds:
                done = np.maximum(done, self.clock.seconds / settings.max_seconds)
            self._take(batch, key, settings.learning_rates(done), per_decay)
            self.progress.advance(len(batch), state.surrogate_loss)
            if self._evaluation_due():
                self._evaluate_now()
            if self.checkpoint.due():
                self.save()
        self._decay()

    def train(self, numbers: np.ndarray, key: np.uint64, learning_rates: np.ndarray) -> None:
        """Steps on consecutive batches of the numbered examples, one per learning rate."""
        size, (at_once, per_decay) = self.settings.batch_size, self._pace(len(learning_rates))
        for first in range(0, len(learning_rates), at_once):
            rates = learning_rates[first : first + at_once]
            self._take(numbers[first * size :][: len(rates) * size], key, rates, per_decay)
        self._decay()

    def _pace(self, n_steps: int) -> tuple[int, int]:
        """Steps to take at once, and from one decay of the weights to the next."""
        at_once, per_decay = self.steps.at_once, self.steps.per_decay(n_steps)
        return min(at_once, per_decay) if self.settings.weight_decay else at_once, per_decay

    def _take(self, numbers: np.ndarray, key: np.uint64, rates: np.ndarray, per_decay: int) -> None:
        state = self.state
        loss, weight, n_done = self.steps.take(numbers, key, rates, state.epoch)
        state.step += n_done
        if not np.isfinite(loss):
            raise self._diverged("the training loss", f" (learning rate {rates[0]:.3g})")
        state.examples += len(numbers)
        state.loss += loss
        state.weight += weight
        if self.settings.weight_decay:
            state.undecayed += self.steps.rate_sum(numbers, rates)
            if state.step // per_decay > (state.step - n_done) // per_decay:
                self._decay()

    def _decay(self) -> None:
        """Decay the weights by what the steps since the last time owe."""
        if self.state.undecayed:
            self.steps.decay(self.settings.weight_decay * self.state.undecayed)
            self.state.undecayed = 0.0

    def _evaluation_due(self) -> bool:
        """Whether to evaluate within the epoch."""
        records = [*self.state.evaluations[-1:], *self.state.history[-1:]]
        last = max((record["seconds"] for record in records), default=0.0)
        return self.evaluate_within_epochs and self.clock.seconds > _BETWEEN_EVALUATIONS * last

    def _end_epoch(self) -> None:
        state, settings = self.state, self.settings
        state.seconds = self.clock.seconds
        record: dict[str, Any] = {
            "epoch": state.epoch + 1,
            "seconds": state.seconds,
            "examples": state.examples,
            "surrogate_loss": state.surrogate_loss,
        }
        out_of_time = self._out_of_time()
        if len(self.held_out):
            try:
                with self.clock.stopped():
                    record |= self.evaluate()
            except DivergedError as error:
                raise self._diverged("the held-out log-likelihood") from error
        state.history.append(record)
        state.end_epoch()
        last = state.epoch >= settings.epochs or out_of_time
        if "log_likelihood" in record:
            if record["log_likelihood"] > state.best:
                state.best, state.best_epoch = record["log_likelihood"], state.epoch
                if not last:
                    self._save_best()
            if record["log_likelihood"] > state.rising:
                state.rising, state.rising_epoch = record["log_likelihood"], state.epoch
            last |= state.epoch - state.rising_epoch >= settings.patience
        with self.clock.stopped():
            asked_to_stop = self.callback(record) if self.callback else None
        state.finished = last or bool(asked_to_stop)
        self.progress.epoch(record)
        if state.finished:
            self._restore_best()
        self.save()

    def evaluate(self) -> dict[str, float]:
        """Exact held-out figures, by the weights of the examples."""
        rows, labels = self.examples.rows[self.held_out], self.examples.labels[self.held_out]
        weights = self.examples.weights_of(self.held_out)
        budget = max(HELD_OUT_BYTES, BYTES_PER_SCORE * self.model.n_classes)
        trim_heap()
        model = self.model
        if self.settings.tempers:
            few = slice(None, _TEMPERED_ROWS)
            temperature = fit_temperature(
                model, rows[few], labels[few], budget, weights=weights[few]
            )
            model = model.tempered(temperature)
        result = outcomes(model, rows, one_label_per_row(labels), budget)
        return {
            "log_likelihood": float(np.average(result.log_prob, weights=weights)),
            "accuracy": float(np.average(result.correct, weights=weights)),
        }

    def _save_best(self) -> None:
        twin = self.model.twin
        # A run that may be resumed needs it on disk.
        self._kept = twin is not None and self.checkpoint.path is None and twin.keep()
        if not self._kept:
            self.model.fetch()
            self.checkpoint.save_best(self.model.head)

    def _restore_best(self) -> None:
        twin = self.model.twin
        is_last = self.state.best_epoch in (-1, self.state.epoch)
        if twin is not None and self._kept and not is_last:
            twin.recall()
            is_last = True
        self.model.fetch()
        if not is_last:
            self.checkpoint.load_best(self.model.head, self.examples.rows.n_features)
            if twin is not None:
                twin.send()

    def save(self) -> None:
        self.state.seconds = self.clock.seconds
        if self.checkpoint.path is not None:
            self.model.fetch()
        kept = self.steps.per_example
        self.checkpoint.save(self.model, asdict(self.state), None if kept is None else kept.cpu())

    def _out_of_time(self) -> bool:
        limit = self.settings.max_seconds
        return limit is not None and self.clock.seconds >= limit

    def _diverged(self, what: str, where: str = "") -> DivergedError:
        state, path = self.state, self.checkpoint.path
        return DivergedError(
            f"{what} is not finite at epoch {state.epoch + 1}, step {state.step + 1}{where}; "
            "the likely cause is a learning_rate that is too large, or features of very different "
            "scale" + (f"; the checkpoint in {path} is still good" if path else "")
        )
