"""Many steps of sampled softmax on bags of features without returning to Python between them.

A step is that of `extremax.heads.bag`: with weights as they were before it, every example gets

    u = s Σ_f x_f e_f,   ξ_j = r w_j·u + b_j,   g = softmax(ξ − log(m q)) − onehot,
    v = r s Σ_j g_j w_j,

and then each touched class gets the gradient r Σ g u, each touched feature Σ x_f v. Classes and
features that a single pair of the step touches are updated while their example is in the cache, the
others when all examples are scored (as in `extremax.kernels.cpu.steps`). All sums have a fixed
order, so the result does not depend on the threads.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.cpu import atomics
from extremax.kernels.cpu.exponential import exp_below_zero
from extremax.kernels.cpu.head import Groups, Inputs, score_example, update_bias, update_rows
from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.lines import FAST, adagrad
from extremax.kernels.cpu.prefetch import prefetch_item
from extremax.kernels.cpu.random import row_state, uniform
from extremax.kernels.cpu.steps import PAIRS


class BagRows(NamedTuple):
    """The entries of all examples: example i has columns and values ends[i]..ends[i + 1] − 1."""

    ends: np.ndarray
    columns: np.ndarray
    values: np.ndarray


class Bags(NamedTuple):
    """Memory of one step, (batch, D) each: u and v; and the row in it of each example, pair and
    entry."""

    u: np.ndarray
    v: np.ndarray
    of_example: np.ndarray
    of_pair: np.ndarray
    of_entry: np.ndarray


class Scales(NamedTuple):
    """s of the features, and r of the classes."""

    rows: np.float32
    classes: np.float32


class Rates(NamedTuple):
    """Steps of ``batch_size`` examples: learning rates of both tables in each."""

    batch_size: int
    classes: np.ndarray
    features: np.ndarray


@kernel
def gather_rows(start, stop, indptr, indices, values, numbers, key, share, out):
    """Copy the numbered rows; each value is dropped with probability ``share``, as by
    `extremax.kernels.cpu.bag.drop`."""
    larger = np.float32(1.0 / (1.0 - share))
    for i in range(start, stop):
        state, first, at = row_state(key, numbers[i]), indptr[numbers[i]], out.ends[i]
        for entry in range(first, indptr[numbers[i] + 1]):
            value = values[entry]
            if share > 0.0:
                kept = uniform(state, entry - first) >= share
                value = value * larger if kept else np.float32(0.0)
            out.columns[at], out.values[at] = indices[entry], value
            at += 1


@kernel
def run_bag_steps(
    start, stop, shared, rates, pairs, pair_groups, rows, entry_groups, classes, features, scales,
    bags, scores, loss,
):  # fmt: skip
    """Run all steps together with the other threads that run this; ``scores`` becomes the gradient.

    Ends with a step whose loss is not finite and leaves that in ``loss``; nothing else that is not
    finite is written.
    """
    n, n_columns = pairs.classes.shape
    flat, gradient, n_steps = pairs.classes.reshape(-1), scores.reshape(-1), rates.classes.size
    of_pairs = Inputs(bags.u, bags.of_pair, scales.classes)
    of_entries = Inputs(bags.v, bags.of_entry, np.float32(1.0))
    stopped = 4 * n_steps * atomics.STRIDE
    rows_per_chunk = max(1, PAIRS // n_columns)
    for step in range(n_steps):
        low = step * rates.batch_size
        high = min(low + rates.batch_size, n)
        turn, n_chunks = 2 * step, -(-(high - low) // rows_per_chunk)
        while True:
            chunk = atomics.take(shared, turn, n_chunks)
            if chunk < 0:
                break
            first = low + chunk * rows_per_chunk
            if not _examples(
                first, min(first + rows_per_chunk, high), rates.classes[step],
                rates.features[step], pairs, pair_groups.alone, rows, entry_groups.alone, classes,
                features, scales, bags, scores, loss,
            ):  # fmt: skip
                atomics.add_one(shared, stopped)
            atomics.done(shared, turn)
        atomics.wait_for_all(shared, turn, n_chunks)
        if atomics.read(shared, stopped):
            break
        n_classes, n_features = pair_groups.n_groups[step], entry_groups.n_groups[step]
        class_groups = Groups(flat, pair_groups.order, pair_groups.starts[step])
        feature_groups = Groups(rows.columns, entry_groups.order, entry_groups.starts[step])
        n_first = -(-n_classes // PAIRS)
        turn, n_chunks = 2 * step + 1, n_first - (-n_features // PAIRS)
        while True:
            chunk = atomics.take(shared, turn, n_chunks)
            if chunk < 0:
                break
            if chunk < n_first:
                update_rows(
                    chunk * PAIRS, min((chunk + 1) * PAIRS, n_classes), class_groups, classes,
                    of_pairs, gradient, rates.classes[step],
                )  # fmt: skip
            else:
                first = (chunk - n_first) * PAIRS
                update_rows(
                    first, min(first + PAIRS, n_features), feature_groups, features, of_entries,
                    rows.values, rates.features[step],
                )  # fmt: skip
            atomics.done(shared, turn)
        atomics.wait_for_all(shared, turn, n_chunks)


@kernel
def _examples(
    start, stop, class_rate, feature_rate, pairs, pair_alone, rows, entry_alone, classes, features,
    scales, bags, scores, loss,
):  # fmt: skip
    """Score examples, take their gradients and update what only they touch; False if a loss is not
    finite."""
    labels, of_example = pairs.classes, bags.of_example
    table, bias, bias_acc = classes.table, classes.bias, classes.bias_acc
    n_columns, finite = labels.shape[1], True
    for i in range(start, stop):
        following, row = min(i + 1, stop - 1), of_example[i]
        _sum_features(i, row, rows, features.table, scales.rows, bags.u)
        score_example(i, following, table, bias, bags.u, of_example, labels, scales.classes, scores)
        if not _gradient(i, labels, scores, pairs.log_q, pairs.weights, loss):
            finite = False
            continue
        _sum_classes(i, row, labels, scores, table, scales.classes * scales.rows, bags.v)
        for j in range(n_columns):
            g = scores[i, j]
            if pair_alone[i * n_columns + j] and g != 0.0:
                prefetch_item(bias_acc, labels[following, j])
                adagrad(
                    table, classes.acc, labels[i, j], bags.u, row, g * scales.classes, class_rate,
                    labels[following, j], bags.u, row,
                )  # fmt: skip
                update_bias(bias, bias_acc, labels[i, j], g, class_rate)
        last = rows.ends[i + 1] - 1
        for entry in range(rows.ends[i], last + 1):
            x = rows.values[entry]
            if entry_alone[entry] and x != 0.0:
                adagrad(
                    features.table, features.acc, rows.columns[entry], bags.v, row, x,
                    feature_rate, rows.columns[min(entry + 1, last)], bags.v, row,
                )  # fmt: skip
    return finite


@kernel(fastmath=FAST)
def _sum_features(i, row, rows, table, scale, out):
    """out[row] = scale · Σ x_f e_f of example i."""
    width = out.shape[1]
    for k in range(width):
        out[row, k] = 0.0
    for entry in range(rows.ends[i], rows.ends[i + 1]):
        f, x = rows.columns[entry], scale * rows.values[entry]
        for k in range(width):
            out[row, k] += x * table[f, k]


@kernel(fastmath=FAST)
def _sum_classes(i, row, labels, gradient, table, scale, out):
    """out[row] = scale · Σ_j g_j w_j of example i."""
    width = out.shape[1]
    for k in range(width):
        out[row, k] = 0.0
    for j in range(labels.shape[1]):
        c, g = labels[i, j], scale * gradient[i, j]
        for k in range(width):
            out[row, k] += g * table[c, k]


@kernel
def _gradient(i, labels, scores, log_q, weights, loss):
    """Turn the scores of an example into their gradient, in place; False if the loss is not finite.

    Draws of the true class are left out, see `extremax.objectives.SampledSoftmax`.
    """
    n_columns, true, n_others = labels.shape[1], labels[i, 0], 0
    for j in range(1, n_columns):
        n_others += labels[i, j] != true
    log_n = np.float32(math.log(max(1, n_others)))
    true_score = top = check = scores[i, 0]
    for j in range(1, n_columns):
        if labels[i, j] != true:
            scores[i, j] -= log_n + log_q[i, j]
            top = max(top, scores[i, j])
            check += scores[i, j]
    if not math.isfinite(check):
        loss[i] = np.nan
        return False
    total = np.float32(0.0)
    for j in range(n_columns):
        used = j == 0 or labels[i, j] != true
        scores[i, j] = exp_below_zero(scores[i, j] - top) if used else np.float32(0.0)
        total += scores[i, j]
    weight = weights[i] if weights.size else np.float32(1.0)
    for j in range(n_columns):
        scores[i, j] *= weight / total
    scores[i, 0] -= weight
    loss[i] = weight * (math.log(total) + top - true_score)
    return math.isfinite(loss[i])
