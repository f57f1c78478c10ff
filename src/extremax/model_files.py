"""A model as a folder: ``model.json`` and ``tensors.safetensors``; no pickle inside.

The JSON is written last and names the size and checksum of the tensors, so a folder that was
cut short, mixed up or damaged is refused.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from extremax._version import __version__
from extremax.errors import ModelFileError
from extremax.files import read_tensors, save_tensors, whole
from extremax.labels import object_array

if TYPE_CHECKING:
    import torch

_FORMAT = "extremax model 1"
_NUMBERS = (np.bool_, np.integer, np.floating)


def write_model(
    folder: str | Path, settings: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> None:
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ModelFileError(f"{folder} is a file; a model is saved as a folder")
    # Both files are complete before either takes its place; the tensors go first.
    with whole(folder / "model.json") as aside, whole(folder / "tensors.safetensors") as path:
        save_tensors(path, tensors, {"format": _FORMAT})
        content = {
            "format": _FORMAT,
            "version": __version__,
            "tensors": {"bytes": path.stat().st_size, "crc32": _checksum(path)},
            **settings,
        }
        text = json.dumps(content, indent=1, ensure_ascii=False, default=_number)
        aside.write_text(text, encoding="utf-8")


def read_settings(folder: str | Path) -> dict[str, Any]:
    """model.json, checked to be one."""
    path = Path(folder) / "model.json"
    if not path.exists():
        raise ModelFileError(f"{folder} holds no model: there is no model.json in it")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelFileError(f"{path} is damaged: {error}") from error
    if not isinstance(settings, dict) or settings.get("format") != _FORMAT:
        found = settings.get("format") if isinstance(settings, dict) else None
        raise ModelFileError(f"{path} is not an extremax model ({found!r}, expected {_FORMAT!r})")
    return settings


def read_model(folder: str | Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    settings = read_settings(folder)
    path = Path(folder) / "tensors.safetensors"
    if not path.exists():
        raise ModelFileError(f"{path} is missing; copy the whole folder")
    expected = settings.get("tensors")
    if not isinstance(expected, dict) or {"bytes", "crc32"} - expected.keys():
        raise ModelFileError(f"{folder}/model.json does not name the size of its tensors")
    size = path.stat().st_size
    if size != expected["bytes"]:
        raise ModelFileError(
            f"{path} has {size:,} bytes, expected {expected['bytes']:,}: truncated or of another "
            "model; copy the folder again"
        )
    if _checksum(path) != expected["crc32"]:
        raise ModelFileError(f"{path} is damaged (checksum differs); copy the folder again")
    return settings, read_tensors(path)[0]


def _checksum(path: Path) -> int:
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return crc


def pack_labels(classes: np.ndarray) -> tuple[str, dict[str, torch.Tensor]]:
    """Class labels as tensors: integers and floats as they are, the rest as JSON text."""
    import torch

    if classes.dtype.kind in "iuf":
        wide = classes.astype(np.float64 if classes.dtype.kind == "f" else np.int64)
        return classes.dtype.str, {"labels": torch.from_numpy(wide)}
    for label in classes.tolist():
        if not _plain(label):
            raise ModelFileError(
                f"labels of type {type(label).__name__} cannot be saved without pickle; "
                "train on strings, numbers, or tuples of them"
            )
    text = json.dumps(classes.tolist(), default=_number).encode()
    return classes.dtype.str, {"labels": torch.frombuffer(bytearray(text), dtype=torch.uint8)}


def unpack_labels(dtype: str, tensors: dict[str, torch.Tensor]) -> np.ndarray:
    stored = tensors["labels"].numpy()
    if np.dtype(dtype).kind in "iuf":
        return stored.astype(dtype)
    labels = object_array(_untupled(v) for v in json.loads(stored.tobytes().decode()))
    return labels.astype(dtype)


def _plain(label: Any) -> bool:
    if isinstance(label, tuple):
        return all(_plain(v) for v in label)
    return label is None or isinstance(label, (str, bool, int, float, *_NUMBERS))


def _number(value: Any) -> Any:
    """numpy's numbers for JSON, as Python's."""
    if isinstance(value, _NUMBERS):
        return value.item()
    raise TypeError(f"{type(value).__name__} {value!r} cannot be written as JSON")


def _untupled(value: Any) -> Any:
    return tuple(_untupled(v) for v in value) if isinstance(value, list) else value
