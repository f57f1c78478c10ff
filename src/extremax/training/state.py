"""Settings of a run, where it stands, and its clock."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from extremax.kernels import compilation

# Below every log-likelihood, and a number in JSON.
_LOWEST = -sys.float_info.max


@dataclass(frozen=True)
class Settings:
    """How to train; see `extremax.ExtremeClassifier` for what each means.

    tempers:  whether held-out rows will set a temperature in the end, so that none must decide
              which epoch is the best.
    """

    n_negatives: int
    learning_rate: float
    schedule: str
    epochs: int
    batch_size: int
    max_seconds: float | None
    patience: int
    weight_decay: float = 0.0
    tempers: bool = False
    shares_draws: bool = False
    counts_truths: bool = False

    def learning_rates(self, done: np.ndarray) -> np.ndarray:
        """At these shares of the whole training."""
        falling = np.maximum(0.0, 1.0 - done) if self.schedule == "linear" else np.ones_like(done)
        return self.learning_rate * falling


@dataclass
class State:
    """Where a run stands: with head and noise, all that a checkpoint needs.

    ``examples`` counts those of the whole run, ``loss`` and ``weight`` those of this epoch.
    ``best`` is the log-likelihood of the head that is kept, ``best_epoch`` its epoch: 0 is the
    start, −1 none. Patience counts epochs since ``rising_epoch``, the best among epochs: the first
    ones may well be worse than the start. ``undecayed`` is the sum of learning rate × weight of the
    examples whose share of the weight decay is due.
    """

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    examples: int = 0
    loss: float = 0.0
    weight: float = 0.0
    undecayed: float = 0.0
    best: float = _LOWEST
    best_epoch: int = -1
    rising: float = _LOWEST
    rising_epoch: int = 0
    finished: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)
    #: Held-out figures other than at the ends of epochs: at the start, and between where asked.
    evaluations: list[dict[str, Any]] = field(default_factory=list)

    @property
    def surrogate_loss(self) -> float:
        """Mean over the examples of this epoch so far."""
        return self.loss / max(self.weight, 1e-300)

    def end_epoch(self) -> None:
        self.epoch, self.step, self.loss, self.weight = self.epoch + 1, 0, 0.0, 0.0


class Clock:
    """Seconds of training; evaluations, callbacks and compilation are not counted."""

    def __init__(self, seconds: float) -> None:
        self._start = _now() - seconds

    @property
    def seconds(self) -> float:
        return _now() - self._start

    @contextmanager
    def stopped(self) -> Iterator[None]:
        before = self.seconds
        yield
        self._start = _now() - before


def _now() -> float:
    return time.perf_counter() - compilation.seconds()
