"""Random numbers: uniform in the open interval (0, 1) and independent of the other rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from extremax.kernels.cpu.random import uniform
from extremax.random import Stream, seed_from

_GOLDEN, _M1, _M2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SIZE = 2**64


def _undo_shift(x: int, shift: int) -> int:
    y = x
    for _ in range(64 // shift + 1):
        y = x ^ (y >> shift)
    return y


def _state_that_yields(bits: int) -> np.uint64:
    """The state whose draw 0 has exactly these bits: SplitMix64 inverted."""
    x = _undo_shift(bits, 31) * pow(_M2, -1, _SIZE) % _SIZE
    x = _undo_shift(x, 27) * pow(_M1, -1, _SIZE) % _SIZE
    return np.uint64((_undo_shift(x, 30) - _GOLDEN) % _SIZE)


def _splitmix64(state: int, draw: int) -> int:
    """SplitMix64 (Steele, Lea & Flood 2014) in Python integers."""
    x = (state + (draw + 1) * _GOLDEN) % _SIZE
    x = (x ^ (x >> 30)) * _M1 % _SIZE
    x = (x ^ (x >> 27)) * _M2 % _SIZE
    return x ^ (x >> 31)


@pytest.mark.parametrize("draw", [0, 1, 7, 10**6])
def test_numbers_are_splitmix64(draw: int) -> None:
    state = 0x0123456789ABCDEF
    expected = _splitmix64(state, draw) / _SIZE
    assert float(uniform(np.uint64(state), draw)) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("bits", [0, 1, _SIZE // 2 - 1, _SIZE // 2, _SIZE - 2, _SIZE - 1])
def test_no_bits_give_zero_or_one(bits: int) -> None:
    state = _state_that_yields(bits)
    assert _splitmix64(int(state), 0) == bits
    value = float(uniform(state, 0))
    assert 0.0 < value < 1.0
    # An index drawn from a range must stay within it.
    for n in (3, 10**7, 2**24 + 1):
        assert 0 <= int(value * n) < n


def test_numbers_are_uniform() -> None:
    values = Stream.of(0, rows=np.arange(20_000)).uniform(5)
    assert values.shape == (20_000, 5)
    assert stats.kstest(values.ravel(), "uniform").pvalue > 1e-4
    # Adjacent rows and draws are the most likely to be correlated.
    for a, b in ((values[:, 0], values[:, 1]), (values[:-1, 0], values[1:, 0])):
        table, _, _ = np.histogram2d(a, b, bins=16, range=[[0, 1], [0, 1]])
        assert stats.chisquare(table.ravel()).pvalue > 1e-4


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=30), st.integers(0, 2**31), st.data())
def test_the_numbers_of_a_row_do_not_depend_on_other_rows(
    rows: list[int], seed: int, data: st.DataObject
) -> None:
    whole = Stream.of(seed, 3, rows=np.array(rows)).uniform(6)
    shuffled = data.draw(st.permutations(range(len(rows))))
    subset = shuffled[: data.draw(st.integers(1, len(rows)))]
    stream = Stream.of(seed, 3, rows=np.array(rows)[subset])
    assert np.array_equal(stream.uniform(6), whole[subset])
    # Fewer numbers, or a second call, give the same numbers.
    assert np.array_equal(stream.uniform(2), whole[subset][:, :2])


def test_seeds_purposes_and_rows_have_different_numbers() -> None:
    rows = np.arange(50)
    streams = [
        Stream.of(0, rows=rows),
        Stream.of(1, rows=rows),
        Stream.of(0, 0, rows=rows),
        Stream.of(0, 1, rows=rows),
        Stream.of(0, 0, 1, rows=rows),
        Stream.of(0, 1, 0, rows=rows),
        Stream.of(2**32, rows=rows),
        Stream.of(0, rows=rows + 50),
    ]
    numbers = np.concatenate([s.uniform(20).ravel() for s in streams])
    assert len(np.unique(numbers)) == len(numbers)


def test_children_have_different_numbers() -> None:
    stream = Stream.of(0, rows=np.arange(50))
    streams = [stream, stream.child(0), stream.child(1), stream.child(0).child(0)]
    streams += [stream.child(1).child(0), Stream.of(0, 0, rows=stream.rows)]
    numbers = np.concatenate([s.uniform(20).ravel() for s in streams])
    assert len(np.unique(numbers)) == len(numbers)
    # A child, too, does not depend on the other rows.
    subset = Stream.of(0, rows=np.array([7, 3]))
    assert np.array_equal(subset.child(1).uniform(3), stream.child(1).uniform(3)[[7, 3]])


def test_chunks_do_not_change_the_numbers() -> None:
    rows = np.arange(40_000)
    selected = rows[::4001]
    assert np.array_equal(
        Stream.of(9, rows=rows).uniform(1)[selected], Stream.of(9, rows=selected).uniform(1)
    )


def test_seed_from_accepts_what_scikit_learn_accepts() -> None:
    assert seed_from(7) == seed_from(np.int64(7)) == 7
    assert seed_from(np.random.default_rng(3)) == seed_from(np.random.default_rng(3))
    assert seed_from(np.random.RandomState(3)) == seed_from(np.random.RandomState(3))
    generator = np.random.default_rng(3)
    assert seed_from(generator) != seed_from(generator)
    assert seed_from(None) != seed_from(None)


@pytest.mark.parametrize("bad", [-1, "0", 1.5])
def test_seed_from_refuses_other_values(bad: object) -> None:
    with pytest.raises(ValueError, match="random_state"):
        seed_from(bad)  # type: ignore[arg-type]
