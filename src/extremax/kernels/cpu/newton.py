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
from numba import njit

from extremax.kernels.cpu.lines import FAST

_NEWTON_STEPS = 12
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


@njit(nogil=True, cache=True)
def bound(node, factor):
    """Factorize ¼ Σ z̃z̃ᵀ + Λ, which bounds the curvature of L for any θ and ζ."""
    curvature(node, np.full(node.owner.size, np.float32(0.25)), factor)
    factorize(factor)


@njit(nogil=True, cache=True)
def ascend(node, theta, factor, n_steps):
    """Newton steps with the factor of `bound` (Böhning & Lindsay 1988).

    Each raises L, up to rounding, and needs no new matrix, which suits a split that still moves;
    the last steps to the optimum are those of `newton`.
    """
    gradient = np.empty(theta.size)
    slack = np.empty(node.owner.size, np.float32)
    value = evaluate(node, theta, gradient, slack)
    for _ in range(n_steps):
        gain = _advance(node, theta, gradient, slack, value, solve(factor, gradient), 8)
        if gain <= 0.0:
            break
        value += gain


@njit(nogil=True, cache=True)
def newton(node, theta, factor, renew):
    """Newton ascent on L.

    factor:  that of the curvature, recomputed at each large step if ``renew``, else used as it is.
    """
    gradient = np.empty(theta.size)
    slack = np.empty(node.owner.size, np.float32)
    value = evaluate(node, theta, gradient, slack)
    for _ in range(_NEWTON_STEPS):
        if renew:
            curvature(node, slack, factor)
            factorize(factor)
        step = solve(factor, gradient)
        enough = 1e-4 * (1.0 - value)
        # Where the expected gain is negligible, rounding decides whether L rises: try once.
        n_tries = 8 if (gradient * step).sum() > enough else 1
        gain = _advance(node, theta, gradient, slack, value, step, n_tries)
        if gain <= enough:
            break
        value += gain
        # Close to the optimum the curvature hardly changes any more.
        renew = renew and gain > 100.0 * enough


@njit(nogil=True, cache=True)
def _advance(node, theta, gradient, slack, value, step, n_tries):
    """Add the step to θ, halved until L exceeds ``value``, so θ cannot diverge or become NaN.

    Returns what L gained. After ``n_tries`` without a gain, 0: θ and its gradient are unchanged.
    """
    trial_gradient = np.empty(theta.size)
    for _ in range(n_tries):
        trial = theta + step
        reached = evaluate(node, trial, trial_gradient, slack)
        if reached > value:
            theta[:] = trial
            gradient[:] = trial_gradient
            return reached - value
        step *= 0.5
    return 0.0


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def evaluate(node, theta, gradient, slack):
    """L at θ and its gradient; slack[i] = p(1 − p), the share of example i in the curvature.

    Examples are taken in blocks, whose columns are still in the nearest cache when they are summed.
    """
    columns, owner, sides, weight, penalties = node
    n, k = owner.size, len(columns)
    w = theta.astype(np.float32)
    t = np.empty(BLOCK, np.float32)
    pull = np.empty(BLOCK, np.float32)
    total = np.zeros(k)
    total_b, value = 0.0, 0.0
    for first in range(0, n, BLOCK):
        last = min(first + BLOCK, n)
        size = last - first
        t[:size] = w[k]
        _add_rows(t[:size], columns, first, w)
        for i in range(size):
            pull[i] = sides[owner[first + i]]
            t[i] *= pull[i]
        likelihood, pulled = _likelihood(t[:size], pull, slack[first:last])
        value += likelihood
        total_b += pulled
        for f in range(k):
            total[f] += _dot(columns[f, first:last], pull)
    value *= weight
    for f in range(k):
        value -= 0.5 * penalties[0] * theta[f] ** 2
        gradient[f] = weight * total[f] - penalties[0] * theta[f]
    gradient[k] = weight * total_b - penalties[1] * theta[k]
    return value - 0.5 * penalties[1] * theta[k] ** 2


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _likelihood(t, pull, slack):
    """Σ log σ(t) and Σ pull, where pull, the sides on entry, becomes side · σ(−t).

    The loop calls no function, so the compiler vectorizes it.
    """
    below, odds, pulled = 0.0, 1.0, 0.0
    for i in range(t.size):
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


@njit(nogil=True, cache=True, inline="always")
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


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _add_rows(total, rows, first, weights):
    """total += Σ_f weights[f] rows[f], from column ``first`` on."""
    k, last = len(rows), first + total.size
    whole = k - k % 4
    for f in range(0, whole, 4):
        _add_four(
            total, rows[f, first:last], rows[f + 1, first:last],
            rows[f + 2, first:last], rows[f + 3, first:last],
            weights[f], weights[f + 1], weights[f + 2], weights[f + 3],
        )  # fmt: skip
    for f in range(whole, k):
        _add(total, rows[f, first:last], weights[f])


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def curvature(node, slack, out):
    """The upper half of H = weight · Σ slack z̃z̃ᵀ + Λ, z̃ = (z, 1).

    The diagonal is larger by the rounding error of the sums: under a small Λ, H would otherwise
    not be positive definite, and steps along its null space would be huge and wrong.
    """
    columns, _, _, weight, penalties = node
    k = len(columns)
    out[:] = 0.0
    for first in range(0, slack.size, BLOCK):
        _add_block(columns, first, slack[first : first + BLOCK], out)
    largest = 0.0
    for r in range(k + 1):
        for f in range(r, k + 1):
            out[r, f] *= weight
        largest = max(largest, out[r, r])
    for r in range(k + 1):
        out[r, r] += _ROUNDING * largest + (penalties[0] if r < k else penalties[1])


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _add_block(columns, first, slack, out):
    """Two rows and two columns at a time, so that each number loaded is used twice."""
    k, last = len(columns), first + slack.size
    a, b = np.empty(slack.size, np.float32), np.empty(slack.size, np.float32)
    for i in range(slack.size):
        out[k, k] += slack[i]
    for r in range(k):
        out[r, k] += _dot(columns[r, first:last], slack)
    for r in range(0, k, 2):
        # If k is odd, the last row is its own partner.
        s = min(r + 1, k - 1)
        _multiply(slack, columns[r, first:last], a)
        _multiply(slack, columns[s, first:last], b)
        for f in range(r, k, 2):
            g = min(f + 1, k - 1)
            af, ag, bf, bg = _four_dots(a, b, columns[f, first:last], columns[g, first:last])
            out[r, f] += af
            if g > f:
                out[r, g] += ag
            if s > r:
                out[s, f] += bf
                if g > f:
                    out[s, g] += bg


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _multiply(row, other, out):
    for i in range(row.size):
        out[i] = row[i] * other[i]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy", inline="always")
def _four_dots(a, b, c, d):
    ac, ad = np.float32(0.0), np.float32(0.0)
    bc, bd = np.float32(0.0), np.float32(0.0)
    for i in range(a.size):
        ac += a[i] * c[i]
        ad += a[i] * d[i]
        bc += b[i] * c[i]
        bd += b[i] * d[i]
    return ac, ad, bc, bd


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy", inline="always")
def _add(total, row, c):
    for f in range(total.size):
        total[f] += c * row[f]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy", inline="always")
def _add_four(total, row0, row1, row2, row3, c0, c1, c2, c3):
    """Four rows at a time, to load and store the total less often."""
    for f in range(total.size):
        total[f] += c0 * row0[f] + c1 * row1[f] + c2 * row2[f] + c3 * row3[f]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def factorize(matrix):
    """Replace a symmetric positive definite matrix by U with UᵀU = matrix, in the upper half."""
    for j in range(len(matrix)):
        row = matrix[j, j:]
        whole = j - j % 4
        for f in range(0, whole, 4):
            u0, u1, u2, u3 = matrix[f, j:], matrix[f + 1, j:], matrix[f + 2, j:], matrix[f + 3, j:]
            _add_four(row, u0, u1, u2, u3, -u0[0], -u1[0], -u2[0], -u3[0])
        for f in range(whole, j):
            _add(row, matrix[f, j:], -matrix[f, j])
        # Λ > 0 keeps the pivot positive up to rounding.
        pivot = math.sqrt(max(row[0], 1e-12))
        row[0] = pivot
        for i in range(row.size - 1):
            row[1:][i] /= pivot


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def solve(factor, vector):
    """The solution x of UᵀU x = vector."""
    x = vector.copy()
    for i in range(x.size):
        x[i] /= factor[i, i]
        _add(x[i + 1 :], factor[i, i + 1 :], -x[i])
    for i in range(x.size - 1, -1, -1):
        x[i] = (x[i] - _dot(factor[i, i + 1 :], x[i + 1 :])) / factor[i, i]
    return x


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy", inline="always")
def _dot(row, other):
    total = row.dtype.type(0.0)
    for f in range(row.size):
        total += row[f] * other[f]
    return total
