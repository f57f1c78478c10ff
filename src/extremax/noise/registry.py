"""Noises by name: from a name, an object or JSON to an unfitted noise, and back to JSON."""

from __future__ import annotations

from typing import Any

from sklearn.base import clone

from extremax.errors import ModelFileError
from extremax.noise.base import Noise
from extremax.objectives import Objective

#: All noises that can be named and saved; filled by `extremax.noise`, which imports them.
NOISES: dict[str, type[Noise]] = {}


def make_noise(given: str | Noise | dict[str, Any]) -> Noise:
    """An unfitted noise from a name, an object (which is cloned), or `describe_noise`'s result.

    >>> make_noise({"noise": "tree", "n_components": 64})
    TreeNoise(n_components=64)
    """
    if isinstance(given, Noise):
        return clone(given)
    parameters = dict(given) if isinstance(given, dict) else {"noise": given}
    name = parameters.pop("noise", None)
    if not isinstance(name, str) or name not in NOISES:
        names = ", ".join(map(repr, NOISES))
        raise ValueError(f"noise must be one of {names} or a Noise, got {given!r}")
    unknown = parameters.keys() - NOISES[name]().get_params(deep=False).keys()
    if unknown:
        raise ValueError(f"{NOISES[name].__name__} has no parameter {sorted(unknown)[0]!r}")
    return NOISES[name](**parameters)


def describe_noise(noise: Noise) -> dict[str, Any]:
    """Name and parameters of a noise as a JSON object, for `make_noise`."""
    for name, kind in NOISES.items():
        if type(noise) is kind:
            return {"noise": name, **noise.settings()}
    raise ModelFileError(
        f"{type(noise).__name__} is not in extremax.noise.NOISES, so a saved model could not be "
        "loaded again; add the class to NOISES before saving"
    )


def noise_name(noise: Noise) -> str:
    """The name of a noise in ``NOISES``, or of its class."""
    names = {kind: name for name, kind in NOISES.items()}
    return names.get(type(noise), type(noise).__name__)


def incompatibility(noise: Noise, objective: Objective) -> str | None:
    """Why a noise and an objective cannot be combined, or None if they can."""
    if not (noise.follows_head and objective.adds_log_q):
        return None
    return (
        f"{type(noise).__name__} changes as the head trains, and the logits of "
        f"{type(objective).__name__} add its log q: what was learned under an earlier q would be "
        "read with a later one. Use sampled_softmax or nce with it"
    )
