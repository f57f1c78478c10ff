"""The objectives and noises of this package for any torch network.

`ExtremeSoftmax` takes the place of the last linear layer and its cross-entropy. Its step touches
the rows of a few classes, and `RowAdagrad` and `RowAdam` update just those. The losses alone, on
scores that come from elsewhere, are functions with log q as an argument.
"""

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
    "nce_loss",
    "negative_sampling_loss",
    "one_vs_each_loss",
    "sampled_softmax_loss",
]
