"""How biased is the gradient of sampled softmax, and how many samples cure it?

Let p be the softmax of the logits and y the true class; of m draws from q those of y are dropped
(`extremax.objectives.SampledSoftmax`). The gradient on the score of a class c ≠ y has the mean

    E g_c = m (1 − q_y) p_c ∫_0^∞ e^{−s(p_y + a_c)} D(s)^{m−1} ds,
    D(s) = q_y + e^{−s p_y} Σ_{j≠y} q_j e^{−s a_j},   a_j = (1 − q_y) p_j/q_j,

and E g_y = −Σ E g_c. For a draw of c adds a_c/(N p_y + Σ a) where N of the draws are not y,
1/z = ∫ e^{−sz} ds, and the mean of a product over independent draws is the product of means. One
integral in one dimension serves every class and every m, so the bias E g − (p − y) of a real head
is computed here, not sampled: there is no Monte Carlo error in it.

A mixture lets each part make its share of the draws (`Noise.strata`). With n_t draws from q_t,
q = Σ n_t q_t/m in a, and D_t as D with q_t, the mean is Σ_t n_t q_tc a_c ∫ e^{−s(p_y + a_c)}
(Π_u D_u^{n_u})/D_t ds.

It is zero iff q ∝ e^o over the other classes (Blanc & Rendle 2018, theorem 2.1), but for steps
that draw nothing but y and so teach nothing: these take q_y^m of the gradient away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from extremax.diagnostics.enumeration import all_draws, pairs_of
from extremax.noise import Noise
from extremax.objectives import Objective, SampledSoftmax
from extremax.rows import Rows
from extremax.heads.blocks import row_slices
from extremax.model import Model
from extremax.softmax import cross_entropy_gradient

# The integral is a sum over equal steps of log s, which for every e^{−sλ}, and so for any mixture
# of them, is off by about 1e-10 of its value at this step.
_STEP = 0.4
_TAIL = 1e-10
_BLOCK_NUMBERS = 1 << 22


def exact_bias(
    scores: Tensor, q: Tensor, truth: int, m: int, objective: Objective | None = None
) -> Tensor:
    """E[gradient on the scores] − (p − y), (C,), by trying every possible draw.

    For small problems, and for any ``objective`` without variational numbers, sampled softmax by
    default; `gradient_bias` is the same for real heads. A q of zero at ``truth`` draws from the
    other classes only.
    """
    objective = objective or SampledSoftmax()
    scores, q = scores.double(), q.double()
    draws = all_draws(q, m)
    gradient = objective.gradient(pairs_of(objective, scores, q, truth, draws.labels))
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
    leaves: Tensor | None = None,
    strata: Callable[[int], list[tuple[int, np.ndarray]]] | None = None,
) -> Tensor:
    """Mean gradient of sampled softmax on every class's logit, (len(m), C), by the integral.

    leaves, strata: log q of what a mixture is made of, (leaves, C), and `Noise.strata`; without
                    them all draws are from q itself.
    """
    sizes = [int(size) for size in m]
    if len(sizes) == 0 or min(sizes) < 1:
        raise ValueError(f"m must be numbers of samples, each at least 1, got {list(m)}")
    if leaves is None or strata is None:
        leaves, strata = log_q[None], lambda size: [(size, np.ones(1))]
    # log q in float32 need not sum to one to better than 1e-5, which thousands of draws would feel.
    log_p, log_q = logits.double().log_softmax(0), log_q.double().log_softmax(0)
    each = leaves.double().softmax(1)
    mean = torch.zeros((len(sizes), len(log_p)), dtype=torch.float64)
    others = torch.ones(len(log_p), dtype=torch.bool)
    others[truth] = False
    if len(log_p) == 1:
        return mean
    q, own = each[:, others], float(log_p[truth].exp())
    a = torch.exp(log_p[others] - log_q[others]) * float(log_q[others].exp().sum())
    s = _nodes(own, a, float(max(sizes)))
    size = max(1, _BLOCK_NUMBERS // len(s))
    parts = [slice(at, at + size) for at in range(0, len(a), size)]
    decay = torch.exp(-s[:, None] * a[parts[0]])
    one = q[:, parts[0]] @ decay.T
    for part in parts[1:]:
        one += q[:, part] @ torch.exp(-s[:, None] * a[part]).T
    # A draw of each leaf: y itself, which is dropped, or another class.
    draw = each[:, truth, None] + one * torch.exp(-s * own)
    powers = torch.stack([_powers(draw, strata(n)) for n in sizes])
    powers *= torch.exp(-s * own) * s * _STEP
    found = torch.empty((len(sizes), len(a)), dtype=torch.float64)
    for part in parts:
        if len(parts) > 1:
            decay = torch.exp(-s[:, None] * a[part])
        found[:, part] = ((powers @ decay) * q[:, part]).sum(1) * a[part]
    mean[:, others] = found
    mean[:, truth] = -found.sum(1)
    return mean


def _powers(draw: Tensor, strata: list[tuple[int, np.ndarray]]) -> Tensor:
    """Σ_t n_t weight_ti (Π_u D_u^{n_u})/D_t for each leaf i and node of the integral, from the D of
    each leaf."""
    counts = torch.tensor([n for n, _ in strata], dtype=torch.float64)
    weights = torch.from_numpy(np.stack([w for _, w in strata]))
    # Where nothing is left of D, nothing is left of the product either.
    log_d = torch.log((weights @ draw).clamp(min=1e-290))
    without = torch.exp((counts[:, None] * log_d).sum(0) - log_d)
    return weights.T @ (counts[:, None] * without)


def _nodes(own: float, a: Tensor, m: float) -> Tensor:
    """Where the integrand is looked at: from where it is constant to where nothing is left.

    Exponents λ of the mixture are at least p_y + min a, and at most max a + m + 1 on average, so
    that (Jensen) beginning at s leaves out no more than s(max a + m + 1) of the whole.
    """
    first = math.log(_TAIL / (float(a.max()) + m + 1.0))
    last = math.log(-math.log(_TAIL) / max(own + float(a.min()), 1e-290))
    return torch.arange(first, last + _STEP, _STEP, dtype=torch.float64).exp()


def log_prob_rows(noise: Noise, rows: Rows) -> Tensor:
    """log q of every class with one row per example, also where q does not depend on it."""
    return noise.log_prob_all(noise.context(rows)).expand(len(rows), -1)


def gradient_bias(logits: Tensor, log_q: Tensor, truth: int, m: Sequence[int]) -> Tensor:
    """E[gradient] − (p − y) on every class's logit, (len(m), C)."""
    exact = cross_entropy_gradient(logits.double(), torch.tensor(truth))
    return expected_gradient(logits, log_q, truth, m) - exact


@dataclass(frozen=True)
class BiasCurve:
    """Bias against the number of samples.

    m:         numbers of samples.
    bias:      root mean square over rows of ‖E[gradient] − (p − y)‖.
    error:     its standard error: what other rows might have given. Rows are all that is sampled.
    gradient:  root mean square of ‖p − y‖ itself, to compare with.
    """

    m: tuple[int, ...]
    bias: np.ndarray
    error: np.ndarray
    gradient: float

    @property
    def relative(self) -> np.ndarray:
        """Bias as a share of the gradient."""
        return self.bias / self.gradient

    def samples_for(self, bias: float) -> float:
        """The m at which the bias is down to this, between measured ones on straight lines of
        their logarithms; infinite where the last is still above."""
        below = np.flatnonzero(self.bias <= bias)
        if not len(below):
            return math.inf
        at = int(below[0])
        if at == 0 or self.bias[at] <= 0:
            return float(self.m[at])
        x, y = np.log(self.m[at - 1 : at + 1]), np.log(self.bias[at - 1 : at + 1])
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
    """The bias that sampled softmax under this noise has on these rows of a trained model.

    The logits are the model's, whatever it was trained by; ``noise`` need not be its own. The bias
    is exact on each row and costs O(C) numbers and about 150 exponentials per class and row.
    """
    labels = np.asarray(labels)
    if len(labels) == 0 or labels.min() < 0:
        raise ValueError("the bias needs rows of known classes")
    squares = np.empty((len(labels), len(m)))
    norms = np.empty(len(labels))
    for block in row_slices(len(rows), model.n_classes, budget):
        chosen = rows[block]
        logits = model.logits(chosen)
        log_q = log_prob_rows(noise, chosen)
        leaves = torch.stack([log_prob_rows(leaf, chosen) for leaf in noise.leaves()], 1)
        truth = torch.from_numpy(labels[block].astype(np.int64))
        exact = cross_entropy_gradient(logits.double(), truth)
        norms[block] = exact.square().sum(1).numpy()
        for i, y in enumerate(truth.tolist()):
            mean = expected_gradient(logits[i], log_q[i], y, m, leaves[i], noise.strata)
            squares[block.start + i] = (mean - exact[i]).square().sum(1).numpy()
    average = squares.mean(0)
    spread = squares.std(0, ddof=1) / math.sqrt(len(squares)) if len(squares) > 1 else average
    bias = np.sqrt(average)
    error = np.divide(spread, 2.0 * bias, out=np.zeros_like(bias), where=bias > 0)
    return BiasCurve(tuple(int(size) for size in m), bias, error, math.sqrt(norms.mean()))
