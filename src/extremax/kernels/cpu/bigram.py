"""Draws and probabilities of a class given one discrete context, in numba.

Context c keeps pairs offsets[c]:offsets[c + 1], its classes in rising order with their counts, and
an alias table over them (Walker 1977). With N_c rows of the context in all, of which B_c are not
among its pairs,

    q(y|c) = (n(c, y) + (B_c + β) q(y)) / (N_c + β),

q(y) the unigram: a mixture of the pairs and the unigram, whose share is ``shares[c]``. Each class
that came after the fit has probability ``late`` of its own, and the rest is scaled by what remains.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from extremax.kernels.cpu.alias import build_alias
from extremax.kernels.cpu.random import row_state, uniform


@njit(nogil=True, cache=True)
def build_aliases(start, stop, offsets, counts, threshold, alias):
    """An alias table for each context; ``alias`` counts from the first pair of the context."""
    for c in range(start, stop):
        pairs = slice(offsets[c], offsets[c + 1])
        own = counts[pairs].astype(np.float64)
        threshold[pairs], alias[pairs] = build_alias(own / own.sum())


@njit(nogil=True, cache=True)
def _probability(c, y, offsets, classes, per_count, counts, shares, unigram):
    """q(y|c) before late classes take their part."""
    low, high = offsets[c], offsets[c + 1]
    end = high
    while low < high:
        middle = (low + high) // 2
        if classes[middle] < y:
            low = middle + 1
        else:
            high = middle
    p = shares[c] * unigram[y]
    if low < end and classes[low] == y:
        p += counts[low] * per_count[c]
    return p


@njit(nogil=True, cache=True)
def log_prob(
    start, stop, contexts, offsets, classes, counts, per_count, shares, unigram, late, n_late,
    labels, out,
):  # fmt: skip
    n_early = unigram.size
    remains = 1.0 - late * n_late
    for i in range(start, stop):
        for j in range(labels.shape[1]):
            y = labels[i, j]
            if y < n_early:
                p = remains * _probability(
                    contexts[i, 0], y, offsets, classes, per_count, counts, shares, unigram
                )
            else:
                p = late
            out[i, j] = math.log(p)


@njit(nogil=True, cache=True)
def log_prob_all(
    start, stop, contexts, offsets, classes, counts, per_count, shares, unigram, late, n_late,
    log_unigram, out,
):  # fmt: skip
    n_early = unigram.size
    remains = 1.0 - late * n_late
    for i in range(start, stop):
        c = contexts[i, 0]
        share = math.log(remains * shares[c])
        for y in range(n_early):
            out[i, y] = share + log_unigram[y]
        for y in range(n_early, out.shape[1]):
            out[i, y] = math.log(late)
        for pair in range(offsets[c], offsets[c + 1]):
            y = classes[pair]
            p = shares[c] * unigram[y] + counts[pair] * per_count[c]
            out[i, y] = math.log(remains * p)


@njit(nogil=True, cache=True)
def draw(
    start, stop, contexts, offsets, classes, shares, threshold, alias,
    unigram_threshold, unigram_alias, late, n_late, key, rows, labels,
):  # fmt: skip
    n_early = unigram_threshold.size
    for i in range(start, stop):
        state = row_state(key, rows[i])
        c = contexts[i, 0]
        first = offsets[c]
        n_pairs = offsets[c + 1] - first
        for j in range(labels.shape[1]):
            u = uniform(state, 4 * j)
            if u < late * n_late:
                labels[i, j] = n_early + min(int(u / late), n_late - 1)
                continue
            where, which = uniform(state, 4 * j + 1), uniform(state, 4 * j + 2)
            if uniform(state, 4 * j + 3) < shares[c]:
                y = int(where * n_early)
                labels[i, j] = y if which < unigram_threshold[y] else unigram_alias[y]
            else:
                at = int(where * n_pairs)
                pair = first + (at if which < threshold[first + at] else alias[first + at])
                labels[i, j] = classes[pair]
