"""Randomness that does not depend on threads, batch order or how often somebody looked.

One integer seed; a `Stream` for each purpose and epoch; within it every example has its own
sequence, addressed by the example's row number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Stream:
    """The random numbers of some rows: ``uniform(n)`` is the same for a row in any company."""

    key: np.uint64
    rows: np.ndarray

    @classmethod
    def of(cls, seed: int, *purpose: int, rows: np.ndarray) -> Stream:
        """The stream of a seed and a purpose (small integers, such as the epoch)."""
        # As one list, numpy would take [0], [0, 0] and [0, 0, 0] for the same seed.
        source = np.random.SeedSequence(seed, spawn_key=purpose)
        key = source.generate_state(1, np.uint64)[0]
        return cls(key, np.ascontiguousarray(rows, dtype=np.int64))

    def child(self, number: int) -> Stream:
        """Another stream of the same rows, independent of this one and of its other children."""
        source = np.random.SeedSequence(int(self.key), spawn_key=(number,))
        return Stream(source.generate_state(1, np.uint64)[0], self.rows)

    def uniform(self, n: int) -> np.ndarray:
        """(rows, n) float64 in the open interval (0, 1)."""
        from extremax.kernels.cpu.random import fill_uniform
        from extremax.kernels.cpu.threads import parallel

        out = np.empty((len(self.rows), n))
        parallel(fill_uniform, len(self.rows), 16384, self.key, self.rows, out)
        return out


def seed_from(random_state: int | np.random.Generator | np.random.RandomState | None) -> int:
    """One integer seed from whatever scikit-learn accepts as ``random_state``."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    if isinstance(random_state, (int, np.integer)) and random_state >= 0:
        return int(random_state)
    raise ValueError(f"random_state must be None, an int >= 0 or a generator, got {random_state!r}")
