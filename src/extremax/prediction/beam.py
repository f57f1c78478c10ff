"""Sublinear top-k: the tree proposes, the head disposes.

A beam search through the noise tree finds the classes with the largest q(y|x) in O(width k log C);
the head scores only those, and the full logits ξ + log q rank them.
"""

from __future__ import annotations

import numpy as np
import torch

from extremax.noise.tree import TreeNoise
from extremax.prediction.blocks import Ranking, Scorer

NORMALISATION = "candidates"

_ROWS = 4096


def topk(scorer: Scorer, features: np.ndarray, k: int, width: int) -> Ranking:
    """The k best of the beam's candidates. Log-probabilities are normalised over the candidates
    alone, so they are upper bounds: the classes not looked at are taken to have none."""
    noise = scorer.noise
    if not isinstance(noise, TreeNoise) or not scorer.objective.adds_log_q:
        raise ValueError(
            "beam search needs the tree noise and an objective whose logits are ξ + log q; "
            "use search='exact'"
        )
    k = min(k, scorer.head.n_classes)
    width = max(width, k)
    labels = torch.empty((len(features), k), dtype=torch.int64)
    log_probs = torch.empty((len(features), k))
    for start in range(0, len(features), _ROWS):
        rows = slice(start, start + _ROWS)
        block = np.array(features[rows], dtype=np.float32, order="C")
        candidates = noise.likeliest(noise.context(block), width)
        found = candidates.labels >= 0
        scores = scorer.head.scores(
            block, np.arange(len(block)), torch.where(found, candidates.labels, 0)
        )
        logits = scorer.objective.logits(scores, candidates.log_q)
        logits = torch.where(found, logits, -torch.inf)
        best, at = logits.topk(k, dim=1)
        labels[rows] = candidates.labels.gather(1, at)
        log_probs[rows] = best - logits.logsumexp(1, keepdim=True)
    return Ranking(labels, log_probs)
