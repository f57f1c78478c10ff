"""A table of vectors with Adagrad state: one vector per class, or per feature.

With an accumulator per weight, the weights and accumulators of a vector lie side by side: a step
needs both, and finds them on one page of memory. With vectors of 512 floats that made the step 15%
faster. With an accumulator per vector, the table has the weights alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from extremax.errors import ArgumentError, ModelFileError
from extremax.kernels.cpu.threads import parallel
from extremax.tensors import Tensors

# Below this many floats touched by a batch, threads cost more than they bring.
_PARALLEL_FLOATS = 1 << 19
# Floats in a cache line.
_LINE = 16
#: Makes every weight zero, and float32 can hold it.
LARGEST_SHRINKAGE = 1e35


class VectorTable:
    """n vectors of ``width`` numbers, each with a bias if ``has_bias``, all zero at the start.

    Scores are scale · w_y·x + b_y. A step of Adagrad divides its learning rate by √width: with more
    dimensions, one example moves its score by that much more. Given the gradient G of a vector,

        A += G²,  w −= rate · G / √A      with an accumulator per weight, or
        A += ‖G‖²/width,  the same w      with one per vector: half of the memory.

    accumulators:  "weight" or "row".
    """

    def __init__(
        self,
        n: int,
        width: int,
        accumulator_start: float,
        has_bias: bool = True,
        accumulators: str = "weight",
    ) -> None:
        if not accumulator_start > 0:
            raise ArgumentError(f"accumulator_start must be > 0, got {accumulator_start}")
        self.accumulator_start, self.accumulators = accumulator_start, accumulators
        per_row = accumulators == "row"
        self._table = _zeros((n, 1 if per_row else 2, width))
        self._row_acc = _zeros((n if per_row else 0,))
        self.bias, self.bias_acc = (_zeros((n if has_bias else 0,)) for _ in range(2))
        self.bias_acc.fill_(accumulator_start)
        self.weight_acc.fill_(accumulator_start)

    @property
    def weight(self) -> torch.Tensor:
        """(n, width), a view."""
        return self._table[:, 0]

    @property
    def weight_acc(self) -> torch.Tensor:
        """(n, width), a view, or (n,)."""
        return self._row_acc if self.accumulators == "row" else self._table[:, 1]

    def __len__(self) -> int:
        return len(self._table)

    @property
    def width(self) -> int:
        return self._table.shape[2]

    def table(self) -> np.ndarray:
        """For kernels: each row the weights and then the accumulators, if they have some each."""
        return self._table.flatten(1).numpy()

    def arrays(self) -> Any:
        """For kernels: the table and the biases."""
        from extremax.kernels.cpu.head import Vectors

        return Vectors(
            self.table(), self._row_acc.numpy(), self.bias.numpy(), self.bias_acc.numpy()
        )

    def scores(
        self, features: np.ndarray, rows: np.ndarray, classes: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """scale · w·features[rows[i]] + b of classes[i, j], for float32 features."""
        return pair_scores(self.table(), self.bias.numpy(), features, rows, classes, scale)

    def step(
        self,
        inputs: np.ndarray,
        rows: np.ndarray,
        ids: torch.Tensor,
        coefficients: torch.Tensor,
        scale: float,
        learning_rate: float,
    ) -> None:
        """One Adagrad step: vector ids[i, j] gets the gradient coefficients[i, j] · scale ·
        inputs[rows[i]], and its bias coefficients[i, j]. Each touched vector is written once.

        For classes the coefficients are ∂loss/∂score; for features they are the feature values.
        """
        from extremax.kernels.cpu import head as kernel

        flat = ids.numpy().ravel()
        order, starts = np.empty(len(flat), np.int64), np.empty(len(flat) + 1, np.int64)
        n_groups = kernel.group_by_class(flat, len(self), order, starts)
        parallel(
            kernel.update_rows, n_groups, self._chunk(n_groups),
            kernel.Groups(flat, order, starts), self.arrays(),
            kernel.Inputs(inputs, np.repeat(rows, ids.shape[1]), np.float32(scale)),
            coefficients.numpy().ravel(), np.float32(self.rate(learning_rate)),
        )  # fmt: skip

    def shrink(self, amount: float) -> None:
        """A proximal step of (amount/2)‖w‖² at the learning rate 1, see `Head.decay`."""
        from extremax.kernels.cpu.head import shrink_rows

        parallel(
            shrink_rows, len(self), self._chunk(len(self)), self.arrays(),
            np.float32(min(self.rate(amount), LARGEST_SHRINKAGE)),
        )  # fmt: skip

    def step_sums(
        self, ids: torch.Tensor, sums: torch.Tensor, bias_sums: torch.Tensor, learning_rate: float
    ) -> None:
        """One Adagrad step of the vectors ids (n,), all distinct, and their biases, given their
        gradients."""
        from extremax.kernels.cpu.head import update_summed

        parallel(
            update_summed, len(ids), self._chunk(len(ids)), ids.numpy(), sums.numpy(),
            bias_sums.numpy(), self.arrays(), np.float32(self.rate(learning_rate)),
        )  # fmt: skip

    def step_block(
        self, block: slice, sums: torch.Tensor, bias_sums: torch.Tensor, rate: float
    ) -> None:
        """The same for the vectors of a block, in torch; ``rate`` as `rate` gives it."""
        for parameter, accumulator, gradient in (
            (self.weight[block], self.weight_acc[block], sums),
            (self.bias[block], self.bias_acc[block], bias_sums),
        ):
            if accumulator.ndim < gradient.ndim:
                accumulator += gradient.square().mean(1)
                accumulator = accumulator[:, None]
            else:
                accumulator.addcmul_(gradient, gradient)
            parameter.addcdiv_(gradient, accumulator.sqrt(), value=-rate)

    def _chunk(self, n_vectors: int) -> int:
        return chunk_size(n_vectors, 2 * self.width)

    def rate(self, learning_rate: Any) -> Any:
        return learning_rate / math.sqrt(self.width)

    def grow(self, n: int) -> None:
        """Add vectors, as they would have started."""
        has_bias = len(self.bias) > 0
        grown = VectorTable(n, self.width, self.accumulator_start, has_bias, self.accumulators)
        for name, value in grown.state().items():
            value[: len(self.state()[name])] = self.state()[name]
        self.__dict__.update(vars(grown))

    def state(self) -> dict[str, torch.Tensor]:
        """``table`` is (n, 2, width): the weights and the accumulators of a vector side by side; or
        (n, 1, width), with an accumulator per vector in ``row_acc`` (n,)."""
        state = {"table": self._table, "row_acc": self._row_acc}
        state |= {"bias": self.bias, "bias_acc": self.bias_acc}
        return {name: tensor for name, tensor in state.items() if len(tensor)}

    @staticmethod
    def validate(tensors: Tensors, n: int, width: int | None = None, has_bias: bool = True) -> int:
        """Check a saved state; returns the width of the vectors."""
        per_row = "row_acc" in tensors.tensors
        table = tensors.array("table", torch.float32, n, 1 if per_row else 2, width)
        if not table.size:
            raise ModelFileError(f"the saved {tensors.owner} has no weights")
        if per_row:
            accumulators = [tensors.array("row_acc", torch.float32, len(table))]
        else:
            accumulators = [table[:, 1]]
        if has_bias:
            tensors.array("bias", torch.float32, len(table))
            accumulators.append(tensors.array("bias_acc", torch.float32, len(table)))
        tensors.nothing_else()
        tensors.positive(*accumulators)
        return table.shape[2]

    @classmethod
    def restore(
        cls, state: dict[str, torch.Tensor], accumulator_start: float, accumulators: str
    ) -> VectorTable:
        found = "row" if "row_acc" in state else "weight"
        if accumulators != found:
            raise ArgumentError(f"accumulators is {accumulators!r}, but there is one per {found}")
        n, _, width = state["table"].shape
        table = cls(n, width, accumulator_start, "bias" in state, accumulators)
        for name, value in table.state().items():
            value.copy_(state[name])
        return table

    @staticmethod
    def bytes_needed(
        n: int, width: int, accumulators: str, has_bias: bool = True
    ) -> tuple[float, float]:
        """Of vectors and biases, and of their accumulators."""
        of_vectors = 1 if accumulators == "row" else width
        return 4.0 * n * (width + has_bias), 4.0 * n * (of_vectors + has_bias)


def pair_scores(
    table: np.ndarray,
    bias: np.ndarray,
    features: np.ndarray,
    rows: np.ndarray,
    classes: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """scale · w·features[rows[i]] + b of classes[i, j]; a row of the table begins with w."""
    from extremax.kernels.cpu import head as kernel

    out = torch.empty(classes.shape)
    floats = classes.shape[1] * features.shape[1]
    parallel(
        kernel.score_pairs, len(rows), chunk_size(len(rows), floats),
        kernel.Vectors(table, bias[:0], bias, bias),
        kernel.Inputs(features, rows, np.float32(scale)), classes.numpy(), out.numpy(),
    )  # fmt: skip
    return out


def chunk_size(n: int, floats_each: int) -> int:
    """Items per chunk: all of them where threads would cost more than they bring."""
    return n if n * floats_each < _PARALLEL_FLOATS else max(1, n // 16)


def _zeros(shape: tuple[int, ...]) -> torch.Tensor:
    # numpy asks the system for huge pages, torch does not, and rows are visited at random. Rows
    # that begin on a cache line (where their length allows it) are one line shorter to read.
    size = math.prod(shape)
    buffer = np.zeros(size + _LINE, np.float32)
    skip = -buffer.ctypes.data // buffer.itemsize % _LINE
    return torch.from_numpy(buffer[skip : skip + size].reshape(shape))


def add_rows(
    out: torch.Tensor,
    places: torch.Tensor,
    weights: torch.Tensor,
    rows: torch.Tensor,
    x: torch.Tensor,
) -> None:
    """out[places[p]] += weights[p] · x[rows[p]] for every p, each place by one thread."""
    from extremax.kernels.cpu.sparse import add_product

    order = torch.argsort(places, stable=True)
    starts = torch.searchsorted(places[order], torch.arange(len(out) + 1))
    parallel(
        add_product, len(out), chunk_size(len(out), out.shape[1]),
        starts.numpy(), rows[order].numpy(), weights[order].numpy(), x.numpy(), out.numpy(),
    )  # fmt: skip
