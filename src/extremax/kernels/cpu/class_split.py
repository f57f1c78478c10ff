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


@njit(nogil=True, cache=True)
def halve(start, stop, ranges, order, indptr, indices, values, n_features, rounds, key):
    """order[lo:hi] of each of these ranges so that its halves are alike."""
    left, right = np.zeros(n_features, np.float32), np.zeros(n_features, np.float32)
    for r in range(start, stop):
        lo, hi = ranges[r]
        if hi - lo > 2:
            state = row_state(key, lo)
            one = int(uniform(state, 0) * (hi - lo))
            other = (one + 1 + int(uniform(state, 1) * (hi - lo - 1))) % (hi - lo)
            _halve_one(order[lo:hi], one, other, indptr, indices, values, left, right, rounds)


@njit(nogil=True, cache=True)
def _halve_one(classes, one, other, indptr, indices, values, left, right, rounds):
    """From two classes on: their vectors are the first means."""
    n = classes.size
    half = n // 2
    goes_right = np.zeros(n, np.bool_)
    _add(classes[one], indptr, indices, values, left)
    _add(classes[other], indptr, indices, values, right)
    to_left, to_right = np.empty(n, np.float32), np.empty(n, np.float32)
    # Vectors have unit length, so the seeds have, too.
    left_length, right_length = np.float32(1.0), np.float32(1.0)
    for number in range(rounds):
        for i in range(n):
            to_left[i] = _dot(classes[i], indptr, indices, values, left)
            to_right[i] = _dot(classes[i], indptr, indices, values, right)
        if number:
            left_length, right_length = _lengths(to_left, to_right, goes_right)
        rank = np.argsort(to_right / right_length - to_left / left_length, kind="mergesort")
        before = goes_right.copy()
        goes_right[:] = False
        goes_right[rank[half:]] = True
        for i in range(n):
            _clear(classes[i], indptr, indices, left)
            _clear(classes[i], indptr, indices, right)
        if number and np.array_equal(before, goes_right):
            break
        for i in range(n):
            _add(classes[i], indptr, indices, values, right if goes_right[i] else left)
    for i in range(n):
        _clear(classes[i], indptr, indices, left)
        _clear(classes[i], indptr, indices, right)
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
def _dot(y, indptr, indices, values, dense):
    total = np.float32(0.0)
    for e in range(indptr[y], indptr[y + 1]):
        total += values[e] * dense[indices[e]]
    return total


@njit(nogil=True, cache=True)
def _add(y, indptr, indices, values, dense):
    for e in range(indptr[y], indptr[y + 1]):
        dense[indices[e]] += values[e]


@njit(nogil=True, cache=True)
def _clear(y, indptr, indices, dense):
    for e in range(indptr[y], indptr[y + 1]):
        dense[indices[e]] = 0.0
