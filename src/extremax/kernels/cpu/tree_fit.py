"""The greedy fit of tree nodes, in numba: Newton steps on (w, b), sorting for the split.

Bamler & Mandt 2020, section 3. At a node with classes Y, maximise over θ = (w, b) and over
ζ ∈ {±1} with equal halves

    L = Σ_{(x,y): y∈Y} log σ(ζ_y (w·z + b)) − ½ λ_w‖w‖² − ½ λ_b b².

Examples come sorted by class: those of class c are z[offsets[c]:offsets[c+1]]. A node with more
than ``cap`` examples fits θ on an even subsample, weighted up: a fit of k + 1 numbers to that
many examples loses about (k + 1)/(2·cap) nat. The split always sees every example, through the
class sums.

A node's examples are gathered into columns, so that sums over examples, which is nearly all there
is to do, run along memory.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from extremax.kernels.cpu.lines import FAST

_RIGHT = np.int8(1)
_LEFT = np.int8(-1)
# Steps under the bound between two splits, and Newton steps at most.
_ASCENTS = 3
_NEWTON_STEPS = 12
# Examples that are looked at together: 64 features of them stay in the core's own cache.
_BLOCK = 512


@njit(nogil=True, cache=True)
def split_nodes(start, stop, splits, order, offsets, z, sums, penalties, cap, rounds, nodes):
    """Fit nodes start..stop from scratch; write their rows and sort ``order`` into halves."""
    k = z.shape[1]
    for s in range(start, stop):
        lo, mid, hi = splits[s]
        classes = order[lo:hi].copy()
        rows, owner, weight = _gather(classes, offsets, cap)
        examples = _columns(z, rows)
        factor = np.empty((k + 1, k + 1))
        theta = np.zeros(k + 1)
        _principal_direction(classes, offsets, sums, theta)
        zeta = np.empty(hi - lo, np.int8)
        _halve(classes, offsets, sums, theta, hi - mid, zeta)
        if hi - lo > 2:
            _bound(examples, owner.size, weight, penalties, factor)
            for _ in range(rounds):
                for _ in range(_ASCENTS):
                    _ascend(examples, owner, zeta, weight, penalties, theta, factor)
                if not _halve(classes, offsets, sums, theta, hi - mid, zeta):
                    break
        _newton(examples, owner, zeta, weight, penalties, theta, factor, True)
        # A split that was stable on the way may not be at the optimum. The curvature depends on
        # ζ through θ alone, which moves little: the factor still serves.
        for _ in range(rounds):
            if not _halve(classes, offsets, sums, theta, hi - mid, zeta):
                break
            _newton(examples, owner, zeta, weight, penalties, theta, factor, False)
        left, right = lo, mid
        for c in range(hi - lo):
            if zeta[c] == _RIGHT:
                order[right] = classes[c]
                right += 1
            else:
                order[left] = classes[c]
                left += 1
        nodes[mid, :] = theta


@njit(nogil=True, cache=True)
def refit_nodes(start, stop, splits, order, offsets, z, penalties, cap, nodes):
    """Newton on nodes whose split is made, from their present rows, under other penalties."""
    for s in range(start, stop):
        lo, mid, hi = splits[s]
        rows, owner, weight = _gather(order[lo:hi], offsets, cap)
        zeta = np.full(hi - lo, _LEFT)
        zeta[mid - lo :] = _RIGHT
        theta = nodes[mid].astype(np.float64)
        factor = np.empty((theta.size, theta.size))
        _newton(_columns(z, rows), owner, zeta, weight, penalties, theta, factor, True)
        nodes[mid, :] = theta


@njit(nogil=True, cache=True)
def held_out_gain(start, stop, splits, order, offsets, z, penalties, cap, nodes, out):
    """out[s, j] = held-out log-likelihood of node s fitted under penalties[j]; out[s, −1] = count.

    Every fifth example is held out. The split is made anew from the others' class sums, because
    a class that chose its side with the help of a held-out example would flatter weak penalties.
    """
    k = z.shape[1]
    for s in range(start, stop):
        lo, mid, hi = splits[s]
        rows, owner, _ = _gather(order[lo:hi], offsets, cap)
        held = np.arange(rows.size) % 5 == 4
        examples, kept_owner = _columns(z, rows[~held]), owner[~held]
        held_examples, held_owner = _columns(z, rows[held]), owner[held]
        n_kept = np.zeros(hi - lo + 1, np.int64)
        kept_sums = np.zeros((hi - lo, k), np.float64)
        for i in range(kept_owner.size):
            n_kept[kept_owner[i] + 1] += 1
            for f in range(k):
                kept_sums[kept_owner[i], f] += examples[f, i]
        theta = nodes[mid].astype(np.float64)
        factor = np.empty((k + 1, k + 1))
        zeta = np.empty(hi - lo, np.int8)
        _halve(np.arange(hi - lo), np.cumsum(n_kept), kept_sums, theta, hi - mid, zeta)
        slack = np.empty(held_owner.size, np.float32)
        unpenalised, gradient = np.zeros(2), np.empty(k + 1)
        for j in range(penalties.shape[0]):
            _newton(examples, kept_owner, zeta, 1.0, penalties[j], theta, factor, True)
            out[s, j] = _slope(
                held_examples, held_owner, zeta, 1.0, unpenalised, theta, gradient, slack
            )
        out[s, penalties.shape[0]] = held_owner.size


@njit(nogil=True, cache=True)
def _gather(classes, offsets, cap):
    """The rows of the classes (every n-th when over ``cap``), their owners, their weight."""
    n = 0
    for c in classes:
        n += offsets[c + 1] - offsets[c]
    stride = max(1, -(-n // cap))
    size = -(-n // stride)
    rows = np.empty(size, np.int64)
    owner = np.empty(size, np.int64)
    seen, taken = 0, 0
    for j in range(classes.size):
        first, last = offsets[classes[j]], offsets[classes[j] + 1]
        for i in range(first, last):
            if seen % stride == 0:
                rows[taken] = i
                owner[taken] = j
                taken += 1
            seen += 1
    return rows, owner, n / max(size, 1)


@njit(nogil=True, cache=True)
def _columns(z, rows):
    """z[rows] transposed.

    The unused end makes a line of the result an odd number of cache lines long: a power of two
    would put all features of an example into the same few places of the cache.
    """
    k = z.shape[1]
    lines = (rows.size + 15) // 16
    columns = np.empty((k, 16 * (lines + 1 - lines % 2)), np.float32)
    for first in range(0, rows.size, 16):
        for f in range(k):
            column = columns[f]
            for i in range(first, min(first + 16, rows.size)):
                column[i] = z[rows[i], f]
    return columns


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _principal_direction(classes, offsets, sums, theta):
    """w = dominant eigenvector of the covariance of the class sums (power iteration), b = 0."""
    k = sums.shape[1]
    n = classes.size
    mean = np.zeros(k)
    for c in classes:
        for f in range(k):
            mean[f] += sums[c, f]
    mean /= n
    # Start from the class sum farthest from the mean: it cannot be orthogonal to everything.
    far, best = classes[0], -1.0
    for c in classes:
        d = 0.0
        for f in range(k):
            d += (sums[c, f] - mean[f]) ** 2
        if d > best:
            far, best = c, d
    w = np.empty(k)
    for f in range(k):
        w[f] = sums[far, f] - mean[f]
    for _ in range(12 if n > 2 else 1):
        norm = math.sqrt((w * w).sum())
        if norm < 1e-12:
            break
        w /= norm
        image = np.zeros(k)
        for c in classes:
            dot = 0.0
            for f in range(k):
                dot += (sums[c, f] - mean[f]) * w[f]
            for f in range(k):
                image[f] += dot * (sums[c, f] - mean[f])
        w[:] = image
    norm = math.sqrt((w * w).sum())
    for f in range(k):
        theta[f] = w[f] / norm if norm > 1e-12 else 0.0
    theta[k] = 0.0


@njit(nogil=True, cache=True)
def _halve(classes, offsets, sums, theta, n_right, zeta):
    """Send the n_right classes with the largest Δ_y = w·S_y + n_y b to the right; did any move?"""
    k = sums.shape[1]
    delta = np.empty(classes.size)
    for j in range(classes.size):
        c = classes[j]
        d = theta[k] * (offsets[c + 1] - offsets[c])
        for f in range(k):
            d += theta[f] * sums[c, f]
        delta[j] = d
    ranked = np.argsort(delta, kind="mergesort")
    moved = False
    for r in range(classes.size):
        side = _RIGHT if r >= classes.size - n_right else _LEFT
        if zeta[ranked[r]] != side:
            zeta[ranked[r]] = side
            moved = True
    return moved


@njit(nogil=True, cache=True)
def _bound(examples, n, weight, penalties, factor):
    """Factor of ¼ Σ z̃z̃ᵀ + Λ, which bounds the curvature of L whatever θ and ζ are."""
    _curvature(examples, np.full(n, np.float32(0.25)), weight, penalties, factor)
    _factorise(factor)


@njit(nogil=True, cache=True)
def _ascend(examples, owner, zeta, weight, penalties, theta, bound):
    """A Newton step under the bound (Böhning & Lindsay 1988): it always raises L, and costs no
    new matrix. Good for following the split; the last steps to the optimum are Newton's own."""
    gradient = np.empty(theta.size)
    slack = np.empty(owner.size, np.float32)
    _slope(examples, owner, zeta, weight, penalties, theta, gradient, slack)
    theta += _solve(bound, gradient)


@njit(nogil=True, cache=True)
def _newton(examples, owner, zeta, weight, penalties, theta, factor, renew):
    """Newton ascent on L; a step that does not raise L is halved, so it cannot diverge.

    ``factor`` is that of the curvature: computed at each large step, or used as it is.
    """
    gradient = np.empty(theta.size)
    trial_gradient = np.empty(theta.size)
    slack = np.empty(owner.size, np.float32)
    value = _slope(examples, owner, zeta, weight, penalties, theta, gradient, slack)
    for _ in range(_NEWTON_STEPS):
        if renew:
            _curvature(examples, slack, weight, penalties, factor)
            _factorise(factor)
        step = _solve(factor, gradient)
        enough = 1e-4 * (1.0 - value)
        gain = 0.0
        # Where next to nothing is promised, rounding decides whether L rises: one try will do.
        for _ in range(8 if (gradient * step).sum() > enough else 1):
            trial = theta + step
            reached = _slope(examples, owner, zeta, weight, penalties, trial, trial_gradient, slack)
            if reached > value:
                gain = reached - value
                theta[:] = trial
                gradient[:] = trial_gradient
                value = reached
                break
            step *= 0.5
        if gain <= enough:
            break
        # Close to the optimum the curvature hardly changes any more.
        renew = renew and gain > 100.0 * enough


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _slope(examples, owner, zeta, weight, penalties, theta, gradient, slack):
    """L at θ and its gradient; slack[i] = p(1 − p), what example i adds to the curvature.

    In blocks, whose rows are still in the nearest cache when they are added up.
    """
    n, k = owner.size, len(examples)
    w = theta.astype(np.float32)
    t = np.empty(_BLOCK, np.float32)
    pull = np.empty(_BLOCK, np.float32)
    slope = np.zeros(k)
    slope_b, value = 0.0, 0.0
    for first in range(0, n, _BLOCK):
        last = min(first + _BLOCK, n)
        size = last - first
        t[:size] = w[k]
        _add_rows(t[:size], examples, first, w)
        for i in range(size):
            pull[i] = zeta[owner[first + i]]
            t[i] *= pull[i]
        likelihood, pulled = _likelihood(t[:size], pull, slack[first:last])
        value += likelihood
        slope_b += pulled
        for f in range(k):
            slope[f] += _dot(examples[f, first:last], pull)
    value *= weight
    for f in range(k):
        value -= 0.5 * penalties[0] * theta[f] ** 2
        gradient[f] = weight * slope[f] - penalties[0] * theta[f]
    gradient[k] = weight * slope_b - penalties[1] * theta[k]
    return value - 0.5 * penalties[1] * theta[k] ** 2


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _likelihood(t, pull, slack):
    """Σ log σ(t) and Σ pull; the sides in ``pull`` are turned into side · σ(−t).

    Nothing here is a call, so it runs on as many examples at once as the processor has lanes.
    """
    below, odds, pulled = 0.0, 1.0, 0.0
    for i in range(t.size):
        e = _exp_minus(abs(t[i]))
        below += min(t[i], np.float32(0.0))
        # At most 2 to the power of _BLOCK: one logarithm for all.
        odds *= np.float64(1.0) + e
        whole = np.float32(1.0) / (np.float32(1.0) + e)
        wrong = (e if t[i] >= 0 else np.float32(1.0)) * whole
        slack[i] = e * whole * whole
        pull[i] *= wrong
        pulled += pull[i]
    return below - math.log(odds), pulled


@njit(nogil=True, cache=True, inline="always")
def _exp_minus(x):
    """exp(−x) of a float32 x ≥ 0 to float32's precision: 2ⁿ times Cephes' polynomial.

    From 55 on it is e⁻⁵⁵, next to nothing but far from the numbers that are slow because tiny.
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
def _curvature(examples, slack, weight, penalties, curvature):
    """The upper half of H = Σ slack z̃z̃ᵀ + Λ, z̃ = (z, 1)."""
    k = len(examples)
    curvature[:] = 0.0
    for first in range(0, slack.size, _BLOCK):
        _add_block(examples, first, slack[first : first + _BLOCK], curvature)
    for r in range(k + 1):
        for f in range(r, k + 1):
            curvature[r, f] *= weight
        curvature[r, r] += penalties[0] if r < k else penalties[1]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _add_block(examples, first, slack, curvature):
    """Two rows and two columns at a time, so that each number loaded is used twice."""
    k, last = len(examples), first + slack.size
    a, b = np.empty(slack.size, np.float32), np.empty(slack.size, np.float32)
    for i in range(slack.size):
        curvature[k, k] += slack[i]
    for r in range(k):
        curvature[r, k] += _dot(examples[r, first:last], slack)
    for r in range(0, k, 2):
        # Where k is odd the last one is its own partner.
        s = min(r + 1, k - 1)
        _multiply(slack, examples[r, first:last], a)
        _multiply(slack, examples[s, first:last], b)
        for f in range(r, k, 2):
            g = min(f + 1, k - 1)
            af, ag, bf, bg = _four_dots(a, b, examples[f, first:last], examples[g, first:last])
            curvature[r, f] += af
            if g > f:
                curvature[r, g] += ag
            if s > r:
                curvature[s, f] += bf
                if g > f:
                    curvature[s, g] += bg


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
    """Four rows at a time, to load and store the total less."""
    for f in range(total.size):
        total[f] += c0 * row0[f] + c1 * row1[f] + c2 * row2[f] + c3 * row3[f]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _factorise(matrix):
    """U with UᵀU = the symmetric positive definite matrix; both in the upper half."""
    for j in range(len(matrix)):
        row = matrix[j, j:]
        whole = j - j % 4
        for f in range(0, whole, 4):
            u0, u1, u2, u3 = matrix[f, j:], matrix[f + 1, j:], matrix[f + 2, j:], matrix[f + 3, j:]
            _add_four(row, u0, u1, u2, u3, -u0[0], -u1[0], -u2[0], -u3[0])
        for f in range(whole, j):
            _add(row, matrix[f, j:], -matrix[f, j])
        # Λ > 0 keeps the pivot positive but for rounding.
        pivot = math.sqrt(max(row[0], 1e-12))
        row[0] = pivot
        for i in range(row.size - 1):
            row[1:][i] /= pivot


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _solve(factor, vector):
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
