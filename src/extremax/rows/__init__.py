"""Rows of features, dense or sparse, behind one contract."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import issparse

from extremax.rows.base import Needs, Rows, Sizes
from extremax.rows.dense import DenseRows, row_blocks
from extremax.rows.sparse import SparseRows

__all__ = ["DenseRows", "Needs", "Rows", "Sizes", "SparseRows", "as_rows", "row_blocks"]


def as_rows(features: Any) -> Rows:
    """Rows from an array or a scipy matrix; rows pass as they are."""
    if isinstance(features, Rows):
        return features
    return SparseRows.of(features) if issparse(features) else DenseRows(np.asanyarray(features))
