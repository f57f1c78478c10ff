"""What a noise tree costs, for planning: memory, work of the fit, and a random tree to time."""

from __future__ import annotations

import math

import numpy as np
import torch

from extremax.noise.tree_fit import EXAMPLES_PER_NODE, TRIAL_EXAMPLES, TRIAL_NODES
from extremax.rows import Needs, Sizes


def needs(sizes: Sizes, n_components: int) -> Needs:
    k = min(n_components, sizes.features)
    nodes = 4.0 * sizes.classes * (k + 1)
    # The order of the classes and its inverse, the splits.
    saved = nodes + 32.0 * sizes.classes
    # The projected rows a second time, sorted by class; the sums of the classes; all splits.
    passing = sizes.rows * (4.0 * k + 24.0) + sizes.classes * (8.0 * k + 56.0)
    # Nodes are kept a second time, times their sharpness.
    return Needs(kept=saved + nodes, passing=passing, saved=saved)


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
