"""Many small steps of training without going back to Python between them.

The step is that of `head`: the gradient of every pair is taken at the weights before the step, and
each touched class is written once. Most classes are touched by one pair alone. Those are updated
as soon as the example is scored, while its rows are in the cache; the others when all examples
are. No pair of a step sees what another has changed.

A step is over in less than a millisecond, so threads stay inside the kernel: they take chunks by a
shared counter, and go on when all chunks are done. Whoever comes late, or never, costs its share
only.

The gradient is that of objectives that are logistic in every single pair (`logistic`):

    loss_i = Σ_j s_j softplus(∓t_ij) + λ Σ_j r_j (ξ_ij + p log q_ij)²,  t = ξ + a log q + b,

s = (1, share, …), r = (1, 1/m, …), the upper sign for the true class, j = 0.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from extremax.kernels.cpu import atomics
from extremax.kernels.cpu.head import (
    group_by_class,
    score_example,
    update_bias,
    update_rows,
)
from extremax.kernels.cpu.lines import adagrad
from extremax.kernels.cpu.prefetch import prefetch

# Pairs that a thread takes at once: some microseconds of work.
_PAIRS = 64
# Counters that different threads write lie on different cache lines.
_APART = 8


def counters(n_steps: int) -> np.ndarray:
    """For `run_steps`: tickets and chunks done, for each of two passes, and whether to stop."""
    return np.zeros((4 * n_steps + 1) * _APART, np.int64)


@njit(nogil=True, cache=True)
def group_steps(start, stop, classes, pairs_a_step, n_classes, order, starts, n_groups, alone):
    """`group_by_class` of each step by itself, ``order`` and ``starts`` counted from the first.

    Pairs that are the only one of their class are ``alone`` and in no group.
    """
    for step in range(start, stop):
        low = step * pairs_a_step
        high = min(low + pairs_a_step, len(classes))
        own = starts[step]
        n = group_by_class(classes[low:high], n_classes, order[low:high], own[: high - low + 1])
        kept, n_kept = 0, low
        for group in range(n):
            first, last = own[group], own[group + 1]
            if last == first + 1:
                alone[low + order[low + first]] = True
                continue
            own[kept] = n_kept
            for p in range(first, last):
                order[n_kept] = low + order[low + p]
                n_kept += 1
            kept += 1
        own[kept] = n_kept
        n_groups[step] = kept


@njit(nogil=True, cache=True, error_model="numpy")
def run_steps(
    start, stop, batch_size, shared, rates, classes, order, starts, n_groups, alone, log_q,
    weights, form, table, bias, bias_acc, features, rows, pair_rows, scale, scores, loss,
):  # fmt: skip
    """All steps, together with whoever else runs this; ``scores`` becomes their gradient.

    Ends with a step whose loss is not finite, and leaves that in ``loss``; what is not finite is
    written nowhere else.
    """
    n, n_columns = classes.shape
    flat, gradient = classes.reshape(-1), scores.reshape(-1)
    stopped = 4 * len(rates) * _APART
    rows_a_chunk = max(1, _PAIRS // n_columns)
    for step in range(len(rates)):
        low = step * batch_size
        high = min(low + batch_size, n)
        counter = 4 * step * _APART
        n_chunks = -(-(high - low) // rows_a_chunk)
        while True:
            chunk = atomics.add_one(shared, counter)
            if chunk >= n_chunks:
                break
            first = low + chunk * rows_a_chunk
            if not _examples(
                first, min(first + rows_a_chunk, high), rates[step], classes, alone, log_q,
                weights, form, table, bias, bias_acc, features, rows, scale, scores, loss,
            ):  # fmt: skip
                atomics.add_one(shared, stopped)
            atomics.add_one(shared, counter + _APART)
        while atomics.read(shared, counter + _APART) < n_chunks:
            atomics.give_way()
        if atomics.read(shared, stopped):
            break
        counter += 2 * _APART
        n_chunks = -(-n_groups[step] // _PAIRS)
        while True:
            chunk = atomics.add_one(shared, counter)
            if chunk >= n_chunks:
                break
            first = chunk * _PAIRS
            update_rows(
                first, min(first + _PAIRS, n_groups[step]), flat, order, starts[step], table,
                bias, bias_acc, features, pair_rows, gradient, scale, rates[step],
            )  # fmt: skip
            atomics.add_one(shared, counter + _APART)
        while atomics.read(shared, counter + _APART) < n_chunks:
            atomics.give_way()


@njit(nogil=True, cache=True, error_model="numpy")
def _examples(
    start, stop, rate, classes, alone, log_q, weights, form, table, bias, bias_acc, features,
    rows, scale, scores, loss,
):  # fmt: skip
    """Score examples, take their gradient and update the classes that are theirs alone; False
    if a loss is not finite."""
    n_columns = classes.shape[1]
    biases, bias_accs = bias.reshape(-1, 1), bias_acc.reshape(-1, 1)
    finite = True
    for i in range(start, stop):
        # Asked for two examples ahead: memory answers later than one example takes.
        following = min(i + 2, stop - 1)
        score_example(i, following, table, biases, features, rows, classes, scale, scores)
        if not _logistic(i, scores, log_q, weights, form, loss):
            finite = False
            continue
        for j in range(n_columns):
            g = scores[i, j]
            if alone[i * n_columns + j] and g != 0.0:
                prefetch(bias_accs, classes[following, j], 0)
                adagrad(
                    table, classes[i, j], features, rows[i], g * scale, rate,
                    classes[following, j], features, rows[following],
                )  # fmt: skip
                update_bias(bias, bias_acc, classes[i, j], g, rate)
    return finite


@njit(nogil=True, cache=True, error_model="numpy")
def _logistic(i, scores, log_q, weights, form, loss):
    """Scores of an example to their gradient in place, and its loss; False if not finite."""
    a, b, share, p, penalty = form
    n_columns = scores.shape[1]
    total = 0.0
    own, each = np.float32(1.0), np.float32(1.0)
    for j in range(n_columns):
        score = scores[i, j]
        t = score + a * log_q[i, j] + b
        small = math.exp(-abs(t))
        softplus = max(t, np.float32(0.0)) + math.log1p(small)
        sigmoid = (np.float32(1.0) if t >= 0 else small) / (np.float32(1.0) + small)
        logit = score + p * log_q[i, j]
        if j == 0:
            softplus -= t
            sigmoid -= np.float32(1.0)
        total += own * softplus + penalty * each * logit * logit
        scores[i, j] = own * sigmoid + np.float32(2.0) * penalty * each * logit
        own, each = share, np.float32(1.0 / (n_columns - 1))
    if len(weights):
        total *= weights[i]
        for j in range(n_columns):
            scores[i, j] *= weights[i]
    loss[i] = total
    return math.isfinite(total)
