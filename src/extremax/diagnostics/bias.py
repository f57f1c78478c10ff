"""Bias of sampled softmax: how far its mean gradient is from the exact one, for m draws.

Let p be the softmax of the logits and y the true class. The m draws come from a distribution q over
the other classes (`extremax.noise.Noise.sample_others`). The gradient on the score of a class c ≠ y
then has the mean

    E g_c = m p_c ∫_0^∞ e^{−s(p_y + a_c)} D(s)^{m−1} ds,
    D(s) = e^{−s p_y} Σ_{j≠y} q_j e^{−s a_j},   a_j = p_j/q_j,

and E g_y = −Σ_{c≠y} E g_c. Proof: each draw of c contributes a_c/(m p_y + Σ a); write
1/z = ∫ e^{−sz} ds, and the mean of a product over independent draws is the product of the means. A
single one-dimensional integral serves every class and every m, so the bias E g − (p − y) of a real
head is computed without Monte Carlo error.

In a mixture, each part makes its share of the draws (`Noise.strata`) among the other classes. With
n_t draws from q_t, q = Σ n_t q_t/m in a, and D_t equal to D with q_t in place of q, the mean is
Σ_t n_t q_tc a_c ∫ e^{−s(p_y + a_c)} (Π_u D_u^{n_u})/D_t ds.

The bias is zero iff q ∝ e^o over the other classes (Blanc & Rendle 2018, theorem 2.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from extremax.diagnostics.enumeration import all_draws, make_pairs, noise_for
from extremax.errors import ArgumentError
from extremax.heads.blocks import row_slices
from extremax.model import Model
from extremax.noise import Noise
from extremax.objectives import Objective, SampledSoftmax
from extremax.rows import Rows
from extremax.softmax import cross_entropy_gradient

# The integral is a sum over equal steps in log s. With this step, the relative error for every
# e^{−sλ}, and hence for any mixture of them, is about 1e-10.
_STEP = 0.4
_TAIL = 1e-10
_BLOCK_NUMBERS = 1 << 22


def exact_bias(
    scores: Tensor, q: Tensor, truth: int, m: int, objective: Objective | None = None
) -> Tensor:
    """E[gradient on the scores] − (p − y), (C,), by enumerating every possible draw.

    For small problems, and for any ``objective`` without per-example variables; None is sampled
    softmax, which draws from q over the classes other than ``truth``. `gradient_bias` computes the
    same for real heads.
    """
    objective = objective or SampledSoftmax()
    scores, q = scores.double(), q.double()
    draws = all_draws(noise_for(objective, q, truth), m)
    gradient = objective.gradient(make_pairs(objective, scores, q, truth, draws.labels))
    weighted = gradient * draws.probability[:, None]
    mean = torch.zeros_like(scores).index_add_(0, draws.labels.ravel(), weighted[:, 1:].ravel())
    mean[truth] += weighted[:, 0].sum()
    logits = objective.logits(scores, q.log())
    exact = cross_entropy_gradient(logits, torch.tensor(truth))
    return mean - exact * objective.logits_slope(scores)


def expected_gradient(
    logits: Tensor,
    log_q: Tensor,
    truth: int,
    m: Sequence[int],
    strata: Callable[[int], list[tuple[int, np.ndarray]]] | None = None,
) -> Tensor:
    """Mean gradient of sampled softmax on the logit of every class, (len(m), C), by the integral.

    log_q:   of every class, (C,), ``truth`` included; or of each part of a mixture, (parts, C).
    strata:  `Noise.strata` of the mixture.
    """
    sizes = [int(size) for size in m]
    if len(sizes) == 0 or min(sizes) < 1:
        raise ArgumentError(f"m must be numbers of draws, each at least 1, got {list(m)}")
    if strata is None:
        log_q, strata = log_q[None], lambda size: [(size, np.ones(1))]
    log_p = logits.double().log_softmax(0)
    mean = torch.zeros((len(sizes), len(log_p)), dtype=torch.float64)
    others = torch.ones(len(log_p), dtype=torch.bool)
    others[truth] = False
    if len(log_p) == 1:
        return mean
    # Normalized again also because in float32 the sum of q may differ from 1 by 1e-5, which
    # thousands of draws would amplify.
    log_q_parts, p_truth = log_q[:, others].double().log_softmax(1), float(log_p[truth].exp())
    log_weights = torch.from_numpy(strata(1)[0][1]).log()
    log_mixed = torch.logsumexp(log_q_parts + log_weights[:, None], 0)
    q, a = log_q_parts.exp(), torch.exp(log_p[others] - log_mixed)
    s = _nodes(p_truth, a, float(max(sizes)))
    size = max(1, _BLOCK_NUMBERS // len(s))
    blocks = [slice(start, start + size) for start in range(0, len(a), size)]
    decay = torch.exp(-s[:, None] * a[blocks[0]])
    sums = q[:, blocks[0]] @ decay.T
    for block in blocks[1:]:
        sums += q[:, block] @ torch.exp(-s[:, None] * a[block]).T
    # D of each part.
    d = sums * torch.exp(-s * p_truth)
    powers = torch.stack([_powers(d, strata(n)) for n in sizes])
    powers *= torch.exp(-s * p_truth) * s * _STEP
    gradient = torch.empty((len(sizes), len(a)), dtype=torch.float64)
    for block in blocks:
        if len(blocks) > 1:
            decay = torch.exp(-s[:, None] * a[block])
        gradient[:, block] = ((powers @ decay) * q[:, block]).sum(1) * a[block]
    mean[:, others] = gradient
    mean[:, truth] = -gradient.sum(1)
    return mean


def _powers(d: Tensor, strata: list[tuple[int, np.ndarray]]) -> Tensor:
    """Σ_t n_t weight_ti (Π_u D_u^{n_u})/D_t for each leaf i and node of the integral, from the D of
    each leaf."""
    counts = torch.tensor([n for n, _ in strata], dtype=torch.float64)
    weights = torch.from_numpy(np.stack([w for _, w in strata]))
    # Where D underflows, the product is zero as well.
    log_d = torch.log((weights @ d).clamp(min=1e-290))
    quotient = torch.exp((counts[:, None] * log_d).sum(0) - log_d)
    return weights.T @ (counts[:, None] * quotient)


def _nodes(p_truth: float, a: Tensor, m: float) -> Tensor:
    """Nodes s of the integral: from where the integrand is constant to where it has vanished.

    The exponents λ of the mixture are at least p_y + min a, and their mean is at most
    max a + m + 1, so that by Jensen's inequality starting at s omits at most the share
    s(max a + m + 1) of the integral.
    """
    first = math.log(_TAIL / (float(a.max()) + m + 1.0))
    last = math.log(-math.log(_TAIL) / max(p_truth + float(a.min()), 1e-290))
    return torch.arange(first, last + _STEP, _STEP, dtype=torch.float64).exp()


def log_prob_rows(noise: Noise, rows: Rows) -> Tensor:
    """log q of every class, (n, C), also for a noise that does not depend on the row."""
    return noise.log_prob_all(noise.context(rows)).expand(len(rows), -1)


def gradient_bias(logits: Tensor, log_q: Tensor, truth: int, m: Sequence[int]) -> Tensor:
    """E[gradient] − (p − y) on the logit of every class, (len(m), C)."""
    exact = cross_entropy_gradient(logits.double(), torch.tensor(truth))
    return expected_gradient(logits, log_q, truth, m) - exact


@dataclass(frozen=True)
class BiasCurve:
    """Bias as a function of the number of draws.

    m:         numbers of draws.
    bias:      root mean square over rows of ‖E[gradient] − (p − y)‖.
    error:     standard error of the bias due to the choice of rows, the only sampling involved.
    gradient:  root mean square of ‖p − y‖, for comparison.
    """

    m: tuple[int, ...]
    bias: np.ndarray
    error: np.ndarray
    gradient: float

    @property
    def relative(self) -> np.ndarray:
        """Bias divided by the norm of the gradient."""
        return self.bias / self.gradient

    def draws_for(self, bias: float) -> float:
        """The number of draws at which the bias falls to this value.

        Interpolates log bias linearly in log m; infinite if the last bias measured is larger.
        """
        below = np.flatnonzero(self.bias <= bias)
        if not len(below):
            return math.inf
        first = int(below[0])
        if first == 0 or self.bias[first] <= 0:
            return float(self.m[first])
        x, y = np.log(self.m[first - 1 : first + 1]), np.log(self.bias[first - 1 : first + 1])
        share = (math.log(bias) - y[0]) / (y[1] - y[0])
        return float(np.exp(x[0] + share * (x[1] - x[0])))


def estimated_bias(
    model: Model,
    rows: Rows,
    labels: np.ndarray,
    noise: Noise,
    m: Sequence[int],
    budget: int = 2**28,
) -> BiasCurve:
    """Bias of sampled softmax with this noise, at the logits of a trained model on these rows.

    The model may have been trained with any objective and any noise. The bias of each row is exact
    and takes O(C) memory and about 150 exponentials per class.

    labels:  class numbers, all known to the model.
    m:       numbers of draws.
    budget:  bytes that the logits of a block of rows may take.
    """
    labels = np.asarray(labels)
    if len(labels) == 0 or labels.min() < 0:
        raise ArgumentError("the bias needs rows of known classes")
    squares = np.empty((len(labels), len(m)))
    norms = np.empty(len(labels))
    for block in row_slices(len(rows), model.n_classes, budget):
        selected = rows[block]
        logits = model.logits(selected)
        log_q = torch.stack([log_prob_rows(leaf, selected) for leaf in noise.leaves()], 1)
        truth = torch.from_numpy(labels[block].astype(np.int64))
        exact = cross_entropy_gradient(logits.double(), truth)
        norms[block] = exact.square().sum(1).numpy()
        for i, y in enumerate(truth.tolist()):
            mean = expected_gradient(logits[i], log_q[i], y, m, noise.strata)
            squares[block.start + i] = (mean - exact[i]).square().sum(1).numpy()
    average = squares.mean(0)
    spread = squares.std(0, ddof=1) / math.sqrt(len(squares)) if len(squares) > 1 else average
    bias = np.sqrt(average)
    error = np.divide(spread, 2.0 * bias, out=np.zeros_like(bias), where=bias > 0)
    return BiasCurve(tuple(int(size) for size in m), bias, error, math.sqrt(norms.mean()))
