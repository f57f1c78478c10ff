"""Compilation is counted apart from training, and told once."""

from __future__ import annotations

import time

import numpy as np
from numba import njit

from extremax.kernels import compilation
from extremax.kernels.cpu import jit  # noqa: F401  # it listens to numba
from extremax.training.state import Clock


def test_compiling_a_function_counts_and_calling_it_again_does_not() -> None:
    @njit
    def inner(x):
        return x + 1

    @njit
    def outer(x):
        return inner(x) * 2

    told: list[str] = []
    before, start = compilation.seconds(), time.perf_counter()
    clock = Clock(5.0)
    with compilation.announced(told.append):
        assert outer(np.float64(1.0)) == 4.0
        wall = time.perf_counter() - start
        taken = compilation.seconds() - before
        outer(np.float64(2.0))
        outer(np.int64(2))
    assert told == [compilation.MESSAGE]
    # The inner function is compiled within the outer one, and not counted twice.
    assert 0.0 < taken <= wall
    assert compilation.seconds() - before > taken
    assert (
        clock.seconds - 5.0 <= time.perf_counter() - start - (compilation.seconds() - before) + 1e-3
    )


def test_nobody_is_told_outside_of_the_block() -> None:
    told: list[str] = []
    with compilation.announced(told.append):
        pass
    compilation.begin()
    compilation.end()
    assert not told
