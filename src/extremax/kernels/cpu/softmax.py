"""Draws from the softmax of a linear head over every class, in numba.

The last bits of a BLAS matrix product depend on its threads and on the other rows of the block,
and draws must not. Here a score is the same sum in the same order whatever the block; a tile of
classes stays in the cache while the rows of a block pass.
"""

from __future__ import annotations

import math

import numpy as np

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.lines import FAST
from extremax.kernels.cpu.random import row_state, uniform

#: Classes taken at a time: their weights fit in the second-level cache.
TILE = 64
_BELOW_ONE = 1.0 - 1e-15


@kernel(fastmath=FAST)
def score_tiles(start, stop, weight, bias, features, out):
    """out[i, y] = weight[y]·features[i] + bias[y], for the classes of tiles start..stop − 1."""
    n_classes, n_features = len(bias), features.shape[1]
    for tile in range(start, stop):
        first, last = tile * TILE, min((tile + 1) * TILE, n_classes)
        fours = first + (last - first) // 4 * 4
        for i in range(features.shape[0]):
            x = features[i]
            # Four classes at a time: x is read once for all of them.
            for y in range(first, fours, 4):
                a, b, c, d = weight[y], weight[y + 1], weight[y + 2], weight[y + 3]
                one = np.float32(0.0)
                two = np.float32(0.0)
                three = np.float32(0.0)
                four = np.float32(0.0)
                for f in range(n_features):
                    one += a[f] * x[f]
                    two += b[f] * x[f]
                    three += c[f] * x[f]
                    four += d[f] * x[f]
                out[i, y] = one + bias[y]
                out[i, y + 1] = two + bias[y + 1]
                out[i, y + 2] = three + bias[y + 2]
                out[i, y + 3] = four + bias[y + 3]
            for y in range(fours, last):
                w = weight[y]
                one = np.float32(0.0)
                for f in range(n_features):
                    one += w[f] * x[f]
                out[i, y] = one + bias[y]


@kernel
def log_quartic(start, stop, scores):
    """Replace scores by log(scores⁴ + 1); float64 holds the fourth power of any float32."""
    for i in range(start, stop):
        for y in range(scores.shape[1]):
            square = float(scores[i, y]) ** 2
            scores[i, y] = math.log1p(square * square)


@kernel
def _top(scores):
    top = scores[0]
    for s in scores:
        top = max(top, s)
    return top


@kernel
def log_normalizer(start, stop, scores, log_z):
    """log_z[i] = log Σ exp(scores[i])."""
    for i in range(start, stop):
        top = _top(scores[i])
        total = 0.0
        for s in scores[i]:
            total += math.exp(s - top)
        log_z[i] = top + math.log(total)


@kernel
def draw_inverse(start, stop, scores, key, rows, labels, log_z):
    """Draw by inverting the distribution function: one pass over the classes for all draws of a
    row."""
    n_classes = scores.shape[1]
    weights = np.empty(n_classes)
    targets = np.empty(labels.shape[1])
    for i in range(start, stop):
        top = _top(scores[i])
        total = 0.0
        for y in range(n_classes):
            weights[y] = math.exp(scores[i, y] - top)
            total += weights[y]
        log_z[i] = top + math.log(total)
        state = row_state(key, rows[i])
        for j in range(labels.shape[1]):
            # Below the total, so that no class of weight 0 at the end is reached.
            targets[j] = min(uniform(state, j), _BELOW_ONE) * total
        y = 0
        below = weights[0]
        for j in np.argsort(targets):
            # A total of NaN ends the pass at once; training then stops at the NaN in log q.
            while below <= targets[j] and y < n_classes - 1:
                y += 1
                below += weights[y]
            labels[i, j] = y


@kernel
def draw_gumbel(start, stop, scores, key, rows, labels, log_z):
    """argmax over y of scores + G_y, G = −log(−log U): one random number per draw and class."""
    log_normalizer(start, stop, scores, log_z)
    n_classes = scores.shape[1]
    for i in range(start, stop):
        state = row_state(key, rows[i])
        for j in range(labels.shape[1]):
            best, chosen = -math.inf, 0
            for y in range(n_classes):
                noisy = scores[i, y] - math.log(-math.log(uniform(state, j * n_classes + y)))
                if noisy > best:
                    best, chosen = noisy, y
            labels[i, j] = chosen
