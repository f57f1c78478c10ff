"""Columns of sparse rows that outweigh the others.

Sparse rows are compared by length and angle: similar rows vote by their cosine, the tree sorts
classes by the sums of their rows, and one learning rate serves all columns. A category beside
TF-IDF as a column of ones, or a price, then says more than all words together.
"""

from __future__ import annotations

import warnings

import numpy as np

from extremax.rows import SparseRows

# A column is loud if it is in this share of the rows, and its values are so many times as large as
# the usual one. In TF-IDF frequent columns have small values.
_FREQUENT, _TIMES = 0.01, 1.5
# Loud columns matter if they have this share of the squared length of all rows, and are few: this
# share of the columns at most.
_SHARE, _FEW = 0.2, 0.05
# Values that say what the usual one is.
_MOST = 1 << 20


def warn_of_loud_columns(rows: SparseRows) -> None:
    """Warn if a few columns have most of the length of the rows because of their scale."""
    n_rows, values = len(rows), np.abs(rows.values)
    if not len(values):
        return
    counts = np.bincount(rows.indices, minlength=rows.n_features)
    squares = np.bincount(rows.indices, np.square(values, dtype=np.float64), rows.n_features)
    size = np.sqrt(squares / np.maximum(counts, 1))
    some = slice(None, None, max(1, len(values) // _MOST))
    # Loud columns may have most of the values, but they are few.
    usual = min(np.median(values[some]), np.median(size[counts > 0]))
    is_loud = (counts >= _FREQUENT * n_rows) & (size > _TIMES * usual)
    loud, others = np.flatnonzero(is_loud), values[some][~is_loud[rows.indices[some]]]
    share = squares[loud].sum() / max(squares.sum(), 1e-300)
    if share < _SHARE or len(loud) > _FEW * rows.n_features:
        return
    first, usual = loud[squares[loud].argmax()], np.median(others)
    warnings.warn(
        f"{len(loud):,} of the {rows.n_features:,} columns of X have {share:.0%} of the squared "
        f"length of its rows: values of column {first} are about {size[first]:.2g}, others about "
        f"{usual:.2g}. Scale such columns to about {usual / 2:.1g}, or others will hardly count; "
        "transformer_weights of sklearn.compose.ColumnTransformer is a way",
        stacklevel=6,  # what called `ExtremeClassifier.fit`
    )
