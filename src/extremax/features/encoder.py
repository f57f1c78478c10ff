"""From whatever the user brings to the rows that heads and noises work on."""

from __future__ import annotations

import tempfile
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix, issparse
from sklearn.base import BaseEstimator

from extremax.checks import is_number
from extremax.data.sequences import Sequences
from extremax.errors import ArgumentError, ModelFileError
from extremax.features.loud import warn_of_loud_columns
from extremax.features.svd import SparseSVD
from extremax.features.text import (
    BUCKETS,
    HashedText,
    extrapolated_buckets,
    few_texts,
    is_text,
    texts_of,
)
from extremax.labels import LabelIndex
from extremax.rows import DenseRows, Needs, Rows, SequenceRows, SparseRows
from extremax.tensors import Tensors

_PROJECT_ROWS = 65_536
# Kinds of rows as a saved encoder names them.
_KINDS: dict[int, type[Rows]] = {0: DenseRows, 1: SparseRows, 2: SequenceRows}


class EncoderPlan(NamedTuple):
    """What encoding makes of rows.

    rows:           the kind of the encoded rows.
    width:          their features.
    nonzeros:       stored values per encoded row; for dense rows the width.
    bytes_per_row:  what an encoded row takes besides what was read.
    needs:          bytes of the encoder.
    """

    rows: type[Rows]
    width: int
    nonzeros: float
    bytes_per_row: float
    needs: Needs


class Encoder(BaseEstimator):
    """Turn arrays, scipy matrices, texts or sequences into rows.

    Dense arrays and memory maps pass without a copy. Sparse rows stay sparse unless they are to be
    projected by a truncated SVD. Texts are hashed to sparse rows first. Items of sequences are
    numbered as the classes are: `items_`, which grows with them.

    n_components:  dimensions that sparse rows are projected to; None keeps them sparse.
    analyzer, ngrams, buckets:  for texts, see `HashedText`.
    """

    def __init__(
        self,
        n_components: int | None = None,
        analyzer: str = "word",
        ngrams: tuple[int, int] = (1, 1),
        buckets: int = BUCKETS,
    ) -> None:
        self.n_components = n_components
        self.analyzer = analyzer
        self.ngrams = ngrams
        self.buckets = buckets

    def check_parameters(self) -> None:
        """Refuse parameters of the wrong kind or out of range."""
        n = self.n_components
        if n is not None and not (is_number(n, integer=True) and n >= 1):
            raise ArgumentError(f"n_components must be None or an integer >= 1, got {n!r}")
        HashedText(self.analyzer, self.ngrams, self.buckets)

    def rows_class(self, X: Any) -> type[Rows]:
        """The kind of rows that this encoder makes of such input."""
        if isinstance(X, Sequences):
            return SequenceRows
        projected = self.n_components is not None
        return SparseRows if _is_sparse(X) and not projected else DenseRows

    def unused_parameters(self, X: Any) -> tuple[str, ...]:
        """Parameters that have no effect on such input."""
        if is_text(X):
            return ()
        text = ("analyzer", "ngrams", "buckets")
        return text if _is_sparse(X) else ("n_components", *text)

    def measure(self, X: Any, n_rows: int) -> tuple[int, float, int]:
        """(features, values per row, texts hashed) of ``n_rows`` rows of which X are the first."""
        if isinstance(X, Sequences):
            rows = X.rows(LabelIndex.of(X.items))
            return rows.n_features, rows.nonzeros, 0
        if not is_text(X):
            return X.shape[1], (X.nnz if issparse(X) else X.size) / X.shape[0], 0
        few = few_texts(texts_of(X))
        hashed = HashedText(self.analyzer, self.ngrams, self.buckets).fit_transform(few)
        half = len(np.unique(hashed[: -(-len(few) // 2)].indices))
        used = extrapolated_buckets(half, hashed.shape[1], n_rows / len(few), self.buckets)
        return used, hashed.nnz / len(few), len(few)

    def fit_transform(self, X: Any, *, seed: int = 0, budget: int = 2**30) -> Rows:
        """Fit to X and encode it; a projection larger than ``budget`` bytes goes to a temporary
        file."""
        self.check_parameters()
        self.read_as_: type[Rows]
        self.text_: HashedText | None = None
        self.svd_: SparseSVD | None = None
        self.items_: LabelIndex | None = None
        if isinstance(X, Sequences):
            self.read_as_, self.items_ = SequenceRows, LabelIndex.of(X.items)
            self.n_features_in_ = len(self.items_)
            return X.rows(self.items_)
        self.read_as_ = SparseRows if _is_sparse(X) else DenseRows
        if is_text(X):
            self.text_ = HashedText(self.analyzer, self.ngrams, self.buckets)
            X = self.text_.fit_transform(texts_of(X))
        rows = self.read_as_.read(X)
        if self.read_as_ is SparseRows and self.text_ is None:
            warn_of_loud_columns(rows.sparse())
        self.n_features_in_ = rows.n_features
        if self.n_components is not None and self.read_as_ is SparseRows:
            self.svd_ = SparseSVD(self.n_components).fit(rows.sparse().matrix, seed=seed)
        return self._projected(rows, budget)

    def transform(self, X: Any) -> Rows:
        """Encode X as the rows of the fit were."""
        if self.items_ is not None:
            return Sequences.of(X).rows(self.items_)
        if is_text(X):
            if self.text_ is None:
                raise ArgumentError("this model was not trained on texts; pass arrays")
            X = self.text_.transform(texts_of(X))
        elif self.text_ is not None:
            raise ArgumentError(_not_texts(X))
        rows = self.read_as_.read(X)
        if rows.n_features != self.n_features_in_:
            raise ArgumentError(
                f"X has {rows.n_features} features, but ExtremeClassifier is expecting "
                f"{self.n_features_in_} features as input"
            )
        return self._projected(rows, budget=2**62)

    def _projected(self, rows: Rows, budget: int) -> Rows:
        """In memory if that fits the budget, otherwise in a file that vanishes with the array."""
        if self.svd_ is None:
            return rows
        matrix: csr_matrix = rows.sparse().matrix
        shape = (len(rows), self.svd_.components_.shape[1])
        if 4 * shape[0] * shape[1] <= budget:
            return DenseRows(self.svd_.transform(matrix))
        with tempfile.TemporaryFile(prefix="extremax-") as file:
            out = np.memmap(file, np.float32, "w+", shape=shape)
        for start in range(0, shape[0], _PROJECT_ROWS):
            block = slice(start, start + _PROJECT_ROWS)
            out[block] = self.svd_.transform(matrix[block])
        return DenseRows(out)

    def plan(
        self, X: Any, n_rows: int, n_features: int, nonzeros: float, multilabel: bool
    ) -> EncoderPlan:
        """What encoding ``n_rows`` rows like those of X takes.

        multilabel:  whether a row is copied for each of its labels.
        """
        csr, rows = SparseRows.bytes_per_row(nonzeros), self.rows_class(X)
        idf = 12.0 * n_features if is_text(X) else 0.0
        if rows is SequenceRows:
            # Where a sequence ends and its size; its items share memory with other prefixes.
            return EncoderPlan(rows, n_features, nonzeros, 24.0, Needs())
        if rows is SparseRows:
            # Offsets become int64. Hashing holds the counts, the filled buckets and their squares.
            copied = csr if multilabel or is_text(X) else 0.0
            hashing = 3.0 * csr * n_rows if is_text(X) else 0.0
            return EncoderPlan(rows, n_features, nonzeros, 8.0 + copied, Needs(idf, hashing, idf))
        if not _is_sparse(X):
            copied = float(np.asanyarray(X[:1]).itemsize * n_features) if multilabel else 0.0
            return EncoderPlan(rows, n_features, float(n_features), copied, Needs())
        width = min(self.n_components or n_features, n_features, n_rows)
        needs = SparseSVD.needs(n_rows, n_features, width, csr, idf)
        return EncoderPlan(rows, width, float(width), 4.0 * width, needs)

    @property
    def n_features_out(self) -> int:
        """Columns of the encoded rows."""
        if self.items_ is not None:
            return len(self.items_)
        return self.n_features_in_ if self.svd_ is None else self.svd_.components_.shape[1]

    @property
    def input_name(self) -> str:
        """What messages call the rows that the encoder was fitted to."""
        return "texts" if self.text_ else self.read_as_.name

    @property
    def input_kind(self) -> str:
        """What the encoder was fitted to, in a word: "text", "sparse", "dense" or "sequences"."""
        return "text" if self.text_ else self.read_as_.name.split()[0]

    # Saving -----------------------------------------------------------------------------------

    def state(self) -> dict[str, torch.Tensor]:
        kind = next(number for number, kind in _KINDS.items() if kind is self.read_as_)
        state = {"n_features": torch.tensor(self.n_features_in_), "kind": torch.tensor(kind)}
        if self.text_:
            state["idf"], state["buckets_used"] = self.text_.idf_, self.text_.used_
        if self.svd_:
            state["components"] = self.svd_.components_
        return state

    def validate(self, tensors: Tensors) -> None:
        """Check a state that comes from a file before `load_state` sees it."""
        optional = {"idf", "buckets_used", "components"} & set(tensors.tensors)
        tensors.only({"n_features", "kind", *optional})
        n_features = tensors.integer("n_features", 1, 2**40)
        kind = tensors.integer("kind", 0, len(_KINDS) - 1)
        if optional and _KINDS[kind] is not SparseRows:
            raise ModelFileError("the saved encoder hashes or projects dense rows")
        if {"idf", "buckets_used"} & optional:
            tensors.array("idf", torch.float32, n_features)
            used = tensors.indices("buckets_used", self.buckets, n_features)
            tensors.rising("buckets_used", np.diff(used))
        if "components" in optional:
            tensors.array("components", torch.float32, n_features, None)

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.n_features_in_ = int(state["n_features"])
        self.read_as_ = _KINDS[int(state["kind"])]
        self.text_ = self.svd_ = self.items_ = None
        if "idf" in state:
            self.text_ = HashedText(self.analyzer, self.ngrams, self.buckets)
            self.text_.idf_, self.text_.used_ = state["idf"], state["buckets_used"]
        if "components" in state:
            self.svd_ = SparseSVD(state["components"].shape[1])
            self.svd_.components_ = state["components"]

    def named_items(self, X: Any) -> list[np.ndarray]:
        """The items that sequences consist of, which are labels as well; empty for other rows."""
        return [] if self.items_ is None else [Sequences.of(X).items]

    def share_items(self, index: LabelIndex) -> None:
        """Where rows are sequences, number their items by these classes."""
        if self.read_as_ is SequenceRows:
            self.items_ = index


def _is_sparse(X: Any) -> bool:
    """Whether X is a scipy matrix, or becomes one as texts do."""
    return issparse(X) or is_text(X)


def _not_texts(X: Any) -> str:
    """Why X cannot be used where texts are expected."""
    columns = getattr(X, "columns", None)
    if columns is not None:
        names = ", ".join(map(repr, list(columns)[:3]))
        what = f"X is a table of {len(columns)} columns; pass the one with the texts, of {names}"
    elif isinstance(X, (list, tuple)) and not X:
        what = "X has no rows; pass at least one text"
    elif isinstance(X, str):
        what = "X is one string; pass a list of strings, such as [text]"
    else:
        what = f"X is {type(X).__name__}; pass a list or column of strings"
    return f"this model was trained on texts, and {what}"
