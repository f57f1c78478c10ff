"""A softmax over the children of a node, fitted to sparse rows by dual coordinate ascent, in numba.

    minimize over W   Σ_i −log softmax(W x_i)_{c_i} + (λ/2)‖W‖²,

where x has a last feature of value 1 for the bias. The dual keeps a distribution α_i over the
children for each example, with W = (1/λ) Σ_i (e_{c_i} − α_i) x_iᵀ, and is at its optimum where α_i
equals the model's own p_i. A visit moves α_i toward p_i by the share

    s = 1 / (1 + (‖x‖²/λ) ‖d‖₂²/‖d‖₁²),   d = p_i − α_i,

which never lowers the dual objective (Shalev-Shwartz & Zhang, "Accelerated proximal stochastic dual
coordinate ascent", 2014, with the strong concavity of the entropy in the 1-norm). There is no
learning rate, λ is the only choice, and features absent from x cost nothing.

``rows`` of a problem are numbers into CSR arrays (indptr, indices, values, scale); values are
multiplied by scale when they are read, because a scaled copy may not fit in memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from extremax.kernels.cpu.exponential import exp_below_zero
from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.lines import FAST
from extremax.kernels.cpu.prefetch import prefetch, prefetch_item
from extremax.kernels.cpu.random import row_state, uniform
from extremax.kernels.cpu.sorting import rising

_LANES = 16
# A visit that would move α by less than this in all is skipped.
_NEGLIGIBLE = 1e-4
# Visits ahead of which a row's place, then its values and α, then its weights are requested.
_PLACE_AHEAD, _ROW_AHEAD, _WEIGHTS_AHEAD = 6, 4, 2


class Scratch(NamedTuple):
    """Memory for one softmax: scores go in, p comes out."""

    scores: np.ndarray
    p: np.ndarray


class Dual(NamedTuple):
    """A copy of the rows, W and α. Row i has the columns and values ends[i]..ends[i + 1] − 1."""

    ends: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    weight: np.ndarray
    alpha: np.ndarray


@kernel(inline="always")
def scratch(size):
    return Scratch(np.empty(size, np.float32), np.empty(size, np.float32))


@kernel
def fit(rows, child, n_children, arrays, local, penalty, passes, key):
    """The features that occur in these rows, and W (features + 1, children), the bias last.

    child:  the child that each row belongs to.
    local:  one −1 per feature, as scratch memory; all −1 again at the end.
    """
    ends, columns, values, features = gather(rows, arrays, local)
    width = -(-n_children // _LANES) * _LANES
    weight = np.zeros((features.size + 1, width), np.float32)
    alpha = np.zeros((rows.size, width), np.float32)
    for i in range(rows.size):
        alpha[i, child[i]] = 1.0
    dual, memory = Dual(ends, columns, values, weight, alpha), scratch(width)
    order = np.empty(rows.size, np.int64)
    for i in range(rows.size):
        order[i] = i
    for number in range(passes):
        _shuffle(order, row_state(key, number))
        for i in range(rows.size):
            _look_ahead(dual, order, i, n_children)
            _visit(dual, order[i], n_children, np.float32(penalty), memory)
    kept = np.empty((features.size + 1, n_children), np.float32)
    for f in range(features.size + 1):
        if f < features.size:
            local[features[f]] = -1
        for j in range(n_children):
            kept[f, j] = weight[f, j]
    return features, kept


@kernel
def _shuffle(order, state):
    """Fisher & Yates."""
    for i in range(order.size - 1, 0, -1):
        j = int(uniform(state, i) * (i + 1))
        order[i], order[j] = order[j], order[i]


@kernel
def _look_ahead(dual, order, i, n):
    """Prefetch what later visits read: rows come in random order, and waiting for memory was half
    of the time of a large node."""
    ends, columns, values, weight, alpha = dual
    if i + _PLACE_AHEAD < order.size:
        prefetch_item(ends, order[i + _PLACE_AHEAD])
    if i + _ROW_AHEAD < order.size:
        row = order[i + _ROW_AHEAD]
        prefetch_item(columns, ends[row])
        prefetch_item(values, ends[row])
        for j in range(0, n, _LANES):
            prefetch(alpha, row, j)
    if i + _WEIGHTS_AHEAD < order.size:
        row = order[i + _WEIGHTS_AHEAD]
        for e in range(ends[row], ends[row + 1]):
            for j in range(0, n, _LANES):
                prefetch(weight, columns[e], j)


@kernel
def gather(rows, arrays, local):
    """Copy the rows, with features renumbered in the order in which they come: where each row
    begins, columns, scaled values, and the feature behind each column."""
    indptr, indices, values, scale = arrays
    ends = np.zeros(rows.size + 1, np.int64)
    for i in range(rows.size):
        ends[i + 1] = ends[i] + indptr[rows[i] + 1] - indptr[rows[i]]
    columns, data = np.empty(ends[-1], np.int32), np.empty(ends[-1], np.float32)
    found = np.empty(min(ends[-1], local.size), np.int32)
    n, at = 0, 0
    for i in range(rows.size):
        for e in range(indptr[rows[i]], indptr[rows[i] + 1]):
            f = indices[e]
            if local[f] < 0:
                local[f] = n
                found[n] = f
                n += 1
            columns[at], data[at] = local[f], scale * values[e]
            at += 1
    features = np.empty(n, np.int32)
    for f in range(n):
        features[f] = found[f]
    return ends, columns, data, features


@kernel(fastmath=FAST)
def _visit(dual, i, n, penalty, memory):
    ends, columns, values, weight, alpha = dual
    scores, p = memory.scores, memory.p
    last = weight.shape[0] - 1
    for j in range(n):
        scores[j] = weight[last, j]
    norm = np.float32(1.0)
    for e in range(ends[i], ends[i + 1]):
        c, x = columns[e], values[e]
        norm += x * x
        for j in range(n):
            scores[j] += x * weight[c, j]
    softmax(memory, n)
    taxicab, squares = np.float32(0.0), np.float32(0.0)
    for j in range(n):
        d = p[j] - alpha[i, j]
        p[j] = d
        taxicab += abs(d)
        squares += d * d
    if taxicab < np.float32(_NEGLIGIBLE):
        return
    share = np.float32(1.0) / (np.float32(1.0) + norm / penalty * squares / (taxicab * taxicab))
    for j in range(n):
        p[j] *= share
        alpha[i, j] += p[j]
        weight[last, j] -= p[j] / penalty
    for e in range(ends[i], ends[i + 1]):
        c, x = columns[e], values[e] / penalty
        for j in range(n):
            weight[c, j] -= x * p[j]


@kernel(fastmath=FAST)
def softmax(memory, n):
    """p = softmax of the first n scores; returns log Σ exp."""
    scores, p = memory
    top = scores[0]
    for j in range(1, n):
        top = max(top, scores[j])
    for j in range(n):
        p[j] = exp_below_zero(scores[j] - top)
    total = np.float32(0.0)
    for j in range(n):
        total += p[j]
    for j in range(n):
        p[j] /= total
    return top + np.log(total)


@kernel
def pruned(features, weight, least):
    """Drop weights smaller than ``least``: the remaining features in rising order, the number of
    children that each has weights for, those children and weights, and the bias."""
    n, size = features.size, weight.shape[1]
    keys = np.empty(n)
    for f in range(n):
        keys[f] = features[f]
    order = rising(keys, n)
    counts, total, n_left = np.zeros(n, np.int64), 0, 0
    for f in range(n):
        for j in range(size):
            counts[f] += abs(weight[order[f], j]) >= least
        total += counts[f]
        n_left += counts[f] > 0
    child, kept = np.empty(total, np.int16), np.empty(total, np.float32)
    at = 0
    for f in range(n):
        for j in range(size):
            if abs(weight[order[f], j]) >= least:
                child[at], kept[at] = j, weight[order[f], j]
                at += 1
    left, left_counts = np.empty(n_left, np.int32), np.empty(n_left, np.int64)
    at = 0
    for f in range(n):
        if counts[f]:
            left[at], left_counts[at] = features[order[f]], counts[f]
            at += 1
    bias = np.empty(size, np.float32)
    for j in range(size):
        bias[j] = weight[n, j]
    return left, left_counts, child, kept, bias


@kernel
def likelihoods(rows, child, arrays, features, weight, n_features, sharpnesses):
    """Σ log softmax(s W x)_c over rows that the fit has not seen, for each sharpness s."""
    indptr, indices, values, scale = arrays
    size, last = weight.shape[1], weight.shape[0] - 1
    local = np.empty(n_features, np.int32)
    for f in range(n_features):
        local[f] = -1
    for i in range(features.size):
        local[features[i]] = i
    scores, totals = np.empty(size, np.float32), np.zeros(sharpnesses.size)
    for i in range(rows.size):
        for j in range(size):
            scores[j] = weight[last, j]
        for e in range(indptr[rows[i]], indptr[rows[i] + 1]):
            c = local[indices[e]]
            if c >= 0:
                for j in range(size):
                    scores[j] += scale * values[e] * weight[c, j]
        add_log_probs(scores, size, child[i], sharpnesses, totals)
    return totals


@kernel
def add_log_probs(scores, size, c, sharpnesses, totals):
    """totals[k] += log softmax(s_k · scores)_c."""
    memory = scratch(size)
    for k in range(sharpnesses.size):
        for j in range(size):
            memory.scores[j] = sharpnesses[k] * scores[j]
        totals[k] += memory.scores[c] - softmax(memory, size)
