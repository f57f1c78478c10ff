"""What a reader returns: rows with their labels, or a summary of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
from scipy import sparse

from extremax.data.source import KeepLabels, Source
from extremax.label_lists import LabelLists, join_lists

Kind: TypeAlias = Literal["dense", "sparse", "text"]
# A float array or memmap (n, K), a scipy CSR matrix of float32, or texts.
Features: TypeAlias = Any


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows read from a file, with one label each, or with all they have as LabelLists;
    ``labels`` is None for unlabelled input.

    ``n_dropped`` rows had no label and are not here; ``n_multilabel`` rows had several.
    """

    features: Features
    labels: np.ndarray | LabelLists | None
    source: tuple[Path, ...]
    n_dropped: int = 0
    n_multilabel: int = 0

    @property
    def kind(self) -> Kind:
        """The kind of features: ``dense``, ``sparse`` or ``text``."""
        if isinstance(self.features, list):
            return "text"
        return "sparse" if sparse.issparse(self.features) else "dense"

    @property
    def label_values(self) -> np.ndarray:
        """The labels of all rows, one after the other; none for unlabelled input."""
        if self.labels is None:
            return np.empty(0, dtype=np.int64)
        return self.labels.values if isinstance(self.labels, LabelLists) else self.labels

    def __len__(self) -> int:
        return len(self.features) if self.kind == "text" else int(self.features.shape[0])


@dataclass(frozen=True)
class Summary:
    """The size of a file, for planning memory and time before reading it.

    It counts what ``read`` would return. Of an extreme classification file the header is
    believed: its rows include those without a label, its classes those that no row has, and
    its ``nonzeros`` are None, as for features that are not sparse. ``features`` is None for
    text, ``classes`` for unlabelled input. ``bytes`` is the size on disk.
    """

    rows: int
    features: int | None
    classes: int | None
    nonzeros: int | None
    kind: Kind
    bytes: int


def labelled(source: Source, features: Features, lists: LabelLists) -> Dataset:
    """Rows with what the source keeps of their labels; those that have none are dropped."""
    has = lists.counts > 0
    n_dropped = len(has) - int(has.sum())
    if n_dropped:
        lists = lists[has]
        if isinstance(features, list):
            features = [text for text, keep in zip(features, has, strict=True) if keep]
        else:
            features = features[has]
    labels = _kept(lists, source.keep_labels)
    return Dataset(features, labels, source.files, n_dropped, int((lists.counts > 1).sum()))


def _kept(lists: LabelLists, which: KeepLabels) -> np.ndarray | LabelLists:
    if which == "all":
        return lists.without_repeats()
    # No list is empty here.
    starts = lists.indptr[:-1]
    return (
        np.minimum.reduceat(lists.values, starts) if which == "smallest" else lists.values[starts]
    )


def join_labels(parts: list[np.ndarray | LabelLists]) -> np.ndarray | LabelLists:
    """The labels of blocks of one file, which are all of one kind."""
    if isinstance(parts[0], LabelLists):
        return join_lists(cast(list[LabelLists], parts))
    return np.concatenate(cast(list[np.ndarray], parts))


def concatenate(blocks: Iterable[Dataset]) -> Dataset | None:
    """Join the sparse or text blocks of one file as they come; None if there are none."""
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
    joined = None if block.labels is None else join_labels(labels)
    return Dataset(features, joined, block.source, n_dropped, n_multilabel)


class _Growing:
    """An array to append to.

    ``resize`` lets the system move the memory, so that the data are not held twice, as they
    would be while parts are joined.
    """

    def __init__(self, dtype: type) -> None:
        self.array: np.ndarray = np.empty(0, dtype=dtype)
        self.size = 0

    def append(self, part: np.ndarray) -> None:
        end = self.size + len(part)
        if end > len(self.array):
            self.array.resize(end + end // 8, refcheck=False)
        self.array[self.size : end] = part
        self.size = end

    def finish(self) -> np.ndarray:
        self.array.resize(self.size, refcheck=False)
        return self.array


class _GrowingMatrix:
    """A CSR matrix to append to, as wide as its widest part."""

    def __init__(self) -> None:
        self.values = _Growing(np.float32)
        self.indices = _Growing(np.int32)
        self.indptr = _Growing(np.int64)
        self.indptr.append(np.zeros(1, dtype=np.int64))
        self.width = 0

    def append(self, part: Any) -> None:
        self.indptr.append(part.indptr[1:] + np.int64(self.values.size))
        self.indices.append(part.indices)
        self.values.append(part.data)
        self.width = max(self.width, part.shape[1])

    def finish(self) -> sparse.csr_matrix:
        indptr = self.indptr.finish()
        # Both of scipy's index arrays have one type: the small one where it will do.
        small = self.values.size <= np.iinfo(np.int32).max
        index_type = np.int32 if small else np.int64
        return csr(
            self.values.finish(),
            self.indices.finish().astype(index_type, copy=False),
            indptr.astype(index_type, copy=False),
            (len(indptr) - 1, self.width),
        )


def csr(
    values: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]
) -> sparse.csr_matrix:
    """A CSR matrix over arrays known to be sorted and free of repeats, which nobody rechecks."""
    matrix = sparse.csr_matrix((values, indices, indptr), shape=shape, copy=False)
    matrix.has_canonical_format = True
    return matrix
