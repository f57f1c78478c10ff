"""Noises by name: from a name, an object or JSON to an unfitted noise, and back to JSON."""

from __future__ import annotations

from typing import Any

from extremax.named import describe_named, make_named
from extremax.noise.base import Noise
from extremax.objectives import Objective

#: All noises that can be named and saved; filled by `extremax.noise`, which imports them.
NOISES: dict[str, type[Noise]] = {}


def make_noise(given: str | Noise | dict[str, Any]) -> Noise:
    """An unfitted noise from a name, an object (which is cloned), or `describe_noise`'s result.

    >>> make_noise({"noise": "tree", "n_components": 64})
    TreeNoise(n_components=64)
    """
    return make_named(Noise, NOISES, given)


def with_components(given: str | Noise | dict[str, Any], n_components: int) -> Noise:
    """`make_noise`, with this many components for a noise that has them, or for its parts."""
    noise = make_noise(given)
    parameters = noise.get_params(deep=False)
    if "n_components" in parameters:
        noise.set_params(n_components=n_components)
    elif "parts" in parameters:
        parts = tuple(with_components(part, n_components) for part in parameters["parts"])
        noise.set_params(parts=parts)
    return noise


def describe_noise(noise: Noise) -> dict[str, Any]:
    """Name and parameters of a noise as a JSON object, for `make_noise`."""
    return describe_named(Noise, NOISES, noise, noise.settings())


def noise_name(noise: Noise) -> str:
    """The name of a noise in ``NOISES``, or of its class."""
    names = {kind: name for name, kind in NOISES.items()}
    return names.get(type(noise), type(noise).__name__)


def incompatibility(noise: Noise, objective: Objective, refitted: bool = False) -> str | None:
    """Why a noise and an objective cannot be combined, or None if they can.

    refitted:  whether the noise is fitted again during training.
    """
    if not (objective.adds_log_q and (noise.follows_head or refitted)):
        return None
    return (
        f"{type(noise).__name__} changes as the head trains, and the logits of "
        f"{type(objective).__name__} add its log q: what was learned under an earlier q would be "
        "read with a later one. Use sampled_softmax or nce with it"
    )
