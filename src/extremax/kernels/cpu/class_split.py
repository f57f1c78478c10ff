"""Classes in an order in which similar ones are close: halved, and halved again, in numba.

Balanced spherical 2-means on class vectors, as in Parabel (Prabhu et al., WWW 2018): each half has
a mean of unit length; classes are ranked by how much nearer they are to the right one, and the
upper half of the ranking goes right. A range of positions is split at lo + (hi − lo)//2, so the
shape of the tree follows from C alone.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from extremax.kernels.cpu.lines import FAST
from extremax.kernels.cpu.random import row_state, uniform

# Halves are done when of so many classes no more than one changes sides.
_STILL = 256


@njit(nogil=True, cache=True)
def halve(start, stop, ranges, order, indptr, indices, values, n_features, rounds, key):
    """order[lo:hi] of each of these ranges so that its halves are alike."""
    # The sums of both halves side by side, so that a feature's are in one line of memory.
    sums = np.zeros((n_features, 2), np.float32)
    for r in range(start, stop):
        lo, hi = ranges[r]
        if hi - lo > 2:
            state = row_state(key, lo)
            one = int(uniform(state, 0) * (hi - lo))
            other = (one + 1 + int(uniform(state, 1) * (hi - lo - 1))) % (hi - lo)
            _halve_one(order[lo:hi], one, other, indptr, indices, values, sums, rounds)


@njit(nogil=True, cache=True)
def _halve_one(classes, one, other, indptr, indices, values, sums, rounds):
    """From two classes on: their vectors are the first means."""
    n = classes.size
    half = n // 2
    goes_right = np.zeros(n, np.bool_)
    unit = np.float32(1.0)
    _add(classes[one], indptr, indices, values, sums, 0, unit)
    _add(classes[other], indptr, indices, values, sums, 1, unit)
    to_left, to_right = np.empty(n, np.float32), np.empty(n, np.float32)
    # Vectors have unit length, so the seeds have, too.
    left_length, right_length = unit, unit
    for number in range(rounds):
        for i in range(n):
            to_left[i], to_right[i] = _dots(classes[i], indptr, indices, values, sums)
        if number:
            left_length, right_length = _lengths(to_left, to_right, goes_right)
        rank = np.argsort(to_right / right_length - to_left / left_length, kind="mergesort")
        before = goes_right.copy()
        goes_right[:] = False
        goes_right[rank[half:]] = True
        if number == 0:
            _clear(classes[one], indptr, indices, sums)
            _clear(classes[other], indptr, indices, sums)
            for i in range(n):
                _add(classes[i], indptr, indices, values, sums, int(goes_right[i]), unit)
            continue
        n_moved = 0
        for i in range(n):
            if goes_right[i] != before[i]:
                n_moved += 1
                _add(classes[i], indptr, indices, values, sums, int(before[i]), -unit)
                _add(classes[i], indptr, indices, values, sums, int(goes_right[i]), unit)
        if n_moved <= n // _STILL:
            break
    for i in range(n):
        _clear(classes[i], indptr, indices, sums)
    # Both halves keep the order they had.
    sorted_classes = np.concatenate((classes[~goes_right], classes[goes_right]))
    classes[:] = sorted_classes


@njit(nogil=True, cache=True)
def _lengths(to_left, to_right, goes_right):
    """Of the sums of both halves: ‖s‖² = Σ v·s over the vectors in it."""
    left, right = 0.0, 0.0
    for i in range(goes_right.size):
        if goes_right[i]:
            right += to_right[i]
        else:
            left += to_left[i]
    return np.float32(np.sqrt(max(left, 1e-12))), np.float32(np.sqrt(max(right, 1e-12)))


@njit(nogil=True, cache=True, fastmath=FAST)
def _dots(y, indptr, indices, values, sums):
    left, right = np.float32(0.0), np.float32(0.0)
    for e in range(indptr[y], indptr[y + 1]):
        left += values[e] * sums[indices[e], 0]
        right += values[e] * sums[indices[e], 1]
    return left, right


@njit(nogil=True, cache=True)
def _add(y, indptr, indices, values, sums, side, sign):
    for e in range(indptr[y], indptr[y + 1]):
        sums[indices[e], side] += sign * values[e]


@njit(nogil=True, cache=True)
def _clear(y, indptr, indices, sums):
    for e in range(indptr[y], indptr[y + 1]):
        sums[indices[e], 0] = 0.0
        sums[indices[e], 1] = 0.0
