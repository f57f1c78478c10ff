"""Settings of a comparison, and tuning by successive halving.

Halving trains all settings briefly, then the better half twice as long, and so on. Jamieson &
Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016.
All rounds take about the same time, so n settings cost log2 n rounds instead of n full runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from extremax.errors import ArgumentError
from extremax.heads import LinearHead
from extremax.training.start import STARTS


class Setting(NamedTuple):
    """Values of the tuned hyperparameters."""

    learning_rate: float
    regularization: float
    weight_decay: float = 0.0


class Round(NamedTuple):
    """One round of successive halving.

    settings:  number of settings.
    seconds:   training time per setting.
    """

    settings: int
    seconds: float


@dataclass(frozen=True)
class Options:
    """Settings of a comparison, the same for every cell.

    budget:           seconds of the final run per cell, which include fitting the noise.
    tuning:           time of all tuning runs per cell, as a multiple of the budget.
    learning_rates, regularizations, weight_decays:  the grid of settings to tune over.
    tree_components:  dimensions of the dense tree, unless a cell says them.
    start:            where heads start, see `extremax.ExtremeClassifier`.
    """

    budget: float = 60.0
    tuning: float = 1.0
    learning_rates: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)
    regularizations: tuple[float, ...] = (0.0, 1e-5, 1e-3)
    weight_decays: tuple[float, ...] = (0.0,)
    tree_components: int = 16
    start: str | None = None
    validation_fraction: float = 0.1
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("budget", "tuning"):
            if not getattr(self, name) > 0:
                raise ArgumentError(f"{name} must be > 0, got {getattr(self, name)!r}")
        if not self.settings:
            raise ArgumentError(
                "tuning needs at least one learning rate, one regularization and one weight decay"
            )
        if min(self.learning_rates) <= 0:
            raise ArgumentError(f"learning_rates must be > 0, got {self.learning_rates}")
        for name in ("regularizations", "weight_decays"):
            if min(getattr(self, name)) < 0:
                raise ArgumentError(f"{name} must be >= 0, got {getattr(self, name)}")
        if self.start not in (None, *STARTS[LinearHead]):
            known = ", ".join(map(repr, STARTS[LinearHead]))
            raise ArgumentError(f"start must be None or one of {known}, got {self.start!r}")
        if not 0 < self.validation_fraction < 1:
            raise ArgumentError(
                f"validation_fraction must be in (0, 1), got {self.validation_fraction!r}"
            )

    @property
    def settings(self) -> list[Setting]:
        """The settings to tune over: all combinations."""
        grid = product(self.learning_rates, self.regularizations, self.weight_decays)
        return [Setting(*values) for values in grid]

    @property
    def rounds(self) -> list[Round]:
        """The rounds of tuning per cell."""
        return rounds(len(self.settings), self.tuning * self.budget)

    @property
    def seconds_per_cell(self) -> float:
        """Seconds of training per cell, tuning included."""
        return self.budget + sum(r.settings * r.seconds for r in self.rounds)


def rounds(n_settings: int, seconds: float) -> list[Round]:
    """Plan rounds of ``seconds`` in total, or none if there is only one setting.

    Each round has half as many settings as the previous one, rounded up, and trains each of them
    twice as long.
    """
    sizes = []
    while n_settings > 1:
        sizes.append(n_settings)
        n_settings = -(-n_settings // 2)
    shares = sum(size * 2**i for i, size in enumerate(sizes))
    return [Round(size, seconds * 2**i / shares) for i, size in enumerate(sizes)]


def better_half(settings: Sequence[Setting], scores: Sequence[float]) -> list[Setting]:
    """Return the half, rounded up, with the larger scores, best first; ties keep their order."""
    order = sorted(range(len(settings)), key=lambda i: -scores[i])
    return [settings[i] for i in order[: -(-len(settings) // 2)]]
