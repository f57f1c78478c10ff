"""Rows of features, dense or sparse, and sequences of items, behind one contract."""

from __future__ import annotations

from typing import Any

from scipy.sparse import issparse

from extremax.rows.base import Needs, Rows, Sizes
from extremax.rows.dense import DenseRows, row_blocks
from extremax.rows.sequences import SequenceRows
from extremax.rows.sparse import SparseRows

__all__ = [
    "DenseRows",
    "Needs",
    "Rows",
    "SequenceRows",
    "Sizes",
    "SparseRows",
    "as_rows",
    "row_blocks",
]


def as_rows(features: Any) -> Rows:
    """Rows from an array, a tensor or a scipy matrix, checked; rows pass as they are.

    Unlike `Rows.read`, this accepts no rows at all.
    """
    if isinstance(features, Rows):
        return features
    kind: type[Rows] = SparseRows if issparse(features) else DenseRows
    return kind.read(features, min_rows=0)
