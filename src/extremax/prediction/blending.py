"""What a noise that is a good classifier adds to a head: logits (ξ + a log q)/T.

A tree fitted to sparse rows and a head trained beside it err in different places; the product of
the two experts (Hinton, "Training products of experts by minimizing contrastive divergence", 2002)
errs less than either. With β = 1/T and α = a/T the log-likelihood of held-out rows,

    Σ_i (β ξ + α log q)_{y_i} − log Σ_y exp(β ξ_y + α log q_y),

is concave in (β, α), and Newton's method finds its top: the gradient is what the label has more of
than the model expects, the Hessian minus the covariance of (ξ, log q) under the model. Both were
trained on other rows, so that neither is taken for better than it is.
"""

from __future__ import annotations

import numpy as np
import torch

from extremax.features.rows import Rows
from extremax.prediction.blocks import Scorer, blocks, parts, taken

# Where the search begins: half of each. It ends when a step gains less than `_ENOUGH` a row.
_START = np.array([0.5, 0.5])
_STEPS, _ENOUGH = 20, 1e-5


def fit_blend(
    scorer: Scorer, features: Rows, labels: np.ndarray, budget: int, rows: np.ndarray
) -> tuple[float, float]:
    """(T, a) that make the labels of these held-out rows likeliest, to four digits."""
    at = _START
    value, gradient, bend = _likelihood(scorer, features, labels, budget, rows, at)
    for _ in range(_STEPS):
        # A little of the identity: where ξ is still the same for all classes, it says nothing.
        step = np.linalg.solve(bend + 1e-6 * np.trace(bend) * np.eye(2), gradient)
        # Neither expert is turned against itself.
        ahead = np.maximum(at + step, 1e-3)
        found = _likelihood(scorer, features, labels, budget, rows, ahead)
        while found[0] < value and np.abs(ahead - at).max() > 1e-4:
            ahead = (ahead + at) / 2.0
            found = _likelihood(scorer, features, labels, budget, rows, ahead)
        gain = found[0] - value
        if gain > 0.0:
            at, (value, gradient, bend) = ahead, found
        if gain < _ENOUGH * len(rows):
            break
    beta, alpha = at
    return float(f"{1.0 / beta:.4g}"), float(f"{alpha / beta:.4g}")


def _likelihood(
    scorer: Scorer,
    features: Rows,
    labels: np.ndarray,
    budget: int,
    rows: np.ndarray,
    at: np.ndarray,
) -> tuple[float, np.ndarray, np.ndarray]:
    """Log-likelihood at (β, α), its gradient and minus its Hessian."""
    value, gradient, bend = 0.0, np.zeros(2), np.zeros((2, 2))
    beta, alpha = (float(v) for v in at)
    # Beside the logits, log q and the probabilities.
    for part in blocks(rows, scorer.bytes_a_row() + 12 * scorer.head.n_classes, budget):
        some = rows[part]
        block = taken(features, some)
        scores = scorer.head.scores_all(block)
        context = scorer.noise.context(block)
        for piece in parts(len(some)):
            xi, log_q = scores[piece], scorer.noise.log_prob_all(context[piece])
            log_p = (beta * xi + alpha * log_q).log_softmax(1)
            truth = torch.from_numpy(labels[some][piece])[:, None]
            value += float(log_p.gather(1, truth).double().sum())
            p = log_p.exp_()
            means = torch.stack([(p * f).sum(1) for f in (xi, log_q)], 1)
            own = torch.cat([xi.gather(1, truth), log_q.gather(1, truth)], 1)
            gradient += (own - means).double().sum(0).numpy()
            away = [f - means[:, i : i + 1] for i, f in enumerate((xi, log_q))]
            for i, j in ((0, 0), (0, 1), (1, 1)):
                bend[i, j] += float((p * away[i] * away[j]).sum(1).double().sum())
    bend[1, 0] = bend[0, 1]
    return value, gradient, bend
