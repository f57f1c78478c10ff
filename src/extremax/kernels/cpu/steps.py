"""Many small training steps without returning to Python between them.

The step is that of `head`: the gradient of every pair is taken at the weights before the step, and
each touched class is written once. Most classes are touched by one pair only. Those are updated as
soon as the example is scored, while its rows are in the cache; the others when all examples are
scored. No pair of a step sees what another pair has changed.

A step takes less than a millisecond, so threads stay inside the kernel: they take chunks from a
shared counter and proceed when all chunks are done. A thread that arrives late, or never, costs
only its own share.

The gradient is that of objectives that are logistic in every single pair (`Logistic`):

    loss_i = Σ_j s_j softplus(∓t_ij) + λ Σ_j r_j (ξ_ij + p log q_ij)²,  t = ξ + a log q + b,

s = (1, share, …), r = (1, 1/m, …), the upper sign for the true class, j = 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.cpu import atomics
from extremax.kernels.cpu.head import Groups, Inputs, score_example, update_bias, update_rows
from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.lines import adagrad
from extremax.kernels.cpu.prefetch import prefetch_item

#: Pairs that a thread takes at once: some microseconds of work.
PAIRS = 64


class Logistic(NamedTuple):
    """The numbers of the loss above."""

    a: np.float32
    b: np.float32
    share: np.float32
    p: np.float32
    regularization: np.float32


class StepPairs(NamedTuple):
    """The pairs of all steps: classes (n, 1 + m), log q, and one weight per example or none."""

    classes: np.ndarray
    log_q: np.ndarray
    weights: np.ndarray


class Schedule(NamedTuple):
    """Steps of ``batch_size`` examples, one per learning rate."""

    batch_size: int
    rates: np.ndarray


def counters(n_steps: int) -> np.ndarray:
    """For kernels of many steps: two turns for each step, and whether to stop."""
    return np.zeros((4 * n_steps + 1) * atomics.STRIDE, np.int64)


@kernel
def run_steps(
    start, stop, shared, schedule, pairs, groups, form, vectors, inputs, pair_rows, scores, loss
):  # fmt: skip
    """Run all steps together with the other threads that run this; ``scores`` becomes the gradient.

    Ends with a step whose loss is not finite and leaves that in ``loss``; nothing else that is not
    finite is written.
    """
    classes, rates = pairs.classes, schedule.rates
    n, n_columns = classes.shape
    flat, gradient = classes.reshape(-1), scores.reshape(-1)
    by_pair = Inputs(inputs.features, pair_rows, inputs.scale)
    stopped = 4 * len(rates) * atomics.STRIDE
    rows_per_chunk = max(1, PAIRS // n_columns)
    for step in range(len(rates)):
        low = step * schedule.batch_size
        high = min(low + schedule.batch_size, n)
        turn, n_chunks = 2 * step, -(-(high - low) // rows_per_chunk)
        while True:
            chunk = atomics.take(shared, turn, n_chunks)
            if chunk < 0:
                break
            first = low + chunk * rows_per_chunk
            last = min(first + rows_per_chunk, high)
            if not _examples(
                first, last, rates[step], pairs, groups.alone, form, vectors, inputs, scores, loss
            ):
                atomics.add_one(shared, stopped)
            atomics.done(shared, turn)
        atomics.wait_for_all(shared, turn, n_chunks)
        if atomics.read(shared, stopped):
            break
        n_groups = groups.n_groups[step]
        of_step = Groups(flat, groups.order, groups.starts[step])
        turn, n_chunks = 2 * step + 1, -(-n_groups // PAIRS)
        while True:
            chunk = atomics.take(shared, turn, n_chunks)
            if chunk < 0:
                break
            first = chunk * PAIRS
            last = min(first + PAIRS, n_groups)
            update_rows(first, last, of_step, vectors, by_pair, gradient, rates[step])
            atomics.done(shared, turn)
        atomics.wait_for_all(shared, turn, n_chunks)


@kernel
def _examples(start, stop, rate, pairs, alone, form, vectors, inputs, scores, loss):
    """Score examples, take their gradient and update the classes that only they touch; False if a
    loss is not finite."""
    classes, table, acc = pairs.classes, vectors.table, vectors.acc
    bias, bias_acc = vectors.bias, vectors.bias_acc
    features, rows, scale = inputs.features, inputs.rows, inputs.scale
    n_columns = classes.shape[1]
    finite = True
    for i in range(start, stop):
        # Prefetched two examples ahead: memory answers later than one example takes.
        following = min(i + 2, stop - 1)
        score_example(i, following, table, bias, features, rows, classes, scale, scores)
        if not _gradient(i, scores, pairs.log_q, pairs.weights, form, loss):
            finite = False
            continue
        for j in range(n_columns):
            g = scores[i, j]
            if alone[i * n_columns + j] and g != 0.0:
                prefetch_item(bias_acc, classes[following, j])
                adagrad(
                    table, acc, classes[i, j], features, rows[i], g * scale, rate,
                    classes[following, j], features, rows[following],
                )  # fmt: skip
                update_bias(bias, bias_acc, classes[i, j], g, rate)
    return finite


@kernel
def _gradient(i, scores, log_q, weights, form, loss):
    """Turn the scores of an example into their gradient, in place; False if the loss is not
    finite."""
    n_columns = scores.shape[1]
    total = 0.0
    share, penalty_share = np.float32(1.0), np.float32(1.0)
    for j in range(n_columns):
        score = scores[i, j]
        t = score + form.a * log_q[i, j] + form.b
        small = math.exp(-abs(t))
        softplus = max(t, np.float32(0.0)) + math.log1p(small)
        sigmoid = (np.float32(1.0) if t >= 0 else small) / (np.float32(1.0) + small)
        logit = score + form.p * log_q[i, j]
        if j == 0:
            softplus -= t
            sigmoid -= np.float32(1.0)
        penalty = form.regularization * penalty_share
        total += share * softplus + penalty * logit * logit
        scores[i, j] = share * sigmoid + np.float32(2.0) * penalty * logit
        share, penalty_share = form.share, np.float32(1.0 / (n_columns - 1))
    if len(weights):
        total *= weights[i]
        for j in range(n_columns):
            scores[i, j] *= weights[i]
    loss[i] = total
    return math.isfinite(total)
