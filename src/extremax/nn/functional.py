"""Loss functions of the scores and log q of the true class and m drawn classes.

Every function takes ``scores`` of shape (..., 1 + m), the true class in column 0, and ``log_q``
that broadcasts to that shape. Values and gradients are those of `extremax.objectives`; gradients
stay finite at scores of ±10⁴. log q is treated as a constant: no gradient flows into it. Half
precision is computed in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from extremax.nn.checks import check_reduction, check_scores
from extremax.objectives import (
    NCE,
    NegativeSampling,
    Objective,
    OneVsEach,
    Pairs,
    SampledSoftmax,
    given_others,
    shared_draw_weights,
)


def sampled_softmax_loss(
    scores: Tensor,
    log_q: Tensor,
    hits: Tensor | None = None,
    *,
    absolute: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy over the true class y and bias-corrected draws (Blanc & Rendle 2018).

    log_q:     of q over all classes, wherever the draws come from.
    hits:      None if draws come from q over the classes other than y. If they come from all of q,
               (..., m), True where a draw is y. Such draws are dropped, m counts the others, and
               the loss is weighted by 1/(1 − q_y^m), because a row with no other draw teaches
               nothing. The variance of the gradient grows without bound as q_y → 1.
    absolute:  use |ξ| as logits, for noises that are even functions of ξ.

    Without hits, the loss equals::

        others = scores[..., 1:] - log_q[..., 1:] - math.log(m) + torch.log1p(-log_q[..., :1].exp())
        torch.cat([scores[..., :1], others], -1).logsumexp(-1) - scores[..., 0]

    The last term of ``others`` renormalizes q over the other classes. Where q ∝ e^ξ, the expected
    gradient is that of the full softmax for every m, with and without ``hits``.
    """
    return _loss(SampledSoftmax(absolute=absolute), scores, log_q, hits, reduction)


def nce_loss(scores: Tensor, log_q: Tensor, *, reduction: str = "mean") -> Tensor:
    """Noise-contrastive estimation (Gutmann & Hyvärinen 2010; Mnih & Teh 2012).

    The loss equals::

        odds = scores - log_q - math.log(m)
        -logsigmoid(odds[..., 0]) - logsigmoid(-odds[..., 1:]).sum(-1)

    Draws that equal the true class are kept. Scores converge to log p, so biases should start at
    the log class frequencies.
    """
    return _loss(NCE(), scores, log_q, None, reduction)


def negative_sampling_loss(
    scores: Tensor, log_q: Tensor, *, regularization: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Negative sampling with a penalty on the logits ξ + log q (Bamler & Mandt 2020, Eq. 6).

    The loss equals::

        squares = (scores + log_q).square()
        penalty = regularization * (squares[..., 0] + squares[..., 1:].mean(-1))
        -logsigmoid(scores[..., 0]) - logsigmoid(-scores[..., 1:]).mean(-1) + penalty

    Draws that equal the true class are kept. Logits at prediction are ξ + log q (Eq. 5).
    """
    objective = NegativeSampling(regularization=regularization)
    return _loss(objective, scores, log_q, None, reduction)


def one_vs_each_loss(
    scores: Tensor, log_q: Tensor, hits: Tensor | None = None, *, reduction: str = "mean"
) -> Tensor:
    """Sampled one-vs-each bound on −log softmax (Titsias 2016).

    hits:  (..., m), True where a draw equals the true class; such draws are dropped. None means
           no draw does.

    Without hits, the loss equals::

        won = logsigmoid(scores[..., :1] - scores[..., 1:])
        -(won / (m * log_q[..., 1:].exp())).sum(-1)
    """
    return _loss(OneVsEach(), scores, log_q, hits, reduction)


def _loss(
    objective: Objective, scores: Tensor, log_q: Tensor, hits: Tensor | None, reduction: str
) -> Tensor:
    check_reduction(reduction)
    check_scores(scores, log_q, hits)
    scores = widen(scores)
    log_q = log_q.detach().to(scores.dtype).expand(scores.shape)
    leading, columns = scores.shape[:-1], scores.shape[-1]
    from_all = hits is not None
    if hits is None:
        hits = torch.zeros((), dtype=torch.bool, device=scores.device)
    hits = hits.expand(*leading, columns - 1).reshape(-1, columns - 1)
    flat, flat_q = scores.reshape(-1, columns), log_q.reshape(-1, columns)
    pairs = Pairs(flat, flat_q, hits, flat.new_zeros((len(flat), 0)))
    weights = None
    if objective.draws_others and from_all:
        pairs, weights = correct_shared_draws(pairs)
    elif objective.draws_others:
        pairs = pairs._replace(log_q=given_others(flat_q))
    losses: Tensor = _PairLosses.apply(flat, pairs, weights, objective)
    return reduce_losses(losses.view(leading), reduction)


def correct_shared_draws(pairs: Pairs) -> tuple[Pairs, Tensor]:
    """Draws from all of q as an objective that `draws_others` takes them, and weights (n,); see
    `extremax.objectives.base.shared_draw_weights`."""
    return pairs._replace(log_q=given_others(pairs.log_q)), shared_draw_weights(pairs)


def losses_and_slopes(
    objective: Objective, pairs: Pairs, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Loss of each example (n,) and its gradient on the scores (n, 1 + m).

    weights:  (n,), of the loss without its penalty, which depends on no draw of y.
    """
    losses, slopes = objective.loss_and_gradient(pairs)
    if weights is None:
        return losses, slopes
    if not objective.regularization:
        return weights * losses, weights[:, None] * slopes
    more = weights - 1.0
    losses = losses + more * objective.surrogate(pairs)
    return losses, slopes + more[:, None] * objective.surrogate_gradient(pairs)


def reduce_losses(losses: Tensor, reduction: str) -> Tensor:
    """Reduce losses by ``reduction``. The mean of an empty tensor is zero."""
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / max(1, losses.numel())


def widen(tensor: Tensor) -> Tensor:
    """Convert half precision to float32; return other types unchanged."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


class _PairLosses(torch.autograd.Function):
    # The objectives' own gradients need no graph, and give |ξ| a nonzero slope at zero, where
    # autograd has none.

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, pairs: Pairs, weights: Tensor | None, objective: Objective
    ) -> Any:
        losses, slopes = losses_and_slopes(objective, pairs._replace(scores=scores), weights)
        ctx.save_for_backward(slopes)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient[:, None] * ctx.saved_tensors[0], None, None, None
