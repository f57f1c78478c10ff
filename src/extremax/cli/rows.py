"""Blocks of a file as a model wants them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.cli.options import Input
from extremax.errors import DataError

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.data import Dataset

# Enough rows for threads to share, few enough that results appear as they come.
ROWS = 4096


def load(folder: Path, threads: int | None) -> ExtremeClassifier:
    """A model; the number of threads it was trained with says nothing about this machine."""
    from extremax import ExtremeClassifier

    model = ExtremeClassifier.load(folder)
    model.n_jobs = threads
    return model


def blocks(
    model: ExtremeClassifier, source: Input, *, unlabelled: bool = False
) -> Iterator[tuple[Any, Dataset]]:
    """(features as wide as the model's, the block they come from), which may be empty."""
    done = 0
    for block in source.blocks(ROWS, unlabelled=unlabelled):
        yield _fitting(model, source.path, block, done), block
        done += len(block) + block.n_dropped


def _fitting(model: ExtremeClassifier, path: Path, block: Dataset, done: int) -> Any:
    trained_on = model.encoder_.kind_
    if (block.kind == "text") != (trained_on == "text"):
        wanted = "texts" if trained_on == "text" else f"{trained_on} rows of numbers"
        found = "texts" if block.kind == "text" else f"{block.kind} rows of numbers"
        raise DataError(f"this file has {found}, the model was trained on {wanted}", path)
    if block.kind == "text":
        return block.features
    width = model.n_features_in_
    if block.kind == "dense":
        if block.features.shape[1] != width:
            found = f"{block.features.shape[1]:,} features"
            raise DataError(f"rows of {found}, the model was trained on {width:,}", path)
        return block.features
    return _resized(block.features, width, path, done)


def _resized(features: Any, width: int, path: Path, done: int) -> Any:
    """Sparse rows state no more columns than they use: what is missing is zero."""
    from scipy import sparse

    beyond = (features.indices >= width).nonzero()[0]
    if len(beyond):
        row = int(features.indptr.searchsorted(beyond[0], side="right"))
        raise DataError(
            f"row {done + row:,} has a value for feature {int(features.indices[beyond[0]]) + 1:,} "
            f"(counted from 1), the model was trained on {width:,}",
            path,
        )
    parts = (features.data, features.indices, features.indptr)
    return sparse.csr_matrix(parts, shape=(features.shape[0], width), copy=False)
