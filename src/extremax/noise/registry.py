"""Noises by name: from a name, an object or JSON to an unfitted noise, and back to JSON."""

from __future__ import annotations

from typing import Any

from extremax.named import describe_named, make_named, parse_named, write_named
from extremax.noise.base import Noise
from extremax.objectives import OBJECTIVES, Objective

#: All noises that can be named and saved; filled by `extremax.noise`, which imports them.
NOISES: dict[str, type[Noise]] = {}


def make_noise(given: str | Noise | dict[str, Any]) -> Noise:
    """An unfitted noise from a name, with or without parameters, an object (which is cloned), or
    `describe_noise`'s result.

    >>> make_noise("tree(n_components=64)")
    TreeNoise(n_components=64)
    >>> make_noise({"noise": "tree", "n_components": 64})
    TreeNoise(n_components=64)
    """
    return make_named(Noise, NOISES, given)


def with_components(given: str | Noise | dict[str, Any], n_components: int) -> Noise:
    """`make_noise`, with this many components for every noise among it and its parts that has
    components and does not say how many."""
    noise = make_noise(given)
    if isinstance(given, Noise):
        return noise
    parameters = noise.get_params(deep=False)
    said = parse_named(Noise, given) if isinstance(given, str) else given
    if "n_components" in parameters and "n_components" not in said:
        noise.set_params(n_components=n_components)
    elif "parts" in parameters:
        noise.check_parameters()
        parts = tuple(with_components(part, n_components) for part in parameters["parts"])
        noise.set_params(parts=parts)
    return noise


def with_seed(noise: Noise, seed: int) -> Noise:
    """The same noise, unfitted, with this seed in it or in every part that has a seed."""
    noise = make_noise(noise)
    parameters = noise.get_params(deep=False)
    if "seed" in parameters:
        noise.set_params(seed=seed)
    elif "parts" in parameters:
        parts = tuple(with_seed(make_noise(part), seed) for part in parameters["parts"])
        noise.set_params(parts=parts)
    return noise


def describe_noise(noise: Noise) -> dict[str, Any]:
    """Name and parameters of a noise as a JSON object, for `make_noise`."""
    return describe_named(Noise, NOISES, noise, noise.settings())


def noise_name(noise: Noise) -> str:
    """The name of a noise in ``NOISES``, or of its class."""
    names = {kind: name for name, kind in NOISES.items()}
    return names.get(type(noise), type(noise).__name__)


def paired_objective(text: str, noise: Noise) -> str:
    """The text of an objective for training with this noise.

    ``sampled_softmax`` alone does not say whether its logits are ξ or |ξ|: they are |ξ| with a
    noise that cannot tell ξ from −ξ (Blanc & Rendle's absolute softmax).
    """
    described = parse_named(Objective, text)
    kind = OBJECTIVES.get(described["objective"])
    if noise.is_even and kind is not None and "absolute" in kind().get_params(deep=False):
        described.setdefault("absolute", True)
    return write_named(Objective, described)


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
