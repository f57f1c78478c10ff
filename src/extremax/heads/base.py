"""The contract of a head: scores ξ_y(x) of classes on rows, and the Adagrad steps that train them.

Apart from fast paths (`exact_step`, `logistic_steps`, `softmax_steps`) a head knows nothing about
objectives: a step takes the gradient on the scores, whoever computed it.

`inputs` turns rows into whatever the head scores, once per batch; `scores` and `step` share it.
Ranking and log-probabilities score every class in blocks of rows; a head that can do better
overrides `rank_and_score`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from extremax.errors import ArgumentError
from extremax.heads.blocks import Ranking, rank_and_score_in_blocks
from extremax.random import Stream
from extremax.rows import Needs, Rows, Sizes
from extremax.tensors import Tensors


class HeadOptions(NamedTuple):
    """What a new head needs to know besides the data.

    accumulator_start:  where Adagrad's accumulators start.
    scale:              what features are multiplied by, see `Rows.unit_scale`.
    bag_size, dropout:  for `BagHead`: dimensions of its vectors, and the share of feature values
                        that a training step drops.
    accumulators:       for heads of `VectorTable`: whether each "weight" has one, or each "row", a
                        vector of weights.
    """

    accumulator_start: float = 1.0
    scale: float = 1.0
    bag_size: int = 128
    dropout: float = 0.1
    seed: int = 0
    accumulators: str = "weight"

    def check(self) -> HeadOptions:
        """Refuse numbers that no training gives, as a damaged file may hold."""
        positive = self.accumulator_start, self.scale
        if not all(1e-38 < number < 1e38 for number in positive):
            raise ArgumentError(f"{self} needs accumulator_start and scale from 1e-38 to 1e38")
        if self.accumulators not in ("weight", "row"):
            raise ArgumentError(f"{self} needs accumulators for each 'weight' or each 'row'")
        if not (self.bag_size >= 1 and 0 <= self.dropout < 1):
            raise ArgumentError(f"{self} needs a bag_size >= 1 and a dropout in [0, 1)")
        return self


class ClassVectors(Protocol):
    """One vector and bias per class, ξ_y = scale · w_y·x + b_y: what a noise that follows its head
    reads."""

    @property
    def scale(self) -> float: ...

    @property
    def weight(self) -> torch.Tensor: ...

    @property
    def bias(self) -> torch.Tensor: ...

    @property
    def n_classes(self) -> int: ...

    def table(self) -> np.ndarray:
        """(C, width) float32, C-contiguous; a row begins with the weights of its class."""
        ...

    def pair_scores(
        self, features: np.ndarray, rows: np.ndarray, classes: torch.Tensor
    ) -> torch.Tensor:
        """ξ of classes[i, j] on features[rows[i]], float32."""
        ...

    def all_scores(self, features: torch.Tensor) -> torch.Tensor:
        """ξ of every class, (n, C)."""
        ...


class Head(ABC):
    """ξ_y(x) for y in 0..n_classes−1. Every touched weight is written once per step."""

    #: Whether `logistic_steps` runs many small steps in one kernel.
    fuses_steps: bool = False
    #: Whether `softmax_steps` does.
    fuses_softmax: bool = False
    #: Whether ξ = W x + b, so that there are weights W to `decay`.
    decays: bool = False
    #: Whether it has `vectors`.
    has_vectors: bool = False
    #: Whether its steps are torch's own operations, which profit from torch's threads.
    uses_torch: bool = False

    options: HeadOptions

    @classmethod
    @abstractmethod
    def create(
        cls,
        rows: Rows,
        labels: np.ndarray,
        train: np.ndarray,
        n_classes: int,
        options: HeadOptions,
    ) -> Head:
        """An untrained head for these labeled rows, of which those numbered ``train`` train."""

    @classmethod
    @abstractmethod
    def needs(cls, sizes: Sizes, options: HeadOptions) -> Needs:
        """Bytes of a head for a problem of this size."""

    @property
    @abstractmethod
    def n_classes(self) -> int: ...

    @property
    @abstractmethod
    def bias(self) -> torch.Tensor:
        """b, (C,): the score of each class on a row of zeros."""

    @property
    def vectors(self) -> ClassVectors:
        """The class vectors, for a search and for a noise that follows the head; not every head has
        them."""
        raise ArgumentError(
            f"{type(self).__name__} has no vector per class for a noise to follow; use a noise "
            "that does not follow its head, such as 'frequency'"
        )

    # Scores and steps -------------------------------------------------------------------------

    @abstractmethod
    def inputs(
        self, rows: Rows, numbers: np.ndarray | None = None, dropout: Stream | None = None
    ) -> Any:
        """What `scores` and the steps take: the rows numbered so, by default all of them.

        dropout:  random numbers of each row, in training only; heads without dropout ignore them.
        """

    @abstractmethod
    def scores(self, inputs: Any, classes: torch.Tensor) -> torch.Tensor:
        """ξ of classes[i, j] on row i, same shape."""

    @abstractmethod
    def scores_all(self, rows: Rows) -> torch.Tensor:
        """ξ of every class, (n, C). The caller chooses how many rows fit in memory."""

    @abstractmethod
    def step(
        self, inputs: Any, classes: torch.Tensor, gradient: torch.Tensor, learning_rate: float
    ) -> None:
        """One Adagrad step given ∂loss/∂ξ of every pair (row i, classes[i, j])."""

    def scores_shared(self, inputs: Any, own: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        """ξ of own[i, j] and then of every one of the shared classes (m,) on row i, (n, j + m)."""
        return self.scores(inputs, with_shared(own, shared))

    def step_shared(
        self,
        inputs: Any,
        own: torch.Tensor,
        shared: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
    ) -> None:
        """`step` on the classes of `scores_shared`."""
        self.step(inputs, with_shared(own, shared), gradient, learning_rate)

    def fused_examples(self, rows: Rows, n_columns: int) -> int:
        """Examples of ``n_columns`` classes each that one call of `logistic_steps` or
        `softmax_steps` should take."""
        raise NotImplementedError

    def logistic_steps(
        self,
        inputs: Any,
        classes: torch.Tensor,
        log_q: torch.Tensor,
        weights: np.ndarray | None,
        form: tuple[float, ...],
        batch_size: int,
        learning_rates: np.ndarray,
    ) -> np.ndarray:
        """Many steps of a logistic objective in one kernel; see `LinearHead`."""
        raise NotImplementedError

    def softmax_steps(
        self,
        rows: Rows,
        numbers: np.ndarray,
        dropout: Stream,
        classes: torch.Tensor,
        log_q: torch.Tensor,
        weights: np.ndarray | None,
        batch_size: int,
        learning_rates: np.ndarray,
    ) -> np.ndarray:
        """Many steps of sampled softmax in one kernel; see `BagHead`."""
        raise NotImplementedError

    def exact_step(
        self,
        inputs: Any,
        truth: torch.Tensor,
        weights: torch.Tensor | None,
        regularization: float,
        learning_rate: float,
    ) -> float:
        """One Adagrad step of exact softmax on these rows; returns the summed loss.

            −log p_y + λ(ξ_y² + (1/C) Σ ξ²),  λ = regularization.

        Nothing changes if the loss is not finite. This default holds a score and a class number
        for every row and class.
        """
        every, none = torch.arange(self.n_classes), truth[:, None][:, :0]
        scores = self.scores_shared(inputs, none, every)
        log_p = scores.double().log_softmax(1)
        pairs = torch.arange(len(truth)), truth
        squares = regularization * (scores[pairs] ** 2 + scores.square().mean(1))
        each = torch.ones(len(truth)) if weights is None else weights
        loss = float(((squares - log_p[pairs]) * each).double().sum())
        if math.isfinite(loss):
            gradient = log_p.exp()
            gradient[pairs] -= 1.0
            gradient += (2.0 * regularization / self.n_classes) * scores
            gradient[pairs] += 2.0 * regularization * scores[pairs]
            self.step_shared(inputs, none, every, (gradient * each[:, None]).float(), learning_rate)
        return loss

    def set_weights(self, columns: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> None:
        """Make ξ = Wᵀ x + b on rows as they are given, W (k, C) the weights of these columns and b
        (C,); only heads that `extremax.training.penalized` solves for can."""
        raise NotImplementedError

    def decay(self, amount: float) -> None:
        """A proximal step of the penalty (amount/2)‖W‖², W the weights of ξ = W x + b on rows as
        they are given. Biases are left alone.

            w ← argmin_v (amount/2) v² + (√A/2η)(v − w)²  for each weight w,

        A its accumulator, which stays, and η what a step of Adagrad multiplies its learning rate
        by. After a gradient step at learning rate r, decay(r λ) is at rest exactly where the
        gradient is −λW, for any r (forward-backward splitting, Duchi & Singer 2009).
        """
        raise NotImplementedError

    # Probabilities: softmax of ξ / temperature --------------------------------------------------

    def rank_and_score(
        self, rows: Rows, labels: np.ndarray, k: int, temperature: float, budget: int
    ) -> tuple[Ranking, torch.Tensor]:
        """The k classes of highest ξ with their log softmax(ξ/T), and that of labels (n, j),
        exactly. k and j may be zero."""

        def log_softmax(rows: Rows) -> torch.Tensor:
            # Not scores − logsumexp, whose rounding error shows in p when scores are large.
            return self.scores_all(rows).div_(temperature).log_softmax(1)

        return rank_and_score_in_blocks(log_softmax, rows, self.n_classes, labels, k, budget)

    def topk(self, rows: Rows, k: int, temperature: float, budget: int) -> Ranking:
        """The k classes of highest ξ and their log softmax(ξ/T), exactly."""
        nothing = np.empty((len(rows), 0), np.int64)
        return self.rank_and_score(rows, nothing, k, temperature, budget)[0]

    def log_probs(
        self, rows: Rows, labels: np.ndarray, temperature: float, budget: int
    ) -> torch.Tensor:
        """log softmax(ξ/T) of labels (n, j), exactly."""
        return self.rank_and_score(rows, labels, 0, temperature, budget)[1]

    # Growing and saving -----------------------------------------------------------------------

    @abstractmethod
    def grow(self, n_classes: int) -> None:
        """Make room for classes that appear later, as they would have started."""

    @abstractmethod
    def state(self) -> dict[str, torch.Tensor]:
        """Everything trained, accumulators included; the head's own memory, not a copy."""

    @classmethod
    @abstractmethod
    def validate(cls, tensors: Tensors, n_classes: int, n_features: int) -> None:
        """Check a state that comes from a file before anything of it reaches a kernel."""

    @classmethod
    @abstractmethod
    def restore(cls, state: dict[str, torch.Tensor], options: HeadOptions) -> Head:
        """The head that `state` and its options came from; the state has been validated."""

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Copy a state of the same shapes into this head."""
        for name, value in self.state().items():
            value.copy_(state[name])


def with_shared(own: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """own[i, j] and then all shared classes, (n, j + m)."""
    return torch.cat([own, shared.expand(len(own), -1)], 1)
