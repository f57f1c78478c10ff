"""Random numbers that do not depend on threads, batch order or earlier requests.

All randomness derives from one integer seed. Each purpose (such as the draws of one epoch) has a
`Stream`, and within a stream every example has its own sequence, addressed by its row number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from extremax.errors import ArgumentError
from extremax.kernels.cpu.threads import parallel


class Purpose(IntEnum):
    """What random numbers are for: each purpose has streams of its own."""

    SHUFFLE = 1
    NEGATIVES = 2
    HOLDOUT = 3
    PARTIAL_FIT = 4
    START = 5
    PER_EXAMPLE = 6
    DROPOUT = 7
    REHEARSAL = 8
    MEMBER = 9
    BLEND = 11


@dataclass(frozen=True)
class Stream:
    """Counter-based random numbers for a set of rows.

    ``uniform(n)`` returns the same numbers for a row no matter which other rows are in the stream,
    in which order, or how often it is called.

    key:   seed of the stream, see `Stream.of`.
    rows:  (n,) int64 row numbers.
    """

    key: np.uint64
    rows: np.ndarray

    @classmethod
    def of(cls, seed: int, *purpose: int, rows: np.ndarray) -> Stream:
        """Create the stream of a seed and a purpose, small integers such as the epoch."""
        # As one list, numpy would take [0], [0, 0] and [0, 0, 0] for the same seed.
        source = np.random.SeedSequence(seed, spawn_key=purpose)
        key = source.generate_state(1, np.uint64)[0]
        return cls(key, np.ascontiguousarray(rows, dtype=np.int64))

    def child(self, number: int) -> Stream:
        """Derive a stream for the same rows, independent of this one and of its other children."""
        source = np.random.SeedSequence(int(self.key), spawn_key=(number,))
        return Stream(source.generate_state(1, np.uint64)[0], self.rows)

    def uniform(self, n: int) -> np.ndarray:
        """Draw n numbers per row from the open interval (0, 1); (rows, n) float64."""
        from extremax.kernels.cpu.random import fill_uniform

        out = np.empty((len(self.rows), n))
        parallel(fill_uniform, len(self.rows), 16384, self.key, self.rows, out)
        return out


def member_seed(seed: int, number: int) -> int:
    """The seed of the model of this number in an ensemble; the first has that of the run."""
    if not number:
        return seed
    source = np.random.SeedSequence(seed, spawn_key=(Purpose.MEMBER, number))
    return int(source.generate_state(1)[0])


def seed_from(random_state: int | np.random.Generator | np.random.RandomState | None) -> int:
    """Turn anything scikit-learn accepts as ``random_state`` into one integer seed."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    if isinstance(random_state, (int, np.integer)) and random_state >= 0:
        return int(random_state)
    raise ArgumentError(
        f"random_state must be None, an int >= 0 or a numpy generator, got {random_state!r}"
    )
