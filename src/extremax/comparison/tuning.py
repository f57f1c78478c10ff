"""Tuning by successive halving: many settings for a short time, the better half for twice as long.

Jamieson & Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization",
AISTATS 2016. Every round costs about the same, so n settings cost log2 n rounds rather than n
full runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """What is tuned."""

    learning_rate: float
    regularization: float


@dataclass(frozen=True)
class Round:
    """So many settings, each trained for so long."""

    settings: int
    seconds: float


def grid(learning_rates: Sequence[float], regularizations: Sequence[float]) -> list[Setting]:
    return [Setting(rate, penalty) for rate in learning_rates for penalty in regularizations]


def rounds(n_settings: int, seconds: float) -> list[Round]:
    """The rounds whose runs take ``seconds`` together; none where there is nothing to choose.

    Halves are rounded up; a round's runs last twice as long as those of the round before.
    """
    sizes = []
    while n_settings > 1:
        sizes.append(n_settings)
        n_settings = -(-n_settings // 2)
    shares = sum(size * 2**i for i, size in enumerate(sizes))
    return [Round(size, seconds * 2**i / shares) for i, size in enumerate(sizes)]


def better_half(settings: Sequence[Setting], scores: Sequence[float]) -> list[Setting]:
    """The half, rounded up, of the larger scores, best first; ties keep their order."""
    order = sorted(range(len(settings)), key=lambda i: -scores[i])
    return [settings[i] for i in order[: -(-len(settings) // 2)]]
