"""What the package has read, beside what it should have read."""

from __future__ import annotations

from typing import Any

import numpy as np

from extremax.data import Dataset
from extremax.labels import LabelLists
from tests.campaign.reference import Reading, Row


def reading_of(blocks: list[Dataset], arguments: dict[str, Any]) -> Reading:
    """What the package has read, in the form of a reading; empty if there are no blocks."""
    rows: list[Row] = []
    for block in blocks:
        features = block.features
        if block.kind == "sparse":
            if features.dtype != np.float32 or not features.has_canonical_format:
                raise AssertionError(f"not canonical float32: {features!r}")
            features.check_format(full_check=True)
            ends = zip(features.indptr, features.indptr[1:], strict=False)
            parts = [slice(start, end) for start, end in ends]
            features = [
                dict(zip(features.indices[p].tolist(), features.data[p], strict=True))
                for p in parts
            ]
        if block.kind == "sequences":
            features = features.tolist()
        if isinstance(block.labels, LabelLists):
            labels = block.labels.tolist()
        elif block.labels is None:
            labels = [[]] * len(block)
        else:
            labels = [[label] for label in block.labels.tolist()]
        if isinstance(block.labels, LabelLists) != (
            arguments["keep_labels"] == "all" and not arguments["unlabeled"]
        ):
            raise AssertionError(f"labels are {type(block.labels)}")
        rows += [Row(*row) for row in zip(labels, features, strict=True)]
    width = blocks[-1].table.n_features if blocks else None
    return Reading(blocks[-1].kind if blocks else "", rows, width)


def difference(found: Reading, expected: Reading) -> str:
    """The first difference between two readings, or ""."""
    if len(found.rows) != len(expected.rows):
        return f"{len(found.rows)} rows, expected {len(expected.rows)}"
    if found.rows and (found.kind, found.width) != (expected.kind, expected.width):
        return f"{found.kind} {found.width}, expected {expected.kind} {expected.width}"
    for number, (row, other) in enumerate(zip(found.rows, expected.rows, strict=True)):
        if row.labels != other.labels or list(map(type, row.labels)) != list(
            map(type, other.labels)
        ):
            return f"labels of row {number}: {row.labels!r:.200}, expected {other.labels!r:.200}"
        if not _equal(row.features, other.features):
            return (
                f"features of row {number}: {row.features!r:.300}, expected {other.features!r:.300}"
            )
    return ""


def _equal(features: Any, other: Any) -> bool:
    """Whether two rows are equal, numbers up to one rounding to float32."""
    if isinstance(features, (str, list)):
        return bool(features == other)
    if isinstance(features, dict):
        keys = sorted(features.keys() | other.keys())
        features = np.array([features.get(key, 0) for key in keys], np.float32)
        other = np.array([other.get(key, 0) for key in keys], np.float32)
    if features.shape != other.shape:
        return False
    return bool(np.isclose(features, other, rtol=3e-7, atol=2e-45, equal_nan=True).all())


def scan_difference(found: Any, expected: Reading) -> str:
    if found.kind == expected.kind == "sequences":
        # Items of sessions with a single one are classes, too, and in no row.
        classes = found.features if found.classes is not None else None
        same = found.rows == len(expected.rows) and found.classes == classes
        return "" if same else f"{found}, expected {len(expected.rows)} rows"
    classes = len({label for row in expected.rows for label in row.labels})
    sizes = found.rows, found.features, found.kind
    others = len(expected.rows), expected.width, expected.kind
    if sizes != others or found.classes not in (None, classes):
        return f"{found}, expected {others} and {classes} classes"
    return ""
