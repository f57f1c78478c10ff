"""The two passes of a training step over the head, in numba.

Pass one scores every (example, class) pair of the batch with the weights as they were before
the step. Pass two visits each touched class once, sums the gradients of its pairs in the order
of the batch and applies Adagrad. No two threads ever write the same row.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from extremax.kernels.cpu.lines import FAST, adagrad, dots
from extremax.kernels.cpu.prefetch import prefetch


@njit(nogil=True, cache=True)
def score_pairs(start, stop, table, bias, features, rows, classes, scale, out):
    """out[i, j] = scale · w[classes[i, j]]·features[rows[i]] + bias[classes[i, j]].

    A row of the table begins with the weights of a class.
    """
    biases = bias.reshape(-1, 1)
    for i in range(start, stop):
        score_example(
            i, min(i + 1, stop - 1), table, biases, features, rows, classes, scale, out
        )  # fmt: skip


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy", inline="always")
def score_example(i, following, table, biases, features, rows, classes, scale, out):
    """The pairs of example i, while those of another one are on their way."""
    n_columns = classes.shape[1]
    # Two classes at a time: x is read once for both, and their misses overlap.
    for j in range(0, n_columns, 2):
        other = min(j + 1, n_columns - 1)
        next_i, next_j = i, j + 2
        if next_j >= n_columns:
            next_i, next_j = following, 0
        next_other = min(next_j + 1, n_columns - 1)
        prefetch(biases, classes[next_i, next_j], 0)
        prefetch(biases, classes[next_i, next_other], 0)
        one, two = dots(
            table, classes[i, j], classes[i, other], features, rows[i],
            classes[next_i, next_j], classes[next_i, next_other], rows[next_i],
        )  # fmt: skip
        out[i, j] = scale * one + biases[classes[i, j], 0]
        out[i, other] = scale * two + biases[classes[i, other], 0]


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def update_bias(bias, bias_acc, c, gradient, learning_rate):
    a = bias_acc[c] + gradient * gradient
    bias_acc[c] = a
    bias[c] -= learning_rate * gradient / math.sqrt(a)


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
    start, stop, classes, order, starts, table, bias, bias_acc, features, rows, gradient, scale,
    learning_rate,
):  # fmt: skip
    """Adagrad on each touched class: A += G², θ −= lr G / √A, G = Σ of its pairs' gradients.

    A row of the table is [w, A] of a class; ``rows`` and ``gradient`` are those of each pair.
    """
    n_features = features.shape[1]
    biases, bias_accs = bias.reshape(-1, 1), bias_acc.reshape(-1, 1)
    summed, one = np.empty((1, n_features), np.float32), np.float32(1.0)
    for group in range(start, stop):
        first, last = starts[group], starts[group + 1]
        pair = order[first]
        c = classes[pair]
        following = order[starts[min(group + 1, stop - 1)]]
        next_c, next_row = classes[following], rows[following]
        prefetch(biases, next_c, 0)
        prefetch(bias_accs, next_c, 0)
        bias_gradient = gradient[pair]
        if last == first + 1:
            if bias_gradient == 0.0:
                continue
            adagrad(
                table, c, features, rows[pair], bias_gradient * scale, learning_rate, next_c,
                features, next_row,
            )  # fmt: skip
        else:
            summed[:] = 0.0
            bias_gradient = np.float32(0.0)
            for p in range(first, last):
                pair = order[p]
                row = rows[pair]
                bias_gradient += gradient[pair]
                # Rounded as for a single pair, so that pairs of no weight change no bit.
                coefficient = gradient[pair] * scale
                for f in range(n_features):
                    summed[0, f] += coefficient * features[row, f]
            adagrad(table, c, summed, 0, one, learning_rate, next_c, features, next_row)
        update_bias(bias, bias_acc, c, bias_gradient, learning_rate)
