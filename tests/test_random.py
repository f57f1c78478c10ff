"""Random numbers: uniform, open at both ends, and a row's own in any company."""

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
    """The state whose draw 0 has exactly these random bits: SplitMix64 run backwards."""
    x = _undo_shift(bits, 31) * pow(_M2, -1, _SIZE) % _SIZE
    x = _undo_shift(x, 27) * pow(_M1, -1, _SIZE) % _SIZE
    return np.uint64((_undo_shift(x, 30) - _GOLDEN) % _SIZE)


def _splitmix64(state: int, draw: int) -> int:
    """Steele, Lea & Flood 2014, in integers."""
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
    # Neither may the classes at the ends of a range be missed or overrun.
    for n in (3, 10**7, 2**24 + 1):
        assert 0 <= int(value * n) < n


def test_numbers_are_uniform() -> None:
    values = Stream.of(0, rows=np.arange(20_000)).uniform(5)
    assert values.shape == (20_000, 5)
    assert stats.kstest(values.ravel(), "uniform").pvalue > 1e-4
    # Rows and draws next to each other are the likeliest to be related.
    for a, b in ((values[:, 0], values[:, 1]), (values[:-1, 0], values[1:, 0])):
        table, _, _ = np.histogram2d(a, b, bins=16, range=[[0, 1], [0, 1]])
        assert stats.chisquare(table.ravel()).pvalue > 1e-4


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=30), st.integers(0, 2**31), st.data())
def test_a_row_has_the_same_numbers_in_any_company(
    rows: list[int], seed: int, data: st.DataObject
) -> None:
    whole = Stream.of(seed, 3, rows=np.array(rows)).uniform(6)
    shuffled = data.draw(st.permutations(range(len(rows))))
    part = shuffled[: data.draw(st.integers(1, len(rows)))]
    asked = Stream.of(seed, 3, rows=np.array(rows)[part])
    assert np.array_equal(asked.uniform(6), whole[part])
    # Asking for fewer numbers, or asking again, changes nothing.
    assert np.array_equal(asked.uniform(2), whole[part][:, :2])


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


def test_children_have_numbers_of_their_own() -> None:
    stream = Stream.of(0, rows=np.arange(50))
    streams = [stream, stream.child(0), stream.child(1), stream.child(0).child(0)]
    streams += [stream.child(1).child(0), Stream.of(0, 0, rows=stream.rows)]
    numbers = np.concatenate([s.uniform(20).ravel() for s in streams])
    assert len(np.unique(numbers)) == len(numbers)
    # The same child in any company, and whoever asked before.
    few = Stream.of(0, rows=np.array([7, 3]))
    assert np.array_equal(few.child(1).uniform(3), stream.child(1).uniform(3)[[7, 3]])


def test_many_rows_fill_in_chunks_as_one_by_one() -> None:
    rows = np.arange(40_000)
    some = rows[::4001]
    assert np.array_equal(
        Stream.of(9, rows=rows).uniform(1)[some], Stream.of(9, rows=some).uniform(1)
    )


def test_seed_from_takes_what_scikit_learn_takes() -> None:
    assert seed_from(7) == seed_from(np.int64(7)) == 7
    assert seed_from(np.random.default_rng(3)) == seed_from(np.random.default_rng(3))
    assert seed_from(np.random.RandomState(3)) == seed_from(np.random.RandomState(3))
    generator = np.random.default_rng(3)
    assert seed_from(generator) != seed_from(generator)
    assert seed_from(None) != seed_from(None)


@pytest.mark.parametrize("bad", [-1, "0", 1.5])
def test_seed_from_refuses_others_by_name(bad: object) -> None:
    with pytest.raises(ValueError, match="random_state"):
        seed_from(bad)  # type: ignore[arg-type]
