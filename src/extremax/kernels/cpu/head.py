"""The two passes of a training step over the head, in numba.

Pass one scores every (example, class) pair of the batch with the weights as they were before
the step. Pass two visits each touched class once, sums the gradients of its pairs in the order
of the batch and applies Adagrad. No two threads ever write the same row.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from extremax.kernels.cpu.prefetch import prefetch

# Sums may be reordered into vectors; NaN and infinity keep their meaning.
FAST = {"reassoc", "contract", "nsz"}


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def score_pairs(start, stop, weight, bias, features, rows, classes, scale, out):
    """out[i, j] = scale · weight[classes[i, j]]·features[rows[i]] + bias[classes[i, j]]."""
    n_columns = classes.shape[1]
    for i in range(start, stop):
        if i + 1 < stop:
            prefetch(features, rows[i + 1], 0)
            for j in range(n_columns):
                prefetch(weight, classes[i + 1, j], 0)
        x = features[rows[i]]
        # Two classes at a time: x is read once for both, and their misses overlap.
        for j in range(0, n_columns - 1, 2):
            first, second = classes[i, j], classes[i, j + 1]
            one, two = _dots(weight[first], weight[second], x)
            out[i, j] = scale * one + bias[first]
            out[i, j + 1] = scale * two + bias[second]
        if n_columns % 2:
            last = classes[i, n_columns - 1]
            one, _ = _dots(weight[last], weight[last], x)
            out[i, n_columns - 1] = scale * one + bias[last]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy", inline="always")
def _dots(v, w, x):
    """v·x and w·x."""
    one = np.float32(0.0)
    two = np.float32(0.0)
    for f in range(len(x)):
        one += v[f] * x[f]
        two += w[f] * x[f]
    return one, two


@njit(nogil=True, cache=True)
def group_by_class(classes, n_classes, order, starts):
    """Pairs by class and, within a class, in the order of the batch; returns the number of groups.

    Group g holds the pairs order[starts[g]:starts[g + 1]]. A radix sort in two passes: seven
    times faster than sorting (class, pair) keys, at the sizes of a batch.
    """
    bits = 1
    while (1 << bits) < n_classes:
        bits += 1
    low_bits = (bits + 1) // 2
    mask = (1 << low_bits) - 1
    low = np.zeros(mask + 2, np.int64)
    high = np.zeros(mask + 2, np.int64)
    for c in classes:
        low[(c & mask) + 1] += 1
        high[(c >> low_bits) + 1] += 1
    for digit in range(mask + 1):
        low[digit + 1] += low[digit]
        high[digit + 1] += high[digit]
    by_low = np.empty(classes.size, np.int64)
    for pair in range(classes.size):
        digit = classes[pair] & mask
        by_low[low[digit]] = pair
        low[digit] += 1
    for pair in by_low:
        digit = classes[pair] >> low_bits
        order[high[digit]] = pair
        high[digit] += 1
    n_groups = 0
    previous = np.int64(-1)
    for i in range(order.size):
        if classes[order[i]] != previous:
            previous = classes[order[i]]
            starts[n_groups] = i
            n_groups += 1
    starts[n_groups] = order.size
    return n_groups


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def update_rows(
    start, stop, classes, order, starts, weight, bias, weight_acc, bias_acc,
    features, rows, gradient, scale, learning_rate,
):  # fmt: skip
    """Adagrad on each touched class: A += G², θ −= lr G / √A, G = Σ of its pairs' gradients."""
    n_features = features.shape[1]
    n_columns = gradient.shape[1]
    summed = np.empty(n_features, np.float32)
    for group in range(start, stop):
        if group + 1 < stop:
            following = order[starts[group + 1]]
            prefetch(weight, classes[following], 0)
            prefetch(weight_acc, classes[following], 0)
            prefetch(features, rows[following // n_columns], 0)
        first, last = starts[group], starts[group + 1]
        pair = order[first]
        c = classes[pair]
        w = weight[c]
        acc = weight_acc[c]
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
                pair = order[p]
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
