"""Parameters of estimators: valid ones, odd ones, and ones that must be refused."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np

from extremax.errors import ArgumentError
from extremax.features import Encoder
from extremax.noise import NOISES, MixtureNoise, Noise, TreeNoise
from extremax.objectives import OBJECTIVES, Objective
from tests.campaign.abuse_values import BAD, GOOD, ODD, Value

_INF, _NAN = float("inf"), float("nan")
_WRONG: tuple[Any, ...] = ("x", [1], {"a": 1}, object(), 1j, len, (), b"1")
_COUNT_BAD = (0, -1, 1.5, _NAN, _INF, True, np.float64(2.0), -(10**30))
_SHARE_BAD = (-0.1, 1.0, 1.5, _NAN, _INF, -_INF, 10**30)
_RATE_BAD = (0.0, -1.0, _NAN, -_INF, 0)
#: (valid values, odd values, values that must be refused) of each parameter.
_VALUES: dict[str, tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]] = {
    "n_negatives": ((None, 1, 5), (40, np.int8(3), 10**4, 10**9, 2**63, 10**30), _COUNT_BAD),
    "learning_rate": (
        (0.3, 0.05),
        (1, 1e-300, 1e4, 1e6, 1e6, 1e30, 1e300, 10**400, np.float16(0.1), Fraction(1, 3), True),
        (*_RATE_BAD, None),
    ),
    "accumulator_start": ((1.0, 0.1), (1, 1e-45, 1e-300, 1e30, 1e300, _INF), (*_RATE_BAD, None)),
    "accumulators": ((None, "weight", "row"), (), ("class", "", 3)),
    "device": (("cpu", "auto"), (), ("cuda:7", "gpu", "", None, 3)),
    "schedule": (("linear", "constant"), (), ("cosine", "", None, 3)),
    "start": ((None, "frequencies", "zeros"), ("class_means",), ("means", "", 0, True)),
    "weight_decay": (
        (0.0, 0),
        (1e-3, 1, 1e6, 1e-300),
        (-1.0, 1e7, _NAN, _INF, 10**400, True, None),
    ),
    "epochs": ((1, 2), (np.int64(2),), _COUNT_BAD),
    "max_seconds": ((None,), (1e-9, 0.05, _INF, 10**400), (*_RATE_BAD, -1)),
    "batch_size": ((None, 16), (1, 10**6, 10**12, 2**63, 10**30), _COUNT_BAD),
    "validation_fraction": ((0.1, 0.5), (0.0, 0.999999, 1e-300, 0), (*_SHARE_BAD, None)),
    "patience": ((2, 1, None), (10**30, np.uint8(3)), _COUNT_BAD),
    "class_weight": (
        (None, {}),
        ("balanced", {0: 2.0}, {"no label": 0.5}, {0: 0}, {(1, 2): 1e300}, {None: 1.0}),
        ("even", {0: -1.0}, {0: _NAN}, {0: _INF}, {0: "1"}, {0: True}, 1, True, [1.0]),
    ),
    "calibrate": ((False, True), (np.True_,), (None, 1, 0)),
    "similar_rows": ((True, False), (np.False_,), (None, 1, 0)),
    "n_models": ((1, 2), (3, np.int8(2)), (*_COUNT_BAD, 101, 10**30, None)),
    "bag_size": ((8,), (1, 7, 10**5, 10**12, 2**63, 10**30), (*_COUNT_BAD, None)),
    "feature_dropout": ((0.1, 0.0), (0.999999, 1e-300, 0), (*_SHARE_BAD, None)),
    "memory_budget": ((2**29, 2**20), (1, 100, 2**63, 10**30), (*_COUNT_BAD, None)),
    "n_jobs": ((1, 2, None), (-1, -2, 10**6, -(10**6), 10**30, np.int8(2)), (0, 1.5, True, _NAN)),
    "random_state": (
        (0, 1, 2**31),
        (2**64, 10**30, np.int64(3), True),
        (-1, 1.5, _NAN, -(10**30)),
    ),
    "verbose": ((0,), (-1, False, 10**30), (None, 1.5)),
}
#: What to set a parameter of a noise, an objective or an encoder to.
_ANY = (-1, 0, 1, 2, 1.5, 1e-300, 1e30, 10**9, 10**30, _NAN, _INF, True, None, "auto", *_WRONG)


def good_parameters(random: Random) -> dict[str, Any]:
    """Parameters that must work on any kind of rows."""
    names = random.sample(sorted(_VALUES), random.randrange(6))
    chosen = {name: random.choice(_VALUES[name][0]) for name in names}
    encoder = random.choice((Encoder(buckets=64), Encoder(buckets=256, ngrams=(1, 2))))
    defaults = {"epochs": 1, "n_jobs": 1, "random_state": 0, "bag_size": 8, "encoder": encoder}
    return defaults | chosen


def changed_parameter(random: Random) -> tuple[str, Value]:
    """The name of a parameter and an odd, bad or wrong value for it."""
    name = random.choice((*_VALUES, "noise", "noise", "objective", "objective", "encoder"))
    if name in _VALUES:
        _, odd, bad = _VALUES[name]
        verdict = random.choice((ODD, BAD, BAD) if odd else (BAD,))
        if verdict == BAD and random.random() < 0.3:
            wrong = [v for v in _WRONG if name != "class_weight" or not isinstance(v, dict)]
            return name, _value(random.choice(wrong), BAD, wrong_type=True)
        return name, _value(random.choice(odd if verdict == ODD else bad), verdict)
    if random.random() < 0.2:
        return name, _value(random.choice((*_WRONG, "", 1)), BAD, wrong_type=True)
    if name == "encoder":
        return name, _encoder(random)
    return name, _noise(random) if name == "noise" else _objective(random)


def _encoder(random: Random) -> Value:
    return _altered(random, Encoder(random.choice((None, 3)), buckets=64))


def _noise(random: Random) -> Value:
    if random.random() < 0.5:
        name = random.choice((*NOISES, "auto"))
        return _value(name, GOOD if name in ("uniform", "frequency", "auto") else ODD)
    parts = (TreeNoise(3), random.choice(tuple(NOISES)))
    weights: tuple[Any, ...] = ((1, 1), (0, 1), (1,), (-1, 2), (_NAN, 1), "ab")
    mixture = MixtureNoise(parts, random.choice(weights))
    made: tuple[Noise, ...] = (mixture, NOISES[random.choice(tuple(NOISES))]())
    return _altered(random, random.choice(made))


def _objective(random: Random) -> Value:
    if random.random() < 0.5:
        return _value(random.choice((*OBJECTIVES, "auto")), ODD)
    made: Objective = OBJECTIVES[random.choice(tuple(OBJECTIVES))]()
    return _altered(random, made)


def _altered(random: Random, made: Any) -> Value:
    """Set one parameter of an object to anything."""
    name = random.choice((*made.get_params(deep=False), ""))
    if not name:
        return _value(made, ODD)
    value = random.choice((*_ANY, random.choice((("tree", 3), (1, 10**6), (2, 1), (0, 0)))))
    with suppress(ArgumentError, TypeError):  # Refused at once, as good as later.
        made.set_params(**{name: value})
    return _value(made, ODD, wrong_type=True)


def _value(value: Any, verdict: int, wrong_type: bool = False) -> Value:
    return Value(value, f"{value!r:.80}", verdict, wrong_type)
