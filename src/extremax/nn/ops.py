"""The operators of a training step, as torch sees them.

`sampled_losses` draws classes, scores them, and returns the losses with their slopes on the scores.
`row_gradients` takes the slopes back to the hidden states and to the rows of weight and bias.
`torch.compile` puts both into its graph without looking inside. Draws depend on the state of a
layer, which operators cannot take as an argument: they get its number (`number_of`). Without
`torch.compile`, `EagerLosses` does the same: operators would cost a tenth of a millisecond per
step.
"""

import itertools
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from extremax.nn import device_step
from extremax.nn.scores import Touched, has_kernels, hidden_gradient, score_type, touched_rows


class Layer(Protocol):
    """What the operators need of a layer."""

    def sampled_losses(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor,
        context: Tensor | None, examples: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip

    def log_q_of_all(self, features: Tensor) -> Tensor: ...


_layers: WeakValueDictionary[int, Layer] = WeakValueDictionary()
_numbers = itertools.count()


def number_of(layer: Layer) -> int:
    """A new number, by which operators find the layer as long as it lives."""
    number = next(_numbers)
    _layers[number] = layer
    return number


def _in_full_precision(device: torch.device) -> AbstractContextManager:
    """Half precision adds up in float32, also where autocast is on."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


# Losses ---------------------------------------------------------------------------------------


@torch.library.custom_op("extremax::sampled_losses", mutates_args=())
def sampled_losses(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, context: Tensor | None,
    examples: Tensor | None, layer: int, n_negatives: int, shared: bool, sparse_weight: bool,
    sparse_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Losses (n,), their slopes on the scores (n, 1 + m), and the classes that were scored.

    Classes are (n, 1 + m), or (n + m,) if the m draws are shared. Ignored rows have a loss of 0 and
    the class −1.
    """
    with _in_full_precision(hidden.device):
        found = _layers[layer].sampled_losses(hidden, weight, bias, target, context, examples)
    return found[0], found[1], found[2].int()


@sampled_losses.register_fake
def _(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, context: Tensor | None,
    examples: Tensor | None, layer: int, n_negatives: int, shared: bool, sparse_weight: bool,
    sparse_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    n, dtype = target.shape[0], score_type(hidden, weight)
    losses = hidden.new_empty((n,), dtype=dtype)
    slopes = hidden.new_empty((n, 1 + n_negatives), dtype=dtype)
    shape = (n + n_negatives,) if shared else (n, 1 + n_negatives)
    return losses, slopes, target.new_empty(shape, dtype=torch.int32)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    hidden, weight, *_, shared, sparse_weight, sparse_bias = inputs
    ctx.save_for_backward(hidden, weight, *output[1:])
    ctx.options = shared, sparse_weight, sparse_bias


def _backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    hidden, weight, slopes, classes = ctx.saved_tensors
    needed = ctx.needs_input_grad[:3]
    found = row_gradients(gradient, hidden, weight, slopes, classes, *ctx.options, *needed)
    gradients = (value if need else None for value, need in zip(found, needed, strict=True))
    return *gradients, *(8 * [None])


sampled_losses.register_autograd(_backward, setup_context=_setup_context)


class EagerLosses(torch.autograd.Function):
    """The losses of `sampled_losses`, from its arguments with the layer in place of its number."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor,
        context: Tensor | None, examples: Tensor | None, layer: Layer, shared: bool,
        sparse_weight: bool, sparse_bias: bool,
    ) -> Tensor:  # fmt: skip
        with _in_full_precision(hidden.device):
            found = layer.sampled_losses(hidden, weight, bias, target, context, examples)
        losses, slopes, classes = found
        ctx.save_for_backward(hidden, weight, slopes, classes)
        ctx.options = shared, sparse_weight, sparse_bias
        return losses

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[:3]
        # Where somebody may want a second derivative, the operator refuses it.
        compute = row_gradients if torch.is_grad_enabled() else gradients
        found = compute(gradient, *ctx.saved_tensors, *ctx.options, *needed)
        chosen = (value if need else None for value, need in zip(found, needed, strict=True))
        return *chosen, *(7 * [None])


# Gradients ------------------------------------------------------------------------------------


def gradients(
    gradient: Tensor, hidden: Tensor, weight: Tensor, slopes: Tensor, classes: Tensor, shared: bool,
    sparse_weight: bool, sparse_bias: bool, for_hidden: bool, for_weight: bool, for_bias: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of hidden, weight and bias from those of the losses (n,), None if nobody asks."""
    with _in_full_precision(hidden.device):
        if has_kernels(hidden, weight) and len(hidden):
            # Rows of classes are the faster way to a dense gradient.
            compute = device_step.shared_gradients if shared else device_step.pair_gradients
            hidden_part, found = compute(
                gradient, hidden, weight, slopes, classes, for_hidden, not sparse_weight
            )
        else:
            hidden_part, found = _kept_gradients(
                gradient, hidden, weight, slopes, classes, shared, for_hidden, for_weight, for_bias
            )
        rows, every = found.classes, found.classes is None
        if rows is None and (sparse_weight or sparse_bias):
            rows = torch.arange(len(weight), device=weight.device)
        return (
            hidden_part.to(hidden.dtype) if hidden_part is not None and for_hidden else None,
            _table(rows, found.weight, weight, sparse_weight, every) if for_weight else None,
            _table(rows, found.bias, weight, sparse_bias, every) if for_bias else None,
        )


def _kept_gradients(
    gradient: Tensor, hidden: Tensor, weight: Tensor, slopes: Tensor, classes: Tensor, shared: bool,
    for_hidden: bool, for_weight: bool, for_bias: bool,
) -> tuple[Tensor | None, Touched]:  # fmt: skip
    """The gradient of hidden, and rows with those of weight and bias, from the rows that are not
    ignored."""
    kept = (classes[: len(hidden)] if shared else classes[:, 0]) >= 0
    chosen, n_kept = hidden, int(kept.sum())
    slopes = gradient[:, None] * slopes
    if n_kept < len(kept):
        chosen, slopes = hidden[kept], slopes[kept]
        classes = classes[classes >= 0] if shared else classes[kept]
    hidden_part = None
    if for_hidden:
        hidden_part = hidden_gradient(slopes, weight, classes, shared).to(hidden.dtype)
        if n_kept < len(kept):
            numbers = kept.nonzero()[:, 0]
            hidden_part = hidden.new_zeros(hidden.shape).index_copy_(0, numbers, hidden_part)
    return hidden_part, touched_rows(slopes, chosen, classes, shared, for_weight, for_bias)


@torch.library.custom_op("extremax::row_gradients", mutates_args=())
def row_gradients(
    gradient: Tensor, hidden: Tensor, weight: Tensor, slopes: Tensor, classes: Tensor, shared: bool,
    sparse_weight: bool, sparse_bias: bool, for_hidden: bool, for_weight: bool, for_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`gradients`, with an empty tensor in place of None."""
    found = gradients(
        gradient, hidden, weight, slopes, classes, shared, sparse_weight, sparse_bias, for_hidden,
        for_weight, for_bias,
    )  # fmt: skip
    hidden_part, weight_part, bias_part = (
        like.new_empty(0) if part is None else part
        for part, like in zip(found, (hidden, weight, weight), strict=True)
    )
    return hidden_part, weight_part, bias_part


@row_gradients.register_fake
def _(
    gradient: Tensor, hidden: Tensor, weight: Tensor, slopes: Tensor, classes: Tensor, shared: bool,
    sparse_weight: bool, sparse_bias: bool, for_hidden: bool, for_weight: bool, for_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    # Dense: compiled graphs have no sparse tensors.
    return (
        hidden.new_empty(hidden.shape if for_hidden else 0),
        weight.new_empty(weight.shape if for_weight else 0),
        weight.new_empty(weight.shape[0] if for_bias else 0),
    )


def _table(
    rows: Tensor | None, values: Tensor | None, weight: Tensor, sparse: bool, every: bool
) -> Tensor:
    """A table with the length and the type of the weight that holds the sums of the values at their
    rows, and zeros.

    every:  the values are those of all rows, in their order.
    """
    assert values is not None
    values = values.to(weight.dtype)
    if every and not sparse:
        return values
    assert rows is not None
    table = torch.sparse_coo_tensor(
        rows[None], values, (len(weight), *values.shape[1:]), check_invariants=False
    )
    return table if sparse else table.to_dense()


# Noise ----------------------------------------------------------------------------------------


@torch.library.custom_op("extremax::log_q_of_all", mutates_args=())
def log_q_of_all(features: Tensor, layer: int, n_classes: int) -> Tensor:
    """log q of every class, (n, C), for rows (n, F)."""
    log_q = _layers[layer].log_q_of_all(features)
    return log_q.expand(len(features), -1).clone()


@log_q_of_all.register_fake
def _(features: Tensor, layer: int, n_classes: int) -> Tensor:
    return features.new_empty((features.shape[0], n_classes), dtype=torch.float32)


# Ranking --------------------------------------------------------------------------------------


@torch.library.custom_op("extremax::topk", mutates_args=())
def topk(hidden: Tensor, weight: Tensor, bias: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """The k classes of highest ξ and their log softmax(ξ), both (n, k), by kernels on a GPU."""
    from extremax.kernels.gpu.topk import rank_and_score

    none = torch.empty((len(hidden), 0), dtype=torch.int64, device=hidden.device)
    labels, log_probs, _ = rank_and_score(weight, bias, hidden, 1.0, none, k, 1.0)
    return labels, log_probs


@topk.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    labels = hidden.new_empty((hidden.shape[0], k), dtype=torch.int64)
    return labels, labels.new_empty(labels.shape, dtype=torch.float32)
