"""Beam search through the noise tree, in numba: bounds on ranges of classes, and scores.

A tier is a list of children, each with a vector, and a list of parents, each with a run of the
children: ranges of classes beneath wider ranges or, in the last tier, classes beneath the narrowest
ranges. Pairs of a row and a parent it keeps are scored parent by parent, so that the vectors of one
parent's children are read from memory once for many rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.lines import FAST

#: Pairs of one parent that are scored at a time: their features stay in the first caches.
PAIRS = 16
# Bins of scores in `choose`.
_BINS = 1024


class RangeVectors(NamedTuple):
    """A vector per range or class; its score on a row x is scale · vector·x + base + slope · ‖x‖,
    ‖x‖ relative to its usual size."""

    vectors: np.ndarray
    base: np.ndarray
    slope: np.ndarray


class Tier(NamedTuple):
    """Children and their parents.

    first:        parent g has children first[g]..first[g + 1] − 1.
    bounds:       where the leaves of child c begin; its left node in the tree has this number.
    ids:          the number of child c in ``vectors``.
    splits:       (lo, mid, hi) of the nodes above the children of one parent, parents first, for
                  parents with the fewest children; ``more_splits`` for those with one child more.
    """

    vectors: RangeVectors
    first: np.ndarray
    bounds: np.ndarray
    ids: np.ndarray
    splits: np.ndarray
    more_splits: np.ndarray


class Queries(NamedTuple):
    """Rows: features, their context z, their relative lengths; the scale of the head; and the nodes
    of the tree with their sharpness."""

    features: np.ndarray
    z: np.ndarray
    length: np.ndarray
    scale: np.float32
    nodes: np.ndarray
    sharpness: np.float32


class Work(NamedTuple):
    """Pairs of a row and a parent, as `by_parent` sorts them; log_q[row, slot] of the parents."""

    items: np.ndarray
    pairs: np.ndarray
    log_q: np.ndarray


@kernel(fastmath=FAST)
def summarize(start, stop, bounds, order, weight, bias, reach, out):
    """Summarize the classes of each range [bounds[g], bounds[g + 1]).

    out.vectors[g] is the mean w̄ of the weights. With u_y = b_y + reach·‖w_y − w̄‖, base + slope is
    log mean exp u, and slope its derivative with respect to the relative length of the row.
    """
    means, base, slope = out
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
        largest, total, spread = -np.inf, 0.0, 0.0
        for p in range(lo, hi):
            w = weight[order[p]]
            square = np.float32(0.0)
            for f in range(n_features):
                square += (w[f] - mean[f]) ** 2
            distance = reach * math.sqrt(square)
            u = bias[order[p]] + distance
            if u > largest:
                shrink = math.exp(largest - u)
                total, spread, largest = total * shrink, spread * shrink, u
            share = math.exp(u - largest)
            total += share
            spread += share * distance
        slope[g] = spread / total
        base[g] = largest + math.log(total / (hi - lo)) - slope[g]


@kernel
def by_parent(kept, n_parents, pairs, items):
    """Sort pairs (row · slots + slot) by the parent kept there (−1: none), and cut them into items
    (parent, first, last) of at most PAIRS pairs of one parent. Returns the number of items."""
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


@kernel(fastmath=FAST, inline="always")
def products(v, n, a, b, c, d):
    """v·a, v·b, v·c and v·d: each number of v is read once for four rows."""
    va = vb = vc = vd = np.float32(0.0)
    for f in range(n):
        va += v[f] * a[f]
        vb += v[f] * b[f]
        vc += v[f] * c[f]
        vd += v[f] * d[f]
    return va, vb, vc, vd


@kernel(inline="always")
def _log_sigmoid(a):
    return min(a, np.float32(0.0)) - math.log(np.float32(1.0) + math.exp(-abs(a)))


@kernel(fastmath=FAST)
def score(start, stop, tier, queries, work, out, log_q):
    """Score the children of each pair: out[pair, j] = ξ + log q, −inf beyond the last.

    log q of a child is that of its parent and of the walk through the nodes in between: the node
    between children c − 1 and c has number bounds[c]. Rows are always taken four at a time, if
    necessary the same row again, so that a row's sums do not depend on the other rows.
    """
    vectors, base, slope = tier.vectors
    _, firsts, bounds, ids, splits, more_splits = tier
    features, z, length, scale, nodes, sharpness = queries
    items, pairs, kept_log_q = work
    k, n_features = z.shape[1], features.shape[1]
    slots = kept_log_q.shape[1]
    activations = np.empty((4, out.shape[1]), np.float32)
    four = np.empty(4, np.int64)
    for item in range(start, stop):
        parent, begin, end = items[item]
        child = firsts[parent]
        n = firsts[parent + 1] - child
        walk = splits if splits.shape[0] == n - 1 else more_splits
        for p in range(begin, end, 4):
            for t in range(4):
                four[t] = pairs[min(p + t, end - 1)]
            rows = four // slots
            za, zb, zc, zd = z[rows[0]], z[rows[1]], z[rows[2]], z[rows[3]]
            for j in range(1, n):
                node = nodes[bounds[child + j]]
                va, vb, vc, vd = products(node, k, za, zb, zc, zd)
                activations[0, j] = sharpness * (va + node[k])
                activations[1, j] = sharpness * (vb + node[k])
                activations[2, j] = sharpness * (vc + node[k])
                activations[3, j] = sharpness * (vd + node[k])
            xa, xb, xc, xd = (
                features[rows[0]], features[rows[1]], features[rows[2]], features[rows[3]]
            )  # fmt: skip
            for j in range(n):
                c = ids[child + j]
                va, vb, vc, vd = products(vectors[c], n_features, xa, xb, xc, xd)
                out[four[0], j] = scale * va + base[c] + slope[c] * length[rows[0]]
                out[four[1], j] = scale * vb + base[c] + slope[c] * length[rows[1]]
                out[four[2], j] = scale * vc + base[c] + slope[c] * length[rows[2]]
                out[four[3], j] = scale * vd + base[c] + slope[c] * length[rows[3]]
            for t in range(min(4, end - p)):
                pair, a = four[t], activations[t]
                reached = log_q[pair]
                reached[0] = kept_log_q[rows[t], pair % slots]
                for s in range(n - 1):
                    lo, mid = walk[s, 0], walk[s, 1]
                    right = _log_sigmoid(a[mid])
                    reached[mid] = reached[lo] + right
                    reached[lo] += right - a[mid]
                for j in range(n):
                    out[pair, j] += reached[j]
                for j in range(n, out.shape[1]):
                    out[pair, j] = -np.inf


@kernel(fastmath=FAST)
def score_children(start, stop, first, ids, table, base, scale, features, items, pairs, slots, out):
    """out[pair, j] = scale · table[c]·x + base[c], c = ids[first[parent] + j] the j-th child of the
    pair's parent and x the features of its row; −inf beyond the last child.

    items, pairs:  of `by_parent`, with so many slots per row.

    Rows are taken four at a time as in `score`.
    """
    n_features = features.shape[1]
    four, rows = np.empty(4, np.int64), np.empty(4, np.int64)
    for item in range(start, stop):
        child, end = first[items[item, 0]], first[items[item, 0] + 1]
        for p in range(items[item, 1], items[item, 2], 4):
            for t in range(4):
                four[t] = pairs[min(p + t, items[item, 2] - 1)]
                rows[t] = four[t] // slots
            xa, xb, xc, xd = (
                features[rows[0]], features[rows[1]], features[rows[2]], features[rows[3]]
            )  # fmt: skip
            for j in range(end - child):
                c = ids[child + j]
                va, vb, vc, vd = products(table[c], n_features, xa, xb, xc, xd)
                out[four[0], j] = scale * va + base[c]
                out[four[1], j] = scale * vb + base[c]
                out[four[2], j] = scale * vc + base[c]
                out[four[3], j] = scale * vd + base[c]
            for t in range(4):
                for j in range(end - child, out.shape[1]):
                    out[four[t], j] = -np.inf


@kernel(fastmath=FAST)
def choose(start, stop, scores, more, chosen):
    """chosen[i]: the columns of the best scores of row i, finite ones, in rising order. Then add
    ``more`` to the others, and make the chosen ones −inf.

    Scores are counted in bins between the least and the largest, and taken from the best bin on;
    from the last bin that counts, the first ones. A full selection takes four times as long.
    """
    width, n = chosen.shape[1], scores.shape[1]
    counts, place = np.empty(_BINS, np.int64), np.empty(n, np.int32)
    for i in range(start, stop):
        low, high = scores[i, 0], scores[i, 0]
        for j in range(1, n):
            low, high = min(low, scores[i, j]), max(high, scores[i, j])
        per_score = np.float32(_BINS - 1) / max(high - low, np.float32(1e-30))
        for j in range(n):
            place[j] = np.int32((high - scores[i, j]) * per_score)
        for b in range(_BINS):
            counts[b] = 0
        for j in range(n):
            counts[place[j]] += 1
        last, room = 0, width
        while counts[last] < room:
            room -= counts[last]
            last += 1
        at = 0
        for j in range(n):
            if place[j] < last or (place[j] == last and room > 0):
                room -= place[j] == last
                chosen[i, at] = j
                scores[i, j] = -np.inf
                at += 1
            else:
                scores[i, j] += more[j]


@kernel
def keep(start, stop, first, kept, scores, log_q, best, best_log_q):
    """Keep the best children of each row: best[i] are their numbers (−1: none), best_log_q their
    log q.

    scores, log_q:  (rows, slots, children), with as many slots per row as ``kept`` has.
    """
    slots, n_children = scores.shape[1], scores.shape[2]
    width = best.shape[1]
    for i in range(start, stop):
        flat = scores[i].ravel()
        threshold, ties = -np.inf, 0
        if flat.size > width:
            threshold = np.partition(flat, flat.size - width)[flat.size - width]
            ties = width
            for value in flat:
                ties -= value > threshold
        n = 0
        for slot in range(slots):
            for j in range(n_children):
                value = scores[i, slot, j]
                if value == threshold:
                    ties -= 1
                chosen = value > threshold or (value == threshold and ties >= 0 and value > -np.inf)
                if chosen and n < width:
                    best[i, n] = first[kept[i, slot]] + j
                    best_log_q[i, n] = log_q[i, slot, j]
                    n += 1
        best[i, n:] = -1
        best_log_q[i, n:] = -np.inf
