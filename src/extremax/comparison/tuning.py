"""Tuning by successive halving: train all settings briefly, then the better half twice as long.

Jamieson & Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization",
AISTATS 2016. All rounds take about the same time, so n settings cost log2 n rounds instead of n
full runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """Values of the tuned hyperparameters."""

    learning_rate: float
    regularization: float


@dataclass(frozen=True)
class Round:
    """One round of successive halving.

    settings:  number of settings.
    seconds:   training time per setting.
    """

    settings: int
    seconds: float


def grid(learning_rates: Sequence[float], regularizations: Sequence[float]) -> list[Setting]:
    """Return all combinations."""
    return [Setting(rate, penalty) for rate in learning_rates for penalty in regularizations]


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
