"""Class labels as tensors: integers and floats as they are, everything else as JSON text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from extremax.errors import ModelFileError
from extremax.labels.index import LabelIndex, object_array, one_dimensional

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
    check_plain(classes.tolist())
    text = json.dumps(classes.tolist(), default=plain_number).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def unpack_labels(dtype: str, tensor: torch.Tensor) -> np.ndarray:
    """The labels that were packed."""
    stored, kind = tensor.numpy(), np.dtype(dtype).kind
    if kind in "iuf":
        return stored.astype(dtype)
    labels = [from_json(v) for v in json.loads(stored.tobytes().decode())]
    return one_dimensional(labels) if kind == "U" else object_array(labels).astype(dtype)


def checked_labels(dtype: str, tensors: Tensors, n_classes: int) -> np.ndarray:
    """Labels from a file, which must be ``n_classes`` different ones."""
    import torch

    kind = np.dtype(dtype).kind
    if kind not in "biufUO":
        raise ModelFileError(f"the saved labels have the unknown type {dtype}")
    size = n_classes if kind in "iuf" else None
    kinds = {"i": torch.int64, "u": torch.int64, "f": torch.float64}
    # Labels are not computed with: any float but NaN is one.
    tensors.array("labels", kinds.get(kind, torch.uint8), size, largest=np.inf)
    labels = unpack_labels(dtype, tensors.tensors["labels"])
    if len(labels) != n_classes or len(LabelIndex.of(labels)) != n_classes:
        raise ModelFileError(f"the saved labels are not {n_classes} different ones")
    return labels


def check_plain(labels: Iterable[Any]) -> None:
    """Refuse labels that JSON cannot hold."""
    for label in labels:
        if not _is_plain(label):
            raise ModelFileError(
                f"labels of type {type(label).__name__} cannot be saved without pickle; "
                "train on strings, numbers, or tuples of them"
            )


def from_json(value: Any) -> Any:
    """A label that JSON held, which has lists for tuples."""
    return tuple(from_json(v) for v in value) if isinstance(value, list) else value


def plain_number(value: Any) -> Any:
    """numpy's numbers for JSON, as Python's."""
    if isinstance(value, _NUMBERS):
        return float(value) if isinstance(value, np.floating) else value.item()
    raise TypeError(f"{type(value).__name__} {value!r} cannot be written as JSON")


def _is_plain(label: Any) -> bool:
    if isinstance(label, tuple):
        return all(_is_plain(v) for v in label)
    return label is None or isinstance(label, (str, bool, int, float, *_NUMBERS))
