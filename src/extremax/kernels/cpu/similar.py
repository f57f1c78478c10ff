"""Votes of similar rows, in numba; see `extremax.experts.similar`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit


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


@njit(cache=True, nogil=True, error_model="numpy")
def measure(values, first, stop, share):
    """Length of a row, and the smallest size of a value that counts."""
    total, largest = 0.0, 0.0
    for k in range(first, stop):
        total += values[k] * values[k]
        largest = max(largest, abs(values[k]))
    return math.sqrt(total), share * largest


@njit(cache=True, nogil=True, error_model="numpy")
def cube(cosine, size):
    positive = max(0.0, cosine / size)
    return positive * positive * positive


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True, error_model="numpy")
def votes_at(start, stop, indptr, indices, values, known, classes, form, out):
    """out[i, j] = log(1 + Σ cos³/ε) over the rows of classes[i, j]; 0 for −1. form: (ε, share).

    The classes of a row must rise: then one pass over the values of its features finds them all.
    """
    little, share = form
    most = max(1, np.diff(known.start).max())
    cosines, touched = np.zeros(most, np.float32), np.empty(most, np.int64)
    longest = max(1, np.diff(indptr[start : stop + 1]).max())
    place, end = np.empty(longest, np.int64), np.empty(longest, np.int64)
    value = np.empty(longest, np.float32)
    for i in range(start, stop):
        size, least = measure(values, indptr[i], indptr[i + 1], share)
        n_features = 0
        for k in range(indptr[i], indptr[i + 1]):
            if abs(values[k]) >= least:
                place[n_features] = known.first[indices[k]]
                end[n_features], value[n_features] = known.first[indices[k] + 1], values[k]
                n_features += 1
        for j in range(classes.shape[1]):
            c = classes[i, j]
            if j > 0 and c == classes[i, j - 1]:
                out[i, j] = out[i, j - 1]
                continue
            out[i, j] = 0.0
            if c < 0 or size == 0.0:
                continue
            low, high, n = known.start[c], known.start[c + 1], 0
            for k in range(n_features):
                at = seek(known.row, place[k], end[k], low)
                while at < end[k] and known.row[at] < high:
                    row = known.row[at] - low
                    if cosines[row] == 0.0:
                        touched[n] = row
                        n += 1
                    cosines[row] += value[k] * known.values[at]
                    if cosines[row] == 0.0:  # Or it would be touched twice.
                        cosines[row] = np.float32(1e-30)
                    at += 1
                place[k] = at
            total = 0.0
            for t in range(n):
                total += cube(cosines[touched[t]], size)
                cosines[touched[t]] = 0.0
            if n:
                out[i, j] = math.log1p(total / little)


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True, error_model="numpy")
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
