"""The sparse tree as tensors: `load_tree` makes the arrays that walks read, `tree_arrays` returns
what it made them of, `check_tree_state` checks those from a file.

The shape of the tree follows from its numbers of classes and is not saved. The other tensors are

    order        the class at each position                             (C,) int64
    bias         of each child of each node                             (children,) float32
    features_of  number of features with weights in each node           (nodes,) int64
    features     those features, rising within a node                   (f,) int32
    counts       number of children that each feature has weights for   (f,) int16
    weights      those weights with the numbers of their children       (w,) int32
                 (`extremax.kernels.cpu.sparse_table.packed`)
    parts        classes of the fit, and of a tree of late classes      (3,) int64
                 grafted on since, and its examples; only where there
                 is one (`grafted`)
"""

from __future__ import annotations

import numpy as np
import torch

from extremax.errors import ArgumentError
from extremax.kernels.cpu.sparse_table import CHILD, hashed, pairs
from extremax.kernels.cpu.sparse_tree import SparseTree
from extremax.noise.sparse_tree_shape import Shape, grafted_shape, tree_shape
from extremax.tensors import Tensors

# What has an entry per child, per node, per feature of a node, and per weight.
_NODE_ARRAYS = ("bias", "features_of", "features", "counts", "weights")


def shape_of(order: np.ndarray, parts: np.ndarray | None) -> Shape:
    return tree_shape(len(order)) if parts is None else grafted_shape(int(parts[0]), int(parts[1]))


def grafted(
    old: dict[str, np.ndarray], late: dict[str, np.ndarray], gate: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """One tree of three: the gate, a tree of two classes, chooses between the other two."""
    n = len(old["order"])
    if gate["order"][0] == 1:
        gate = gate | {"bias": gate["bias"][::-1], "weights": gate["weights"] ^ 1}
    arrays = {name: np.concatenate([gate[name], old[name], late[name]]) for name in _NODE_ARRAYS}
    return arrays | {"order": np.concatenate([old["order"], n + late["order"]])}


def without_graft(arrays: dict[str, np.ndarray], parts: np.ndarray) -> dict[str, np.ndarray]:
    """The first tree of `grafted`."""
    n = int(parts[0])
    shape = tree_shape(n)
    # The gate is the first node.
    node = np.concatenate([[0], np.cumsum(arrays["features_of"])])
    features = slice(node[1], node[1 + len(shape.level)])
    weight = np.concatenate([[0], np.cumsum(arrays["counts"], dtype=np.int64)])
    return {
        "order": arrays["order"][:n],
        "bias": arrays["bias"][2 : 2 + len(shape.position)],
        "features_of": arrays["features_of"][1 : 1 + len(shape.level)],
        "features": arrays["features"][features],
        "counts": arrays["counts"][features],
        "weights": arrays["weights"][weight[features.start] : weight[features.stop]],
    }


def load_tree(arrays: dict[str, np.ndarray]) -> SparseTree:
    """The tree of some of these arrays."""
    order = np.ascontiguousarray(arrays["order"], np.int64)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    shape = shape_of(order, arrays.get("parts"))
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


def tree_arrays(tree: SparseTree) -> dict[str, np.ndarray]:
    """The arrays that `load_tree` made a tree of, but for the parts."""
    node, features, counts = pairs(tree.slots)
    return {
        "order": tree.order,
        "bias": tree.bias,
        "features_of": np.bincount(node, minlength=len(tree.first) - 1),
        "features": features.astype(np.int32),
        "counts": counts.astype(np.int16),
        "weights": tree.packed,
    }


def check_parts(tensors: Tensors) -> np.ndarray | None:
    """The parts of a tree that late classes were grafted on, if they were; `order` is checked."""
    if "parts" not in tensors.tensors:
        return None
    n = len(tensors.tensors["order"])
    parts = tensors.indices("parts", 2**53, 3, low=1)
    if parts[:2].sum() != n:
        raise ArgumentError(f"parts are of {parts[:2].sum()} classes, not of {n}")
    if (tensors.tensors["order"].numpy()[: parts[0]] >= parts[0]).any():
        raise ArgumentError("order mixes the classes of the parts")
    return parts


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
