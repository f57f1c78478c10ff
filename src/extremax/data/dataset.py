"""What readers return: rows with their labels, or a summary of their size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

from extremax.data.sequences import Sequences
from extremax.data.source import Source
from extremax.data.tables import Kind, Table, as_table
from extremax.labels import LabelLists, concatenate_labels, concatenate_lists

# A float array or memory map (n, K), a scipy CSR matrix of float32, a list of texts, or sequences.
Features: TypeAlias = Any


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows read from a file.

    features:      an array or memory map, a scipy CSR matrix, a list of texts, or `Sequences`.
    labels:        one label per row, LabelLists with ``keep_labels="all"``, or None for unlabeled
                   input.
    source:        the files that were read.
    n_dropped:     number of rows left out because they have no label.
    n_multilabel:  number of rows with several labels.
    n_ignored:     number of texts and sessions whose label, which a TAB sets apart, unlabeled input
                   left out.
    """

    features: Features
    labels: np.ndarray | LabelLists | None
    source: tuple[Path, ...]
    n_dropped: int = 0
    n_multilabel: int = 0
    n_ignored: int = 0

    @property
    def table(self) -> Table:
        """The features behind one contract, whatever they are."""
        return as_table(self.features)

    @property
    def kind(self) -> Kind:
        """The kind of features: ``dense``, ``sparse``, ``text`` or ``sequences``."""
        return self.table.kind

    @property
    def label_values(self) -> np.ndarray:
        """The labels of all rows in one array; empty for unlabeled input."""
        if self.labels is None:
            return np.empty(0, dtype=np.int64)
        return self.labels.values if isinstance(self.labels, LabelLists) else self.labels

    @property
    def class_values(self) -> np.ndarray:
        """Every label that training makes a class: also items that no session ends with."""
        if isinstance(self.features, Sequences):
            return concatenate_labels(self.label_values, self.features.items)
        return self.label_values

    def __len__(self) -> int:
        return len(self.table)


@dataclass(frozen=True)
class Summary:
    """The size of what ``read`` would return, for planning memory and time.

    For an extreme classification file (``xc``) the sizes are those of its header: ``rows``
    includes rows without labels, ``classes`` includes classes that do not occur, and ``nonzeros``
    is None.

    features:  number of features, or of items in sequences; None for texts.
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
    """Drop rows without labels and apply ``keep_labels`` to the others; all rows stay, without
    labels, if the source is unlabeled."""
    if source.unlabeled:
        return Dataset(features, None, source.files)
    has_label = lists.counts > 0
    n_dropped = len(has_label) - int(has_label.sum())
    if n_dropped:
        lists = lists[has_label]
        features = as_table(features).take(np.flatnonzero(has_label))
    labels: Any = lists.values[lists.indptr[:-1]]
    if source.keep_labels == "all":
        labels = lists.without_repeats()
    elif source.keep_labels == "smallest":
        labels = np.minimum.reduceat(lists.values, lists.indptr[:-1])
    return Dataset(features, labels, source.files, n_dropped, int((lists.counts > 1).sum()))


def concatenate(source: Source, blocks: Iterable[Dataset]) -> Dataset:
    """Concatenate the blocks of one file as they arrive."""
    growing = {
        "text": list, "sparse": _GrowingMatrix, "dense": _GrowingArray,
        "sequences": _GrowingSequences,
    }  # fmt: skip
    features: Any = None
    labels: list[Any] = []
    n_dropped = n_multilabel = 0
    for block in blocks:
        if features is None:
            features = growing[block.kind](block.features[:0])
        features.extend(block.features)
        labels.append(block.labels)
        n_dropped += block.n_dropped
        n_multilabel += block.n_multilabel
    if features is None:
        return Dataset([], None, source.files)
    features = features if block.kind == "text" else features.finish()
    if source.unlabeled:
        return Dataset(features, None, source.files)
    join = concatenate_lists if isinstance(block.labels, LabelLists) else np.concatenate
    return Dataset(features, join(labels), source.files, n_dropped, n_multilabel)


class _GrowingArray:
    """An array that can be appended to, with the type and width of ``like``.

    ``resize`` lets the operating system move the memory. Concatenating all blocks at the end
    would hold the data twice.
    """

    def __init__(self, like: np.ndarray) -> None:
        self.array = np.empty((0, *like.shape[1:]), like.dtype)
        self.size = 0

    def extend(self, values: np.ndarray) -> None:
        end = self.size + len(values)
        if end > len(self.array):
            self._resize(end + end // 8)
        self.array[self.size : end] = values
        self.size = end

    def _resize(self, size: int) -> None:
        self.array.resize((size, *self.array.shape[1:]), refcheck=False)

    def finish(self) -> np.ndarray:
        self._resize(self.size)
        return self.array


class _GrowingMatrix:
    """A CSR matrix that rows can be appended to, as wide as its widest block."""

    def __init__(self, like: sparse.csr_matrix) -> None:
        self.values, self.indices = _GrowingArray(like.data), _GrowingArray(like.indices)
        self.indptr = _GrowingArray(np.empty(0, np.int64))
        self.indptr.extend(np.zeros(1, np.int64))
        self.width = 0

    def extend(self, rows: sparse.csr_matrix) -> None:
        self.indptr.extend(rows.indptr[1:] + np.int64(self.values.size))
        self.indices.extend(rows.indices)
        self.values.extend(rows.data)
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


class _GrowingSequences:
    """Sequences that others can be appended to."""

    def __init__(self, like: Sequences) -> None:
        self.blocks: list[Sequences] = []

    def extend(self, block: Sequences) -> None:
        self.blocks.append(block)

    def finish(self) -> Sequences:
        items: list[np.ndarray] = []
        ends, n_items = [], 0
        for block in self.blocks:
            # Blocks of one long session share its items.
            if not items or block.items is not items[-1]:
                n_items += len(items[-1]) if items else 0
                items.append(block.items)
            ends.append(block.ends + n_items)
        sizes = np.concatenate([block.sizes for block in self.blocks])
        sessions = [block.sessions for block in self.blocks if block.sessions is not None]
        return Sequences(
            np.concatenate(items),
            np.concatenate(ends),
            sizes,
            np.concatenate(sessions) if sessions else None,
        )


def csr(
    values: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]
) -> sparse.csr_matrix:
    """Build a CSR matrix from indices known to be sorted and unique, without checking them."""
    matrix = sparse.csr_matrix((values, indices, indptr), shape=shape, copy=False)
    matrix.has_canonical_format = True
    return matrix
