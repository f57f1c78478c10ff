"""Exact softmax over classes of which most share no feature with the row, in numba.

Weights lie by feature: those of feature f are entries first[f] .. first[f + 1] − 1, each with its
class. A class without any feature of x scores its bias alone, so that

    Z(x) = Σ_active e^ξ + (Σ_all e^b − Σ_active e^b),

and only the active classes of a row are visited.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.cpu.jit import kernel


class Support(NamedTuple):
    """Weights by feature. Classes of a feature rise."""

    first: np.ndarray
    classes: np.ndarray
    weight: np.ndarray


class Csr(NamedTuple):
    """Rows, their values multiplied by the head's scale (and divided by a temperature)."""

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray


class Biases(NamedTuple):
    """b, e^(b − top), the highest b, and the sum of the second."""

    bias: np.ndarray
    exp: np.ndarray
    top: float
    total: float


class Active(NamedTuple):
    """Active classes of row i and their p: places starts[i] .. starts[i] + counts[i] − 1."""

    starts: np.ndarray
    classes: np.ndarray
    p: np.ndarray
    counts: np.ndarray


@kernel
def _entry(support, f, y):
    """The entry of class y at feature f, −1 for none."""
    first, stop = support.first[f], support.first[f + 1]
    k = first + np.searchsorted(support.classes[first:stop], y)
    return k if k < stop and support.classes[k] == y else -1


@kernel
def add_rows(numbers, labels, rows, support):
    """weight[y, f] += x_f for every numbered row of class y."""
    for i in numbers:
        for e in range(rows.indptr[i], rows.indptr[i + 1]):
            k = _entry(support, rows.indices[e], labels[i])
            if k >= 0:
                support.weight[k] += rows.values[e]


@kernel
def _activate(rows, i, support, mark, sums, active):
    """Σ_f w_yf x_f of each active class y of row i in ``sums``; returns their number.

    mark[y] is the last row in which y was active.
    """
    n = 0
    for e in range(rows.indptr[i], rows.indptr[i + 1]):
        f, x = rows.indices[e], rows.values[e]
        if x == 0.0:
            continue
        for k in range(support.first[f], support.first[f + 1]):
            c = support.classes[k]
            if mark[c] != i:
                mark[c] = i
                sums[c] = 0.0
                active[n] = c
                n += 1
            sums[c] += x * support.weight[k]
    return n


@kernel
def _log_z(active, n, sums, biases, p):
    """log Z, and the probabilities of the active classes in ``p``.

    Subtracting the active classes from the total of e^b may leave next to nothing, or less, by
    rounding; less counts as nothing. Exponentials are most of the cost: one per class.
    """
    bias, rest, highest = biases.bias, biases.total, -np.inf
    for a in range(n):
        highest = max(highest, sums[active[a]] + bias[active[a]])
        rest -= biases.exp[active[a]]
    others = biases.top + math.log(rest) if rest > 0.0 else -np.inf
    highest = max(highest, others)
    total = math.exp(others - highest)
    for a in range(n):
        p[a] = math.exp(sums[active[a]] + bias[active[a]] - highest)
        total += p[a]
    for a in range(n):
        p[a] /= total
    return highest + math.log(total)


@kernel
def probabilities(start, stop, rows, support, biases, truth, active, log_z, log_p):
    """The active classes of each row and their p; log Z, and log p of the true class."""
    n_classes = biases.bias.size
    mark, sums = np.full(n_classes, -1, np.int64), np.empty(n_classes)
    for i in range(start, stop):
        classes = active.classes[active.starts[i] : active.starts[i + 1]]
        n = _activate(rows, i, support, mark, sums, classes)
        log_z[i] = _log_z(classes, n, sums, biases, active.p[active.starts[i] :])
        active.counts[i] = n
        y = truth[i]
        log_p[i] = biases.bias[y] + (sums[y] if mark[y] == i else 0.0) - log_z[i]


@kernel
def add_gradients(start, stop, n_shares, n_classes, rows, support, truth, weights, active, slope):
    """slope[k] += weight_i (p_y − [y = true]) x_f for every entry k = (y, f) of the rows' features.

    Share j of n_shares has the features f ≡ j modulo n_shares: an entry has one writer, and its
    rows come in order whatever the number of shares.
    """
    # What other rows leave behind is never read: entries of a row's features are active classes.
    p = np.zeros(n_classes)
    for i in range(rows.indptr.size - 1):
        for a in range(active.starts[i], active.starts[i] + active.counts[i]):
            p[active.classes[a]] = active.p[a]
        p[truth[i]] -= 1.0
        for e in range(rows.indptr[i], rows.indptr[i + 1]):
            f, x = rows.indices[e], rows.values[e] * weights[i]
            if start <= f % n_shares and f % n_shares < stop and x != 0.0:
                for k in range(support.first[f], support.first[f + 1]):
                    slope[k] += x * p[support.classes[k]]


@kernel
def adagrad_features(start, stop, features, support, acc, slope, rate):
    """Adagrad on the entries of these features, whose slopes are then zero again."""
    for i in range(start, stop):
        for k in range(support.first[features[i]], support.first[features[i] + 1]):
            g = slope[k]
            slope[k] = 0.0
            acc[k] += g * g
            support.weight[k] -= rate * g / math.sqrt(acc[k])


@kernel
def shrink_entries(start, stop, weight, acc, strength):
    """As `extremax.kernels.cpu.head.shrink_rows`, for entries w of accumulators A."""
    for k in range(start, stop):
        w = weight[k]
        weight[k] = w - w * (strength / (math.sqrt(acc[k]) + strength))


@kernel
def bias_slopes(biases, truth, weights, active, log_z, out):
    """Σ_i weight_i (p_iy − [y = true]) for every class: e^b Σ weight/Z, except for active ones."""
    inverse = 0.0
    for i in range(truth.size):
        inverse += weights[i] * math.exp(biases.top - log_z[i])
    for y in range(biases.exp.size):
        out[y] = biases.exp[y] * inverse
    for i in range(truth.size):
        factor = math.exp(biases.top - log_z[i])
        for a in range(active.starts[i], active.starts[i] + active.counts[i]):
            y = active.classes[a]
            out[y] += weights[i] * (active.p[a] - biases.exp[y] * factor)
        out[truth[i]] -= weights[i]


@kernel
def log_probs(start, stop, rows, support, biases, labels, out):
    """out[i, j] = log p of labels[i, j]."""
    n_classes = biases.bias.size
    mark, sums = np.full(n_classes, -1, np.int64), np.empty(n_classes)
    active, p = np.empty(n_classes, np.int64), np.empty(n_classes)
    for i in range(start, stop):
        n = _activate(rows, i, support, mark, sums, active)
        log_z = _log_z(active, n, sums, biases, p)
        for j in range(labels.shape[1]):
            y = labels[i, j]
            out[i, j] = biases.bias[y] + (sums[y] if mark[y] == i else 0.0) - log_z


@kernel
def add_pair_scores(start, stop, rows, support, classes, out):
    """out[i, j] += Σ_f w_yf x_f for y = classes[i, j]."""
    for i in range(start, stop):
        for e in range(rows.indptr[i], rows.indptr[i + 1]):
            for j in range(classes.shape[1]):
                k = _entry(support, rows.indices[e], classes[i, j])
                if k >= 0:
                    out[i, j] += rows.values[e] * support.weight[k]


@kernel
def add_pair_gradients(rows, support, classes, gradient, slope):
    """slope[k] += gradient[i, j] x_f for the entry k = (classes[i, j], f) of every pair."""
    for i in range(classes.shape[0]):
        for e in range(rows.indptr[i], rows.indptr[i + 1]):
            for j in range(classes.shape[1]):
                k = _entry(support, rows.indices[e], classes[i, j])
                if k >= 0:
                    slope[k] += gradient[i, j] * rows.values[e]


@kernel
def add_scores(start, stop, rows, support, out):
    """out[i, y] += Σ_f w_yf x_f for every class."""
    for i in range(start, stop):
        for e in range(rows.indptr[i], rows.indptr[i + 1]):
            x = rows.values[e]
            for k in range(support.first[rows.indices[e]], support.first[rows.indices[e] + 1]):
                out[i, support.classes[k]] += x * support.weight[k]


@kernel
def best(start, stop, rows, support, biases, by_bias, labels, log_p):
    """The most probable classes, best first: active ones, and others of the largest biases. Of
    equals the one with the lower number."""
    k, n_classes = labels.shape[1], biases.bias.size
    mark, sums = np.full(n_classes, -1, np.int64), np.empty(n_classes)
    active, p = np.empty(n_classes, np.int64), np.empty(n_classes)
    for i in range(start, stop):
        n = _activate(rows, i, support, mark, sums, active)
        log_z = _log_z(active, n, sums, biases, p)
        labels[i] = -1
        log_p[i] = -np.inf
        for a in range(n):
            y = active[a]
            _insert(labels[i], log_p[i], y, sums[y] + biases.bias[y] - log_z)
        others = 0
        for y in by_bias:
            if others == k:
                break
            if mark[y] != i:
                _insert(labels[i], log_p[i], y, biases.bias[y] - log_z)
                others += 1


@kernel
def _insert(labels, values, label, value):
    """Insert into a falling list, if the value is among its best."""
    place = labels.size
    while place > 0 and (
        labels[place - 1] < 0
        or values[place - 1] < value
        or (values[place - 1] == value and labels[place - 1] > label)
    ):
        place -= 1
    if place == labels.size:
        return
    for j in range(labels.size - 1, place, -1):
        labels[j], values[j] = labels[j - 1], values[j - 1]
    labels[place], values[place] = label, value
