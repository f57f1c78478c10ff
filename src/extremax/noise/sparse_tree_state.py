"""The sparse tree as tensors: `load_tree` makes the arrays that walks read, `tree_state` returns
the tensors, `check_tree_state` checks those from a file.

The shape of the tree follows from its number of classes and is not saved. The other tensors are

    order        the class at each position                             (C,) int64
    bias         of each child of each node                             (children,) float32
    features_of  number of features with weights in each node           (nodes,) int64
    features     those features, rising within a node                   (f,) int32
    counts       number of children that each feature has weights for   (f,) int16
    weights      those weights with the numbers of their children       (w,) int32
                 (`extremax.kernels.cpu.sparse_table.packed`)
"""

from __future__ import annotations

import numpy as np
import torch

from extremax.errors import ArgumentError
from extremax.kernels.cpu.sparse_table import CHILD, hashed, pairs
from extremax.kernels.cpu.sparse_tree import SparseTree
from extremax.noise.sparse_tree_shape import Shape, tree_shape
from extremax.tensors import Tensors


def load_tree(arrays: dict[str, np.ndarray]) -> SparseTree:
    """The tree of some of these arrays."""
    order = np.ascontiguousarray(arrays["order"], np.int64)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    shape = tree_shape(len(order))
    features_of = arrays["features_of"]
    node = np.repeat(np.arange(len(features_of)), features_of)
    packed = np.ascontiguousarray(arrays["weights"], np.int32)
    return SparseTree(
        first=shape.first,
        position=shape.position,
        node=shape.node,
        bias=np.ascontiguousarray(arrays["bias"], np.float32),
        order=order,
        place=place,
        slots=hashed(node, arrays["features"], arrays["counts"]),
        packed=packed,
        weight=packed.view(np.float32),
    )


def tree_state(tree: SparseTree) -> dict[str, torch.Tensor]:
    node, features, counts = pairs(tree.slots)
    return {
        "order": torch.from_numpy(tree.order),
        "bias": torch.from_numpy(tree.bias),
        "features_of": torch.from_numpy(np.bincount(node, minlength=len(tree.first) - 1)),
        "features": torch.from_numpy(features.astype(np.int32)),
        "counts": torch.from_numpy(counts.astype(np.int16)),
        "weights": torch.from_numpy(tree.packed),
    }


def check_tree_state(tensors: Tensors, shape: Shape, n_features: int) -> None:
    """Raise ArgumentError unless these tensors make a tree of this shape on so many features."""
    n_children = np.diff(shape.first)
    tensors.array("bias", torch.float32, len(shape.position))
    features = tensors.indices("features", n_features, None, dtype=torch.int32)
    features_of = tensors.indices("features_of", n_features + 1, len(n_children))
    if features_of.sum() != len(features):
        raise ArgumentError(f"features_of sum to {features_of.sum()}, not {len(features)} features")
    node = np.repeat(np.arange(len(n_children)), features_of)
    if not np.all((np.diff(features) > 0) | (np.diff(node) > 0)):
        raise ArgumentError("features must rise within a node")
    counts = tensors.indices("counts", CHILD + 2, len(features), low=1, dtype=torch.int16)
    weights = tensors.array("weights", torch.int32, None)
    if counts.sum(dtype=np.int64) != len(weights):
        raise ArgumentError(
            f"counts sum to {counts.sum(dtype=np.int64)}, not {len(weights)} weights"
        )
    if not np.all((weights & CHILD) < np.repeat(n_children[node], counts)):
        raise ArgumentError("weights name a child that their node does not have")
    if not np.all(np.isfinite(weights.view(np.float32))):
        raise ArgumentError("weights have NaN or infinity")
