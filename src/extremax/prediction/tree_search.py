"""Sublinear top-k on sparse rows: the tree proposes classes, the head reorders them.

The candidates S of a row are the likeliest classes of the tree's beam search. Logits are those of
the model; their log-probabilities are normalised over S, which is given the share of probability
that the tree gives it:

    log p(y|x) ≈ log q(S|x) + logit_y − log Σ_{S} exp(logit).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn.functional import pad

from extremax.features.rows import Rows
from extremax.prediction.blocks import Ranking, Scorer

NORMALISATION = "candidates, their share by the tree"
# Nodes of a level that the search keeps if nobody says.
WIDTH = 20

# Rows taken at a time, and candidates for each at least; candidates of all at most.
_ROWS, _CANDIDATES, _MOST_CANDIDATES = 4096, 64, 1 << 22


def topk(scorer: Scorer, features: Rows, k: int, width: int) -> Ranking:
    """The k best of each row's candidates: those under ``width`` nodes of every level, and classes
    that came after the tree."""
    noise, head = scorer.noise, scorer.head
    k = min(k, head.n_classes)
    labels = torch.empty((len(features), k), dtype=torch.int64)
    log_probs = torch.empty((len(features), k))
    n_candidates = min(noise.n_tree_classes_, max(2 * k, _CANDIDATES))
    late = torch.arange(noise.n_tree_classes_, head.n_classes)
    late_log_q = -math.log(head.n_classes)
    adds_log_q = scorer.objective.adds_log_q
    weights = np.full(noise.n_levels_, float(adds_log_q))
    if scorer.blend is not None:
        weights = scorer.blend.levels
    step = max(1, min(_ROWS, _MOST_CANDIDATES // (n_candidates + len(late))))
    for start in range(0, len(features), step):
        rows = slice(start, start + step)
        some = features[rows]
        # Every node has a class at least.
        found = noise.search(noise.context(some), n_candidates, max(width, k), weights)
        candidates = torch.cat([found.labels, late.expand(len(some), -1)], 1)
        log_q, beside = (
            pad(part, (0, len(late)), value=by * late_log_q)
            for part, by in ((found.log_q, 1.0), (found.weighted, float(weights[0])))
        )
        none = candidates < 0
        candidates.masked_fill_(none, 0)
        if scorer.blend is not None:
            beside += scorer.blend.prior[candidates]
        scores = head.scores(head.inputs(some), np.arange(len(some)), candidates)
        if not adds_log_q:
            scores = scorer.objective.logits(scores, scores[:0])
        logits = scores.add_(beside).div_(scorer.temperature)
        logits.masked_fill_(none, -math.inf)
        best, at = logits.topk(k, dim=1)
        labels[rows] = candidates.gather(1, at)
        share = log_q.logsumexp(1, keepdim=True).clamp(max=0.0)
        log_probs[rows] = best - logits.logsumexp(1, keepdim=True) + share
    return Ranking(labels, log_probs)
