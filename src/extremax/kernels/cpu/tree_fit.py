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
        for _ in range(rounds):
            _newton(examples, owner, zeta, weight, penalties, theta, 3)
            if not _halve(classes, offsets, sums, theta, hi - mid, zeta):
                break
        _newton(examples, owner, zeta, weight, penalties, theta, 12)
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
        _newton(examples, owner, zeta, weight, penalties, theta, 12)
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
            _newton(examples[kept], owner[kept], zeta, 1.0, penalties[j], theta, 12)
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
def _newton(examples, owner, zeta, weight, penalties, theta, iterations):
    """Newton ascent on L; a step that does not raise L is halved, so it cannot diverge."""
    k = examples.shape[1]
    gradient = np.empty(k + 1)
    curvature = np.empty((k + 1, k + 1))
    trial_gradient = np.empty(k + 1)
    trial_curvature = np.empty((k + 1, k + 1))
    value = _evaluate(examples, owner, zeta, weight, penalties, theta, gradient, curvature)
    for _ in range(iterations):
        step = _solve(curvature, gradient)
        length = 1.0
        gain = 0.0
        for _ in range(8):
            trial = theta + length * step
            reached = _evaluate(
                examples, owner, zeta, weight, penalties, trial, trial_gradient, trial_curvature
            )
            if reached > value:
                gain = reached - value
                theta[:] = trial
                value = reached
                gradient, trial_gradient = trial_gradient, gradient
                curvature, trial_curvature = trial_curvature, curvature
                break
            length *= 0.5
        if gain <= 1e-4 * (1.0 - value):
            break


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _evaluate(examples, owner, zeta, weight, penalties, theta, gradient, curvature):
    """L at θ; its gradient; H = Σ p(1−p) z̃z̃ᵀ + Λ, the negative Hessian."""
    n, k = examples.shape
    w = theta[:k].astype(np.float32)
    b = np.float32(theta[k])
    outer = np.zeros((k, k), np.float32)
    edge = np.zeros(k, np.float32)
    corner = 0.0
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
        pull = side * wrong
        slope_b += pull
        h = np.float32(wrong * (1.0 - wrong))
        corner += h
        for f in range(k):
            slope[f] += pull * z[f]
            edge[f] += h * z[f]
        for r in range(k):
            c = h * z[r]
            row = outer[r]
            for f in range(k):
                row[f] += c * z[f]
    value *= weight
    for r in range(k):
        value -= 0.5 * penalties[0] * theta[r] ** 2
        gradient[r] = weight * slope[r] - penalties[0] * theta[r]
        for f in range(k):
            curvature[r, f] = weight * outer[r, f]
        curvature[r, r] += penalties[0]
        curvature[r, k] = weight * edge[r]
        curvature[k, r] = weight * edge[r]
    value -= 0.5 * penalties[1] * theta[k] ** 2
    gradient[k] = weight * slope_b - penalties[1] * theta[k]
    curvature[k, k] = weight * corner + penalties[1]
    return value


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _solve(matrix, vector):
    """matrix⁻¹ vector for a symmetric positive definite matrix, by Cholesky in place."""
    n = vector.size
    for j in range(n):
        for i in range(j, n):
            total = matrix[i, j]
            for f in range(j):
                total -= matrix[i, f] * matrix[j, f]
            if i == j:
                # Λ > 0 keeps the pivot positive but for rounding.
                matrix[j, j] = math.sqrt(max(total, 1e-12))
            else:
                matrix[i, j] = total / matrix[j, j]
    x = vector.copy()
    for i in range(n):
        for f in range(i):
            x[i] -= matrix[i, f] * x[f]
        x[i] /= matrix[i, i]
    for i in range(n - 1, -1, -1):
        for f in range(i + 1, n):
            x[i] -= matrix[f, i] * x[f]
        x[i] /= matrix[i, i]
    return x
