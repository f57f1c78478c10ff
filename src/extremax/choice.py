"""What ``objective="auto"`` and ``noise="auto"`` choose, and why.

Exact softmax is the best objective wherever its cost is bearable: it has no noise to choose and
nothing to correct. A step over every class costs 8 N C K operations an epoch (scores twice, the
gradient once, Adagrad); two cores do about `_OPERATIONS_A_SECOND` of them. Otherwise negative
sampling against the tree: docs/which-method.md shows what was measured.
"""

from __future__ import annotations

from typing import NamedTuple

# Single-precision matrix products on two cores. Not measured on the spot, and not by the number
# of threads: the choice must not depend on how busy or how large the machine is.
_OPERATIONS_A_SECOND = 5e10
# What a user waits for who has not said: a minute of exact training.
_PATIENCE_SECONDS = 60.0


class Defaults(NamedTuple):
    """What parameters that were not given are."""

    objective: str
    n_negatives: int
    epochs: int


DENSE = Defaults("negative_sampling", 5, 10)
# On sparse rows the tree is so good on the rows it was fitted to that a head which adds to its
# log q has nothing left to learn from them. So the head learns by itself, with the tree's hard
# negatives, and the two are put together by held-out rows (`extremax.prediction.blending`). Feature
# vectors overfit after a few epochs.
SPARSE = Defaults("sampled_softmax", 16, 5)


def choose_objective(
    n_rows: int,
    n_classes: int,
    n_features: int,
    *,
    epochs: int,
    max_seconds: float | None,
) -> str:
    """ "exact" if all its epochs fit the time there is, else "negative_sampling"."""
    operations = 8.0 * n_rows * n_classes * n_features * epochs
    seconds = operations / _OPERATIONS_A_SECOND
    return "exact" if seconds <= (max_seconds or _PATIENCE_SECONDS) else "negative_sampling"


def choose_noise(adds_log_q: bool) -> str:
    """The tree where its log q is added at prediction; else tree and frequency mixed.

    Objectives that divide by q need it bounded from below: a class the tree deems impossible
    would enter with a huge weight.
    """
    return "tree" if adds_log_q else "mixture"
