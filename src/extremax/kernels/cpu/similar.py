"""Votes of similar rows, in numba; see `extremax.experts.similar`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit


class RowsByClass(NamedTuple):
    """Values of rows of unit length, sorted by class, feature and row.

    first:                 (C + 1,) the first value of each class.
    rows:                  (C,) rows of each class.
    features, row, values: (·,) feature, number of the row within its class, value.
    """

    first: np.ndarray
    rows: np.ndarray
    features: np.ndarray
    row: np.ndarray
    values: np.ndarray


class RowsByFeature(NamedTuple):
    """The same values sorted by feature: the first of each feature, and row and value of each.

    owner:  the class of each row.
    """

    first: np.ndarray
    row: np.ndarray
    values: np.ndarray
    owner: np.ndarray


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
def votes_at(start, stop, indptr, indices, values, known, classes, form, out):
    """out[i, j] = log(1 + Σ cos³/ε) over the rows of classes[i, j]; 0 for −1. form: (ε, share)."""
    little, share = form
    most = max(1, known.rows.max())
    cosines, touched = np.zeros(most, np.float32), np.empty(most, np.int32)
    for i in range(start, stop):
        size, least = measure(values, indptr[i], indptr[i + 1], share)
        for j in range(classes.shape[1]):
            out[i, j] = 0.0
            c = classes[i, j]
            if c < 0 or size == 0.0:
                continue
            place, end, n = known.first[c], known.first[c + 1], 0
            for k in range(indptr[i], indptr[i + 1]):
                if abs(values[k]) < least:
                    continue
                feature, high = indices[k], end
                while place < high:  # The first value of this feature; features rise.
                    middle = (place + high) // 2
                    if known.features[middle] < feature:
                        place = middle + 1
                    else:
                        high = middle
                while place < end and known.features[place] == feature:
                    row = known.row[place]
                    if cosines[row] == 0.0:
                        touched[n] = row
                        n += 1
                    cosines[row] += values[k] * known.values[place]
                    if cosines[row] == 0.0:  # Or it would be touched twice.
                        cosines[row] = np.float32(1e-30)
                    place += 1
            total = 0.0
            for t in range(n):
                total += cube(cosines[touched[t]], size)
                cosines[touched[t]] = 0.0
            out[i, j] = math.log1p(total / little)


@njit(cache=True, nogil=True, error_model="numpy")
def add_votes(start, stop, indptr, indices, values, known, weight, form, logits):
    """logits[i, y] += weight · log(1 + Σ cos³/ε) over the rows of every class y."""
    little, share = form
    n_rows = len(known.owner)
    cosines = np.zeros(n_rows, np.float32)
    touched = np.empty(n_rows, np.int64)
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
            votes[known.owner[row]] += cube(cosines[row], size)
            cosines[row] = 0.0
        for t in range(n):
            c = known.owner[touched[t]]
            if votes[c] > 0.0:
                logits[i, c] += weight * math.log1p(votes[c] / little)
                votes[c] = 0.0
