"""Quality of a noise for negative sampling: the signal-to-noise ratio of the gradient.

Bamler & Mandt 2020, section 4. For free scores at the optimum of negative sampling with one draw,
the loss ℓ = Σ_x E[−log σ(ξ_y) − log σ(−ξ_y')] over N rows, and gradients estimated from one row:

    α_{x,y} = q σ(ξ*_y) = q p_D/(p_D + q)                        (Eq. 13: H = diag(α))
    Cov of the gradient, block of x: N (diag(α_x) − 2 α_x α_xᵀ)  (Eq. 14)
    1/η̄ = Tr(Cov H⁻¹) = N Σ_x (C − 2 Σ_y α_{x,y})               (Eq. 12, 15)

Σ_y α ≤ ½ with equality iff q = p_D. Because C counts all classes alike, η̄ itself hardly changes
when C is large. The informative number is 2 Σ_y α, the share of the data that the noise covers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from extremax.diagnostics.bias import log_prob_rows
from extremax.errors import ArgumentError
from extremax.heads.blocks import row_slices
from extremax.model import Model
from extremax.noise import Noise
from extremax.rows import Rows


def alpha(p_data: Tensor, q: Tensor) -> Tensor:
    """α = q p_D/(p_D + q), same shape; zero where both are zero."""
    return torch.where(p_data + q > 0, p_data * q / (p_data + q), 0.0)


def signal_to_noise(p_data: Tensor, q: Tensor) -> float:
    """η̄ of N rows; p_data is (N, C), and q is (N, C) or (1, C)."""
    if p_data.ndim != 2 or q.shape[-1] != p_data.shape[-1]:
        raise ArgumentError(
            f"p_data and q must have shape (rows, classes), got {tuple(p_data.shape)} and "
            f"{tuple(q.shape)}"
        )
    n, n_classes = p_data.shape
    covered = float(alpha(p_data.double(), q.double()).sum())
    return 1.0 / (n * (n * n_classes - 2.0 * covered))


class Signal(NamedTuple):
    """Quality of a noise on a set of rows.

    covered:   mean of 2 Σ_y α, at most 1.
    relative:  η̄ divided by that of the best noise, (C − 1)/(C − covered).
    log_q:     mean log q of the true classes; higher is closer to the data.
    """

    covered: float
    relative: float
    log_q: float


def estimated_signal(
    model: Model, rows: Rows, labels: np.ndarray, noise: Noise, budget: int = 2**28
) -> Signal:
    """`Signal` of a noise on labeled rows, with the probabilities of the model in place of p_D.

    p_D is unknown. If the model is far from it, ``covered`` and ``relative`` say how well the noise
    covers the model instead. ``log_q`` does not depend on the model.

    labels:  class numbers, all known to the model.
    budget:  bytes that the probabilities of a block of rows may take.
    """
    labels = np.asarray(labels, np.int64)
    if len(labels) == 0 or labels.min() < 0:
        raise ArgumentError("the signal needs rows of known classes")
    covered = log_q = 0.0
    n_classes = model.n_classes
    for block in row_slices(len(rows), n_classes, budget, more=8):
        selected = rows[block]
        p = model.log_probs_all(selected).exp_()
        log_q_all = log_prob_rows(noise, selected)
        truth = torch.from_numpy(labels[block])[:, None]
        log_q += float(log_q_all.gather(1, truth).double().sum())
        covered += 2.0 * float(alpha(p, log_q_all.exp()).sum(dtype=torch.float64))
    covered /= len(labels)
    relative = (n_classes - 1.0) / (n_classes - covered) if n_classes > 1 else 1.0
    return Signal(covered, relative, log_q / len(labels))
