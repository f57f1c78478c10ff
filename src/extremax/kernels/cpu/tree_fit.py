"""The greedy fit of tree nodes, in numba: Newton steps on (w, b), sorting for the split.

Bamler & Mandt 2020, section 3. At a node with classes Y, maximise over θ = (w, b) and over
ζ ∈ {±1} with equal halves

    L = Σ_{(x,y): y∈Y} log σ(ζ_y (w·z + b)) − ½ λ_w‖w‖² − ½ λ_b b².

Examples come sorted by class: those of class c are z[offsets[c]:offsets[c+1]]. A node with more
than ``cap`` examples fits θ on an even subsample, weighted up: a fit of k + 1 numbers to that
many examples loses about (k + 1)/(2·cap) nat. The split always sees every example, through the
class sums.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from extremax.kernels.cpu.head import FAST
from extremax.kernels.cpu.tree import sigmoid

_RIGHT = np.int8(1)
_LEFT = np.int8(-1)
# Steps under the bound between two splits, and Newton steps at most.
_ASCENTS = 3
_NEWTON_STEPS = 12


@njit(nogil=True, cache=True)
def split_nodes(start, stop, splits, order, offsets, z, sums, penalties, cap, rounds, nodes):
    """Fit nodes start..stop from scratch; write their rows and sort ``order`` into halves."""
    k = z.shape[1]
    for s in range(start, stop):
        lo, mid, hi = splits[s]
        classes = order[lo:hi].copy()
        examples, owner, weight = _gather(classes, offsets, z, cap)
        theta = np.zeros(k + 1)
        _principal_direction(classes, offsets, sums, theta)
        zeta = np.empty(hi - lo, np.int8)
        _halve(classes, offsets, sums, theta, hi - mid, zeta)
        if hi - lo > 2:
            bound = _bound(examples, weight, penalties)
            for _ in range(rounds):
                for _ in range(_ASCENTS):
                    _ascend(examples, owner, zeta, weight, penalties, theta, bound)
                if not _halve(classes, offsets, sums, theta, hi - mid, zeta):
                    break
        _newton(examples, owner, zeta, weight, penalties, theta)
        # A split that was stable on the way may not be at the optimum.
        for _ in range(rounds):
            if not _halve(classes, offsets, sums, theta, hi - mid, zeta):
                break
            _newton(examples, owner, zeta, weight, penalties, theta)
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
        examples, owner, weight = _gather(order[lo:hi], offsets, z, cap)
        zeta = np.full(hi - lo, _LEFT)
        zeta[mid - lo :] = _RIGHT
        theta = nodes[mid].astype(np.float64)
        _newton(examples, owner, zeta, weight, penalties, theta)
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
        classes = order[lo:hi]
        examples, owner, _ = _gather(classes, offsets, z, cap)
        n = owner.size
        held = np.arange(n) % 5 == 4
        kept = np.flatnonzero(~held)
        out_rows = np.flatnonzero(held)
        n_kept = np.zeros(hi - lo + 1, np.int64)
        kept_sums = np.zeros((hi - lo, k), np.float64)
        for i in kept:
            n_kept[owner[i] + 1] += 1
            for f in range(k):
                kept_sums[owner[i], f] += examples[i, f]
        local = np.arange(hi - lo)
        theta = nodes[mid].astype(np.float64)
        zeta = np.empty(hi - lo, np.int8)
        _halve(local, np.cumsum(n_kept), kept_sums, theta, hi - mid, zeta)
        for j in range(penalties.shape[0]):
            _newton(examples[kept], owner[kept], zeta, 1.0, penalties[j], theta)
            total = 0.0
            for i in out_rows:
                a = theta[k]
                for f in range(k):
                    a += theta[f] * examples[i, f]
                total += math.log(max(sigmoid(zeta[owner[i]] * a), 1e-300))
            out[s, j] = total
        out[s, penalties.shape[0]] = out_rows.size


@njit(nogil=True, cache=True)
def _gather(classes, offsets, z, cap):
    """The examples of the classes (every n-th when over ``cap``), their owners, their weight."""
    n = 0
    for c in classes:
        n += offsets[c + 1] - offsets[c]
    stride = max(1, -(-n // cap))
    size = -(-n // stride)
    examples = np.empty((size, z.shape[1]), np.float32)
    owner = np.empty(size, np.int64)
    seen, taken = 0, 0
    for j in range(classes.size):
        first, last = offsets[classes[j]], offsets[classes[j] + 1]
        for i in range(first, last):
            if seen % stride == 0:
                examples[taken] = z[i]
                owner[taken] = j
                taken += 1
            seen += 1
    return examples, owner, n / max(size, 1)


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
def _bound(examples, weight, penalties):
    """Cholesky factor of ¼ Σ z̃z̃ᵀ + Λ, which bounds the curvature of L whatever θ and ζ are."""
    curvature = np.empty((examples.shape[1] + 1, examples.shape[1] + 1))
    quarter = np.full(len(examples), np.float32(0.25))
    _curvature(examples, quarter, weight, penalties, curvature)
    _factorise(curvature)
    return curvature


@njit(nogil=True, cache=True)
def _ascend(examples, owner, zeta, weight, penalties, theta, bound):
    """A Newton step under the bound (Böhning & Lindsay 1988): it always raises L, and costs no
    new matrix. Good for following the split; the last steps to the optimum are Newton's own."""
    gradient = np.empty(theta.size)
    slack = np.empty(len(examples), np.float32)
    _slope(examples, owner, zeta, weight, penalties, theta, gradient, slack)
    theta += _solve(bound, gradient)


@njit(nogil=True, cache=True)
def _newton(examples, owner, zeta, weight, penalties, theta):
    """Newton ascent on L; a step that does not raise L is halved, so it cannot diverge."""
    k = examples.shape[1]
    gradient = np.empty(k + 1)
    trial_gradient = np.empty(k + 1)
    curvature = np.empty((k + 1, k + 1))
    slack = np.empty(len(examples), np.float32)
    value = _slope(examples, owner, zeta, weight, penalties, theta, gradient, slack)
    for _ in range(_NEWTON_STEPS):
        _curvature(examples, slack, weight, penalties, curvature)
        _factorise(curvature)
        step = _solve(curvature, gradient)
        gain = 0.0
        for _ in range(8):
            trial = theta + step
            reached = _slope(examples, owner, zeta, weight, penalties, trial, trial_gradient, slack)
            if reached > value:
                gain = reached - value
                theta[:] = trial
                gradient[:] = trial_gradient
                value = reached
                break
            step *= 0.5
        if gain <= 1e-4 * (1.0 - value):
            break


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _slope(examples, owner, zeta, weight, penalties, theta, gradient, slack):
    """L at θ and its gradient; slack[i] = p(1 − p), what example i adds to the curvature."""
    n, k = examples.shape
    w = theta[:k].astype(np.float32)
    b = np.float32(theta[k])
    slope = np.zeros(k)
    slope_b = 0.0
    value = 0.0
    for i in range(n):
        z = examples[i]
        a = b
        for f in range(k):
            a += w[f] * z[f]
        side = zeta[owner[i]]
        t = float(side * a)
        e = math.exp(-abs(t))
        value += min(t, 0.0) - math.log1p(e)
        wrong = e / (1.0 + e) if t >= 0.0 else 1.0 / (1.0 + e)
        slack[i] = wrong * (1.0 - wrong)
        pull = side * wrong
        slope_b += pull
        for f in range(k):
            slope[f] += pull * z[f]
    value *= weight
    for f in range(k):
        value -= 0.5 * penalties[0] * theta[f] ** 2
        gradient[f] = weight * slope[f] - penalties[0] * theta[f]
    gradient[k] = weight * slope_b - penalties[1] * theta[k]
    return value - 0.5 * penalties[1] * theta[k] ** 2


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _curvature(examples, slack, weight, penalties, curvature):
    """H = Σ slack z̃z̃ᵀ + Λ, z̃ = (z, 1); four examples at a time, to load and store H less."""
    n, k = examples.shape
    outer = np.zeros((k, k), np.float32)
    edge = np.zeros(k, np.float32)
    whole = n - n % 4
    for i in range(0, whole, 4):
        z0, z1, z2, z3 = examples[i], examples[i + 1], examples[i + 2], examples[i + 3]
        h0, h1, h2, h3 = slack[i], slack[i + 1], slack[i + 2], slack[i + 3]
        for f in range(k):
            edge[f] += h0 * z0[f] + h1 * z1[f] + h2 * z2[f] + h3 * z3[f]
        for r in range(k):
            c0, c1, c2, c3 = h0 * z0[r], h1 * z1[r], h2 * z2[r], h3 * z3[r]
            row = outer[r]
            for f in range(k):
                row[f] += c0 * z0[f] + c1 * z1[f] + c2 * z2[f] + c3 * z3[f]
    for i in range(whole, n):
        z = examples[i]
        for f in range(k):
            edge[f] += slack[i] * z[f]
        for r in range(k):
            c = slack[i] * z[r]
            row = outer[r]
            for f in range(k):
                row[f] += c * z[f]
    for r in range(k):
        for f in range(k):
            curvature[r, f] = weight * outer[r, f]
        curvature[r, r] += penalties[0]
        curvature[r, k] = weight * edge[r]
        curvature[k, r] = weight * edge[r]
    curvature[k, k] = weight * slack.astype(np.float64).sum() + penalties[1]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _factorise(matrix):
    """The Cholesky factor of a symmetric positive definite matrix, in its lower half."""
    for j in range(len(matrix)):
        for i in range(j, len(matrix)):
            total = matrix[i, j]
            for f in range(j):
                total -= matrix[i, f] * matrix[j, f]
            if i == j:
                # Λ > 0 keeps the pivot positive but for rounding.
                matrix[j, j] = math.sqrt(max(total, 1e-12))
            else:
                matrix[i, j] = total / matrix[j, j]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _solve(factor, vector):
    """The solution x of L Lᵀ x = vector."""
    n = vector.size
    x = vector.copy()
    for i in range(n):
        for f in range(i):
            x[i] -= factor[i, f] * x[f]
        x[i] /= factor[i, i]
    for i in range(n - 1, -1, -1):
        x[i] /= factor[i, i]
        for f in range(i):
            x[f] -= factor[i, f] * x[i]
    return x
