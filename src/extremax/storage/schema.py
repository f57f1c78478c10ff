"""What the JSON of a manifest must look like: every key, its type and its range."""

from __future__ import annotations

import re
import sys
from typing import Any, NamedTuple

from extremax.checks import is_number
from extremax.errors import ModelFileError


class Number(NamedTuple):
    """A finite number from ``low`` to ``high``; true and false are none."""

    low: float = -sys.float_info.max
    high: float = sys.float_info.max
    integer: bool = False

    def __str__(self) -> str:
        return f"{'an integer' if self.integer else 'a number'} from {self.low:g} to {self.high:g}"


class Each(NamedTuple):
    """An object with any keys, whose values all have one schema."""

    value: Any


COUNT = Number(0, 2**53, integer=True)
FILE_NAME = re.compile(r"[a-z_]+[0-9]*\.[0-9a-f]{16}\.safetensors")
FILES = Each({"name": FILE_NAME, "bytes": COUNT, "sha256": re.compile("[0-9a-f]{64}")})
_NAMES: dict[Any, str] = {str: "a string", bool: "true or false", dict: "an object", None: "null"}


def check(value: Any, schema: Any, place: str = "") -> None:
    """Refuse a value that does not have the schema: a type, None, a `Number`, a pattern, a tuple of
    alternatives, a list with the schema of its items, an `Each`, or a dictionary with the schema of
    every key. A key that ends in "?" may be missing.

    place:  where in the manifest the value is, for messages.
    """
    if isinstance(schema, dict) and isinstance(value, dict):
        for key in schema:
            if key not in value and not key.endswith("?"):
                raise ModelFileError(f"it lacks {place + key!r}")
        for key, item in value.items():
            if key not in schema and f"{key}?" not in schema:
                raise ModelFileError(f"it has an unknown {place + key!r}")
            check(item, schema.get(key, schema.get(f"{key}?")), f"{place}{key}.")
    elif isinstance(schema, Each) and isinstance(value, dict):
        for key, item in value.items():
            check(item, schema.value, f"{place}{key}.")
    elif isinstance(schema, list) and isinstance(value, list):
        for number, item in enumerate(value):
            check(item, schema[0], f"{place}{number}.")
    elif not any(_fits(value, one) for one in (schema if type(schema) is tuple else (schema,))):
        raise ModelFileError(f"it has {value!r:.80} for {place[:-1]}, expected {_name(schema)}")


def _fits(value: Any, schema: Any) -> bool:
    if isinstance(schema, Number):
        return is_number(value, schema.integer) and schema.low <= value <= schema.high
    if isinstance(schema, re.Pattern):
        return isinstance(value, str) and schema.fullmatch(value) is not None
    return type(value) is schema or value is schema is None


def _name(schema: Any) -> str:
    if type(schema) is tuple:
        return " or ".join(map(_name, schema))
    if isinstance(schema, re.Pattern):
        return f"text like {schema.pattern}"
    if isinstance(schema, Number):
        return str(schema)
    if isinstance(schema, list):
        return "a list"
    return _NAMES[schema] if isinstance(schema, type) or schema is None else "an object"


#: Figures of a run at several times.
RECORDS = [
    {
        "seconds": Number(),
        "model?": COUNT,
        "epoch?": COUNT,
        "examples?": COUNT,
        "surrogate_loss?": Number(),
        "log_likelihood?": Number(),
        "accuracy?": Number(),
        "penalty?": Number(),
    }
]
# What the members of an ensemble do not share.
_OWN = {
    "head": {
        "name": str,
        "accumulator_start": Number(),
        "scale": Number(),
        "bag_size": COUNT,
        "dropout": Number(),
        "seed": COUNT,
        "accumulators": str,
    },
    "noise": dict,
    "blend": {
        "temperature": Number(),
        "levels": [Number()],
        "experts": [Number()],
        "prior": Number(),
    },
    "rest?": {
        "classes": [COUNT],
        "center": [Number()],
        "scale": [Number()],
        "weights": [Number()],
        "error": Number(),
    },
}
#: The settings of a model. What noises, objectives and parameters hold is theirs to check.
MODEL = {
    "labels": {
        "dtype": re.compile(r"[<>|=]?[biufUO]\d*"),
        "n_classes": Number(1, 2**40, integer=True),
        "n_rows": COUNT,
        "n_first?": COUNT,
        "multilabel": bool,
    },
    "encoder": {
        "input": re.compile("dense|sparse|text|sequences"),
        "n_features": COUNT,
        "n_components": (COUNT, None),
        "analyzer": str,
        "ngrams": [COUNT],
        "buckets": Number(1, 2**31 - 1, integer=True),
    },
    **_OWN,
    "others?": [_OWN],
    "objective": dict,
    "experts": [str],
    "confidence?": {
        "exponent": [Number()],
        "lowered": [Number()],
        "low": [Number()],
        "high": [Number()],
    },
    "marginals?": {"weights": [Number()], "frequencies": [Number()], "others": Number()},
    "probabilities": str,
    "parameters": dict,
    "seed": COUNT,
    "n_partial_fits": COUNT,
    "history": RECORDS,
    "evaluations": RECORDS,
    "validation?": {"rows": COUNT, "accuracy": Number(0, 1), "log_likelihood": Number()},
    "feature_names?": [str],
    "version": str,
}
