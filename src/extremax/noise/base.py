"""The contract of a noise distribution q(y|x) over classes.

`Noise.context` reduces rows once to whatever q depends on (nothing, a projection, a previous
word); the other methods take that context, so training does not project the same example again in
every epoch. log q travels with the labels in one `Draw`: nobody can lose it or flip its sign.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator

from extremax.checks import check_rows, is_number
from extremax.errors import ArgumentError, ModelFileError
from extremax.kernels.cpu.threads import parallel
from extremax.random import Stream
from extremax.rows import Needs, Sizes
from extremax.softmax import log_complement
from extremax.tensors import Tensors

if TYPE_CHECKING:
    from extremax.heads import ClassVectors, Head
    from extremax.labels import Prior
    from extremax.search.base import Searcher

Fitted = TypeVar("Fitted", bound="Noise")


class Draw(NamedTuple):
    """Proposed classes (n, m) and log q of each."""

    labels: torch.Tensor
    log_q: torch.Tensor


class Context(Protocol):
    """What q depends on, one entry per row: a tensor, or rows."""

    def __len__(self) -> int: ...

    def __getitem__(self, numbers: Any) -> Any: ...


class Noise(BaseEstimator, ABC):
    """q(y|x) > 0 for every class. Parameters are those of ``__init__``, as in scikit-learn.

    ``features`` may be `extremax.rows.Rows`, an array or a scipy matrix. A noise that reads them
    asks for the layout it needs, ``as_rows(features).dense()`` or ``.sparse()``.
    """

    #: Whether q depends on the head and changes as it trains. Such a noise is attached to its head
    #: before it is used and told of every step.
    follows_head: bool = False
    #: Whether q is the same for ξ and −ξ of the head it follows, so that it suits logits |ξ|.
    is_even: bool = False
    #: Whether q depends on nothing but the number of classes and the head: no data to fit to.
    needs_no_data: bool = False
    #: Whether the context of every row is worth keeping through training: small, and the same in
    #: every epoch.
    keeps_context: bool = True
    #: Whether q is computed from rows as an array, so that sparse rows must be projected first.
    needs_dense: bool = False
    #: Whether drawing is so slow that the draws of an example are made once, for all epochs.
    draws_once: bool = False
    #: Whether q is itself a usable classifier, to be blended with the head.
    is_classifier: bool = False
    #: Whether q is fitted to the features themselves, so that a network whose hidden states change
    #: should fit it again (`refit_every` of `extremax.nn.ExtremeSoftmax`).
    refits: bool = False

    #: Whether this is a mixture of a part that reads rows and one that does not, so that a batch
    #: can share the draws of the latter.
    has_shared_part: bool = False

    n_classes_: int

    # Fitting ----------------------------------------------------------------------------------

    def check_parameters(self) -> None:
        """Raise ArgumentError for a constructor argument out of range; `fit` calls this."""

    def fit(
        self: Fitted,
        features: Any,
        labels: np.ndarray,
        n_classes: int,
        rows: np.ndarray | None = None,
    ) -> Fitted:
        """Fit q to labeled examples, or to those numbered ``rows`` (the others are held out).

        Labels are integers in 0..n_classes−1.
        """
        self.check_parameters()
        labels = check_labels(labels, n_classes)
        check_rows(features, labels)
        self.n_classes_ = n_classes
        self.learn(features, labels, n_classes, np.arange(len(labels)) if rows is None else rows)
        return self

    def learn(self, features: Any, labels: np.ndarray, n_classes: int, rows: np.ndarray) -> None:
        """Fit q to the examples numbered ``rows``; `fit` calls this with checked arguments."""

    def extend(self, n_classes: int) -> None:
        """Make room for classes that appear after the fit, without changing what q knows."""
        have = getattr(self, "n_classes_", 0)
        if n_classes < have:
            raise ArgumentError(
                f"{type(self).__name__} has {have} classes and can only get more, not {n_classes}; "
                "fit it again to forget some"
            )
        self.n_classes_ = n_classes

    def learn_late(self, features: Any, labels: np.ndarray) -> None:
        """Learn about classes that `extend` made room for from all examples so far, if this noise
        can. Proportions among the other classes stay."""

    def attach(self, vectors: ClassVectors) -> None:
        """Follow these class vectors from now on; forget everything learned of others."""

    def refresh(self, classes: torch.Tensor) -> None:
        """The vectors of these classes (any shape, repeated or not) have changed."""

    # The distribution -------------------------------------------------------------------------

    def context(self, features: Any) -> Context:
        """What q depends on, one entry per row. By default nothing."""
        return torch.empty((features.shape[0], 0))

    @property
    def reads_rows(self) -> bool:
        """Whether q depends on the row at all."""
        return any(type(leaf).context is not Noise.context for leaf in self.leaves())

    @property
    def n_features_read(self) -> int | None:
        """Columns of the rows that a fitted noise reads, where it knows."""
        return None

    @abstractmethod
    def sample(self, context: Any, m: int, stream: Stream) -> Draw:
        """m independent draws for each row, from the row's own random numbers.

        Together they follow q; each by itself need not, see `strata`.
        """

    @abstractmethod
    def log_prob(self, context: Any, labels: torch.Tensor) -> torch.Tensor:
        """log q of labels (n, j), same shape."""

    @abstractmethod
    def log_prob_all(self, context: Any) -> torch.Tensor:
        """log q of every class, (n, C), or (1, C) where q does not depend on x.

        The caller chooses the block of rows.
        """

    # Draws among the other classes ---------------------------------------------------------------

    def sample_others(self, context: Any, labels: torch.Tensor, m: int, stream: Stream) -> Draw:
        """m independent draws for each row from q over the classes other than its label.

        labels:  (n, 1), one class per row.

        log q is that of `log_prob_others`. A single class has no others: it is drawn itself, with
        log q = 0, and objectives drop it.
        """
        if self.n_classes_ == 1:
            return Draw(labels.repeat(1, m), torch.zeros((len(labels), m)))
        return self._sample_others(context, labels, m, stream)

    def _sample_others(self, context: Any, labels: torch.Tensor, m: int, stream: Stream) -> Draw:
        """`sample_others` of two classes or more; by default, draws of the label are rejected."""
        from extremax.noise.others import sample_by_rejection

        drawn = sample_by_rejection(self, context, labels, m, stream)
        return Draw(drawn, self.log_prob_others(context, labels, drawn))

    def log_prob_others(
        self, context: Any, labels: torch.Tensor, others: torch.Tensor
    ) -> torch.Tensor:
        """log q of others (n, j) given that they are not the row's label, labels (n, 1).

        This is log q(k) − log(1 − q_y), except for a mixture, whose parts leave out the label one
        by one.
        """
        log_q = self.log_prob(context, others)
        return log_q - log_complement(self.log_prob(context, labels))

    def shared_part(self, context: Any) -> tuple[Noise, Any]:
        """The noise that can draw for a whole batch, since it does not read rows, and its context:
        itself, or its part where it `has_shared_part`."""
        return self, context

    def leaves(self) -> list[Noise]:
        """The noises that draws come from in the end: itself, unless it is made of others."""
        return [self]

    def strata(self, m: int) -> list[tuple[int, np.ndarray]]:
        """How m draws are divided: (n, weights) means n draws from Σ weights_i · leaf i."""
        return [(m, np.ones(1))]

    # Levels: log q = Σ_l log q_l ----------------------------------------------------------------

    @property
    def n_levels(self) -> int:
        """Factors of q that a blend may weight separately."""
        return 1

    def planned_levels(self, n_classes: int) -> int:
        """`n_levels` that a fit to so many classes will have."""
        return 1

    def level_log_probs(self, context: Any, labels: torch.Tensor) -> torch.Tensor:
        """log q_l of labels (n, j) for each level l, (n, j, l)."""
        return self.log_prob(context, labels)[..., None]

    def weighted_log_probs(self, context: Any, weights: np.ndarray) -> torch.Tensor:
        """Σ_l weights[l] log q_l of every class, (n, C) or (1, C)."""
        log_q = self.log_prob_all(context)
        return log_q if weights[0] == 1.0 else log_q * float(weights[0])

    def searcher(self, head: Head, prior: Prior | None = None) -> Searcher | None:
        """A sublinear search for the best classes of a row by logits of which log q is a part, if
        this noise offers one.

        prior:  other class frequencies: look for classes of large p π'/π. What candidates score is
                the same without.
        """
        return None

    # Sharpness --------------------------------------------------------------------------------

    def sharpnesses(self) -> tuple[float, ...]:
        """How soft the noise can be made, from as fitted to softest; none by default."""
        return ()

    def default_sharpness(self, adds_log_q: bool) -> float:
        """The sharpness to use where no held-out rows can choose one.

        adds_log_q:  whether log q is part of the logits.
        """
        every = self.sharpnesses()
        return every[len(every) // 2]

    def temper(self, sharpness: float) -> None:
        """Make the noise softer than its fit (< 1), or as it was fitted (1)."""
        raise ArgumentError(f"{type(self).__name__} has no sharpness")

    # Saving and planning ----------------------------------------------------------------------

    def state(self) -> dict[str, torch.Tensor]:
        """Everything fitted, as tensors; `load_state` of an equal object restores it."""
        return {"n_classes": torch.tensor(self.n_classes_)}

    def validate(self, tensors: Tensors, n_classes: int, n_features: int) -> None:
        """Check parameters and a state that come from a file, before `load_state` sees them."""
        try:
            self.check_parameters()
            self.check_state(tensors, n_classes, n_features)
            tensors.nothing_else()
        except ModelFileError:
            raise
        except (TypeError, ValueError) as error:
            raise ModelFileError(f"the saved {tensors.owner} is damaged: {error}") from error

    def check_state(self, tensors: Tensors, n_classes: int, n_features: int) -> None:
        """Raise an error unless `load_state` and every kernel can use these tensors.

        A tensor that is not checked here is refused as unknown.
        """
        tensors.integer("n_classes", n_classes, n_classes)

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Restore what `state` returned."""
        self.n_classes_ = int(state["n_classes"])

    def settings(self) -> dict[str, Any]:
        """Constructor arguments, for JSON."""
        return self.get_params(deep=False)

    def needs(self, sizes: Sizes, n_threads: int) -> Needs:
        """Bytes that this noise takes on a problem of this size; `context_bytes` comes on top."""
        return Needs(
            kept=16.0 * sizes.classes, passing=24.0 * sizes.rows, saved=8.0 * sizes.classes
        )

    def context_bytes(self, sizes: Sizes) -> float:
        """Bytes of the context of every row, where it is kept."""
        return 0.0

    def fit_work(self, sizes: Sizes, n_threads: int) -> float:
        """How long a fit takes, in units of its own: to scale a trial up."""
        return float(sizes.rows)

    def stand_in(self, features: Any, labels: np.ndarray, n_classes: int, sizes: Sizes) -> Noise:
        """A noise as slow as one fitted to a problem of these sizes, for timing draws.

        Where a fit is slow, parameters are random; by default the noise is fitted to the rows.
        """
        return self.fit(features, labels, n_classes)


class TableNoise(Noise):
    """A noise that does not depend on the row: log q is a table of one number per class."""

    log_q_: torch.Tensor

    def log_prob(self, context: Any, labels: torch.Tensor) -> torch.Tensor:
        return self.log_q_[labels]

    def log_prob_all(self, context: Any) -> torch.Tensor:
        return self.log_q_[None]


def filled(
    kernel: Callable[..., None],
    shape: tuple[int, ...],
    chunk: int,
    *args: Any,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """A tensor whose rows ``kernel(start, stop, *args, out)`` writes, chunk by chunk."""
    out = torch.empty(shape, dtype=dtype)
    parallel(kernel, len(out), chunk, *args, out.numpy())
    return out


def drawn(kernel: Callable[..., None], shape: tuple[int, int], chunk: int, *args: Any) -> Draw:
    """Draws that ``kernel(start, stop, *args, labels, log_q)`` writes, chunk by chunk."""
    draw = Draw(torch.empty(shape, dtype=torch.int64), torch.empty(shape))
    parallel(kernel, len(draw.labels), chunk, *args, draw.labels.numpy(), draw.log_q.numpy())
    return draw


def check_number(
    noise: Noise,
    name: str,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    integer: bool = False,
    auto: bool = False,
) -> None:
    """Refuse a parameter that is not a number within these bounds or, if allowed, "auto"."""
    value = getattr(noise, name)
    if auto and value == "auto":
        return
    if is_number(value, integer) and least <= value <= most and value > above:
        return
    limits = ((">=", least), (">", above), ("<=", most))
    bounds = " and ".join(f"{sign} {limit}" for sign, limit in limits if math.isfinite(limit))
    kind = f"{'an integer' if integer else 'a number'} {bounds}".rstrip()
    either = " or 'auto'" if auto else ""
    raise ArgumentError(f"{name} must be {kind}{either}, got {value!r}")


def check_labels(labels: np.ndarray, n_classes: int) -> np.ndarray:
    """Labels as int64 in 0..n_classes−1, or an ArgumentError that names the first bad one."""
    labels = np.asarray(labels)
    if labels.dtype.kind not in "iu":
        raise ArgumentError(f"labels must be integers, got {labels.dtype}")
    labels = labels.astype(np.int64, copy=False)
    if n_classes < 1:
        raise ArgumentError(f"n_classes must be at least 1, got {n_classes}")
    bad = np.flatnonzero((labels < 0) | (labels >= n_classes))
    if len(bad):
        raise ArgumentError(
            f"label {labels[bad[0]]} in row {bad[0]} is not in 0..{n_classes - 1} (n_classes)"
        )
    return labels
