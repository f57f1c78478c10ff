"""Class labels as tensors: integers and floats as they are, everything else as JSON text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from extremax.errors import ModelFileError
from extremax.labels.index import object_array

if TYPE_CHECKING:
    import torch

    from extremax.tensors import Tensors

_NUMBERS = (np.bool_, np.integer, np.floating)


def pack_labels(classes: np.ndarray) -> torch.Tensor:
    """A tensor that `unpack_labels` turns back into the labels."""
    import torch

    if classes.dtype.kind in "iuf":
        wide = classes.astype(np.float64 if classes.dtype.kind == "f" else np.int64)
        return torch.from_numpy(wide)
    for label in classes.tolist():
        if not _is_plain(label):
            raise ModelFileError(
                f"labels of type {type(label).__name__} cannot be saved without pickle; "
                "train on strings, numbers, or tuples of them"
            )
    text = json.dumps(classes.tolist(), default=plain_number).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def unpack_labels(dtype: str, tensor: torch.Tensor) -> np.ndarray:
    """The labels that were packed."""
    stored = tensor.numpy()
    if np.dtype(dtype).kind in "iuf":
        return stored.astype(dtype)
    labels = object_array(_tuples(v) for v in json.loads(stored.tobytes().decode()))
    return labels.astype(dtype)


def check_saved_labels(dtype: str, tensors: Tensors, n_classes: int) -> None:
    """Refuse labels from a file that are not ``n_classes`` different ones."""
    import torch

    kind = np.dtype(dtype).kind
    if kind in "iuf":
        tensors.array("labels", torch.float64 if kind == "f" else torch.int64, n_classes)
    else:
        tensors.array("labels", torch.uint8, None)
    labels = unpack_labels(dtype, tensors.tensors["labels"])
    if len(labels) != n_classes or len(set(labels.tolist())) != n_classes:
        raise ModelFileError(f"the saved labels are not {n_classes} different ones")


def plain_number(value: Any) -> Any:
    """numpy's numbers for JSON, as Python's."""
    if isinstance(value, _NUMBERS):
        return value.item()
    raise TypeError(f"{type(value).__name__} {value!r} cannot be written as JSON")


def _is_plain(label: Any) -> bool:
    if isinstance(label, tuple):
        return all(_is_plain(v) for v in label)
    return label is None or isinstance(label, (str, bool, int, float, *_NUMBERS))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
