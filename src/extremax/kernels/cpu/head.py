"""The two passes of a training step over a table of vectors, in numba.

Pass one scores every (example, class) pair of the batch with the weights as they were before the
step. Pass two visits each touched class once, sums the gradients of its pairs in the order of the
batch and applies Adagrad. No two threads ever write the same row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.lines import FAST, adagrad, dots
from extremax.kernels.cpu.prefetch import prefetch_item


class Vectors(NamedTuple):
    """A table of vectors with Adagrad state. Row y is [w_y, A_y]: a step needs both, and finds them
    on one page of memory. With one accumulator per vector, in ``acc``, it is w_y alone; ``acc`` is
    empty otherwise. ``bias`` and ``bias_acc`` are empty where vectors have no bias."""

    table: np.ndarray
    acc: np.ndarray
    bias: np.ndarray
    bias_acc: np.ndarray


class Inputs(NamedTuple):
    """What is scored: scale · features[rows[i]] is the input of example (or pair) i."""

    features: np.ndarray
    rows: np.ndarray
    scale: np.float32


class Groups(NamedTuple):
    """Pairs by class: group g holds the pairs order[starts[g]:starts[g + 1]], all of one class."""

    classes: np.ndarray
    order: np.ndarray
    starts: np.ndarray


@kernel
def score_pairs(start, stop, vectors, inputs, classes, out):
    """out[i, j] = scale · w[classes[i, j]]·features[rows[i]] + bias[classes[i, j]]."""
    for i in range(start, stop):
        score_example(
            i, min(i + 1, stop - 1), vectors.table, vectors.bias, inputs.features, inputs.rows,
            classes, inputs.scale, out,
        )  # fmt: skip


@kernel(fastmath=FAST, inline="always")
def score_example(i, following, table, bias, features, rows, classes, scale, out):
    """Score the pairs of example i while the rows of example ``following`` are being fetched."""
    n_columns = classes.shape[1]
    # Two classes at a time: x is read once for both, and their cache misses overlap.
    for j in range(0, n_columns, 2):
        other = min(j + 1, n_columns - 1)
        next_i, next_j = i, j + 2
        if next_j >= n_columns:
            next_i, next_j = following, 0
        next_other = min(next_j + 1, n_columns - 1)
        prefetch_item(bias, classes[next_i, next_j])
        prefetch_item(bias, classes[next_i, next_other])
        one, two = dots(
            table, classes[i, j], classes[i, other], features, rows[i],
            classes[next_i, next_j], classes[next_i, next_other], rows[next_i],
        )  # fmt: skip
        out[i, j] = scale * one + bias[classes[i, j]]
        out[i, other] = scale * two + bias[classes[i, other]]


@kernel(inline="always")
def update_bias(bias, bias_acc, c, gradient, learning_rate):
    a = bias_acc[c] + gradient * gradient
    bias_acc[c] = a
    bias[c] -= learning_rate * gradient / math.sqrt(a)


@kernel
def shrink_rows(start, stop, vectors, strength):
    """w ← argmin_v strength v² + √A (v − w)² = w − w strength/(√A + strength), for every weight
    and its accumulator."""
    table, acc = vectors.table, vectors.acc
    width = table.shape[1] if acc.size else table.shape[1] // 2
    for c in range(start, stop):
        for f in range(width):
            w, a = table[c, f], acc[c] if acc.size else table[c, width + f]
            table[c, f] = w - w * (strength / (math.sqrt(a) + strength))


@kernel
def group_by_class(classes, n_classes, order, starts):
    """Group pairs by class and, within a class, in the order of the batch.

    Fills ``order`` and ``starts`` as in `Groups` and returns the number of groups. A radix sort in
    two passes: seven times faster than sorting (class, pair) keys, at the sizes of a batch.
    """
    bits = 1
    while (1 << bits) < n_classes:
        bits += 1
    low_bits = (bits + 1) // 2
    mask = (1 << low_bits) - 1
    low = np.zeros(mask + 2, np.int64)
    high = np.zeros(mask + 2, np.int64)
    for pair in range(classes.size):
        low[(classes[pair] & mask) + 1] += 1
        high[(classes[pair] >> low_bits) + 1] += 1
    for digit in range(mask + 1):
        low[digit + 1] += low[digit]
        high[digit + 1] += high[digit]
    by_low = np.empty(classes.size, np.int64)
    for pair in range(classes.size):
        digit = classes[pair] & mask
        by_low[low[digit]] = pair
        low[digit] += 1
    for i in range(classes.size):
        pair = by_low[i]
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


@kernel(fastmath=FAST)
def update_rows(start, stop, groups, vectors, inputs, gradient, learning_rate):
    """Adagrad on each touched class: A += G², θ −= lr G / √A, G = Σ of its pairs' gradients. With
    one accumulator per vector, A += mean of G².

    ``inputs.rows`` and ``gradient`` have one entry per pair.
    """
    classes, order, starts = groups.classes, groups.order, groups.starts
    table, acc = vectors.table, vectors.acc
    features, rows, scale = inputs.features, inputs.rows, inputs.scale
    n_features = features.shape[1]
    has_bias = vectors.bias.size > 0
    summed, one = np.empty((1, n_features), np.float32), np.float32(1.0)
    for group in range(start, stop):
        first, last = starts[group], starts[group + 1]
        pair = order[first]
        c = classes[pair]
        following = order[starts[min(group + 1, stop - 1)]]
        next_c, next_row = classes[following], rows[following]
        if has_bias:
            prefetch_item(vectors.bias, next_c)
            prefetch_item(vectors.bias_acc, next_c)
        bias_gradient = gradient[pair]
        if last == first + 1:
            if bias_gradient == 0.0:
                continue
            adagrad(
                table, acc, c, features, rows[pair], bias_gradient * scale, learning_rate, next_c,
                features, next_row,
            )  # fmt: skip
        else:
            for f in range(n_features):
                summed[0, f] = 0.0
            bias_gradient = np.float32(0.0)
            for p in range(first, last):
                pair = order[p]
                row = rows[pair]
                bias_gradient += gradient[pair]
                # Rounded as for a single pair, so that pairs of zero weight change no bit.
                coefficient = gradient[pair] * scale
                for f in range(n_features):
                    summed[0, f] += coefficient * features[row, f]
            adagrad(table, acc, c, summed, 0, one, learning_rate, next_c, features, next_row)
        if has_bias:
            update_bias(vectors.bias, vectors.bias_acc, c, bias_gradient, learning_rate)


@kernel(fastmath=FAST)
def update_summed(start, stop, ids, sums, bias_sums, vectors, learning_rate):
    """Adagrad on the vectors ids, all distinct, and their biases, given their summed gradients."""
    table, acc, one = vectors.table, vectors.acc, np.float32(1.0)
    for i in range(start, stop):
        following = min(i + 1, stop - 1)
        adagrad(table, acc, ids[i], sums, i, one, learning_rate, ids[following], sums, following)
        update_bias(vectors.bias, vectors.bias_acc, ids[i], bias_sums[i], learning_rate)
