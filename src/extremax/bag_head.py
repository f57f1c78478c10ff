"""The head on sparse rows: a learned bag of features under a linear head.

    u(x) = s Σ_f x_f e_f,   ξ_y(x) = √D w_y·u(x) + b_y,

e_f a vector of D numbers for each feature, learned together with the classes' w, s one number for
all rows, 1 / their root mean square length. What fastText does, under any sampled objective.
Classes share strength through the vectors of features: on rows of a few words out of thousands,
weights for each class and feature would fit the training rows and little else.

The vectors of features are updated as those of classes are: a `LinearHead` is a table of vectors
with their Adagrad state, whatever its rows stand for.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from extremax.features.rows import SparseRows
from extremax.head import LinearHead
from extremax.kernels.cpu import bag as kernel
from extremax.kernels.cpu.threads import parallel

# Rows that one thread takes at a time.
_CHUNK = 256
# Both factors of a score move in a step, and vectors of features are shared by all classes: by
# trial on titles, a third of the rate that suits a linear head, 0.1 of 0.03, 0.1, 0.2.
_RATE = 1.0 / 3.0
# Gradients on the vectors of features are smaller than those on classes, most features being rare:
# their accumulators start lower, by trial at a tenth.
_FEATURE_START = 0.1


class Bags(NamedTuple):
    """Sparse rows and their u(x)."""

    rows: SparseRows
    u: np.ndarray


class BagHead:
    def __init__(
        self,
        n_classes: int,
        n_features: int,
        width: int,
        accumulator_start: float,
        scale: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.scale = scale
        # u has a mean square of about 1/width a dimension; the linear head wants about one.
        self.classes = LinearHead(n_classes, width, accumulator_start, math.sqrt(width))
        self.features = LinearHead(n_features, width, _FEATURE_START * accumulator_start)
        # Vectors of zero would never move: classes start at zero, features by chance.
        chance = np.random.default_rng(seed).standard_normal((n_features, width), np.float32)
        chance /= math.sqrt(width)
        self.features.weight.copy_(torch.from_numpy(chance))

    @property
    def n_classes(self) -> int:
        return self.classes.n_classes

    @property
    def weight(self) -> torch.Tensor:
        return self.classes.weight

    @property
    def bias(self) -> torch.Tensor:
        return self.classes.bias

    def inputs(self, features: SparseRows) -> Bags:
        """What `scores` and `step` take."""
        return Bags(features, self.bags(features))

    def bags(self, features: SparseRows) -> np.ndarray:
        """u(x) of every row."""
        u = np.empty((len(features), self.features.weight.shape[1]), np.float32)
        parallel(
            kernel.sum_bags, len(u), _CHUNK, *features.arrays, self.features.table(),
            np.float32(self.scale), u,
        )  # fmt: skip
        return u

    def scores(self, inputs: Bags, rows: np.ndarray, classes: torch.Tensor) -> torch.Tensor:
        """ξ of classes[i, j] on row rows[i]."""
        return self.classes.scores(inputs.u, rows, classes)

    def scores_all(self, features: SparseRows) -> torch.Tensor:
        """ξ of every class, (n, C)."""
        return self.classes.scores_all(torch.from_numpy(self.bags(features)))

    def step(
        self,
        inputs: Bags,
        rows: np.ndarray,
        classes: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
    ) -> None:
        """One Adagrad step of both tables, given ∂loss/∂ξ of every pair; ``rows`` are all rows."""
        back = np.empty_like(inputs.u)
        parallel(
            kernel.pull, len(back), _CHUNK, self.classes.table(), classes.numpy(),
            gradient.numpy(), np.float32(self.classes.scale * self.scale), back,
        )  # fmt: skip
        rate = _RATE * learning_rate
        self.classes.step(inputs.u, rows, classes, gradient, rate)
        indptr, indices, values = inputs.rows.arrays
        # A value is to a feature what the gradient on its score is to a class.
        self.features.step(
            back,
            np.repeat(rows, np.diff(indptr)),
            torch.from_numpy(indices.astype(np.int64))[:, None],
            torch.from_numpy(values)[:, None],
            # The other table is scaled to a mean square of one, this one is not.
            rate * math.sqrt(inputs.u.shape[1]),
        )

    def grow(self, n_classes: int) -> None:
        """Rows for classes that appear later, as they would have started."""
        self.classes.grow(n_classes)

    def state(self) -> dict[str, torch.Tensor]:
        return {
            f"{name}.{key}": value
            for name, table in (("classes", self.classes), ("features", self.features))
            for key, value in table.state().items()
        }

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        for name, value in self.state().items():
            value.copy_(state[name])
