"""The part of the campaign that abuses an estimator notices what it should."""

from __future__ import annotations

import warnings
from random import Random
from typing import Any

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.data import clustered
from tests.campaign.abuse_answers import ask, differences, probe_rows
from tests.campaign.abuse_parameters import changed_parameter
from tests.campaign.abuse_session import Failed, numerics_checked


def test_every_parameter_of_the_classifier_is_spoiled() -> None:
    names = {changed_parameter(Random(seed))[0] for seed in range(1000)}
    assert names == set(ExtremeClassifier().get_params(deep=False))


def test_a_change_is_noticed_where_every_score_overflows() -> None:
    X, y = clustered(60, 5, 6, seed=0)
    model = ExtremeClassifier(noise="uniform", epochs=1, random_state=0).fit(X, y)
    head: Any = model.model_.head
    head.bias[0] = float("inf")
    rows = probe_rows(model)
    before = ask(model, rows)
    assert len(before.probabilities) == 0
    assert differences(before, ask(model, rows)) == ""
    head.weight[1, 2] += 1.0
    assert differences(before, ask(model, rows)) != ""


def test_warnings_about_numbers_are_failures_and_others_are_not() -> None:
    with numerics_checked():
        warnings.warn("odd, but right", UserWarning, stacklevel=1)
    with pytest.raises(Failed, match="overflow"), numerics_checked():
        np.float32(1e38) * np.float32(1e38)
