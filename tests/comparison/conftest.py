"""A small problem, shared by all tests of comparisons."""

from __future__ import annotations

import pytest

from extremax.comparison import Problem
from extremax.data import clustered


@pytest.fixture(scope="session")
def problem() -> Problem:
    X, y = clustered(400, 12, 8, seed=1, noise=0.4)
    return Problem.split(X, y, test_fraction=0.25)
