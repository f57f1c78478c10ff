"""Votes of similar rows, in numba; see `extremax.experts.similar`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.cpu.jit import kernel

# A feature with more values than this per class is searched for the class, a shorter one read on.
_LONG = 32


class KnownRows(NamedTuple):
    """Values of rows of unit length, sorted by feature and row. Rows are numbered class by class.

    first:        (F + 1,) the first value of each feature.
    row, values:  (·,) row and value.
    start:        (C + 1,) the first row of each class.
    """

    first: np.ndarray
    row: np.ndarray
    values: np.ndarray
    start: np.ndarray


@kernel
def count_features(start, stop, bounds, arrays, order, counts):
    """counts[b, f] = values of feature f in the rows order[bounds[b]:bounds[b + 1]]."""
    indptr, indices, _ = arrays
    for b in range(start, stop):
        for i in range(bounds[b], bounds[b + 1]):
            for e in range(indptr[order[i]], indptr[order[i] + 1]):
                counts[b, indices[e]] += 1


@kernel
def by_feature(start, stop, bounds, arrays, order, number, place, row, values):
    """Values of the rows order[bounds[b]:bounds[b + 1]], scaled to unit length, and number[i] of
    row order[i], sorted by feature: those of block b and feature f from place[b, f] on, which is
    moved behind them."""
    indptr, indices, given = arrays
    for b in range(start, stop):
        for i in range(bounds[b], bounds[b + 1]):
            first, end = indptr[order[i]], indptr[order[i] + 1]
            size = max(measure(given, first, end, 0.0)[0], 1e-30)
            for e in range(first, end):
                at = place[b, indices[e]]
                row[at], values[at] = number[i], given[e] / size
                place[b, indices[e]] = at + 1


@kernel
def merge(start, stop, first, old, new, out):
    """Two lists of (first, row, values) in one, by feature and row; its features begin at
    ``first``."""
    for f in range(start, stop):
        a, b = old[0][f], new[0][f]
        for at in range(first[f], first[f + 1]):
            takes_old = b == new[0][f + 1]
            if a < old[0][f + 1] and b < new[0][f + 1]:
                takes_old = old[1][a] < new[1][b]
            if takes_old:
                out[0][at], out[1][at] = old[1][a], old[2][a]
                a += 1
            else:
                out[0][at], out[1][at] = new[1][b], new[2][b]
                b += 1


@kernel(inline="always")
def measure(values, first, stop, share):
    """Length of a row, and the smallest size of a value that counts."""
    total, largest = 0.0, 0.0
    for k in range(first, stop):
        total += values[k] * values[k]
        largest = max(largest, abs(values[k]))
    return math.sqrt(total), share * largest


@kernel(inline="always")
def cube(cosine, size):
    positive = max(0.0, cosine / size)
    return positive * positive * positive


@kernel
def seek(row, place, end, wanted):
    """The first place from ``place`` on with a row of at least ``wanted``: by strides that double,
    then by halves."""
    if place == end or row[place] >= wanted:
        return place
    stride = 1
    while place + stride < end and row[place + stride] < wanted:
        place += stride
        stride *= 2
    high = min(place + stride, end)
    while place + 1 < high:
        middle = (place + high) // 2
        if row[middle] < wanted:
            place = middle
        else:
            high = middle
    return high


@kernel
def votes_at(start, stop, indptr, indices, values, known, classes, form, out):
    """out[i, j] = log(1 + Σ cos³/ε) over the rows of classes[i, j]; 0 for −1. form: (ε, share).

    The classes of a row must rise: then one pass over the values of a feature finds the rows of
    them all.
    """
    little, share = form
    n_columns = classes.shape[1]
    # Rows of each class of row i have places from[j] on: a place per row of all of them.
    first, n_places = np.empty(n_columns, np.int64), 1
    for i in range(start, stop):
        n_places = max(n_places, number_places(classes[i], known.start, first))
    cosines = np.zeros(n_places, np.float32)
    touched, column = np.empty(n_places, np.int64), np.empty(n_places, np.int64)
    votes = np.empty(n_columns, np.float64)
    for i in range(start, stop):
        size, least = measure(values, indptr[i], indptr[i + 1], share)
        number_places(classes[i], known.start, first)
        n = 0
        for k in range(indptr[i], indptr[i + 1]):
            if abs(values[k]) < least:
                continue
            value = values[k]
            at, end = known.first[indices[k]], known.first[indices[k] + 1]
            leaps = end - at > _LONG * n_columns
            for j in range(n_columns):
                c = classes[i, j]
                if c < 0 or (j > 0 and c == classes[i, j - 1]):
                    continue
                low, high = known.start[c], known.start[c + 1]
                if leaps:
                    at = seek(known.row, at, end, low)
                else:
                    while at < end and known.row[at] < low:
                        at += 1
                if at == end:
                    break
                while at < end and known.row[at] < high:
                    place = first[j] + known.row[at] - low
                    if cosines[place] == 0.0:
                        touched[n], column[n] = place, j
                        n += 1
                    cosines[place] += value * known.values[at]
                    if cosines[place] == 0.0:  # Or it would be touched twice.
                        cosines[place] = np.float32(1e-30)
                    at += 1
        for j in range(n_columns):
            votes[j] = 0.0
        for t in range(n):
            votes[column[t]] += cube(cosines[touched[t]], size)
            cosines[touched[t]] = 0.0
        for j in range(n_columns):
            if j > 0 and classes[i, j] == classes[i, j - 1]:
                out[i, j] = out[i, j - 1]
            else:
                out[i, j] = math.log1p(votes[j] / little) if votes[j] > 0.0 else 0.0


@kernel(inline="always")
def number_places(classes, start, first):
    """Give the rows of each class places from first[j] on, and return their number."""
    total = 0
    for j in range(len(classes)):
        first[j] = total
        if classes[j] >= 0:
            total += start[classes[j] + 1] - start[classes[j]]
    return total


@kernel
def add_votes(start, stop, indptr, indices, values, known, owner, weight, form, logits):
    """logits[i, y] += weight · log(1 + Σ cos³/ε) over the rows of every class y.

    owner:  the class of each row.
    """
    little, share = form
    cosines = np.zeros(len(owner), np.float32)
    touched = np.empty(len(owner), np.int64)
    votes = np.zeros(logits.shape[1], np.float64)
    for i in range(start, stop):
        size, least = measure(values, indptr[i], indptr[i + 1], share)
        if size == 0.0:
            continue
        n = 0
        for k in range(indptr[i], indptr[i + 1]):
            if abs(values[k]) < least:
                continue
            feature = indices[k]
            for place in range(known.first[feature], known.first[feature + 1]):
                row = known.row[place]
                if cosines[row] == 0.0:
                    touched[n] = row
                    n += 1
                cosines[row] += values[k] * known.values[place]
                if cosines[row] == 0.0:
                    cosines[row] = np.float32(1e-30)
        for t in range(n):
            row = touched[t]
            votes[owner[row]] += cube(cosines[row], size)
            cosines[row] = 0.0
        for t in range(n):
            c = owner[touched[t]]
            if votes[c] > 0.0:
                logits[i, c] += weight * math.log1p(votes[c] / little)
                votes[c] = 0.0


@kernel
def reach(start, stop, indptr, indices, values, known, share, out):
    """out[i] = log(1 + Σ_f n_f |x_f|³/‖x‖³), n_f the values of feature f."""
    for i in range(start, stop):
        size, least = measure(values, indptr[i], indptr[i + 1], share)
        total = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            if abs(values[k]) >= least and size > 0.0:
                n = known.first[indices[k] + 1] - known.first[indices[k]]
                total += n * cube(abs(values[k]), size)
        out[i] = math.log1p(total)
