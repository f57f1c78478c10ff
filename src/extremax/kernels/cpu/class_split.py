"""Order classes so that similar ones are close, by repeated halving, in numba.

Balanced spherical 2-means on class vectors, as in Parabel (Prabhu et al., WWW 2018): each half has
a mean of unit length; classes are ranked by how much nearer they are to the right mean, and the
upper half of the ranking goes right. A range of positions is split at lo + (hi − lo)//2, so the
shape of the tree follows from C alone.

Class vectors have unit length and are CSR arrays (indptr, indices, values).
"""

from __future__ import annotations

import numpy as np

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.lines import FAST
from extremax.kernels.cpu.random import row_state, uniform
from extremax.kernels.cpu.sorting import rising

# A split has converged when at most one of this many classes changes sides.
_CONVERGED = 256


@kernel
def add_up_classes(
    start, stop, first, by_class, arrays, n_features, room, features, sums, counts
):  # fmt: skip
    """The sum of the rows by_class[first[y]:first[y + 1]] of each class y, scaled to unit length:
    its counts[y] features and their sums from room[y] on."""
    indptr, indices, values = arrays
    total = np.zeros(n_features, np.float32)
    for y in range(start, stop):
        n = 0
        for i in range(first[y], first[y + 1]):
            for e in range(indptr[by_class[i]], indptr[by_class[i] + 1]):
                f = indices[e]
                if total[f] == 0.0:
                    features[room[y] + n] = f
                    n += 1
                total[f] += values[e]
                if total[f] == 0.0:  # Or it would come twice.
                    total[f] = np.float32(1e-30)
        squares = 0.0
        for k in range(room[y], room[y] + n):
            squares += total[features[k]] * total[features[k]]
        length = np.float32(np.sqrt(max(squares, 1e-30)))
        for k in range(room[y], room[y] + n):
            sums[k] = total[features[k]] / length
            total[features[k]] = 0.0
        counts[y] = n


@kernel
def closed_up(start, stop, room, ends, given, kept):
    """Copy what begins at room[y] to ends[y] .. ends[y + 1] − 1, for every class y."""
    for y in range(start, stop):
        for k in range(ends[y + 1] - ends[y]):
            kept[0][ends[y] + k] = given[0][room[y] + k]
            kept[1][ends[y] + k] = given[1][room[y] + k]


@kernel
def halve(start, stop, ranges, order, vectors, n_features, rounds, key):
    """Reorder order[lo:hi] of each range so that the classes of each half are similar."""
    # The sums of both halves side by side, so that a feature's are in one line of memory.
    sums = np.zeros((n_features, 2), np.float32)
    for r in range(start, stop):
        lo, hi = ranges[r]
        if hi - lo > 2:
            state = row_state(key, lo)
            one = int(uniform(state, 0) * (hi - lo))
            other = (one + 1 + int(uniform(state, 1) * (hi - lo - 1))) % (hi - lo)
            _halve_range(order[lo:hi], one, other, vectors, sums, rounds)


@kernel
def _halve_range(classes, one, other, vectors, sums, rounds):
    """2-means with the vectors of classes number ``one`` and ``other`` as the first means."""
    n = classes.size
    half = n // 2
    goes_right = np.zeros(n, np.bool_)
    unit = np.float32(1.0)
    _add(classes[one], vectors, sums, 0, unit)
    _add(classes[other], vectors, sums, 1, unit)
    to_left, to_right = np.empty(n, np.float32), np.empty(n, np.float32)
    nearer, before = np.empty(n), np.empty(n, np.bool_)
    left_length, right_length = unit, unit
    for number in range(rounds):
        for i in range(n):
            to_left[i], to_right[i] = _dots(classes[i], vectors, sums)
        if number:
            left_length, right_length = _lengths(to_left, to_right, goes_right)
        for i in range(n):
            nearer[i] = to_right[i] / right_length - to_left[i] / left_length
            before[i] = goes_right[i]
        rank = rising(nearer, n)
        for i in range(n):
            goes_right[rank[i]] = i >= half
        if number == 0:
            _clear(classes[one], vectors, sums)
            _clear(classes[other], vectors, sums)
            for i in range(n):
                _add(classes[i], vectors, sums, int(goes_right[i]), unit)
            continue
        n_moved = 0
        for i in range(n):
            if goes_right[i] != before[i]:
                n_moved += 1
                _add(classes[i], vectors, sums, int(before[i]), -unit)
                _add(classes[i], vectors, sums, int(goes_right[i]), unit)
        if n_moved <= n // _CONVERGED:
            break
    for i in range(n):
        _clear(classes[i], vectors, sums)
    # Both halves keep the order they had.
    left, right, old = 0, half, np.empty(n, np.int64)
    for i in range(n):
        old[i] = classes[i]
    for i in range(n):
        if goes_right[i]:
            classes[right] = old[i]
            right += 1
        else:
            classes[left] = old[i]
            left += 1


@kernel
def _lengths(to_left, to_right, goes_right):
    """Lengths of the sums of both halves: ‖s‖² = Σ v·s over the vectors in the half."""
    left, right = 0.0, 0.0
    for i in range(goes_right.size):
        if goes_right[i]:
            right += to_right[i]
        else:
            left += to_left[i]
    return np.float32(np.sqrt(max(left, 1e-12))), np.float32(np.sqrt(max(right, 1e-12)))


@kernel(fastmath=FAST)
def _dots(y, vectors, sums):
    indptr, indices, values = vectors
    left, right = np.float32(0.0), np.float32(0.0)
    for e in range(indptr[y], indptr[y + 1]):
        left += values[e] * sums[indices[e], 0]
        right += values[e] * sums[indices[e], 1]
    return left, right


@kernel
def _add(y, vectors, sums, side, sign):
    indptr, indices, values = vectors
    for e in range(indptr[y], indptr[y + 1]):
        sums[indices[e], side] += sign * values[e]


@kernel
def _clear(y, vectors, sums):
    indptr, indices, _ = vectors
    for e in range(indptr[y], indptr[y + 1]):
        sums[indices[e], 0] = 0.0
        sums[indices[e], 1] = 0.0
