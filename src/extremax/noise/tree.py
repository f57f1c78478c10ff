"""The adversarial noise: a probabilistic decision tree fitted to the data.

Bamler & Mandt, "Extreme classification via adversarial softmax approximation", ICLR 2020,
section 3. Every inner node ν decides p(right | x) = σ(w_ν·z + b_ν), z a whitened PCA of x;

    log q(y|x) = Σ over the path from the root to y of log σ(±(w_ν·z + b_ν)).

A draw and a log-probability cost O(k log C). What the tree looks like in memory is told in
`extremax.kernels.cpu.tree`, how a node is fitted in `extremax.kernels.cpu.tree_fit`.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from extremax.checks import check_rows, is_number
from extremax.features.pca import WhitenedPCA
from extremax.noise.base import Draw, Noise, check_growth, check_labels
from extremax.noise.late import Late
from extremax.random import Stream

# λ_w tried by "auto", hard to soft: each fit starts from the one before.
_PENALTIES = (1024.0, 256.0, 64.0, 16.0, 4.0, 1.0, 0.25)
# A node's θ is fitted on at most this many of its examples.
_EXAMPLES_A_NODE = 32_768
# Nodes of a level on which "auto" compares penalties.
_TRIAL_NODES = 400
_SHARPNESSES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15)


class TreeNoise(Noise):
    """Noise that imitates the data, so that negatives are hard.

    n_components:  k, the dimensions of z; more make a better tree and slower draws.
    lambda_:       λ_w, the quadratic penalty on a node's weights. "auto" picks one for each
                   level of the tree by held-out likelihood.
    lambda_bias:   λ_b, apart from λ_w: a node's bias holds how frequent its halves are, which a
                   few examples tell well, while its k weights are quickly overfitted.
    rounds:        at most so many alternations of Newton ascent and split a node.
    sharpness:     s in p(right | x) = σ(s (w_ν·z + b_ν)). At 1 the noise is as likely as the fit
                   made it; below, softer: a linear head must undo what log q gets wrong, and
                   there is less of that in a softer q, whose draws are still near misses.
                   "auto" is 1 until training chooses (`extremax.training.start`).

    Classes that appear after the fit (`extend`) hang beside the tree: together they get the
    share of probability that their number has among all classes, evenly.
    """

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

    def fit(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        n_classes: int,
        rows: np.ndarray | None = None,
    ) -> TreeNoise:
        labels = check_labels(labels, n_classes)
        check_rows(features, labels)
        self._check_parameters()
        self.pca_ = WhitenedPCA(self.n_components).fit(features)
        rows = np.arange(len(labels)) if rows is None else rows
        by_class = rows[np.argsort(labels[rows], kind="stable")]
        z = self.context(features).numpy()[by_class]
        offsets = np.zeros(n_classes + 1, np.int64)
        np.cumsum(np.bincount(labels[rows], minlength=n_classes), out=offsets[1:])
        nodes, order = self._fit_levels(z, offsets)
        self._set(torch.from_numpy(nodes), torch.from_numpy(order), n_classes)
        self.temper(1.0 if self.sharpness == "auto" else float(self.sharpness))
        return self

    def sharpnesses(self) -> tuple[float, ...]:
        return _SHARPNESSES if self.sharpness == "auto" else ()

    def temper(self, sharpness: float) -> None:
        if not (isinstance(sharpness, (int, float)) and 0 < sharpness <= 1):
            raise ValueError(f"sharpness must be in (0, 1], got {sharpness!r}")
        self.sharpness_ = sharpness
        # The old ones go before the new ones come.
        self.__dict__.pop("_soft", None)
        self._soft = self.nodes_ * sharpness

    def _check_parameters(self) -> None:
        for name, least in (("n_components", 1), ("rounds", 0)):
            value = getattr(self, name)
            if not (is_number(value, integer=True) and value >= least):
                raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")
        if self.lambda_ != "auto" and not (is_number(self.lambda_) and self.lambda_ > 0):
            raise ValueError(f"lambda_ must be a number > 0 or 'auto', got {self.lambda_!r}")
        if not (is_number(self.lambda_bias) and self.lambda_bias > 0):
            raise ValueError(f"lambda_bias must be a number > 0, got {self.lambda_bias!r}")
        if self.sharpness != "auto" and not (is_number(self.sharpness) and 0 < self.sharpness <= 1):
            raise ValueError(f"sharpness must be in (0, 1] or 'auto', got {self.sharpness!r}")

    def _fit_levels(self, z: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Level by level from the root, all nodes of a level in parallel."""
        from extremax.kernels.cpu import tree_fit
        from extremax.kernels.cpu.threads import parallel
        from extremax.kernels.cpu.tree import all_splits

        n_classes, k = len(offsets) - 1, z.shape[1]
        counts = np.diff(offsets)
        sums = np.zeros((n_classes, k))
        filled = np.flatnonzero(counts)
        if len(filled):
            sums[filled] = np.add.reduceat(z, offsets[filled], axis=0, dtype=np.float64)
        nodes = np.zeros((n_classes, k + 1), np.float32)
        order = np.arange(n_classes)
        auto = self.lambda_ == "auto"
        strength = 16.0 if auto else float(self.lambda_)
        splits, depth = all_splits(n_classes)
        self.penalties_ = []
        for level in range(int(depth[-1]) + 1 if len(depth) else 0):
            level_splits = splits[depth == level]
            n, chunk = len(level_splits), max(1, min(256, len(level_splits) // 8))
            common = (level_splits, order, offsets, z)
            penalties = np.array([strength, self.lambda_bias])
            parallel(
                tree_fit.split_nodes, n, chunk,
                *common, sums, penalties, _EXAMPLES_A_NODE, self.rounds, nodes,
            )  # fmt: skip
            if auto:
                best = self._best_penalty(common, nodes, strength)
                if best != strength:
                    strength = best
                    penalties = np.array([strength, self.lambda_bias])
                    parallel(
                        tree_fit.refit_nodes, n, chunk, *common, penalties, _EXAMPLES_A_NODE, nodes
                    )
            self.penalties_.append(strength)
        return nodes, order

    def _best_penalty(self, common: tuple, nodes: np.ndarray, strength: float) -> float:
        """From ``strength`` to the best of its neighbours, and on while the next is better."""
        first = max(_PENALTIES.index(strength) - 1, 0)
        gains = dict(enumerate(self._held_out(common, nodes, _PENALTIES[first : first + 3]), first))
        while True:
            best = max(gains, key=gains.__getitem__)
            beyond = [i for i in (best - 1, best + 1) if 0 <= i < len(_PENALTIES)]
            unknown = [i for i in beyond if i not in gains]
            if not unknown:
                return _PENALTIES[best]
            for i in unknown:
                gains[i] = self._held_out(common, nodes, _PENALTIES[i : i + 1])[0]

    def _held_out(
        self, common: tuple, nodes: np.ndarray, strengths: tuple[float, ...]
    ) -> list[float]:
        """Held-out log-likelihood of some nodes of a level under each λ_w."""
        from extremax.kernels.cpu import tree_fit
        from extremax.kernels.cpu.threads import parallel

        level_splits, *rest = common
        trial = level_splits[:: -(-len(level_splits) // _TRIAL_NODES)]
        penalties = np.array([[strength, self.lambda_bias] for strength in strengths])
        gains = np.zeros((len(trial), len(penalties) + 1))
        parallel(
            tree_fit.held_out_gain, len(trial), max(1, len(trial) // 16),
            trial, *rest, penalties, _EXAMPLES_A_NODE // 4, nodes, gains,
        )  # fmt: skip
        return gains[:, :-1].sum(0).tolist()

    def _set(self, nodes: torch.Tensor, order: torch.Tensor, n_classes: int) -> None:
        from extremax.kernels.cpu.tree import all_splits

        self.nodes_, self.order_ = nodes, order
        self.n_tree_classes_, self.n_classes_ = len(order), n_classes
        self.position_ = torch.empty_like(order)
        self.position_[order] = torch.arange(len(order))
        self._splits = np.ascontiguousarray(all_splits(len(order))[0][:, :2])

    @property
    def n_late_(self) -> int:
        """Classes that came after the fit."""
        return self.n_classes_ - self.n_tree_classes_

    @property
    def log_tree_(self) -> float:
        """log of the share of probability that the tree's own classes have."""
        return self._late.log_share

    @property
    def _late(self) -> Late:
        return Late(self.n_tree_classes_, self.n_classes_)

    def context(self, features: np.ndarray) -> torch.Tensor:
        return self.pca_.transform(features)

    def sample(self, context: torch.Tensor, m: int, stream: Stream) -> Draw:
        from extremax.kernels.cpu import tree
        from extremax.kernels.cpu.threads import parallel

        labels = torch.empty((len(context), m), dtype=torch.int64)
        log_q = torch.empty((len(context), m))
        parallel(
            tree.sample, len(context), 512, self._soft.numpy(), self.order_.numpy(),
            context.numpy(), stream.key, stream.rows, labels.numpy(), log_q.numpy(),
        )  # fmt: skip
        return self._late.draws(Draw(labels, log_q), stream)

    def log_prob(self, context: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from extremax.kernels.cpu import tree
        from extremax.kernels.cpu.threads import parallel

        out = torch.empty(labels.shape)
        inside = self._late.inside(labels)
        parallel(
            tree.log_prob, len(context), 512, self._soft.numpy(), self.position_.numpy(),
            context.numpy(), inside.numpy(), out.numpy(),
        )  # fmt: skip
        return self._late.log_prob(out, labels)

    def log_prob_all(self, context: torch.Tensor) -> torch.Tensor:
        from extremax.kernels.cpu import tree
        from extremax.kernels.cpu.threads import parallel

        activations = torch.addmm(self._soft[:, -1], context, self._soft[:, :-1].T)
        log_right = torch.nn.functional.logsigmoid(activations)
        out = torch.full((len(context), self.n_classes_), -math.log(self.n_classes_))
        parallel(
            tree.spread, len(context), 1, self.order_.numpy(), self._splits,
            activations.numpy(), log_right.numpy(), out.numpy(),
        )  # fmt: skip
        if self.n_late_:
            out[:, : self.n_tree_classes_] += self.log_tree_
        return out

    def extend(self, n_classes: int) -> None:
        check_growth(self, n_classes)
        self.n_classes_ = n_classes

    def state(self) -> dict[str, torch.Tensor]:
        return {
            "nodes": self.nodes_,
            "order": self.order_,
            "n_classes": torch.tensor(self.n_classes_),
            "penalties": torch.tensor(self.penalties_, dtype=torch.float64),
            "sharpness": torch.tensor(self.sharpness_, dtype=torch.float64),
            "pca_mean": self.pca_.mean_,
            "pca_projection": self.pca_.projection_,
        }

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.pca_ = WhitenedPCA(self.n_components)
        self.pca_.mean_, self.pca_.projection_ = state["pca_mean"], state["pca_projection"]
        self.penalties_ = state["penalties"].tolist()
        self._set(state["nodes"], state["order"], int(state["n_classes"]))
        self.temper(float(state["sharpness"]))
