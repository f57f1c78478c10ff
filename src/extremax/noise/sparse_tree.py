"""The adversarial tree for sparse rows: a hierarchical softmax over a few hundred children a node.

Classes are put in an order in which similar ones are close (`extremax.kernels.cpu.class_split`).
The root is a softmax over ranges of them, each range one over smaller ranges, down to the classes:

    log q(y|x) = Σ over the nodes ν above y of log softmax(W_ν x + b_ν)_{the child with y}.

Two levels serve 65,536 classes, three 16 million: few and wide, because every level is a place to
go wrong, and because a feature's weights for all children of a node lie side by side. Nodes know
nothing of each other, so each is fitted by itself (`extremax.kernels.cpu.sparse_node`), and all of
them in parallel. Draws and log-probabilities cost O(nnz · levels); small weights are not kept.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from extremax.checks import check_rows, is_number
from extremax.features.rows import SparseRows
from extremax.noise.base import Draw, Noise, check_growth, check_labels
from extremax.noise.late import Late
from extremax.noise.sparse_tree_shape import Shape, tree_shape
from extremax.random import Stream

# Arrays of a tree that are as many as its nodes and classes.
_SHAPE = ("first", "position", "node", "bias", "order")


class Found(NamedTuple):
    """Classes that a search found, best first, and their log q; ``weighted`` has the parts of log q
    that the levels have by their weights."""

    labels: torch.Tensor
    log_q: torch.Tensor
    weighted: torch.Tensor


class SparseTreeNoise(Noise):
    """A tree of softmaxes on sparse rows; with probabilities that sum to one, also a classifier.

    lambda_:  λ, the quadratic penalty on the weights of a node, for rows of unit mean square
              length. "auto" picks one for each level by held-out likelihood. A penalty shrinks
              scores; those of each level are then multiplied by what suits rows held apart.
    passes:   visits of each example in the fit of a node.
    prune:    weights smaller than this are not kept.
    seed:     of the order of classes; trees with different seeds differ, and are worth averaging.
    """

    keeps_context = False
    predicts = True
    draws_once = True

    def __init__(
        self,
        lambda_: float | str = "auto",
        passes: int = 10,
        prune: float = 0.1,
        seed: int = 0,
    ) -> None:
        self.lambda_ = lambda_
        self.passes = passes
        self.prune = prune
        self.seed = seed

    def fit(
        self,
        features: Any,
        labels: np.ndarray,
        n_classes: int,
        rows: np.ndarray | None = None,
    ) -> SparseTreeNoise:
        from extremax.noise import sparse_tree_fit as fitting

        labels = check_labels(labels, n_classes)
        check_rows(features, labels)
        self._check_parameters()
        data = SparseRows.of(features)
        rows = np.arange(len(labels)) if rows is None else rows
        rows, apart = fitting.held_apart(rows, self.seed)
        scale = data.unit_scale(rows)
        order = fitting.similar_order(data, labels, rows, n_classes, self.seed)
        self._place(order)
        shape = tree_shape(n_classes)
        examples = fitting.Examples.of(data, labels, rows, self._position, shape, scale, self.seed)
        fit = fitting.NodeFit(examples, shape, self.passes, self.seed)
        self.penalties_ = [
            fit.best_penalty(level) if self.lambda_ == "auto" else float(self.lambda_)
            for level in range(shape.n_levels)
        ]
        self._assemble(shape, fit.nodes(self.penalties_, self.prune), order, scale)
        self.n_classes_, self.n_features_in_ = n_classes, data.n_features
        self.sharpness_ = fitting.sharpen(
            self.tree_, self._position, shape, data[apart], labels[apart]
        )
        return self

    def _check_parameters(self) -> None:
        if self.lambda_ != "auto" and not (is_number(self.lambda_) and self.lambda_ > 0):
            raise ValueError(f"lambda_ must be a number > 0 or 'auto', got {self.lambda_!r}")
        if not (is_number(self.passes, integer=True) and self.passes >= 1):
            raise ValueError(f"passes must be an integer >= 1, got {self.passes!r}")
        if not (is_number(self.prune) and self.prune >= 0):
            raise ValueError(f"prune must be a number >= 0, got {self.prune!r}")

    def _place(self, order: np.ndarray) -> None:
        self._position = np.empty(len(order), np.int64)
        self._position[order] = np.arange(len(order))

    def _assemble(self, shape: Shape, nodes: list[Any], order: np.ndarray, scale: float) -> None:
        """All nodes in the arrays that walks read; weights take the scale of the rows in."""
        from extremax.kernels.cpu.sparse_table import packed

        features, counts, child, weight, bias = zip(*nodes, strict=True)
        weights = np.concatenate(weight) * np.float32(scale)
        self._set(
            {
                "first": shape.first,
                "position": shape.position,
                "node": shape.node,
                "bias": np.concatenate(bias),
                "order": order,
                "features_of": np.array([len(f) for f in features]),
                "features": np.concatenate(features),
                "counts": np.concatenate(counts),
                "weights": packed(weights, np.concatenate(child)),
            }
        )

    def _set(self, arrays: dict[str, np.ndarray]) -> None:
        from extremax.kernels.cpu.sparse_table import hashed
        from extremax.kernels.cpu.sparse_tree import Tree

        shape = {
            name: np.ascontiguousarray(arrays[name], np.float32 if name == "bias" else np.int64)
            for name in _SHAPE
        }
        features_of = arrays["features_of"]
        node = np.repeat(np.arange(len(features_of)), features_of)
        # Read as integers and as floats.
        packed = np.ascontiguousarray(arrays["weights"], np.int32)
        self.tree_ = Tree(
            **shape,
            slots=hashed(node, arrays["features"], arrays["counts"]),
            packed=packed,
            weight=packed.view(np.float32),
        )
        self._place(self.tree_.order)

    # The distribution -------------------------------------------------------------------------

    @property
    def n_tree_classes_(self) -> int:
        """Classes that the tree was fitted to; later ones hang beside it."""
        return len(self.tree_.order)

    @property
    def n_levels_(self) -> int:
        """Softmaxes between the root and a class at most."""
        return len(self.penalties_)

    @property
    def _late(self) -> Late:
        return Late(self.n_tree_classes_, self.n_classes_)

    def context(self, features: Any) -> Any:
        """The rows themselves."""
        rows = SparseRows.of(features)
        if rows.n_features != self.n_features_in_:
            raise ValueError(f"rows have {rows.n_features} features, not {self.n_features_in_}")
        return rows

    def sample(self, context: Any, m: int, stream: Stream) -> Draw:
        from extremax.kernels.cpu.sparse_tree import sample
        from extremax.kernels.cpu.threads import parallel

        labels = torch.empty((len(context), m), dtype=torch.int64)
        log_q = torch.empty((len(context), m))
        parallel(
            sample, len(context), 256, self.tree_, *context.arrays, stream.key, stream.rows,
            labels.numpy(), log_q.numpy(),
        )  # fmt: skip
        return self._late.draws(Draw(labels, log_q), stream)

    def log_prob(self, context: Any, labels: torch.Tensor) -> torch.Tensor:
        return self.level_log_probs(context, labels).sum(2)

    def level_log_probs(self, context: Any, labels: torch.Tensor) -> torch.Tensor:
        """log q_l of labels (n, j) for each level l of the tree, (n, j, l): log q = Σ_l log q_l.
        What late classes have is of the first level."""
        from extremax.kernels.cpu.sparse_tree import level_log_probs
        from extremax.kernels.cpu.threads import parallel

        late = self._late
        out = torch.empty((*labels.shape, self.n_levels_))
        parallel(
            level_log_probs, len(context), 64, self.tree_, self._position, *context.arrays,
            late.inside(labels).numpy(), out.numpy(),
        )  # fmt: skip
        if late.any:
            out[labels >= self.n_tree_classes_] = 0.0
            out[..., 0] = late.log_prob(out[..., 0], labels)
        return out

    def log_prob_all(self, context: Any) -> torch.Tensor:
        return self.weighted_log_probs(context, np.ones(self.n_levels_))

    def weighted_log_probs(self, context: Any, weights: np.ndarray) -> torch.Tensor:
        """Σ_l weights[l] log q_l of every class, (n, C), log q_l as in `level_log_probs`."""
        from extremax.kernels.cpu.sparse_tree import log_prob_all
        from extremax.kernels.cpu.threads import parallel

        first = float(weights[0])
        out = torch.full((len(context), self.n_classes_), -math.log(self.n_classes_) * first)
        parallel(log_prob_all, len(context), 16, self.tree_, *context.arrays, weights, out.numpy())
        if self._late.any:
            out[:, : self.n_tree_classes_] += self._late.log_share * first
        return out

    def search(self, context: Any, k: int, width: int, weights: np.ndarray) -> Found:
        """The k likeliest classes under the ``width`` likeliest nodes of each level, and late ones
        nowhere; −1 and −∞ where there are not as many."""
        from extremax.kernels.cpu.sparse_tree import search
        from extremax.kernels.cpu.threads import parallel

        # No level has more nodes than there are.
        width = min(width, len(self.tree_.first) - 1)
        shape = (len(context), k)
        found = Found(torch.empty(shape, dtype=torch.int64), torch.empty(shape), torch.empty(shape))
        parallel(
            search, len(context), 64, self.tree_, *context.arrays, width, weights,
            *(part.numpy() for part in found),
        )  # fmt: skip
        found.log_q.add_(self._late.log_share)
        found.weighted.add_(self._late.log_share * float(weights[0]))
        return found

    def extend(self, n_classes: int) -> None:
        check_growth(self, n_classes)
        self.n_classes_ = n_classes

    def state(self) -> dict[str, torch.Tensor]:
        from extremax.kernels.cpu.sparse_table import pairs

        node, features, counts = pairs(self.tree_.slots)
        features_of = np.bincount(node, minlength=len(self.tree_.first) - 1)
        return {
            **{name: torch.from_numpy(getattr(self.tree_, name)) for name in _SHAPE},
            "features_of": torch.from_numpy(features_of),
            "features": torch.from_numpy(features.astype(np.int32)),
            "counts": torch.from_numpy(counts.astype(np.int16)),
            "weights": torch.from_numpy(self.tree_.packed),
            "n_classes": torch.tensor(self.n_classes_),
            "n_features": torch.tensor(self.n_features_in_),
            "penalties": torch.tensor(self.penalties_, dtype=torch.float64),
            "sharpness": torch.tensor(self.sharpness_, dtype=torch.float64),
        }

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self._set({name: tensor.numpy() for name, tensor in state.items()})
        self.n_classes_ = int(state["n_classes"])
        self.n_features_in_ = int(state["n_features"])
        self.penalties_ = state["penalties"].tolist()
        self.sharpness_ = state["sharpness"].tolist()
