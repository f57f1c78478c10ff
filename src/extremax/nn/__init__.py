"""The package's objectives and noises for any torch network.

`ExtremeSoftmax` replaces the last linear layer and its cross-entropy loss. A training step touches
only the weight rows of a few classes, and `RowAdagrad` and `RowAdam` update only those rows. For
scores computed elsewhere, the losses are also functions that take log q as an argument.
"""

from extremax.nn.clipping import clip_grad_norm_, clip_grad_value_
from extremax.nn.functional import (
    nce_loss,
    negative_sampling_loss,
    one_vs_each_loss,
    sampled_softmax_loss,
)
from extremax.nn.optim import RowAdagrad, RowAdam
from extremax.nn.softmax import ExtremeSoftmax

__all__ = [
    "ExtremeSoftmax",
    "RowAdagrad",
    "RowAdam",
    "clip_grad_norm_",
    "clip_grad_value_",
    "nce_loss",
    "negative_sampling_loss",
    "one_vs_each_loss",
    "sampled_softmax_loss",
]
