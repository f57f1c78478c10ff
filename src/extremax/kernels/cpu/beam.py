"""Beam search through the noise tree, in numba: what ranges of classes promise, and their scores.

A tier is a list of children, each with a vector, and a list of parents, each with a run of the
children: ranges of classes beneath wider ranges, or at last classes beneath the narrowest.
Pairs of a row and a parent that it keeps are scored parent by parent, so that the vectors of
one parent's children are read from memory once for many rows.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from extremax.kernels.cpu.lines import FAST

# Pairs of one parent that are scored at a time: their features stay in the first caches.
PAIRS = 16


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def summarise(start, stop, bounds, order, weight, bias, reach, means, base, slope):
    """What each range [bounds[g], bounds[g+1]) of classes promises a row.

    means[g] is the mean w̄ of its weights; with u_y = b_y + reach·‖w_y − w̄‖, base + slope is
    log mean exp u, and slope how that grows with the row's norm.
    """
    n_features = means.shape[1]
    for g in range(start, stop):
        lo, hi = bounds[g], bounds[g + 1]
        mean = means[g]
        mean[:] = 0.0
        for p in range(lo, hi):
            w = weight[order[p]]
            for f in range(n_features):
                mean[f] += w[f]
        for f in range(n_features):
            mean[f] /= hi - lo
        largest, total, away = -np.inf, 0.0, 0.0
        for p in range(lo, hi):
            w = weight[order[p]]
            square = np.float32(0.0)
            for f in range(n_features):
                square += (w[f] - mean[f]) ** 2
            far = reach * math.sqrt(square)
            u = bias[order[p]] + far
            if u > largest:
                shrink = math.exp(largest - u)
                total, away, largest = total * shrink, away * shrink, u
            share = math.exp(u - largest)
            total += share
            away += share * far
        slope[g] = away / total
        base[g] = largest + math.log(total / (hi - lo)) - slope[g]


@njit(nogil=True, cache=True)
def by_parent(kept, n_parents, pairs, items):
    """Sorts pairs (row · slots + slot) by the parent kept there, −1 for none; cuts them into
    items (parent, first, last), PAIRS pairs of one parent at most. Returns how many items."""
    offsets = np.zeros(n_parents + 1, np.int64)
    flat = kept.ravel()
    for pair in range(flat.size):
        if flat[pair] >= 0:
            offsets[flat[pair] + 1] += 1
    n_items = 0
    for parent in range(n_parents):
        offsets[parent + 1] += offsets[parent]
        for first in range(offsets[parent], offsets[parent + 1], PAIRS):
            items[n_items, 0] = parent
            items[n_items, 1] = first
            items[n_items, 2] = min(first + PAIRS, offsets[parent + 1])
            n_items += 1
    for pair in range(flat.size):
        if flat[pair] >= 0:
            pairs[offsets[flat[pair]]] = pair
            offsets[flat[pair]] += 1
    return n_items


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy", inline="always")
def _products(v, n, a, b, c, d):
    """v·a, v·b, v·c and v·d: each number of v is read once for four rows."""
    va = vb = vc = vd = np.float32(0.0)
    for f in range(n):
        va += v[f] * a[f]
        vb += v[f] * b[f]
        vc += v[f] * c[f]
        vd += v[f] * d[f]
    return va, vb, vc, vd


@njit(nogil=True, cache=True, inline="always")
def _log_sigmoid(a):
    return min(a, np.float32(0.0)) - math.log(np.float32(1.0) + math.exp(-abs(a)))


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def score(
    start, stop, items, pairs, kept_log_q, features, z, length, scale, sharpness,
    vectors, base, slope, ids, first, bounds, nodes, splits, more_splits, out, log_q,
):  # fmt: skip
    """Scores of the children of each pair: out[pair, j] = ξ + log q, −inf beyond the last.

    Child c = first[parent] + j has vector, base and slope number ids[c], and
    ξ = scale · vector·x + base + slope · length[row]. Its log q is the parent's, kept_log_q, and
    that of the walk through the nodes in between: the one between c − 1 and c is bounds[c].
    Always four rows at a time, if need be the same again: the same sums in any company.
    """
    k, n_features = z.shape[1], features.shape[1]
    slots = kept_log_q.shape[1]
    activations = np.empty((4, out.shape[1]), np.float32)
    four = np.empty(4, np.int64)
    for item in range(start, stop):
        parent, begin, end = items[item]
        child = first[parent]
        n = first[parent + 1] - child
        walk = splits if splits.shape[0] == n - 1 else more_splits
        for p in range(begin, end, 4):
            for t in range(4):
                four[t] = pairs[min(p + t, end - 1)]
            rows = four // slots
            za, zb, zc, zd = z[rows[0]], z[rows[1]], z[rows[2]], z[rows[3]]
            for j in range(1, n):
                node = nodes[bounds[child + j]]
                va, vb, vc, vd = _products(node, k, za, zb, zc, zd)
                activations[0, j] = sharpness * (va + node[k])
                activations[1, j] = sharpness * (vb + node[k])
                activations[2, j] = sharpness * (vc + node[k])
                activations[3, j] = sharpness * (vd + node[k])
            xa, xb, xc, xd = (
                features[rows[0]], features[rows[1]], features[rows[2]], features[rows[3]]
            )  # fmt: skip
            for j in range(n):
                c = ids[child + j]
                va, vb, vc, vd = _products(vectors[c], n_features, xa, xb, xc, xd)
                out[four[0], j] = scale * va + base[c] + slope[c] * length[rows[0]]
                out[four[1], j] = scale * vb + base[c] + slope[c] * length[rows[1]]
                out[four[2], j] = scale * vc + base[c] + slope[c] * length[rows[2]]
                out[four[3], j] = scale * vd + base[c] + slope[c] * length[rows[3]]
            for t in range(min(4, end - p)):
                pair, a = four[t], activations[t]
                here = log_q[pair]
                here[0] = kept_log_q[rows[t], pair % slots]
                for s in range(n - 1):
                    lo, mid = walk[s, 0], walk[s, 1]
                    right = _log_sigmoid(a[mid])
                    here[mid] = here[lo] + right
                    here[lo] += right - a[mid]
                for j in range(n):
                    out[pair, j] += here[j]
                for j in range(n, out.shape[1]):
                    out[pair, j] = -np.inf


@njit(nogil=True, cache=True)
def keep(start, stop, first, kept, scores, log_q, best, best_log_q):
    """The best children of each row: best[i] their numbers, −1 for none, best_log_q their log q.

    scores and log_q are (rows, slots, children); a row has as many slots in kept."""
    slots, n_children = scores.shape[1], scores.shape[2]
    width = best.shape[1]
    for i in range(start, stop):
        flat = scores[i].ravel()
        threshold, ties = -np.inf, 0
        if flat.size > width:
            threshold = np.partition(flat, flat.size - width)[flat.size - width]
            ties = width
            for score_ in flat:
                ties -= score_ > threshold
        n = 0
        for slot in range(slots):
            for j in range(n_children):
                here = scores[i, slot, j]
                if here == threshold:
                    ties -= 1
                chosen = here > threshold or (here == threshold and ties >= 0 and here > -np.inf)
                if chosen and n < width:
                    best[i, n] = first[kept[i, slot]] + j
                    best_log_q[i, n] = log_q[i, slot, j]
                    n += 1
        best[i, n:] = -1
        best_log_q[i, n:] = -np.inf
