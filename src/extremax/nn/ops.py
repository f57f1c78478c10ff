"""The operators of a training step, as torch sees them.

`sampled_losses` draws classes, scores them, and returns the losses with their slopes on the scores.
`row_gradients` takes the slopes back to the hidden states and to the rows of weight and bias.
`torch.compile` puts both into its graph without looking inside. Draws depend on the state of a
layer, which operators cannot take as an argument: they get its number (`number_of`).
"""

import itertools
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from extremax.nn.scores import hidden_gradient, score_type, touched_rows


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
    # Half precision adds up in float32, also where autocast is on.
    with torch.autocast(hidden.device.type, enabled=False):
        return _layers[layer].sampled_losses(hidden, weight, bias, target, context, examples)


@sampled_losses.register_fake
def _(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, context: Tensor | None,
    examples: Tensor | None, layer: int, n_negatives: int, shared: bool, sparse_weight: bool,
    sparse_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    n, dtype = target.shape[0], score_type(hidden, weight)
    losses = hidden.new_empty((n,), dtype=dtype)
    slopes = hidden.new_empty((n, 1 + n_negatives), dtype=dtype)
    classes = target.new_empty((n + n_negatives,) if shared else (n, 1 + n_negatives))
    return losses, slopes, classes


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


# Gradients ------------------------------------------------------------------------------------


@torch.library.custom_op("extremax::row_gradients", mutates_args=())
def row_gradients(
    gradient: Tensor, hidden: Tensor, weight: Tensor, slopes: Tensor, classes: Tensor, shared: bool,
    sparse_weight: bool, sparse_bias: bool, for_hidden: bool, for_weight: bool, for_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of hidden, weight and bias from those of the losses (n,).

    A gradient that nobody asks for is empty.
    """
    hidden_part, weight_part, bias_part = (like.new_empty(0) for like in (hidden, weight, weight))
    with torch.autocast(hidden.device.type, enabled=False):
        kept = (classes[: len(hidden)] if shared else classes[:, 0]) >= 0
        chosen, n_kept = hidden, int(kept.sum())
        slopes = gradient[:, None] * slopes
        if n_kept < len(kept):
            chosen, slopes = hidden[kept], slopes[kept]
            classes = classes[classes >= 0] if shared else classes[kept]
        if for_hidden:
            hidden_part = hidden_gradient(slopes, weight, classes, shared).to(hidden.dtype)
            if n_kept < len(kept):
                numbers = kept.nonzero()[:, 0]
                hidden_part = hidden.new_zeros(hidden.shape).index_copy_(0, numbers, hidden_part)
        if for_weight or for_bias:
            rows = touched_rows(slopes, chosen, classes, shared, for_weight, for_bias)
            size = len(weight)
            if rows.weight is not None:
                weight_part = _table(
                    rows.classes, rows.weight.to(weight.dtype), size, sparse_weight
                )
            if rows.bias is not None:
                bias_part = _table(rows.classes, rows.bias.to(weight.dtype), size, sparse_bias)
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


def _table(rows: Tensor, values: Tensor, n_rows: int, sparse: bool) -> Tensor:
    """A table of n_rows that holds the sum of the values at their rows, and zeros."""
    table = torch.sparse_coo_tensor(
        rows[None], values, (n_rows, *values.shape[1:]), check_invariants=False
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
