"""The adversarial noise: a probabilistic decision tree fitted to the data.

Bamler & Mandt, "Extreme classification via adversarial softmax approximation", ICLR 2020,
section 3. Every inner node ν decides p(right | x) = σ(w_ν·z + b_ν), z a whitened PCA of x;

    log q(y|x) = Σ over the path from the root to y of log σ(±(w_ν·z + b_ν)).

A draw and a log-probability cost O(k log C). `extremax.kernels.cpu.tree` has the memory layout of
the tree, `extremax.kernels.cpu.tree_fit` the fit of a node.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from extremax.errors import ArgumentError
from extremax.features.pca import WhitenedPCA
from extremax.kernels.cpu.threads import parallel
from extremax.noise.base import Draw, check_number, drawn, filled
from extremax.noise.late import BinaryTreeNoise
from extremax.random import Stream
from extremax.rows import Needs, Sizes, as_rows
from extremax.tensors import Tensors

if TYPE_CHECKING:
    from extremax.heads import Head
    from extremax.labels import Prior
    from extremax.search.base import Searcher

_SHARPNESSES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15)


class TreeNoise(BinaryTreeNoise):
    """Noise that imitates the data, so that negatives are hard. Reads dense rows.

    Classes that appear after the fit (`extend`) are added beside the tree and share the probability
    n_late/C equally.

    n_components:  k, the dimensions of z; more make a better tree and slower draws.
    lambda_:       λ_w, the quadratic penalty on the weights of a node. "auto" chooses one per level
                   of the tree by held-out likelihood.
    lambda_bias:   λ_b. It differs from λ_w because a node's bias holds the frequencies of its
                   halves, which a few examples estimate well, while its k weights overfit quickly.
    rounds:        the most alternations of Newton ascent and split per node.
    sharpness:     s in p(right | x) = σ(s (w_ν·z + b_ν)). 1 is the tree as fitted; smaller is
                   softer. A linear head must undo the errors of log q, of which a softer q has
                   fewer, and its draws are still near misses. "auto" is 1 until training chooses
                   (`extremax.training.start`).
    """

    refits = True
    needs_dense = True

    def __init__(
        self,
        n_components: int = 16,
        lambda_: float | str = "auto",
        lambda_bias: float = 0.1,
        rounds: int = 8,
        sharpness: float | str = "auto",
    ) -> None:
        self.n_components = n_components
        self.lambda_ = lambda_
        self.lambda_bias = lambda_bias
        self.rounds = rounds
        self.sharpness = sharpness

    def check_parameters(self) -> None:
        check_number(self, "n_components", least=1, integer=True)
        check_number(self, "rounds", least=0, integer=True)
        check_number(self, "lambda_", above=0, auto=True)
        check_number(self, "lambda_bias", above=0)
        check_number(self, "sharpness", above=0, most=1, auto=True)

    def learn(self, features: Any, labels: np.ndarray, n_classes: int, rows: np.ndarray) -> None:
        from extremax.noise.tree_fit import fit_tree

        array = as_rows(features).dense().array
        self.pca_ = WhitenedPCA(self.n_components).fit(array)
        by_class = rows[np.argsort(labels[rows], kind="stable")]
        z = self.pca_.transform(array).numpy()[by_class]
        offsets = np.zeros(n_classes + 1, np.int64)
        np.cumsum(np.bincount(labels[rows], minlength=n_classes), out=offsets[1:])
        tree = fit_tree(z, offsets, self.lambda_, self.lambda_bias, self.rounds)
        self.penalties_ = tree.penalties
        self._set(torch.from_numpy(tree.nodes), torch.from_numpy(tree.order))
        self.temper(1.0 if self.sharpness == "auto" else float(self.sharpness))

    def _set(self, nodes: torch.Tensor, order: torch.Tensor) -> None:
        from extremax.kernels.cpu.tree import all_splits

        self.nodes_, self.order_ = nodes, order
        self.n_tree_classes_ = len(order)
        self.position_ = torch.empty_like(order)
        self.position_[order] = torch.arange(len(order))
        self._splits = np.ascontiguousarray(all_splits(len(order))[0][:, :2])

    def sharpnesses(self) -> tuple[float, ...]:
        return _SHARPNESSES if self.sharpness == "auto" else ()

    def temper(self, sharpness: float) -> None:
        if not (isinstance(sharpness, (int, float)) and 0 < sharpness <= 1):
            raise ArgumentError(f"sharpness must be in (0, 1], got {sharpness!r}")
        self.sharpness_ = sharpness
        # Free the old nodes before the new ones are allocated.
        self.__dict__.pop("soft_nodes_", None)
        #: Nodes times the sharpness: what walks read.
        self.soft_nodes_ = self.nodes_ * sharpness

    # The distribution -------------------------------------------------------------------------

    def context(self, features: Any) -> torch.Tensor:
        """z, (n, k)."""
        return self.pca_.transform(as_rows(features).dense().array)

    @property
    def n_features_read(self) -> int | None:
        return len(self.pca_.mean_) if hasattr(self, "pca_") else None

    def sample(self, context: torch.Tensor, m: int, stream: Stream) -> Draw:
        from extremax.kernels.cpu import tree

        draw = drawn(
            tree.sample, (len(context), m), 512, self.soft_nodes_.numpy(), self.order_.numpy(),
            context.numpy(), stream.key, stream.rows,
        )  # fmt: skip
        return self._with_late_draws(draw, stream)

    def log_prob(self, context: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from extremax.kernels.cpu import tree

        log_q = filled(
            tree.log_prob, tuple(labels.shape), 512, self.soft_nodes_.numpy(),
            self.position_.numpy(), context.numpy(), self._inside(labels).numpy(),
        )  # fmt: skip
        return self._with_late(log_q, labels)

    def _sample_tree_others(
        self, context: torch.Tensor, labels: torch.Tensor, m: int, stream: Stream
    ) -> tuple[Draw, torch.Tensor]:
        from extremax.kernels.cpu import tree

        log_others = torch.empty((len(context), 1), dtype=torch.float64)
        draw = drawn(
            tree.sample_others, (len(context), m), 512, self.soft_nodes_.numpy(),
            self.order_.numpy(), self.position_.numpy(), context.numpy(), labels.numpy(),
            stream.key, stream.rows, log_others.numpy(),
        )  # fmt: skip
        return draw, log_others

    def _log_tree_others(self, context: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from extremax.kernels.cpu import tree

        return filled(
            tree.log_others, (len(context), 1), 512, self.soft_nodes_.numpy(),
            self.position_.numpy(), context.numpy(), labels.numpy(), dtype=torch.float64,
        )  # fmt: skip

    def log_prob_all(self, context: torch.Tensor) -> torch.Tensor:
        from extremax.kernels.cpu import tree

        activations = torch.addmm(self.soft_nodes_[:, -1], context, self.soft_nodes_[:, :-1].T)
        log_right = torch.nn.functional.logsigmoid(activations)
        out = torch.full((len(context), self.n_classes_), -math.log(self.n_classes_))
        parallel(
            tree.spread, len(context), 1, self.order_.numpy(), self._splits,
            activations.numpy(), log_right.numpy(), out.numpy(),
        )  # fmt: skip
        out[:, : self.n_tree_classes_] += self.log_share_
        return out

    def searcher(self, head: Head, prior: Prior | None = None) -> Searcher:
        from extremax.noise.tree_search import TreeSearcher

        return TreeSearcher(self, head, prior)

    # Saving and planning ----------------------------------------------------------------------

    def state(self) -> dict[str, torch.Tensor]:
        return super().state() | {
            "nodes": self.nodes_,
            "order": self.order_,
            "penalties": torch.tensor(self.penalties_, dtype=torch.float64),
            "sharpness": torch.tensor(self.sharpness_, dtype=torch.float64),
            "pca_mean": self.pca_.mean_,
            "pca_projection": self.pca_.projection_,
        }

    def check_state(self, tensors: Tensors, n_classes: int, n_features: int) -> None:
        super().check_state(tensors, n_classes, n_features)
        n_tree = len(tensors.tensors["order"])
        tensors.array("pca_mean", torch.float32, n_features)
        k = tensors.array("pca_projection", torch.float32, n_features, None).shape[1]
        tensors.array("nodes", torch.float32, n_tree, k + 1)
        tensors.array("penalties", torch.float64, math.ceil(math.log2(n_tree)))
        tensors.number("sharpness", 1e-300, 1.0, torch.float64)

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        super().load_state(state)
        self.pca_ = WhitenedPCA(self.n_components)
        self.pca_.mean_, self.pca_.projection_ = state["pca_mean"], state["pca_projection"]
        self.penalties_ = state["penalties"].tolist()
        self._set(state["nodes"], state["order"])
        self.temper(float(state["sharpness"]))

    def needs(self, sizes: Sizes, n_threads: int) -> Needs:
        k = min(self.n_components, sizes.features)
        nodes = 4.0 * sizes.classes * (k + 1)
        # The order of the classes and its inverse, the splits.
        saved = nodes + 32.0 * sizes.classes
        # The projected rows a second time, sorted by class; the sums of the classes; all splits.
        passing = sizes.rows * (4.0 * k + 24.0) + sizes.classes * (8.0 * k + 56.0)
        # Nodes are kept a second time, times their sharpness.
        return Needs(kept=saved + nodes, passing=passing, saved=saved)

    def context_bytes(self, sizes: Sizes) -> float:
        return 4.0 * sizes.rows * min(self.n_components, sizes.features)

    def fit_work(self, sizes: Sizes, n_threads: int) -> float:
        from extremax.noise.tree_fit import fit_work

        return fit_work(sizes)

    def stand_in(
        self, features: Any, labels: np.ndarray, n_classes: int, sizes: Sizes
    ) -> TreeNoise:
        from extremax.noise.tree_fit import random_state

        self.load_state(random_state(features.shape[1], n_classes, self.n_components))
        return self
