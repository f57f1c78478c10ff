"""The two passes of a training step over the head, in numba.

Pass one scores every (example, class) pair of the batch with the weights as they were before
the step. Pass two visits each touched class once, sums the gradients of its pairs in the order
of the batch and applies Adagrad. No two threads ever write the same row.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

# Sums may be reordered into vectors; NaN and infinity keep their meaning.
FAST = {"reassoc", "contract", "nsz"}


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def score_pairs(start, stop, weight, bias, features, rows, classes, scale, out):
    """out[i, j] = scale · weight[classes[i, j]]·features[rows[i]] + bias[classes[i, j]]."""
    n_features = features.shape[1]
    for i in range(start, stop):
        x = features[rows[i]]
        for j in range(classes.shape[1]):
            w = weight[classes[i, j]]
            total = np.float32(0.0)
            for f in range(n_features):
                total += w[f] * x[f]
            out[i, j] = scale * total + bias[classes[i, j]]


@njit(nogil=True, cache=True)
def group_by_class(keys, starts):
    """Start of each run of equal classes in sorted ``class << 32 | pair`` keys; their count."""
    n_groups = 0
    previous = np.int64(-1)
    for i in range(keys.size):
        c = keys[i] >> 32
        if c != previous:
            starts[n_groups] = i
            n_groups += 1
            previous = c
    starts[n_groups] = keys.size
    return n_groups


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def update_rows(
    start, stop, keys, starts, weight, bias, weight_acc, bias_acc,
    features, rows, gradient, scale, learning_rate,
):  # fmt: skip
    """Adagrad on each touched class: A += G², θ −= lr G / √A, G = Σ of its pairs' gradients."""
    n_features = features.shape[1]
    n_columns = gradient.shape[1]
    summed = np.empty(n_features, np.float32)
    mask = np.int64(0xFFFFFFFF)
    for group in range(start, stop):
        first, last = starts[group], starts[group + 1]
        c = keys[first] >> 32
        w = weight[c]
        acc = weight_acc[c]
        pair = keys[first] & mask
        g = gradient[pair // n_columns, pair % n_columns]
        bias_gradient = g
        x = features[rows[pair // n_columns]]
        coefficient = g * scale
        if last == first + 1:
            if g == 0.0:
                continue
            for f in range(n_features):
                step = coefficient * x[f]
                a = acc[f] + step * step
                acc[f] = a
                w[f] -= learning_rate * step / math.sqrt(a)
        else:
            for f in range(n_features):
                summed[f] = coefficient * x[f]
            for p in range(first + 1, last):
                pair = keys[p] & mask
                g = gradient[pair // n_columns, pair % n_columns]
                bias_gradient += g
                x = features[rows[pair // n_columns]]
                coefficient = g * scale
                for f in range(n_features):
                    summed[f] += coefficient * x[f]
            for f in range(n_features):
                step = summed[f]
                a = acc[f] + step * step
                acc[f] = a
                w[f] -= learning_rate * step / math.sqrt(a)
        a = bias_acc[c] + bias_gradient * bias_gradient
        bias_acc[c] = a
        bias[c] -= learning_rate * bias_gradient / math.sqrt(a)
