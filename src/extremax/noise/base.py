"""The contract of a noise distribution q(y|x) over classes.

``context`` reduces features once to whatever q depends on (nothing, a projection, a previous
word); the other methods take that context, so training does not project the same example again
every epoch. log q travels with the labels in one `Draw`: nobody can lose it or flip its sign.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator

from extremax.random import Stream

if TYPE_CHECKING:
    from extremax.head import LinearHead


class Draw(NamedTuple):
    """Proposed classes (n, m) and log q of each."""

    labels: torch.Tensor
    log_q: torch.Tensor


class Noise(BaseEstimator, ABC):
    """q(y|x) > 0 for every class. Parameters are those of ``__init__``, as in scikit-learn."""

    #: Whether q depends on the head and changes as it trains. Such a noise is attached to its
    #: head before it is used and told of every step.
    follows_head: bool = False
    #: Whether the context of every row is worth keeping through training: it is small, and the
    #: same in every epoch.
    keeps_context: bool = True

    #: Whether drawing takes so long that the draws of an example are made once, for all epochs.
    draws_once: bool = False
    #: Whether q is so good a classifier that a trained head does well to listen to it.
    predicts: bool = False

    n_classes_: int

    @abstractmethod
    def fit(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        n_classes: int,
        rows: np.ndarray | None = None,
    ) -> Noise:
        """Fit q to labelled examples, or to ``rows`` of them (others are held out, not copied).

        Labels are integers in 0..n_classes−1.
        """

    def context(self, features: np.ndarray) -> torch.Tensor:
        """What q depends on, one row an example. By default nothing."""
        return torch.empty((len(features), 0))

    @abstractmethod
    def sample(self, context: torch.Tensor, m: int, stream: Stream) -> Draw:
        """m independent draws for each row, from the row's own random numbers.

        Together they follow q; each by itself need not, see `strata`.
        """

    @abstractmethod
    def log_prob(self, context: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """log q of labels (n, j), same shape."""

    @abstractmethod
    def log_prob_all(self, context: torch.Tensor) -> torch.Tensor:
        """log q of every class, (n, C), or (1, C) where q does not depend on x.

        The caller chooses the block of rows; see `extremax.prediction.blocks`.
        """

    def leaves(self) -> list[Noise]:
        """The noises that draws come from in the end: itself, unless it is made of others."""
        return [self]

    def strata(self, m: int) -> list[tuple[int, np.ndarray]]:
        """How m draws are shared out: (n, weights) for n draws from Σ weights_i · leaf i."""
        return [(m, np.ones(1))]

    @abstractmethod
    def extend(self, n_classes: int) -> None:
        """Make room for classes that appear after the fit, without changing what q knows."""

    def attach(self, head: LinearHead) -> None:
        """Follow this head from now on; everything learned of another is forgotten."""

    def refresh(self, classes: torch.Tensor) -> None:
        """The head's rows of these classes (any shape, repeated or not) have changed."""

    def sharpnesses(self) -> tuple[float, ...]:
        """How soft the noise can be made, for training to choose from; none by default."""
        return ()

    def temper(self, sharpness: float) -> None:
        """Make the noise softer than its fit (< 1), or as it was fitted (1)."""
        raise ValueError(f"{type(self).__name__} has no sharpness")

    @abstractmethod
    def state(self) -> dict[str, torch.Tensor]:
        """Everything fitted, as tensors; `load_state` of an equal object restores it."""

    @abstractmethod
    def load_state(self, state: dict[str, torch.Tensor]) -> None: ...

    def settings(self) -> dict[str, Any]:
        """Constructor arguments, for JSON."""
        return self.get_params(deep=False)


def check_labels(labels: np.ndarray, n_classes: int) -> np.ndarray:
    """Labels as int64 in 0..n_classes−1, or a ValueError that names the first bad one."""
    labels = np.asarray(labels)
    if labels.dtype.kind not in "iu":
        raise ValueError(f"labels must be integers, got {labels.dtype}")
    labels = labels.astype(np.int64, copy=False)
    if n_classes < 1:
        raise ValueError(f"n_classes must be at least 1, got {n_classes}")
    bad = np.flatnonzero((labels < 0) | (labels >= n_classes))
    if len(bad):
        raise ValueError(
            f"label {labels[bad[0]]} in row {bad[0]} is not in 0..{n_classes - 1} (n_classes)"
        )
    return labels


def check_growth(noise: Noise, n_classes: int) -> None:
    """Refuse to extend a noise to fewer classes than it has; an unfitted one has none."""
    have = getattr(noise, "n_classes_", 0)
    if n_classes < have:
        raise ValueError(
            f"{type(noise).__name__} has {have} classes and can only get more, not {n_classes}; "
            "fit it again to forget some"
        )
