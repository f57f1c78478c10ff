"""Losses over every class: cross-entropy, with what may be added to it.

    (1 − ε) ω_y (log Z − ξ_y) + (ε/C) Σ_c ω_c (log Z − ξ_c)
        + ω_y (ζ log² Z + λ (ξ_y² + (1/C) Σ_c ξ_c²))

ε is label smoothing and ω are the weights of classes, both as in
`torch.nn.functional.cross_entropy`; ζ is the z-loss (Chowdhery et al. 2022), λ the penalty. On a
GPU, scores are never held: two operators (`score_totals`, `total_gradients`) go through them in
tiles, see `extremax.kernels.gpu.exact`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from extremax.tensor_checks import check_finite, check_shape


class ExactLoss(NamedTuple):
    """ε, ζ, λ and ω."""

    label_smoothing: float = 0.0
    z_loss: float = 0.0
    regularization: float = 0.0
    class_weight: Tensor | None = None


def check_exact_loss(loss: ExactLoss, n_classes: int, samples: bool) -> None:
    """Require values in their ranges, and all classes for what needs log Z."""
    for name, value, most in (
        ("label_smoothing", loss.label_smoothing, 1.0),
        ("z_loss", loss.z_loss, float("inf")),
    ):
        if not 0.0 <= value <= most or value == float("inf"):
            limit = "" if most == float("inf") else f" and <= {most:g}"
            raise ValueError(f"{name} must be a finite number >= 0{limit}, got {value!r}")
        if value and samples:
            raise ValueError(
                f"{name} needs the scores of every class, which a sampled objective does not "
                "compute; use objective='exact'"
            )
    if loss.class_weight is not None:
        check_finite(loss.class_weight, "class_weight")
        check_shape(loss.class_weight, "class_weight", (n_classes,), "one weight per class")
        if bool((loss.class_weight < 0).any()):
            raise ValueError("class_weight must hold weights >= 0")


def plain_losses(scores: Tensor, target: Tensor, loss: ExactLoss) -> Tensor:
    """Losses (n,), given scores (n, C).

    target:  classes (n,), or weights of every class, (n, C), which stand for a sum over classes y.
    """
    class_weight = None if loss.class_weight is None else loss.class_weight.to(scores.dtype)

    def expectation(values: Tensor) -> Tensor:
        if target.is_floating_point():
            return (target * values).sum(1)
        return values.expand_as(scores).gather(1, target[:, None])[:, 0]

    losses = cross_entropy(
        scores, target, class_weight, reduction="none", label_smoothing=loss.label_smoothing
    )
    if not loss.z_loss and not loss.regularization:
        return losses
    weights = 1.0 if class_weight is None else expectation(class_weight)
    if loss.z_loss:
        losses = losses + loss.z_loss * weights * scores.logsumexp(1).square()
    if loss.regularization:
        squares = scores.square()
        penalty = expectation(squares) + squares.mean(1)
        losses = losses + loss.regularization * weights * penalty
    return losses


def fused_losses(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, loss: ExactLoss
) -> Tensor:
    """The same for classes (n,), without scores: `extremax.kernels.gpu` computes them in tiles.

    hidden:  products are in its type.
    """
    n_classes, smoothing = len(weight), loss.label_smoothing
    class_weight = None if loss.class_weight is None else loss.class_weight.float()
    shares = None
    if smoothing:
        shares = (
            torch.ones(n_classes, device=weight.device) if class_weight is None else class_weight
        )
        shares = shares / n_classes
    log_z, true, squares, shared = score_totals(
        hidden, weight, bias, target, shares, bool(loss.regularization)
    )
    losses = (1.0 - smoothing) * (log_z - true)
    if loss.z_loss:
        losses = losses + loss.z_loss * log_z.square()
    if loss.regularization:
        losses = losses + loss.regularization * (true.square() + squares / n_classes)
    if class_weight is not None:
        losses = losses * class_weight[target]
    if shares is not None:
        losses = losses + smoothing * (shares.sum() * log_z - shared)
    return losses


def product_type(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """The type of products on a GPU: that of autocast where it is on."""
    if torch.is_autocast_enabled(hidden.device.type):
        return torch.get_autocast_dtype(hidden.device.type)
    return torch.promote_types(hidden.dtype, weight.dtype)


# Operators ------------------------------------------------------------------------------------


@torch.library.custom_op("extremax::score_totals", mutates_args=())
def score_totals(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, shares: Tensor | None,
    squares: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """log Z, ξ_y, Σ_c ξ_c² and Σ_c v_c ξ_c for shares v, each (n,) in float32.

    Without ``squares`` or ``shares``, the last two are empty. A target that is no class has the
    score NaN.
    """
    from extremax.kernels.gpu import exact

    nothing = hidden.new_empty(0, dtype=torch.float32)
    if not len(hidden):
        return nothing, nothing.clone(), nothing.clone(), nothing.clone()
    # Sums stay in float32 where autocast is on.
    with torch.autocast(hidden.device.type, enabled=False):
        scores = exact.Scores(hidden.contiguous(), weight, bias)
        found = exact.totals(scores, target, shares, squares)
    return (
        found.log_z,
        found.true,
        nothing if found.squares is None else found.squares,
        nothing.clone() if found.shared is None else found.shared,
    )


@score_totals.register_fake
def _(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, shares: Tensor | None,
    squares: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    def vector(wanted: bool) -> Tensor:
        return hidden.new_empty((hidden.shape[0] if wanted else 0,), dtype=torch.float32)

    return vector(True), vector(True), vector(squares), vector(shares is not None)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.squares = inputs
    ctx.save_for_backward(*tensors, output[0])


def _backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
    needed = ctx.needs_input_grad[:3]
    found = total_gradients(*slopes, *ctx.saved_tensors, ctx.squares, *needed)
    gradients = (value if need else None for value, need in zip(found, needed, strict=True))
    return *gradients, None, None, None


score_totals.register_autograd(_backward, setup_context=_setup_context)


@torch.library.custom_op("extremax::total_gradients", mutates_args=())
def total_gradients(
    on_log_z: Tensor, on_true: Tensor, on_squares: Tensor, on_shared: Tensor, hidden: Tensor,
    weight: Tensor, bias: Tensor | None, target: Tensor, shares: Tensor | None, log_z: Tensor,
    squares: bool, for_hidden: bool, for_weight: bool, for_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of hidden, weight and bias from those of the totals.

    A gradient that nobody asks for is empty.
    """
    from extremax.kernels.gpu import exact

    if not len(hidden):
        on_bias = _room(weight if bias is None else bias, for_bias).zero_()
        return _room(hidden, for_hidden), _room(weight, for_weight).zero_(), on_bias
    slopes = exact.Totals(
        on_log_z, on_true, on_squares if squares else None, None if shares is None else on_shared
    )
    wanted = exact.Wanted(for_hidden, for_weight, for_bias)
    with torch.autocast(hidden.device.type, enabled=False):
        scores = exact.Scores(hidden.contiguous(), weight, bias)
        found = exact.gradients(scores, target, shares, log_z, slopes, wanted)
    on_hidden, on_weight, on_bias = (
        weight.new_empty(0) if each is None else each for each in found
    )
    return on_hidden, on_weight, on_bias


@total_gradients.register_fake
def _(
    on_log_z: Tensor, on_true: Tensor, on_squares: Tensor, on_shared: Tensor, hidden: Tensor,
    weight: Tensor, bias: Tensor | None, target: Tensor, shares: Tensor | None, log_z: Tensor,
    squares: bool, for_hidden: bool, for_weight: bool, for_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    on_bias = _room(weight if bias is None else bias, for_bias)
    return _room(hidden, for_hidden), _room(weight, for_weight), on_bias


def _room(like: Tensor, wanted: bool) -> Tensor:
    return like.new_empty(like.shape if wanted else 0)
