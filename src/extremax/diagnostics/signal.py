"""How good is a noise for negative sampling? The signal-to-noise ratio of its gradient.

Bamler & Mandt 2020, section 4. For free scores at the optimum of negative sampling with one draw,
loss ℓ = Σ_x E[−log σ(ξ_y) − log σ(−ξ_y')] over N rows, gradients estimated from one row of them:

    α_{x,y} = q σ(ξ*_y) = q p_D/(p_D + q)                        (Eq. 13: H = diag(α))
    Cov of the gradient, block of x: N (diag(α_x) − 2 α_x α_xᵀ)  (Eq. 14)
    1/η̄ = Tr(Cov H⁻¹) = N Σ_x (C − 2 Σ_y α_{x,y})               (Eq. 12, 15)

Σ_y α ≤ ½ with equality iff q = p_D. As C counts all classes alike, η̄ itself hardly moves where C
is large; Σ_y α is the telling number: twice it is how much of the data the noise covers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from extremax.noise.base import Noise
from extremax.prediction.blocks import Scorer, blocks, taken


def alpha(p_data: Tensor, q: Tensor) -> Tensor:
    """α = q p_D/(p_D + q), same shape; zero where both are."""
    return torch.where(p_data + q > 0, p_data * q / (p_data + q), 0.0)


def signal_to_noise(p_data: Tensor, q: Tensor) -> float:
    """η̄ of N rows: p_data and q (N, C), or q (1, C)."""
    if p_data.ndim != 2 or q.shape[-1] != p_data.shape[-1]:
        raise ValueError(
            f"p_data and q are (rows, classes), got {tuple(p_data.shape)} and {tuple(q.shape)}"
        )
    n, n_classes = p_data.shape
    covered = float(alpha(p_data.double(), q.double()).sum())
    return 1.0 / (n * (n * n_classes - 2.0 * covered))


class Signal(NamedTuple):
    """What a noise is worth on some rows.

    covered:   mean of 2 Σ_y α, 1 at best.
    relative:  η̄ over that of the best noise, (C − 1)/(C − covered).
    log_q:     mean log q of the true classes; higher is nearer to the data.
    """

    covered: float
    relative: float
    log_q: float


def estimated_signal(
    scorer: Scorer, features: np.ndarray, labels: np.ndarray, noise: Noise, budget: int = 2**28
) -> Signal:
    """`Signal` of a noise on labelled rows, with the model's own p in place of p_D.

    p_D is not known; of a model that is far from it, the figures say how well the noise covers
    the model. log_q does not depend on the model.
    """
    labels = np.asarray(labels, np.int64)
    if len(labels) == 0 or labels.min() < 0:
        raise ValueError("the signal needs rows of known classes")
    covered = log_q = 0.0
    n_classes = scorer.head.n_classes
    for rows in blocks(features, scorer.bytes_a_row() + 8 * n_classes, budget):
        block = taken(features, rows)
        logits = scorer.logits(block)
        p = scorer.objective.log_normalise(logits).exp_()
        q = noise.log_prob_all(noise.context(block)).expand(len(block), -1)
        truth = torch.from_numpy(labels[rows])[:, None]
        log_q += float(q.gather(1, truth).double().sum())
        covered += 2.0 * float(alpha(p, q.exp()).sum(dtype=torch.float64))
    covered /= len(labels)
    relative = (n_classes - 1.0) / (n_classes - covered) if n_classes > 1 else 1.0
    return Signal(covered, relative, log_q / len(labels))
