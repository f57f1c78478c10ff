"""The greedy fit of tree nodes, in numba: Newton steps on (w, b), sorting for the split.

Bamler & Mandt 2020, section 3. At a node with classes Y, maximize over θ = (w, b) and over
ζ ∈ {±1} with equal halves

    L = Σ_{(x,y): y∈Y} log σ(ζ_y (w·z + b)) − ½ λ_w‖w‖² − ½ λ_b b²

(`extremax.kernels.cpu.newton`). A node with more than ``cap`` examples fits θ on an even subsample,
weighted up: fitting k + 1 numbers to that many examples loses about (k + 1)/(2·cap) nat. The split
always sees every example, through the class sums.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.lines import FAST
from extremax.kernels.cpu.newton import Node, ascend, bound, evaluate, newton
from extremax.kernels.cpu.sorting import rising

_RIGHT = np.int8(1)
_LEFT = np.int8(-1)
# Steps under the bound between two splits.
_ASCENTS = 3


class SortedExamples(NamedTuple):
    """Examples sorted by class.

    z:        (n, k) float32; those of class c are z[offsets[c]:offsets[c + 1]].
    offsets:  (C + 1,).
    sums:     Σ z of each class, (C, k) float64.
    cap:      the most examples that θ of one node is fitted to.
    """

    z: np.ndarray
    offsets: np.ndarray
    sums: np.ndarray
    cap: int


@kernel
def split_nodes(start, stop, splits, order, examples, penalties, rounds, nodes):
    """Fit nodes start..stop − 1 from scratch: write their rows of ``nodes`` and sort ``order`` into
    halves.

    splits:  (lo, mid, hi) of each node, as in `extremax.kernels.cpu.tree`.
    """
    z, offsets, sums, cap = examples
    k = z.shape[1]
    for s in range(start, stop):
        lo, mid, hi = splits[s, 0], splits[s, 1], splits[s, 2]
        classes = np.empty(hi - lo, np.int64)
        for c in range(hi - lo):
            classes[c] = order[lo + c]
        rows, owner, weight = gather(order, lo, hi, offsets, cap)
        sides = np.zeros(hi - lo, np.int8)
        node = Node(transposed(z, rows), owner, sides, weight, penalties)
        factor = np.empty((k + 1, k + 1))
        theta = np.zeros(k + 1)
        principal_direction(classes, sums, theta)
        halve(classes, offsets, sums, theta, hi - mid, sides)
        if hi - lo > 2:
            bound(node, factor)
            for _ in range(rounds):
                ascend(node, theta, factor, _ASCENTS)
                if not halve(classes, offsets, sums, theta, hi - mid, sides):
                    break
        newton(node, theta, factor, True)
        # A split that was stable on the way may not be at the optimum. The curvature depends on
        # ζ only through θ, which moves little: the factor still serves.
        for _ in range(rounds):
            if not halve(classes, offsets, sums, theta, hi - mid, sides):
                break
            newton(node, theta, factor, False)
        left, right = lo, mid
        for c in range(hi - lo):
            if sides[c] == _RIGHT:
                order[right] = classes[c]
                right += 1
            else:
                order[left] = classes[c]
                left += 1
        for f in range(k + 1):
            nodes[mid, f] = theta[f]


@kernel
def refit_nodes(start, stop, splits, order, examples, penalties, nodes):
    """Newton under other penalties on nodes that are already split, from their current rows."""
    z, offsets, _, cap = examples
    k = z.shape[1]
    theta, factor = np.empty(k + 1), np.empty((k + 1, k + 1))
    for s in range(start, stop):
        lo, mid, hi = splits[s, 0], splits[s, 1], splits[s, 2]
        rows, owner, weight = gather(order, lo, hi, offsets, cap)
        sides = np.empty(hi - lo, np.int8)
        for c in range(hi - lo):
            sides[c] = _RIGHT if lo + c >= mid else _LEFT
        for f in range(k + 1):
            theta[f] = nodes[mid, f]
        newton(Node(transposed(z, rows), owner, sides, weight, penalties), theta, factor, True)
        for f in range(k + 1):
            nodes[mid, f] = theta[f]


@kernel
def held_out_likelihood(start, stop, splits, order, examples, penalties, nodes, out):
    """out[s, j] = held-out log-likelihood of node s fitted under penalties[j]; out[s, −1] = count.

    Every fifth example is held out. The split is redone with the class sums of the others: a class
    whose side was chosen with the help of a held-out example would favor weak penalties.
    """
    z, offsets, _, cap = examples
    k, n_penalties = z.shape[1], len(penalties)
    theta, factor, gradient = np.empty(k + 1), np.empty((k + 1, k + 1)), np.empty(k + 1)
    none = np.zeros(2)
    for s in range(start, stop):
        lo, mid, hi = splits[s, 0], splits[s, 1], splits[s, 2]
        rows, owner, _ = gather(order, lo, hi, offsets, cap)
        held_rows, held_owner = every_fifth(rows, owner, True)
        kept_rows, kept_owner = every_fifth(rows, owner, False)
        kept_columns, held_columns = transposed(z, kept_rows), transposed(z, held_rows)
        first = np.zeros(hi - lo + 1, np.int64)
        sums = np.zeros((hi - lo, k), np.float64)
        for i in range(kept_owner.size):
            first[kept_owner[i] + 1] += 1
            for f in range(k):
                sums[kept_owner[i], f] += kept_columns[f, i]
        numbers = np.empty(hi - lo, np.int64)
        for c in range(hi - lo):
            numbers[c] = c
            first[c + 1] += first[c]
        for f in range(k + 1):
            theta[f] = nodes[mid, f]
        sides = np.zeros(hi - lo, np.int8)
        halve(numbers, first, sums, theta, hi - mid, sides)
        slack = np.empty(held_owner.size, np.float32)
        for j in range(n_penalties):
            node = Node(kept_columns, kept_owner, sides, 1.0, penalties[j])
            newton(node, theta, factor, True)
            unpenalized = Node(held_columns, held_owner, sides, 1.0, none)
            out[s, j] = evaluate(unpenalized, theta, gradient, slack)
        out[s, n_penalties] = held_owner.size


@kernel
def every_fifth(rows, owner, chosen):
    """Every fifth row and its class, or all others."""
    n = rows.size // 5
    size = n if chosen else rows.size - n
    some_rows, some_owner = np.empty(size, np.int64), np.empty(size, np.int64)
    taken = 0
    for i in range(rows.size):
        if (i % 5 == 4) == chosen:
            some_rows[taken] = rows[i]
            some_owner[taken] = owner[i]
            taken += 1
    return some_rows, some_owner


@kernel
def gather(order, lo, hi, offsets, cap):
    """The rows of the classes order[lo:hi] (every n-th one if over ``cap``), the position of each
    row's class among them, and how many rows each one stands for."""
    n = 0
    for p in range(lo, hi):
        n += offsets[order[p] + 1] - offsets[order[p]]
    stride = max(1, -(-n // cap))
    size = -(-n // stride)
    rows = np.empty(size, np.int64)
    owner = np.empty(size, np.int64)
    seen, taken = 0, 0
    for p in range(lo, hi):
        for i in range(offsets[order[p]], offsets[order[p] + 1]):
            if seen % stride == 0:
                rows[taken] = i
                owner[taken] = p - lo
                taken += 1
            seen += 1
    return rows, owner, n / max(size, 1)


@kernel
def transposed(z, rows):
    """z[rows] transposed, with unused columns at the end.

    They make each row of the result an odd number of cache lines long: with a power of two, all
    features of an example would compete for the same few places of the cache.
    """
    k = z.shape[1]
    lines = (rows.size + 15) // 16
    columns = np.empty((k, 16 * (lines + 1 - lines % 2)), np.float32)
    for first in range(0, rows.size, 16):
        for f in range(k):
            for i in range(first, min(first + 16, rows.size)):
                columns[f, i] = z[rows[i], f]
    return columns


@kernel(fastmath=FAST)
def principal_direction(classes, sums, theta):
    """w = dominant eigenvector of the covariance of the class sums (power iteration), b = 0."""
    k, n = sums.shape[1], classes.size
    mean, image = np.zeros(k), np.zeros(k)
    for j in range(n):
        for f in range(k):
            mean[f] += sums[classes[j], f] / n
    # Start from the class sum farthest from the mean, which cannot be orthogonal to all others.
    farthest, largest = classes[0], -1.0
    for j in range(n):
        distance = 0.0
        for f in range(k):
            distance += (sums[classes[j], f] - mean[f]) ** 2
        if distance > largest:
            farthest, largest = classes[j], distance
    for f in range(k):
        image[f] = sums[farthest, f] - mean[f]
    for number in range(13 if n > 2 else 2):
        norm = 0.0
        for f in range(k):
            norm += image[f] * image[f]
        norm = math.sqrt(norm)
        for f in range(k):
            theta[f] = image[f] / norm if norm > 1e-12 else 0.0
            image[f] = 0.0
        if norm <= 1e-12 or number == (12 if n > 2 else 1):
            break
        for j in range(n):
            dot = 0.0
            for f in range(k):
                dot += (sums[classes[j], f] - mean[f]) * theta[f]
            for f in range(k):
                image[f] += dot * (sums[classes[j], f] - mean[f])
    theta[k] = 0.0


@kernel
def halve(classes, offsets, sums, theta, n_right, sides):
    """Send the n_right classes with the largest Δ_y = w·S_y + n_y b to the right.

    Returns whether any class changed sides.
    """
    k = sums.shape[1]
    delta = np.empty(classes.size)
    for j in range(classes.size):
        c = classes[j]
        d = theta[k] * (offsets[c + 1] - offsets[c])
        for f in range(k):
            d += theta[f] * sums[c, f]
        delta[j] = d
    ranked = rising(delta, delta.size)
    moved = False
    for r in range(classes.size):
        side = _RIGHT if r >= classes.size - n_right else _LEFT
        if sides[ranked[r]] != side:
            sides[ranked[r]] = side
            moved = True
    return moved
