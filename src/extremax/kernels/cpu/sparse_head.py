"""Exact softmax over classes of which most share no feature with the row, in numba.

Weights lie by feature: those of feature f are entries[f] .. entries[f + 1] − 1, each with its
class. A class without any feature of x scores its bias alone, so that

    Z(x) = Σ_active e^ξ + (Σ_all e^b − Σ_active e^b),

and only the active classes of a row are ever looked at.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def add_rows(rows, labels, scale, indptr, indices, values, entries, classes, weight):
    """weight[y, f] += scale x_f for every row of class y. Classes of a feature rise."""
    for i in rows:
        y = labels[i]
        for e in range(indptr[i], indptr[i + 1]):
            first, stop = entries[indices[e]], entries[indices[e] + 1]
            k = first + np.searchsorted(classes[first:stop], y)
            if k < stop and classes[k] == y:
                weight[k] += scale * values[e]


@njit(nogil=True, cache=True)
def most_active(start, stop, indptr, indices, entries, out):
    """out[i] = entries that the features of row i have: no fewer than its active classes."""
    for i in range(start, stop):
        out[i] = 0
        for e in range(indptr[i], indptr[i + 1]):
            out[i] += entries[indices[e] + 1] - entries[indices[e]]


@njit(nogil=True, cache=True)
def _activate(indptr, indices, values, i, entries, classes, weight, mark, stamp, sums, active):
    """Σ_f w_yf x_f of each active class in ``sums``; returns how many there are."""
    n = 0
    for e in range(indptr[i], indptr[i + 1]):
        f, x = indices[e], values[e]
        if x == 0.0:
            continue
        for k in range(entries[f], entries[f + 1]):
            c = classes[k]
            if mark[c] != stamp:
                mark[c] = stamp
                sums[c] = 0.0
                active[n] = c
                n += 1
            sums[c] += x * weight[k]
    return n


@njit(nogil=True, cache=True, error_model="numpy")
def _log_z(active, n, sums, bias, rises, top, rest, share):
    """log Z, and p of the active classes in ``share``. ``rises`` are e^(b − top), ``rest`` is their
    sum: what is left of it is that of the others, next to nothing at times and never less.
    Exponentials are most of the cost: one a class."""
    highest = -np.inf
    for a in range(n):
        highest = max(highest, sums[active[a]] + bias[active[a]])
        rest -= rises[active[a]]
    others = top + math.log(rest) if rest > 0.0 else -np.inf
    highest = max(highest, others)
    total = math.exp(others - highest)
    for a in range(n):
        share[a] = math.exp(sums[active[a]] + bias[active[a]] - highest)
        total += share[a]
    for a in range(n):
        share[a] /= total
    return highest + math.log(total)


@njit(nogil=True, cache=True)
def probabilities(
    start, stop, indptr, indices, values, entries, classes, weight, bias, rises, top, rest, truth,
    starts, found, share, counts, log_z, log_p,
):  # fmt: skip
    """The active classes of each row, from found[starts[i]] on, and their p; log Z and log p of the
    true class."""
    mark, sums = np.full(bias.size, -1, np.int64), np.empty(bias.size)
    for i in range(start, stop):
        active = found[starts[i] : starts[i + 1]]
        n = _activate(indptr, indices, values, i, entries, classes, weight, mark, i, sums, active)
        log_z[i] = _log_z(active, n, sums, bias, rises, top, rest, share[starts[i] :])
        counts[i] = n
        own = bias[truth[i]] + (sums[truth[i]] if mark[truth[i]] == i else 0.0)
        log_p[i] = own - log_z[i]


@njit(nogil=True, cache=True)
def add_gradients(
    start, stop, n_parts, n_classes, indptr, indices, values, entries, classes, truth, each, starts,
    found, share, counts, slope,
):  # fmt: skip
    """slope[k] += each_i (p_y − [y = true]) x_f for every entry k = (y, f) of the rows' features.

    Part j of n_parts has the features f ≡ j modulo n_parts: an entry has one writer, and its rows
    come in order however many parts there are.
    """
    # What is left of other rows is never read: entries of a row's features are active classes.
    p = np.zeros(n_classes)
    for i in range(indptr.size - 1):
        for a in range(starts[i], starts[i] + counts[i]):
            p[found[a]] = share[a]
        p[truth[i]] -= 1.0
        for e in range(indptr[i], indptr[i + 1]):
            f, x = indices[e], values[e] * each[i]
            if start <= f % n_parts and f % n_parts < stop and x != 0.0:
                for k in range(entries[f], entries[f + 1]):
                    slope[k] += x * p[classes[k]]


@njit(nogil=True, cache=True, error_model="numpy")
def adagrad_features(start, stop, features, entries, weight, acc, slope, rate):
    """Adagrad on the entries of these features, whose slopes are then zero again."""
    for at in range(start, stop):
        for k in range(entries[features[at]], entries[features[at] + 1]):
            g = slope[k]
            slope[k] = 0.0
            acc[k] += g * g
            weight[k] -= rate * g / math.sqrt(acc[k])


@njit(nogil=True, cache=True)
def bias_slopes(rises, top, truth, each, starts, found, share, counts, log_z, out):
    """Σ_i each_i (p_iy − [y = true]) for every class: e^b Σ each/Z, but for the active ones."""
    inverse = 0.0
    for i in range(truth.size):
        inverse += each[i] * math.exp(top - log_z[i])
    for y in range(rises.size):
        out[y] = rises[y] * inverse
    for i in range(truth.size):
        by = math.exp(top - log_z[i])
        for a in range(starts[i], starts[i] + counts[i]):
            out[found[a]] += each[i] * (share[a] - rises[found[a]] * by)
        out[truth[i]] -= each[i]


@njit(nogil=True, cache=True)
def log_probs(
    start, stop, indptr, indices, values, entries, classes, weight, bias, rises, top, rest, labels,
    out,
):  # fmt: skip
    """out[i, j] = log p of labels[i, j]."""
    mark, sums = np.full(bias.size, -1, np.int64), np.empty(bias.size)
    active, share = np.empty(bias.size, np.int64), np.empty(bias.size)
    for i in range(start, stop):
        n = _activate(indptr, indices, values, i, entries, classes, weight, mark, i, sums, active)
        log_z = _log_z(active, n, sums, bias, rises, top, rest, share)
        for j in range(labels.shape[1]):
            y = labels[i, j]
            out[i, j] = bias[y] + (sums[y] if mark[y] == i else 0.0) - log_z


@njit(nogil=True, cache=True)
def add_scores(start, stop, indptr, indices, values, entries, classes, weight, out):
    """out[i, y] += Σ_f w_yf x_f for every class."""
    for i in range(start, stop):
        for e in range(indptr[i], indptr[i + 1]):
            x = values[e]
            for k in range(entries[indices[e]], entries[indices[e] + 1]):
                out[i, classes[k]] += x * weight[k]


@njit(nogil=True, cache=True)
def best(
    start, stop, indptr, indices, values, entries, classes, weight, bias, rises, top, rest, by_bias,
    labels, log_p,
):  # fmt: skip
    """The likeliest classes, best first: the active ones, and of the others those of the largest
    biases. Of equals the first."""
    k = labels.shape[1]
    mark, sums = np.full(bias.size, -1, np.int64), np.empty(bias.size)
    active, share = np.empty(bias.size, np.int64), np.empty(bias.size)
    for i in range(start, stop):
        n = _activate(indptr, indices, values, i, entries, classes, weight, mark, i, sums, active)
        log_z = _log_z(active, n, sums, bias, rises, top, rest, share)
        labels[i] = -1
        log_p[i] = -np.inf
        for a in range(n):
            _keep(labels[i], log_p[i], active[a], sums[active[a]] + bias[active[a]] - log_z)
        others = 0
        for y in by_bias:
            if others == k:
                break
            if mark[y] != i:
                _keep(labels[i], log_p[i], y, bias[y] - log_z)
                others += 1


@njit(nogil=True, cache=True)
def _keep(labels, values, label, value):
    """Insert into a falling list, if it is among its best."""
    at = labels.size
    while at > 0 and (
        labels[at - 1] < 0
        or values[at - 1] < value
        or (values[at - 1] == value and labels[at - 1] > label)
    ):
        at -= 1
    if at == labels.size:
        return
    for j in range(labels.size - 1, at, -1):
        labels[j], values[j] = labels[j - 1], values[j - 1]
    labels[at], values[at] = label, value
