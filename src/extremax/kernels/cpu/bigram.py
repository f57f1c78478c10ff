"""Draws and probabilities of a class given one discrete context, in numba.

With N_c rows of context c, of which B_c are not among its kept pairs,

    q(y|c) = (n(c, y) + (B_c + β) q(y)) / (N_c + β),

q(y) the unigram: a mixture of the pairs and the unigram. Each class that appeared after the fit has
probability ``late``, and everything else is scaled by what remains.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.cpu.alias import build_alias
from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.random import row_state, uniform


class BigramTable(NamedTuple):
    """Contexts, the last of which stands for all others and has no pairs.

    offsets:    context c keeps pairs offsets[c]..offsets[c + 1] − 1.
    classes:    of the pairs, rising within a context.
    counts:     n(c, y) of the pairs.
    threshold, alias:  an alias table over the pairs of each context, counted from its first pair.
    per_count:  1 / (N_c + β).
    shares:     the share of the unigram, (B_c + β) / (N_c + β).
    unigram, log_unigram:  q(y) and its logarithm.
    unigram_threshold, unigram_alias:  the alias table of the unigram.
    late, n_late:  probability and number of the classes that appeared after the fit.
    """

    offsets: np.ndarray
    classes: np.ndarray
    counts: np.ndarray
    threshold: np.ndarray
    alias: np.ndarray
    per_count: np.ndarray
    shares: np.ndarray
    unigram: np.ndarray
    log_unigram: np.ndarray
    unigram_threshold: np.ndarray
    unigram_alias: np.ndarray
    late: float
    n_late: int


@kernel
def build_aliases(start, stop, offsets, counts, threshold, alias):
    """Build the alias table of each context (Walker 1977)."""
    for c in range(start, stop):
        pairs = slice(offsets[c], offsets[c + 1])
        weights = counts[pairs].astype(np.float64)
        threshold[pairs], alias[pairs] = build_alias(weights / weights.sum())


@kernel
def log_prob(start, stop, table, contexts, labels, out):
    """out[i, j] = log q(labels[i, j] | contexts[i])."""
    offsets, classes, counts = table.offsets, table.classes, table.counts
    unigram, n_early = table.unigram, table.unigram.size
    remains = 1.0 - table.late * table.n_late
    for i in range(start, stop):
        c = contexts[i, 0]
        share, per_count = table.shares[c], table.per_count[c]
        for j in range(labels.shape[1]):
            y = labels[i, j]
            p = table.late
            if y < n_early:
                pair = _lower_bound(classes, offsets[c], offsets[c + 1], y)
                p = share * unigram[y]
                if pair < offsets[c + 1] and classes[pair] == y:
                    p += counts[pair] * per_count
                p *= remains
            out[i, j] = math.log(p)


@kernel
def _lower_bound(values, low, high, value):
    """The first place in low..high − 1 whose value is not below ``value``, or high."""
    while low < high:
        middle = (low + high) // 2
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def log_prob_all(start, stop, table, contexts, out):
    """out[i, y] = log q(y | contexts[i])."""
    classes, counts, unigram = table.classes, table.counts, table.unigram
    log_unigram, n_early = table.log_unigram, unigram.size
    remains = 1.0 - table.late * table.n_late
    for i in range(start, stop):
        c = contexts[i, 0]
        share = math.log(remains * table.shares[c])
        for y in range(n_early):
            out[i, y] = share + log_unigram[y]
        for y in range(n_early, out.shape[1]):
            out[i, y] = math.log(table.late)
        for pair in range(table.offsets[c], table.offsets[c + 1]):
            y = classes[pair]
            p = table.shares[c] * unigram[y] + counts[pair] * table.per_count[c]
            out[i, y] = math.log(remains * p)


@kernel
def draw(start, stop, table, contexts, key, rows, labels):
    """labels[i, j] ~ q(· | contexts[i])."""
    classes, threshold, alias = table.classes, table.threshold, table.alias
    n_early, late, n_late = table.unigram.size, table.late, table.n_late
    for i in range(start, stop):
        state = row_state(key, rows[i])
        c = contexts[i, 0]
        first = table.offsets[c]
        n_pairs = table.offsets[c + 1] - first
        for j in range(labels.shape[1]):
            u = uniform(state, 4 * j)
            if u < late * n_late:
                labels[i, j] = n_early + min(int(u / late), n_late - 1)
                continue
            where, which = uniform(state, 4 * j + 1), uniform(state, 4 * j + 2)
            if uniform(state, 4 * j + 3) < table.shares[c]:
                y = int(where * n_early)
                labels[i, j] = y if which < table.unigram_threshold[y] else table.unigram_alias[y]
            else:
                column = int(where * n_pairs)
                if which >= threshold[first + column]:
                    column = alias[first + column]
                labels[i, j] = classes[first + column]
