"""Whatever the user brings, to the dense or sparse rows that head and noise work on."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator

from extremax.features.rows import Rows, SparseRows
from extremax.features.svd import SparseSVD
from extremax.features.text import HashedText, is_text

_PROJECT_ROWS = 65_536


class Encoder(BaseEstimator):
    """Dense arrays and memmaps pass as they are, never copied; so do sparse rows, unless they are
    to be projected by a truncated SVD; texts are hashed to sparse rows first.

    n_components:  dimensions sparse rows are projected to; None leaves them sparse.
    analyzer, ngrams, buckets:  for texts, see `HashedText`.
    """

    def __init__(
        self,
        n_components: int | None = None,
        analyzer: str = "word",
        ngrams: tuple[int, int] = (1, 1),
        buckets: int = 2**18,
    ) -> None:
        self.n_components = n_components
        self.analyzer = analyzer
        self.ngrams = ngrams
        self.buckets = buckets

    def leaves_sparse(self, X: Any) -> bool:
        """Whether these rows are and stay sparse."""
        return self.n_components is None and (sparse.issparse(X) or is_text(X))

    def fit_transform(self, X: Any, *, seed: int = 0, budget: int = 2**30) -> Rows:
        self.text_: HashedText | None = None
        self.svd_: SparseSVD | None = None
        self.sparse_ = False
        if is_text(X):
            self.text_ = HashedText(self.analyzer, self.ngrams, self.buckets)
            X = self.text_.fit_transform(X)
        if sparse.issparse(X):
            rows = _sparse_rows(X)
            self.n_features_in_ = rows.shape[1]
            if self.n_components is None:
                self.sparse_ = True
                return SparseRows.of(rows)
            self.svd_ = SparseSVD(self.n_components).fit(rows, seed=seed)
            return self._project(rows, budget)
        dense = _dense_rows(X)
        self.n_features_in_ = dense.shape[1]
        return dense

    def transform(self, X: Any) -> Rows:
        if is_text(X):
            if self.text_ is None:
                raise ValueError("this model was not trained on texts; pass arrays")
            X = self.text_.transform(X)
        elif self.text_ is not None:
            raise ValueError("this model was trained on texts; pass a sequence of strings")
        if sparse.issparse(X):
            rows = _sparse_rows(X)
            self._check_width(rows.shape[1])
            if self.sparse_:
                return SparseRows.of(rows)
            if self.svd_ is None:
                return _dense_rows(rows.toarray())
            return self._project(rows, budget=2**62)
        dense = _dense_rows(X)
        self._check_width(dense.shape[1])
        if self.sparse_:
            return SparseRows.of(sparse.csr_matrix(dense, dtype=np.float32))
        if self.svd_ is not None:
            return self._project(sparse.csr_matrix(dense, dtype=np.float32), budget=2**62)
        return dense

    def _check_width(self, width: int) -> None:
        if width != self.n_features_in_:
            raise ValueError(
                f"X has {width} features, but ExtremeClassifier is expecting "
                f"{self.n_features_in_} features as input"
            )

    def _project(self, rows: sparse.csr_matrix, budget: int) -> np.ndarray:
        """In memory where it fits the budget, else in a file that vanishes with the array."""
        assert self.svd_ is not None
        shape = (rows.shape[0], self.svd_.components_.shape[1])
        if 4 * shape[0] * shape[1] <= budget:
            return self.svd_.transform(rows)
        with tempfile.TemporaryFile(prefix="extremax-") as file:
            out = np.memmap(file, np.float32, "w+", shape=shape)
        for start in range(0, shape[0], _PROJECT_ROWS):
            block = rows[start : start + _PROJECT_ROWS]
            out[start : start + _PROJECT_ROWS] = self.svd_.transform(block)
        return out

    @property
    def kind_(self) -> str:
        if self.text_:
            return "text"
        return "sparse" if self.svd_ or self.sparse_ else "dense"

    def state(self) -> dict[str, torch.Tensor]:
        state = {
            "n_features": torch.tensor(self.n_features_in_),
            "sparse": torch.tensor(self.sparse_),
        }
        if self.text_:
            state["idf"], state["buckets_used"] = self.text_.idf_, self.text_.used_
        if self.svd_:
            state["components"] = self.svd_.components_
        return state

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.n_features_in_ = int(state["n_features"])
        self.text_ = self.svd_ = None
        self.sparse_ = bool(state.get("sparse", False))
        if "idf" in state:
            self.text_ = HashedText(self.analyzer, self.ngrams, self.buckets)
            self.text_.idf_, self.text_.used_ = state["idf"], state["buckets_used"]
        if "components" in state:
            self.svd_ = SparseSVD(state["components"].shape[1])
            self.svd_.components_ = state["components"]


def _sparse_rows(X: Any) -> sparse.csr_matrix:
    from sklearn.utils import check_array

    with np.errstate(over="ignore"):
        rows = check_array(X, accept_sparse="csr", dtype=np.float32, ensure_all_finite=False)
    rows = sparse.csr_matrix(rows)
    bad = np.flatnonzero(~np.isfinite(rows.data))
    if len(bad):
        row = int(np.searchsorted(rows.indptr, bad[0], side="right")) - 1
        raise _not_finite(rows.data[bad[0]], row, int(rows.indices[bad[0]]))
    return rows


def _dense_rows(X: Any) -> np.ndarray:
    """A 2-D array of real numbers, uncopied where it is one; what is not finite is refused."""
    from sklearn.utils import check_array

    if isinstance(X, torch.Tensor):
        X = X.detach().cpu()
        X = X.float().numpy() if X.dtype == torch.bfloat16 else X.numpy()
    if not (isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "biuf" and X.size):
        X = check_array(X, dtype="numeric", ensure_all_finite=False)
    if X.dtype.kind == "f":
        _check_finite(X)
    return X


def _check_finite(features: np.ndarray) -> None:
    from extremax.features.pca import row_blocks

    # float32 is what the model works in: a float64 beyond its range is as bad as infinity.
    with np.errstate(over="ignore"):
        for start, block in row_blocks(features):
            if np.isfinite(block.sum(dtype=np.float64)):
                continue
            row, column = (int(v) for v in np.argwhere(~np.isfinite(block))[0])
            raise _not_finite(block[row, column], row + start, column)


def _not_finite(value: float, row: int, column: int) -> ValueError:
    what = "NaN" if np.isnan(value) else "infinity or a value too large for float32"
    return ValueError(f"Input X contains {what} in row {row}, column {column}; remove or impute it")
