"""Unfitted objectives and noises from names or objects; what cannot work together is refused."""

from __future__ import annotations

from typing import Any

from sklearn.base import clone

from extremax.noise import NOISES, SPARSE_NOISES, Noise, UniformNoise
from extremax.objectives import OBJECTIVES, Objective


def make_objective(given: str | Objective) -> Objective:
    return _made(given, OBJECTIVES, Objective)


def make_noise(given: str | Noise, objective: Objective, sparse: bool) -> Noise:
    """A noise for dense or for sparse rows; an objective that samples nothing needs none."""
    noise = _made(given, NOISES, Noise)
    if not objective.samples:
        return UniformNoise()
    if noise.follows_head and objective.adds_log_q:
        raise ValueError(
            f"{type(noise).__name__} changes as the head trains, and the logits of "
            f"{type(objective).__name__} add its log q: what was learned under yesterday's q "
            "would be read with today's. Use sampled_softmax or nce with it"
        )
    if not sparse:
        return noise
    if isinstance(given, str) and given in SPARSE_NOISES:
        return SPARSE_NOISES[given]()
    if type(noise) not in SPARSE_NOISES.values():
        raise ValueError(
            f"{type(noise).__name__} looks at dense rows, and these are sparse: use one of "
            f"{', '.join(SPARSE_NOISES)}, or project them, encoder=Encoder(n_components=256) or "
            "--components 256"
        )
    return noise


def _made(given: Any, table: dict[str, type], kind: type) -> Any:
    """An unfitted object from a name or from an object of that kind."""
    if isinstance(given, kind):
        return clone(given)
    if given in table:
        return table[given]()
    names = ", ".join(repr(n) for n in table)
    raise ValueError(f"{kind.__name__.lower()} must be one of {names} or an object, got {given!r}")
