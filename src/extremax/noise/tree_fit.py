"""How the noise tree is fitted: level by level from the root, with a penalty for each level. And,
for planning, the work of the fit and a random tree to time."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from extremax.errors import DivergedError
from extremax.kernels.cpu import tree_fit as kernel
from extremax.kernels.cpu.threads import parallel
from extremax.kernels.cpu.tree import all_splits
from extremax.rows import Sizes

# λ_w tried by "auto", strong to weak: each fit starts from the one before.
_PENALTIES = (1024.0, 256.0, 64.0, 16.0, 4.0, 1.0, 0.25)
_FIRST_PENALTY = 16.0
#: θ of a node is fitted to at most this many of its examples.
EXAMPLES_PER_NODE = 32_768
#: Nodes of a level on which "auto" compares penalties, and examples of each.
TRIAL_NODES, TRIAL_EXAMPLES = 400, EXAMPLES_PER_NODE // 4


class FittedTree(NamedTuple):
    """Nodes and order of classes, as in `extremax.kernels.cpu.tree`, and λ_w of each level."""

    nodes: np.ndarray
    order: np.ndarray
    penalties: list[float]


def fit_tree(
    z: np.ndarray, offsets: np.ndarray, lambda_: float | str, lambda_bias: float, rounds: int
) -> FittedTree:
    """Fit a tree to examples sorted by class, those of class c being z[offsets[c]:offsets[c + 1]].

    All nodes of a level are fitted in parallel. The other parameters are those of `TreeNoise`.
    Raises DivergedError rather than return a node that is not finite.
    """
    n_classes, k = len(offsets) - 1, z.shape[1]
    sums = np.zeros((n_classes, k))
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        sums[filled] = np.add.reduceat(z, offsets[filled], axis=0, dtype=np.float64)
    examples = kernel.SortedExamples(z, offsets, sums, EXAMPLES_PER_NODE)
    nodes, order = np.zeros((n_classes, k + 1), np.float32), np.arange(n_classes)
    strength = _FIRST_PENALTY if lambda_ == "auto" else float(lambda_)
    all_nodes, depth = all_splits(n_classes)
    strengths = []
    for number in range(int(depth[-1]) + 1 if len(depth) else 0):
        splits = all_nodes[depth == number]
        level = _Level(splits, order, examples, lambda_bias, nodes)
        n, chunk = len(splits), max(1, min(256, len(splits) // 8))
        parallel(
            kernel.split_nodes, n, chunk,
            splits, order, examples, level.penalties(strength), rounds, nodes,
        )  # fmt: skip
        if lambda_ == "auto" and (best := level.best_strength(strength)) != strength:
            strength = best
            parallel(
                kernel.refit_nodes, n, chunk,
                splits, order, examples, level.penalties(strength), nodes,
            )  # fmt: skip
        strengths.append(strength)
    n_bad = int((~np.isfinite(nodes)).any(1).sum())
    if n_bad:
        raise DivergedError(
            f"{n_bad} of the {n_classes} nodes of the noise tree are not finite under "
            f"lambda_={lambda_!r} and lambda_bias={lambda_bias!r}. Check the features for NaN and "
            "for very large values, or pass a larger lambda_"
        )
    return FittedTree(nodes, order, strengths)


class _Level(NamedTuple):
    """The nodes of one level, on which penalties are compared."""

    splits: np.ndarray
    order: np.ndarray
    examples: kernel.SortedExamples
    lambda_bias: float
    nodes: np.ndarray

    def penalties(self, strength: float) -> np.ndarray:
        return np.array([strength, self.lambda_bias])

    def best_strength(self, strength: float) -> float:
        """The λ_w of highest held-out likelihood, searched from one and its two neighbors."""
        first = max(_PENALTIES.index(strength) - 1, 0)
        likelihoods = dict(enumerate(self._held_out(_PENALTIES[first : first + 3]), first))
        while True:
            best = max(likelihoods, key=likelihoods.__getitem__)
            neighbors = [i for i in (best - 1, best + 1) if 0 <= i < len(_PENALTIES)]
            untried = [i for i in neighbors if i not in likelihoods]
            if not untried:
                return _PENALTIES[best]
            for i in untried:
                likelihoods[i] = self._held_out(_PENALTIES[i : i + 1])[0]

    def _held_out(self, strengths: tuple[float, ...]) -> list[float]:
        """Held-out log-likelihood of some nodes under each λ_w."""
        trial = self.splits[:: -(-len(self.splits) // TRIAL_NODES)]
        penalties = np.array([self.penalties(strength) for strength in strengths])
        likelihoods = np.zeros((len(trial), len(penalties) + 1))
        examples = self.examples._replace(cap=TRIAL_EXAMPLES)
        parallel(
            kernel.held_out_likelihood, len(trial), max(1, len(trial) // 16),
            trial, self.order, examples, penalties, self.nodes, likelihoods,
        )  # fmt: skip
        return likelihoods[:, :-1].sum(0).tolist()


# Planning ---------------------------------------------------------------------------------------


def fit_work(sizes: Sizes) -> float:
    """Examples visited on all levels.

    To split the nodes of a level, each of its examples is visited, at most EXAMPLES_PER_NODE per
    node; to choose the penalty, at most TRIAL_EXAMPLES per node are visited again in TRIAL_NODES.
    """
    total = 0.0
    for level in range(max(1, math.ceil(math.log2(sizes.classes)))):
        nodes = 2.0**level
        tried = min(nodes, float(TRIAL_NODES))
        total += min(sizes.rows, EXAMPLES_PER_NODE * nodes)
        total += 1.5 * min(sizes.rows * tried / nodes, TRIAL_EXAMPLES * tried)
    return total


def random_state(n_features: int, n_classes: int, n_components: int) -> dict[str, torch.Tensor]:
    """The state of a tree with random nodes, in which walks take as long as in a fitted one."""
    random, k = np.random.default_rng(0), min(n_components, n_features)
    nodes = random.standard_normal((n_classes, k + 1), dtype=np.float32) / k
    projection = random.standard_normal((n_features, k), dtype=np.float32) / n_features**0.5
    return {
        "nodes": torch.from_numpy(nodes),
        "order": torch.from_numpy(random.permutation(n_classes)),
        "n_classes": torch.tensor(n_classes),
        "penalties": torch.ones(math.ceil(math.log2(n_classes)), dtype=torch.float64),
        "sharpness": torch.tensor(0.5, dtype=torch.float64),
        "pca_mean": torch.zeros(n_features),
        "pca_projection": torch.from_numpy(projection).float(),
    }
