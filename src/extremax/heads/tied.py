"""The tied head on sequences: one vector per item, as part of a sequence and as a class.

    u(x) = Σ_j w_j e_{x_j},   w = softmax_j(r_j + a_{x_j}),
    ξ_y(x) = cos(u(x), e_y)/τ + b_y,

x_j the item j steps before the last, r_j a number for each step back, a_i and b_i numbers of each
item. Sharing e between both sides lets an item that is rare as a class learn from being visited;
unit length keeps frequent items from winning by length. Dropout hides dimensions of u and of e_y in
training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch.nn.functional import embedding, embedding_bag, normalize

from extremax.errors import ArgumentError, ModelFileError
from extremax.heads.adam_table import AdamTable
from extremax.heads.base import Head, HeadOptions
from extremax.random import Stream
from extremax.rows import Needs, Rows, SequenceRows, Sizes
from extremax.rows.sequences import LONGEST
from extremax.tensors import Tensors, prefixed, under

# τ, chosen on held-out sessions of diginetica.
TEMPERATURE = 0.07
# Numbers of an item after its vector: a and b.
_MORE = 2
# Adam's learning rate over that of Adagrad, which suits the other heads.
RATE = 1.0 / 150.0


@dataclass
class SequenceInputs:
    """Sequences to score; in training, also what hides dimensions and the graph of the scores."""

    rows: SequenceRows
    dropout: Stream | None = None
    graph: Graph | None = None


@dataclass
class Graph:
    """Scores with their history, for `torch.autograd`.

    rows:    items involved.
    leaves:  their part of the table, and r.
    scores:  of own classes, and of shared ones if there are any.
    """

    rows: np.ndarray
    leaves: tuple[torch.Tensor, torch.Tensor]
    scores: tuple[torch.Tensor, ...]


class TiedHead(Head):
    """A vector and two numbers per item, and a number per step back, trained by Adam."""

    uses_torch = True

    def __init__(self, n_classes: int, options: HeadOptions) -> None:
        self.options = options
        self.items = AdamTable(self._start(0, n_classes))
        self.steps = AdamTable(torch.zeros((1, LONGEST)))

    def _start(self, first: int, stop: int) -> torch.Tensor:
        """Random vectors of about unit length for items first..stop−1."""
        width = self.options.bag_size
        random = np.random.default_rng([self.options.seed, first])
        start = np.zeros((stop - first, width + _MORE), np.float32)
        start[:, :width] = random.standard_normal((stop - first, width)) / math.sqrt(width)
        return torch.from_numpy(start)

    @classmethod
    def create(
        cls, rows: Rows, labels: np.ndarray, train: np.ndarray, n_classes: int, options: HeadOptions
    ) -> TiedHead:
        return cls(n_classes, options)

    @classmethod
    def needs(cls, sizes: Sizes, options: HeadOptions) -> Needs:
        size = AdamTable.bytes_needed(sizes.classes, options.bag_size + _MORE)
        size += AdamTable.bytes_needed(1, LONGEST)
        return Needs(size, size, size, size * 2 / 3)

    @property
    def n_classes(self) -> int:
        return len(self.items)

    @property
    def bias(self) -> torch.Tensor:
        self.items.catch_up()
        return self.items.values[:, -1]

    # Scores -----------------------------------------------------------------------------------

    def inputs(
        self, rows: Rows, numbers: np.ndarray | None = None, dropout: Stream | None = None
    ) -> SequenceInputs:
        chosen = cast(SequenceRows, rows if numbers is None else rows[numbers])
        return SequenceInputs(chosen, dropout if self.options.dropout else None)

    def scores(self, inputs: SequenceInputs, classes: torch.Tensor) -> torch.Tensor:
        return self._scored(inputs, classes, None)

    def scores_shared(
        self, inputs: SequenceInputs, own: torch.Tensor, shared: torch.Tensor
    ) -> torch.Tensor:
        return self._scored(inputs, own, shared)

    def _scored(
        self, inputs: SequenceInputs, own: torch.Tensor, shared: torch.Tensor | None
    ) -> torch.Tensor:
        """ξ of own[i, j] and then of every shared class on row i; keeps the graph for a step."""
        row, visited, steps = inputs.rows.visits()
        others = own.reshape(-1) if shared is None else torch.cat([own.reshape(-1), shared])
        rows, place = np.unique(np.concatenate([visited, others.numpy()]), return_inverse=True)
        places = torch.from_numpy(place)
        items = self.items.read(rows).requires_grad_()
        back = self.steps.read(np.zeros(1, np.int64))[0].requires_grad_()
        with torch.enable_grad():
            at = embedding(places, items[:, -_MORE:])
            weight = torch.from_numpy(row), torch.from_numpy(steps)
            u = self._sums(items[:, :-_MORE], places[: len(row)], at[: len(row), 0], back, *weight,
                           len(inputs.rows))  # fmt: skip
            vectors = embedding(places[len(row) :], items[:, :-_MORE])
            if inputs.dropout is not None:
                u = u * self._kept(inputs.dropout)
                stream = inputs.dropout.child(int(inputs.dropout.rows[0]))
                vectors = vectors * self._kept(Stream(stream.key, others.numpy()))
            u, vectors = normalize(u), normalize(vectors)
            n_own, bias = own.numel(), at[len(row) :, 1]
            own_vectors = vectors[:n_own].view(*own.shape, self.options.bag_size)
            cosines = (own_vectors @ u[:, :, None])[:, :, 0]
            scores = [cosines / TEMPERATURE + bias[:n_own].view(own.shape)]
            if shared is not None:
                # The product is the larger part of the work: u is scaled rather than its result.
                scores.append(torch.addmm(bias[n_own:], u / TEMPERATURE, vectors[n_own:].T))
        inputs.graph = Graph(rows, (items, back), tuple(scores))
        return torch.cat([part.detach() for part in scores], 1)

    @staticmethod
    def _sums(
        vectors: torch.Tensor,
        places: torch.Tensor,
        weights: torch.Tensor,
        back: torch.Tensor,
        row: torch.Tensor,
        steps: torch.Tensor,
        n: int,
    ) -> torch.Tensor:
        """u(x) of n rows before normalization; zero for a sequence of no items."""
        weights = (weights + back[steps]).exp()
        total = torch.zeros(n).index_add(0, row, weights)
        weights = weights / total[row]
        offsets = torch.searchsorted(row, torch.arange(n))
        return embedding_bag(places, vectors, offsets, mode="sum", per_sample_weights=weights)

    def _kept(self, stream: Stream) -> torch.Tensor:
        """1 where a dimension is kept, 0 where it is dropped; lengths are normalized later."""
        uniform = stream.uniform(self.options.bag_size)
        return torch.from_numpy((uniform >= self.options.dropout).astype(np.float32))

    def scores_all(self, rows: Rows) -> torch.Tensor:
        self.items.catch_up()
        self.steps.catch_up()
        values = self.items.values
        row, visited, steps = cast(SequenceRows, rows).visits()
        places = torch.from_numpy(visited).long()
        weights = values[:, -_MORE][places]
        u = self._sums(
            values[:, :-_MORE].contiguous(), places, weights, self.steps.values[0],
            torch.from_numpy(row), torch.from_numpy(steps), len(rows),
        )  # fmt: skip
        vectors = normalize(values[:, :-_MORE])
        return torch.addmm(values[:, -1], normalize(u), vectors.T, alpha=1 / TEMPERATURE)

    # Steps ------------------------------------------------------------------------------------

    def step(
        self,
        inputs: SequenceInputs,
        classes: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
    ) -> None:
        if inputs.graph is None:
            self.scores(inputs, classes)
        self._step(inputs, gradient, learning_rate)

    def step_shared(
        self,
        inputs: SequenceInputs,
        own: torch.Tensor,
        shared: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
    ) -> None:
        if inputs.graph is None:
            self.scores_shared(inputs, own, shared)
        self._step(inputs, gradient, learning_rate)

    def _step(self, inputs: SequenceInputs, gradient: torch.Tensor, learning_rate: float) -> None:
        """One step of Adam. Only its ε tells the sum of the losses from their mean."""
        graph = inputs.graph
        assert graph is not None
        sizes = [scores.shape[1] for scores in graph.scores]
        on_items, on_steps = torch.autograd.grad(
            graph.scores, graph.leaves, gradient.split(sizes, 1), allow_unused=True
        )
        inputs.graph = None
        rate = RATE * learning_rate
        self.items.step(graph.rows, on_items, rate)
        if on_steps is not None:
            self.steps.step(np.zeros(1, np.int64), on_steps[None], rate)

    # Growing and saving -----------------------------------------------------------------------

    def grow(self, n_classes: int) -> None:
        self.items.grow(self._start(self.n_classes, n_classes))

    def state(self) -> dict[str, torch.Tensor]:
        return prefixed("items", self.items.state()) | prefixed("steps", self.steps.state())

    @classmethod
    def validate(cls, tensors: Tensors, n_classes: int, n_features: int) -> None:
        width = AdamTable.validate(tensors.under("items"), n_classes, None)
        if width <= _MORE:
            raise ModelFileError(f"the saved {tensors.owner} has no vectors")
        AdamTable.validate(tensors.under("steps"), 1, LONGEST)
        tensors.nothing_else()

    @classmethod
    def restore(cls, state: dict[str, torch.Tensor], options: HeadOptions) -> TiedHead:
        width = state["items.values"].shape[1] - _MORE
        if width != options.bag_size:
            raise ArgumentError(
                f"bag_size is {options.bag_size}, but the vectors have {width} numbers"
            )
        head = cls(0, options)
        head.items = AdamTable.restore(under("items", state))
        head.steps = AdamTable.restore(under("steps", state))
        return head
