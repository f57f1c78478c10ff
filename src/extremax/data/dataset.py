"""What readers return: rows with their labels, or a summary of their size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from scipy import sparse

from extremax.data.source import KeepLabels, Source
from extremax.data.tables import Kind, Table, as_table
from extremax.labels import LabelLists, concatenate_lists

# A float array or memory map (n, K), a scipy CSR matrix of float32, or a list of texts.
Features: TypeAlias = Any


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows read from a file.

    features:      an array or memory map, a scipy CSR matrix, or a list of texts.
    labels:        one label per row, LabelLists with ``keep_labels="all"``, or None for unlabeled
                   input.
    source:        the files that were read.
    n_dropped:     number of rows left out because they have no label.
    n_multilabel:  number of rows with several labels.
    """

    features: Features
    labels: np.ndarray | LabelLists | None
    source: tuple[Path, ...]
    n_dropped: int = 0
    n_multilabel: int = 0

    @property
    def table(self) -> Table:
        """The features behind one contract, whatever they are."""
        return as_table(self.features)

    @property
    def kind(self) -> Kind:
        """The kind of features: ``dense``, ``sparse`` or ``text``."""
        return self.table.kind

    @property
    def label_values(self) -> np.ndarray:
        """The labels of all rows in one array; empty for unlabeled input."""
        if self.labels is None:
            return np.empty(0, dtype=np.int64)
        return self.labels.values if isinstance(self.labels, LabelLists) else self.labels

    def __len__(self) -> int:
        return len(self.table)


@dataclass(frozen=True)
class Summary:
    """The size of what ``read`` would return, for planning memory and time.

    For an extreme classification file (``xc``) the sizes are those of its header: ``rows``
    includes rows without labels, ``classes`` includes classes that do not occur, and ``nonzeros``
    is None.

    features:  number of features; None for texts.
    classes:   number of classes; None for unlabeled input.
    nonzeros:  number of stored values of sparse features, else None.
    bytes:     size on disk.
    """

    rows: int
    features: int | None
    classes: int | None
    nonzeros: int | None
    kind: Kind
    bytes: int


def labeled_dataset(source: Source, features: Features, lists: LabelLists) -> Dataset:
    """Drop rows without labels and apply ``keep_labels`` to the others."""
    has_label = lists.counts > 0
    n_dropped = len(has_label) - int(has_label.sum())
    if n_dropped:
        lists = lists[has_label]
        features = as_table(features).take(np.flatnonzero(has_label))
    labels = _select_labels(lists, source.keep_labels)
    return Dataset(features, labels, source.files, n_dropped, int((lists.counts > 1).sum()))


def _select_labels(lists: LabelLists, keep_labels: KeepLabels) -> np.ndarray | LabelLists:
    """Apply ``keep_labels`` to lists of which none is empty."""
    if keep_labels == "all":
        return lists.without_repeats()
    starts = lists.indptr[:-1]
    if keep_labels == "smallest":
        return np.minimum.reduceat(lists.values, starts)
    return lists.values[starts]


def join_label_blocks(blocks: list[np.ndarray | LabelLists]) -> np.ndarray | LabelLists:
    """Concatenate the labels of the blocks of one file, which are all of the same type."""
    if isinstance(blocks[0], LabelLists):
        return concatenate_lists(cast(list[LabelLists], blocks))
    return np.concatenate(cast(list[np.ndarray], blocks))


def concatenate(blocks: Iterable[Dataset]) -> Dataset | None:
    """Concatenate the sparse or text blocks of one file as they arrive; None if there are none."""
    texts: list[str] = []
    matrix = _GrowingMatrix()
    labels: list[np.ndarray | LabelLists] = []
    n_dropped = n_multilabel = 0
    block = None
    for block in blocks:
        if block.kind == "text":
            texts.extend(block.features)
        else:
            matrix.append(block.features)
        if block.labels is not None:
            labels.append(block.labels)
        n_dropped += block.n_dropped
        n_multilabel += block.n_multilabel
    if block is None:
        return None
    features = texts if block.kind == "text" else matrix.finish()
    all_labels = None if block.labels is None else join_label_blocks(labels)
    return Dataset(features, all_labels, block.source, n_dropped, n_multilabel)


class _GrowingArray:
    """An array that can be appended to.

    ``resize`` lets the operating system move the memory. Concatenating all blocks at the end
    would hold the data twice.
    """

    def __init__(self, dtype: type) -> None:
        self.array: np.ndarray = np.empty(0, dtype=dtype)
        self.size = 0

    def append(self, values: np.ndarray) -> None:
        end = self.size + len(values)
        if end > len(self.array):
            self.array.resize(end + end // 8, refcheck=False)
        self.array[self.size : end] = values
        self.size = end

    def finish(self) -> np.ndarray:
        self.array.resize(self.size, refcheck=False)
        return self.array


class _GrowingMatrix:
    """A CSR matrix that rows can be appended to, as wide as its widest block."""

    def __init__(self) -> None:
        self.values = _GrowingArray(np.float32)
        self.indices = _GrowingArray(np.int32)
        self.indptr = _GrowingArray(np.int64)
        self.indptr.append(np.zeros(1, dtype=np.int64))
        self.width = 0

    def append(self, rows: sparse.csr_matrix) -> None:
        self.indptr.append(rows.indptr[1:] + np.int64(self.values.size))
        self.indices.append(rows.indices)
        self.values.append(rows.data)
        self.width = max(self.width, rows.shape[1])

    def finish(self) -> sparse.csr_matrix:
        indptr = self.indptr.finish()
        # scipy wants both index arrays to have the same type; use int32 where it suffices.
        fits_int32 = self.values.size <= np.iinfo(np.int32).max
        index_type = np.int32 if fits_int32 else np.int64
        return csr(
            self.values.finish(),
            self.indices.finish().astype(index_type, copy=False),
            indptr.astype(index_type, copy=False),
            (len(indptr) - 1, self.width),
        )


def csr(
    values: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]
) -> sparse.csr_matrix:
    """Build a CSR matrix from indices known to be sorted and unique, without checking them."""
    matrix = sparse.csr_matrix((values, indices, indptr), shape=shape, copy=False)
    matrix.has_canonical_format = True
    return matrix
