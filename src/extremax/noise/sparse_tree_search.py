"""Sublinear top-k on sparse rows: the tree proposes classes, the head reorders them.

The candidates S of a row are the likeliest classes of a beam search through the tree. Their
probabilities are normalized over S and multiplied by the probability that the tree gives to S:

    log p(y|x) ≈ log q(S|x) + logit_y − log Σ_S exp(logit).

For other class frequencies, the search is through a tree that has log π'(R)/π(R) added to the bias
of each node or class R; the nodes are softmaxes, and so are those of a tree fitted to rows of such
frequencies.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import pad

from extremax.noise.sparse_tree_shape import tree_shape
from extremax.rows import Rows, SparseRows
from extremax.search.base import ROWS_ALONE, Candidates, Link, Searcher

if TYPE_CHECKING:
    from extremax.heads import Head
    from extremax.labels import Prior
    from extremax.noise.sparse_tree import Found, SparseTreeNoise

#: Rows taken at a time.
BLOCK_ROWS = 4096
# Rows of one matrix product. Its sums may depend on their number, so that must not depend on what
# is asked or on the number of threads.
_PRODUCT_ROWS = ROWS_ALONE
# The least log π'/π, in place of −∞ for classes that do not occur any more.
_LEAST = -100.0
# The fewest candidates per row, and the most of a block. On held-out titles, 48 and a beam of 14
# nodes are as accurate as 64 and 20, in three quarters of the time.
_CANDIDATES, _MOST_CANDIDATES = 48, 1 << 22


class SparseTreeSearcher(Searcher):
    """Candidates are the likeliest classes under the ``width`` likeliest nodes of every level, and
    all classes that appeared after the fit."""

    normalization = "over candidates, scaled by their total probability under the tree"
    default_width = 14
    preferred = True
    searches_alone = True

    def __init__(self, noise: SparseTreeNoise, head: Head, prior: Prior | None = None) -> None:
        self.noise, self.head = noise, head
        self.guide = noise if prior is None else _shifted(noise, prior)

    def candidates(
        self, rows: Rows, k: int, width: int, weights: np.ndarray, link: Link,
        also: torch.Tensor | None = None,
    ) -> Iterator[Candidates]:  # fmt: skip
        noise = self.noise
        levels = np.asarray(weights, float) if len(weights) else np.zeros(noise.n_levels)
        n_candidates = min(noise.n_tree_classes_, max(2 * k, _CANDIDATES))
        late = torch.arange(noise.n_tree_classes_, noise.n_classes_)
        late_log_q = -math.log(noise.n_classes_)
        size = max(1, min(BLOCK_ROWS, _MOST_CANDIDATES // (n_candidates + len(late))))
        # A power of two, so that blocks of a thread begin where those of all rows do.
        size = 1 << (size.bit_length() - 1)
        for start in range(0, len(rows), size):
            block = slice(start, min(start + size, len(rows)))
            features = rows[block]
            # Every node has at least one class, so k nodes have k.
            context = noise.context(features)
            found = self.guide.search(context, n_candidates, max(width, k), levels)
            if self.guide is not noise:
                found = _rescored(noise, context, found, levels)
            classes = torch.cat([found.labels, late.expand(len(features), -1)], 1)
            log_q = pad(found.log_q, (0, len(late)), value=late_log_q)
            weighted = pad(found.weighted, (0, len(late)), value=float(levels[0]) * late_log_q)
            # Unused places have class −1, and log q and sums of −∞.
            shared = also if also is not None else late[:0]
            scores = link(self._scores(features, classes.clamp(min=0), shared))
            scores, others = scores.split([classes.shape[1], len(shared)], 1)
            sums = (scores + weighted).masked_fill_(classes < 0, -math.inf)
            log_mass = log_q.logsumexp(1, keepdim=True).clamp(max=0.0)
            yield Candidates(block, sums, partial(torch.gather, classes, 1), log_mass, others)

    def _scores(self, rows: Rows, own: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        """Of a row's own and of shared classes."""
        if not len(shared):
            return self.head.scores(self.head.inputs(rows), own)
        starts = range(0, len(rows), _PRODUCT_ROWS)
        parts = [slice(start, start + _PRODUCT_ROWS) for start in starts]
        head, chosen = self.head, ((rows[part], own[part]) for part in parts)
        return torch.cat([head.scores_shared(head.inputs(x), y, shared) for x, y in chosen])


def _shifted(noise: SparseTreeNoise, prior: Prior) -> SparseTreeNoise:
    """The tree with other class frequencies; it shares all but the biases with the noise."""
    tree, shape = noise.tree_, tree_shape(noise.n_tree_classes_)
    ends = np.append(tree.position[1:], 0)
    ends[tree.first[1:] - 1] = shape.stop
    log_shares = []
    for shares in (prior.after, prior.before):
        until = np.append(0.0, np.cumsum(shares[tree.order]))
        with np.errstate(divide="ignore"):
            log_shares.append(np.log((until[ends] - until[tree.position]).clip(min=0.0)))
    shift = (log_shares[0] - log_shares[1]).clip(min=_LEAST)
    guide = copy.copy(noise)
    guide.tree_ = tree._replace(bias=tree.bias + shift.astype(np.float32))
    return guide


def _rescored(
    noise: SparseTreeNoise, context: SparseRows, found: Found, weights: np.ndarray
) -> Found:
    """The same classes with log q of the noise."""
    unused = found.labels < 0
    parts = noise.level_log_probs(context, found.labels.clamp(min=0))
    log_q = parts.sum(2).masked_fill_(unused, -math.inf)
    weighted = (parts * torch.from_numpy(weights).float()).sum(2).masked_fill_(unused, -math.inf)
    return found._replace(log_q=log_q, weighted=weighted)
