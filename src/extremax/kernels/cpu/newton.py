"""Newton ascent on the log-likelihood of a tree node, in numba.

A node with θ = (w, b) sends example i to side ζ_i = ±1 with probability σ(ζ_i (w·z_i + b)):

    L(θ) = weight · Σ_i log σ(ζ_i (w·z_i + b)) − ½ λ_w‖w‖² − ½ λ_b b².

Examples are stored in columns, so that sums over examples, which is nearly all there is to compute,
run along memory.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.lines import FAST

_NEWTON_STEPS, _TOLERANCE = 12, 1e-4
#: Examples summed at a time: 64 features of them stay in the core's own cache.
BLOCK = 512
# Bounds the relative error of the curvature, whose blocks are summed in float32.
_ROUNDING = 1e-6


class Node(NamedTuple):
    """The examples of a node and the side of each class.

    columns:    z transposed, (k, at least n) float32.
    owner:      the class of each example, as a position in ``sides``.
    sides:      ζ of each class, ±1 int8.
    weight:     the number of examples that each one stands for.
    penalties:  λ_w and λ_b.
    """

    columns: np.ndarray
    owner: np.ndarray
    sides: np.ndarray
    weight: float
    penalties: np.ndarray


@kernel
def bound(node, factor):
    """Factorize ¼ Σ z̃z̃ᵀ + Λ, which bounds the curvature of L for any θ and ζ."""
    slack = np.empty(node.owner.size, np.float32)
    for i in range(slack.size):
        slack[i] = 0.25
    curvature(node, slack, factor)
    factorize(factor)


@kernel
def ascend(node, theta, factor, n_steps):
    """Newton steps with the factor of `bound` (Böhning & Lindsay 1988).

    Each raises L, up to rounding, and needs no new matrix, which suits a split that still moves;
    the last steps to the optimum are those of `newton`.
    """
    _climb(node, theta, factor, False, n_steps, 0.0)


@kernel
def newton(node, theta, factor, renew):
    """Newton ascent on L.

    factor:  that of the curvature, recomputed at each large step if ``renew``, else used as it is.
    """
    _climb(node, theta, factor, renew, _NEWTON_STEPS, _TOLERANCE)


@kernel
def _climb(node, theta, factor, renew, n_steps, tolerance):
    """Steps until L gains less than tolerance · (1 − L).

    A step is halved until L rises, so θ cannot diverge or become NaN.
    """
    k = theta.size
    gradient, step, trial, trial_gradient = np.empty(k), np.empty(k), np.empty(k), np.empty(k)
    slack = np.empty(node.owner.size, np.float32)
    value = evaluate(node, theta, gradient, slack)
    for _ in range(n_steps):
        if renew:
            curvature(node, slack, factor)
            factorize(factor)
        expected = solve(factor, gradient, step)
        enough = tolerance * (1.0 - value)
        # Where the expected gain is negligible, rounding decides whether L rises: try once.
        n_tries = 8 if expected > enough else 1
        gain = 0.0
        while n_tries and gain <= 0.0:
            for f in range(k):
                trial[f] = theta[f] + step[f]
                step[f] *= 0.5
            gain = evaluate(node, trial, trial_gradient, slack) - value
            n_tries -= 1
        # Not a number counts as no gain.
        if not gain > 0.0:
            break
        for f in range(k):
            theta[f] = trial[f]
            gradient[f] = trial_gradient[f]
        if gain <= enough:
            break
        value += gain
        # Close to the optimum the curvature hardly changes any more.
        renew = renew and gain > 100.0 * enough


@kernel(fastmath=FAST)
def evaluate(node, theta, gradient, slack):
    """L at θ and its gradient; slack[i] = p(1 − p), the share of example i in the curvature.

    Examples are taken in blocks, whose columns are still in the nearest cache when they are summed.
    """
    columns, owner, sides, weight, penalties = node
    n, k = owner.size, len(columns)
    t = np.empty(BLOCK, np.float32)
    pull = np.empty(BLOCK, np.float32)
    total = np.zeros(k)
    total_b, value = 0.0, 0.0
    for first in range(0, n, BLOCK):
        size = min(BLOCK, n - first)
        for i in range(size):
            t[i] = theta[k]
        _add_rows(t, columns, first, size, theta)
        for i in range(size):
            pull[i] = sides[owner[first + i]]
            t[i] *= pull[i]
        likelihood, pulled = _likelihood(t, pull, slack, first, size)
        value += likelihood
        total_b += pulled
        for f in range(k):
            total[f] += _dot(columns, f, first, size, pull)
    value *= weight
    for f in range(k):
        value -= 0.5 * penalties[0] * theta[f] ** 2
        gradient[f] = weight * total[f] - penalties[0] * theta[f]
    gradient[k] = weight * total_b - penalties[1] * theta[k]
    return value - 0.5 * penalties[1] * theta[k] ** 2


@kernel(fastmath=FAST)
def _likelihood(t, pull, slack, first, size):
    """Σ log σ(t) and Σ pull, where pull, the sides on entry, becomes side · σ(−t).

    The loop calls no function, so the compiler vectorizes it.
    """
    below, odds, pulled = 0.0, 1.0, 0.0
    slack = slack[first : first + size]
    for i in range(size):
        e = exp_minus(abs(t[i]))
        below += min(t[i], np.float32(0.0))
        # The product is at most 2 to the power of BLOCK: one logarithm suffices for all.
        odds *= np.float64(1.0) + e
        whole = np.float32(1.0) / (np.float32(1.0) + e)
        wrong = (e if t[i] >= 0 else np.float32(1.0)) * whole
        slack[i] = e * whole * whole
        pull[i] *= wrong
        pulled += pull[i]
    return below - math.log(odds), pulled


@kernel(inline="always")
def exp_minus(x):
    """exp(−x) of a float32 x ≥ 0 to float32 precision: 2ⁿ times the polynomial of Cephes.

    From 55 on the result is e⁻⁵⁵: negligible, but far from denormal numbers, which are slow.
    """
    x = min(x, np.float32(55.0))
    n = np.int32(np.float32(-1.44269504) * x - np.float32(0.5))
    # ln 2 in two parts, the first with few bits: n times it is exact.
    r = -x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    total = np.float32(1.9875691500e-4)
    total = total * r + np.float32(1.3981999507e-3)
    total = total * r + np.float32(8.3334519073e-3)
    total = total * r + np.float32(4.1665795894e-2)
    total = total * r + np.float32(1.6666665459e-1)
    total = total * r + np.float32(5.0000001201e-1)
    total = total * r * r + r + np.float32(1.0)
    return total * np.int32((n + np.int32(127)) << np.int32(23)).view(np.float32)


@kernel(fastmath=FAST)
def _add_rows(total, rows, first, size, weights):
    """total += Σ_f weights[f] rows[f], from column ``first`` on; four rows at a time, to load and
    store the total less often."""
    last, most = first + size, len(rows) - 1
    for f in range(0, most + 1, 4):
        # Beyond the last row, the last one with weight zero.
        a, b = rows[f, first:last], rows[min(f + 1, most), first:last]
        c, d = rows[min(f + 2, most), first:last], rows[min(f + 3, most), first:last]
        wa, wb = np.float32(weights[f]), np.float32(weights[f + 1] if f < most else 0.0)
        wc = np.float32(weights[f + 2] if f + 1 < most else 0.0)
        wd = np.float32(weights[f + 3] if f + 2 < most else 0.0)
        for i in range(size):
            total[i] += wa * a[i] + wb * b[i] + wc * c[i] + wd * d[i]


@kernel(fastmath=FAST)
def curvature(node, slack, out):
    """The upper half of H = weight · Σ slack z̃z̃ᵀ + Λ, z̃ = (z, 1).

    The diagonal is larger by the rounding error of the sums: under a small Λ, H would otherwise
    not be positive definite, and steps along its null space would be huge and wrong.
    """
    columns, _, _, weight, penalties = node
    n, k = slack.size, len(columns)
    for r in range(k + 1):
        for f in range(k + 1):
            out[r, f] = 0.0
    for first in range(0, n, BLOCK):
        _add_block(columns, first, min(BLOCK, n - first), slack, out)
    largest = 0.0
    for r in range(k + 1):
        for f in range(r, k + 1):
            out[r, f] *= weight
        largest = max(largest, out[r, r])
    for r in range(k + 1):
        out[r, r] += _ROUNDING * largest + (penalties[0] if r < k else penalties[1])


@kernel(fastmath=FAST)
def _add_block(columns, first, size, slack, out):
    """Two rows and two columns at a time, so that each number loaded is used twice."""
    k, last = len(columns), first + size
    a, b = np.empty(size, np.float32), np.empty(size, np.float32)
    slack = slack[first:last]
    for i in range(size):
        out[k, k] += slack[i]
    for r in range(0, k, 2):
        # If k is odd, the last row is its own partner.
        s = min(r + 1, k - 1)
        c, d = columns[r, first:last], columns[s, first:last]
        to_a, to_b = np.float32(0.0), np.float32(0.0)
        for i in range(size):
            a[i] = slack[i] * c[i]
            b[i] = slack[i] * d[i]
            to_a += a[i]
            to_b += b[i]
        out[r, k] += to_a
        if s > r:
            out[s, k] += to_b
        for f in range(r, k, 2):
            g = min(f + 1, k - 1)
            c, d = columns[f, first:last], columns[g, first:last]
            ac, ad = np.float32(0.0), np.float32(0.0)
            bc, bd = np.float32(0.0), np.float32(0.0)
            for i in range(size):
                ac += a[i] * c[i]
                ad += a[i] * d[i]
                bc += b[i] * c[i]
                bd += b[i] * d[i]
            out[r, f] += ac
            if g > f:
                out[r, g] += ad
            if s > r:
                out[s, f] += bc
                if g > f:
                    out[s, g] += bd


@kernel(fastmath=FAST)
def factorize(matrix):
    """Replace a symmetric positive definite matrix by U with UᵀU = matrix, in the upper half."""
    n = len(matrix)
    for j in range(n):
        row = matrix[j]
        for f in range(j):
            above = matrix[f]
            share = above[j]
            for i in range(j, n):
                row[i] -= share * above[i]
        # Λ > 0 keeps the pivot positive up to rounding.
        pivot = math.sqrt(max(row[j], 1e-12))
        row[j] = pivot
        for i in range(j + 1, n):
            row[i] /= pivot


@kernel(fastmath=FAST)
def solve(factor, vector, x):
    """Write the solution x of UᵀU x = vector; returns vector · x."""
    n = vector.size
    for i in range(n):
        x[i] = vector[i]
    for i in range(n):
        row = factor[i]
        x[i] /= row[i]
        share = x[i]
        for f in range(i + 1, n):
            x[f] -= share * row[f]
    product = 0.0
    for i in range(n - 1, -1, -1):
        row = factor[i]
        total = x[i]
        for f in range(i + 1, n):
            total -= row[f] * x[f]
        x[i] = total / row[i]
        product += vector[i] * x[i]
    return product


@kernel(fastmath=FAST)
def _dot(rows, f, first, size, other):
    row = rows[f, first : first + size]
    total = np.float32(0.0)
    for i in range(size):
        total += row[i] * other[i]
    return total
