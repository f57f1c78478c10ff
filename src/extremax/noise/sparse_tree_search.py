"""Sublinear top-k on sparse rows: the tree proposes classes, the head reorders them.

The candidates S of a row are the likeliest classes of a beam search through the tree. Their
probabilities are normalized over S and multiplied by the probability that the tree gives to S:

    log p(y|x) ≈ log q(S|x) + logit_y − log Σ_S exp(logit).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import pad

from extremax.noise.search import Candidates, Link, Searcher
from extremax.rows import Rows

if TYPE_CHECKING:
    from extremax.heads import Head
    from extremax.noise.sparse_tree import SparseTreeNoise

#: Rows taken at a time.
BLOCK_ROWS = 4096
# The fewest candidates per row, and the most of a block.
_CANDIDATES, _MOST_CANDIDATES = 64, 1 << 22


class SparseTreeSearcher(Searcher):
    """Candidates are the likeliest classes under the ``width`` likeliest nodes of every level, and
    all classes that appeared after the fit."""

    normalization = "over candidates, scaled by their total probability under the tree"
    default_width = 20
    preferred = True

    def __init__(self, noise: SparseTreeNoise, head: Head) -> None:
        self.noise, self.head = noise, head

    def candidates(
        self, rows: Rows, k: int, width: int, weights: np.ndarray, link: Link,
        also: torch.Tensor | None = None,
    ) -> Iterator[Candidates]:  # fmt: skip
        noise, head = self.noise, self.head
        levels = np.asarray(weights, float) if len(weights) else np.zeros(noise.n_levels)
        n_candidates = min(noise.n_tree_classes_, max(2 * k, _CANDIDATES))
        late = torch.arange(noise.n_tree_classes_, noise.n_classes_)
        late_log_q = -math.log(noise.n_classes_)
        size = max(1, min(BLOCK_ROWS, _MOST_CANDIDATES // (n_candidates + len(late))))
        for start in range(0, len(rows), size):
            block = slice(start, min(start + size, len(rows)))
            features = rows[block]
            # Every node has at least one class, so k nodes have k.
            found = noise.search(noise.context(features), n_candidates, max(width, k), levels)
            classes = torch.cat([found.labels, late.expand(len(features), -1)], 1)
            log_q = pad(found.log_q, (0, len(late)), value=late_log_q)
            weighted = pad(found.weighted, (0, len(late)), value=float(levels[0]) * late_log_q)
            # Unused places have class −1, and log q and sums of −∞.
            shared = also if also is not None else late[:0]
            scores = link(head.scores_shared(head.inputs(features), classes.clamp(min=0), shared))
            scores, others = scores.split([classes.shape[1], len(shared)], 1)
            sums = (scores + weighted).masked_fill_(classes < 0, -math.inf)
            log_mass = log_q.logsumexp(1, keepdim=True).clamp(max=0.0)
            yield Candidates(block, sums, partial(torch.gather, classes, 1), log_mass, others)
