"""Constructor arguments of the classifier for JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from extremax.errors import ModelFileError
from extremax.features import Encoder
from extremax.labels.saving import check_plain, from_json
from extremax.noise import Noise, describe_noise, make_noise
from extremax.objectives import Objective, describe_objective, make_objective

#: Arguments that came later: with these values they are left out, as they were before.
_LATER = {"n_models": 1, "class_weight": None}


def write_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """The arguments as JSON values; `read_parameters` gives equal ones."""
    values = dict(parameters)
    if isinstance(values["objective"], Objective):
        values["objective"] = describe_objective(values["objective"])
    values["noise"] = _write_value(values["noise"])
    if values["encoder"] is not None:
        values["encoder"] = values["encoder"].get_params(deep=False)
    values["random_state"] = _write_random_state(values["random_state"])
    weights = values["class_weight"]
    if isinstance(weights, Mapping):
        check_plain(weights)
        values["class_weight"] = {"labels": list(weights), "weights": list(weights.values())}
    for name, value in _LATER.items():
        if values[name] == value:
            del values[name]
    return values


def read_parameters(settings: dict[str, Any], folder: str | Path) -> dict[str, Any]:
    """The arguments that `write_parameters` wrote."""
    try:
        values = _LATER | settings["parameters"]
        if isinstance(values["objective"], dict):
            values["objective"] = make_objective(values["objective"])
        values["noise"] = _read_value(values["noise"])
        if values["encoder"] is not None:
            ngrams = tuple(values["encoder"]["ngrams"])
            values["encoder"] = Encoder(**values["encoder"] | {"ngrams": ngrams})
        weights = values["class_weight"]
        if isinstance(weights, dict):
            pairs = zip(map(from_json, weights["labels"]), weights["weights"], strict=True)
            values["class_weight"] = dict(pairs)
        values["random_state"] = _read_random_state(values["random_state"])
        for name, kind in (("objective", Objective), ("noise", Noise)):
            if not (values[name] is None or isinstance(values[name], (str, kind))):
                raise TypeError(f"{name} is {values[name]!r:.80}")
        return values
    except Exception as error:  # Whatever the JSON of somebody else makes constructors raise.
        raise ModelFileError(
            f"the parameters in {folder} are not those of this version: {error}"
        ) from error


def _write_value(value: Any) -> Any:
    """A noise or one of its arguments for JSON, which has neither objects nor tuples nor arrays."""
    if isinstance(value, Noise):
        arguments = _write_value(value.get_params(deep=False))
        return {"object": describe_noise(value)["noise"], "arguments": arguments}
    if isinstance(value, (tuple, np.ndarray)):
        kind = "tuple" if isinstance(value, tuple) else "array"
        return {kind: [_write_value(v) for v in value]}
    if isinstance(value, dict):
        return {"dict": {key: _write_value(v) for key, v in value.items()}}
    return [_write_value(v) for v in value] if isinstance(value, list) else value


def _read_value(value: Any) -> Any:
    """What `_write_value` wrote."""
    if isinstance(value, list):
        return [_read_value(v) for v in value]
    if not isinstance(value, dict):
        return value
    if "object" in value:
        return make_noise({"noise": value["object"], **_read_value(value["arguments"])})
    if "dict" in value:
        return {key: _read_value(v) for key, v in value["dict"].items()}
    ((kind, items),) = value.items()
    read = [_read_value(v) for v in items]
    return np.array(read) if kind == "array" else tuple(read)


def _write_random_state(value: Any) -> Any:
    """Integers as they are, generators by their state."""
    if isinstance(value, np.random.Generator):
        return {"generator": _plain(value.bit_generator.state)}
    if isinstance(value, np.random.RandomState):
        return {"random_state": _plain(value.get_state(legacy=False))}
    return value


def _read_random_state(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, state),) = value.items()
    generators = {one.__name__: one for one in np.random.BitGenerator.__subclasses__()}
    bits = generators[state["bit_generator"]]()
    if kind == "generator":
        bits.state = state
        return np.random.Generator(bits)
    generator = np.random.RandomState(bits)
    generator.set_state(state)
    return generator


def _plain(state: Any) -> Any:
    """A nested state with lists instead of arrays."""
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state
