"""A training step on a GPU, in which the host never waits for the device.

Nothing that decides about sizes or errors is read back: ignored examples stay where they are and
have the class `IGNORED`, classes out of range are `UNKNOWN` and give a loss of NaN, and gradients
have as many rows as there are pairs, most often fewer of them distinct. A CUDA graph can therefore
hold the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import embedding

from extremax.nn.functional import correct_shared_draws, losses_and_slopes
from extremax.nn.scores import Touched
from extremax.objectives import Objective, Pairs, SampledSoftmax

if TYPE_CHECKING:
    from extremax.kernels.gpu.losses import Form


def losses_of(
    objective: Objective, hidden: Tensor, weight: Tensor, bias: Tensor | None, classes: Tensor,
    log_q: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Losses (n,) and their slopes on the scores (n, 1 + m).

    classes, log_q:  (n, 1 + m), or (n + m,) if draws are shared; see
                     `extremax.kernels.gpu.draws.draw_classes`.
    """
    from extremax.kernels.gpu import head
    from extremax.kernels.gpu.losses import pair_losses

    n, shared = len(hidden), classes.ndim == 1
    inputs = head.Inputs(hidden.contiguous(), None, 1.0)
    if shared:
        true = head.score_pairs(weight, bias, inputs, classes[:n, None])
        drawn = _drawn_scores(hidden, weight, bias, classes[n:])
    else:
        scores = head.score_pairs(weight, bias, inputs, classes)
        true, drawn = scores[:, :1], scores[:, 1:]
    form = kernel_form(objective, drawn.shape[1])
    if form is not None:
        return pair_losses(form, (true, drawn), classes, log_q)
    return _plain_losses(objective, torch.cat([true, drawn], 1), classes, log_q)


def _drawn_scores(hidden: Tensor, weight: Tensor, bias: Tensor | None, drawn: Tensor) -> Tensor:
    rows, hidden = embedding(drawn, weight).float(), hidden.float()
    if bias is None:
        return hidden @ rows.T
    return torch.addmm(bias.index_select(0, drawn).float(), hidden, rows.T)


def kernel_form(objective: Objective, m: int) -> Form | None:
    """The objective as a kernel computes it; None if torch must."""
    from extremax.kernels.gpu.losses import MOST_DRAWS, Form

    if m > MOST_DRAWS:
        return None
    logistic = objective.logistic(m)
    if logistic is not None:
        return Form(False, *logistic, objective.adds_log_q, objective.regularization)
    if type(objective) is SampledSoftmax and not objective.absolute:
        return Form(True, 0.0, 0.0, 0.0, False, objective.regularization)
    return None


def _plain_losses(
    objective: Objective, scores: Tensor, classes: Tensor, log_q: Tensor
) -> tuple[Tensor, Tensor]:
    """`losses_of` by operations of torch."""
    from extremax.kernels.gpu.draws import UNKNOWN

    n = len(scores)
    weights, shared = None, classes.ndim == 1
    if shared:
        target, drawn = classes[:n, None], classes[n:]
        log_q = torch.cat([log_q[:n, None], log_q[n:].expand(n, -1)], 1)
    else:
        target, drawn = classes[:, :1], classes[:, 1:]
    pairs = Pairs(scores, log_q, drawn == target, scores.new_zeros((n, 0)))
    if shared and objective.draws_others:
        pairs, weights = correct_shared_draws(pairs)
    losses, slopes = losses_and_slopes(objective, pairs, weights)
    left_out = target < 0
    instead = torch.where(target[:, 0] == UNKNOWN, torch.nan, 0.0)
    return torch.where(left_out[:, 0], instead, losses), slopes.masked_fill(left_out, 0.0)


def pair_gradients(
    gradient: Tensor, hidden: Tensor, weight: Tensor, slopes: Tensor, classes: Tensor,
    for_hidden: bool, by_class: bool,
) -> tuple[Tensor | None, Touched]:  # fmt: skip
    """The gradient of hidden (n, K), if asked for, and those of rows of weight and bias, from the
    gradient of the losses (n,).

    by_class:  have a row per class.
    """
    from extremax.kernels.gpu import head

    slopes = gradient[:, None] * slopes
    hidden_part = head.sum_rows(weight, classes, slopes) if for_hidden else None
    inputs = head.Inputs(hidden.contiguous(), None, 1.0)
    groups = head.group_by_class(classes)
    return hidden_part, Touched(*head.sum_pairs(groups, inputs, slopes, len(weight), by_class))


def shared_gradients(
    gradient: Tensor, hidden: Tensor, weight: Tensor, slopes: Tensor, classes: Tensor,
    for_hidden: bool, by_class: bool,
) -> tuple[Tensor | None, Touched]:  # fmt: skip
    """`pair_gradients` where draws are shared."""
    from extremax.kernels.gpu import head, rows
    from extremax.kernels.gpu.shared import true_parts

    n = len(hidden)
    parts = true_parts(gradient, hidden.contiguous(), weight, slopes, classes)
    drawn_slopes = gradient[:, None] * slopes[:, 1:]
    if for_hidden:
        # Where every example was ignored, there may be no draws.
        drawn_rows = embedding(classes[n:].clamp(min=0), weight).float()
        parts.hidden.addmm_(drawn_slopes, drawn_rows)
    torch.mm(drawn_slopes.T, parts.kept, out=parts.weight[n:])
    torch.sum(drawn_slopes, 0, out=parts.bias[n:])
    if by_class:
        groups = head.group_by_class(parts.rows)
        table = parts.weight.new_zeros(weight.shape)
        bias_table = parts.bias.new_zeros(len(weight))
        rows.sum_into(table, groups, parts.weight)
        rows.sum_into(bias_table[:, None], groups, parts.bias[:, None])
        return parts.hidden, Touched(None, table, bias_table)
    return parts.hidden, Touched(parts.rows, parts.weight, parts.bias)
