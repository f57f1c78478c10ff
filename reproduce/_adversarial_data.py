"""Dense rows with a single label for `adversarial_softmax.py`, stored once as arrays.

The paper's own data sets are folders Amazon-670K and Wikipedia-500K, in one of two layouts:

    trn_lbl_mat.txt, tst_lbl_mat.txt            ``rows classes``, then per row ``label:1 label:1``
    trn_ft_mat_dense.txt, tst_ft_mat_dense.txt  ``rows features``, then per row the numbers

as in the archives of 512 XML-CNN features that come with the paper's code; or

    train.txt, test.txt                         the sparse text of the repository of extreme
                                                classification, ``label,label feature:value``
    train.npy, test.npy                         dense features of the same rows, in their order

Of several labels the smallest is kept, as the paper's code does. Rows without a label are dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from extremax.comparison import Problem
from extremax.data import clustered, read
from extremax.errors import ArgumentError
from extremax.features import SparseSVD

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

import _real

PAPER = ("Amazon-670K", "Wikipedia-500K")
SMALL = "bibtex"
_FIELDS = _real.Task._fields
_COMPONENTS = 512


def prepare(name: str, data: Path | None, output: Path) -> Path:
    """A folder with the arrays of a data set, made from the files in ``data`` if it is missing.

    That takes minutes, so those of real data are shared with the benchmarks.
    """
    if data is not None and name in ("yso-finna-en", "diginetica"):
        return _real.folder_of(name, data)
    folder = (output if name == "synthetic" else _real.STORED) / name
    # The last array to be written says that the others are complete.
    if not (folder / f"{_FIELDS[-1]}.npy").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for field, array in zip(_FIELDS, _task(name, data), strict=True):
            np.save(folder / f"{field}.npy", array)
    return folder


def problem_of(folder: Path, test_rows: int) -> Problem:
    """Training rows, and a sample of the test rows whose class occurs among them."""
    train, labels, test, test_labels = (
        np.load(folder / f"{field}.npy", mmap_mode="r") for field in _FIELDS
    )
    known = np.flatnonzero(np.isin(test_labels, labels))
    known = np.sort(np.random.default_rng(0).permutation(known)[:test_rows])
    return Problem.split(train, np.array(labels), test=(test[known], test_labels[known]))


def _task(name: str, data: Path | None) -> _real.Task:
    if name == "synthetic":
        return _synthetic()
    if data is None:
        raise ArgumentError(f"{name} needs --data, the folder that holds {name}/")
    return _small(data / name) if name == SMALL else read_paper_files(data / name)


def _synthetic() -> _real.Task:
    features, labels = clustered(4_000, 100, 16, noise=0.5)
    return _real.Task(features[400:], labels[400:], features[:400], labels[:400])


def _small(folder: Path) -> _real.Task:
    """bibtex, in place of EURLex-4K: words projected to 512 dimensions by SVD."""
    parts = [read(folder / f"{p}.txt.xz", keep_labels="smallest") for p in ("train", "test")]
    svd = SparseSVD(_COMPONENTS).fit(parts[0].features)
    arrays = [(svd.transform(part.features), np.asarray(part.labels)) for part in parts]
    return _real.Task(*arrays[0], *arrays[1])


# The paper's files ----------------------------------------------------------------------------


def read_paper_files(folder: Path) -> _real.Task:
    """Features and labels of Amazon-670K or Wikipedia-500K, in either layout."""
    parts = [*_read_part(folder, "train", "trn"), *_read_part(folder, "test", "tst")]
    return _real.Task(*parts)


def _read_part(folder: Path, name: str, short: str) -> tuple[np.ndarray, np.ndarray]:
    matrix, dense = folder / f"{short}_lbl_mat.txt", folder / f"{short}_ft_mat_dense.txt"
    labels = _smallest_labels(matrix if matrix.exists() else folder / f"{name}.txt")
    features = _numbers(dense) if dense.exists() else np.load(folder / f"{name}.npy", mmap_mode="r")
    if len(features) != len(labels):
        raise ArgumentError(
            f"{folder}: {len(features):,} {name} rows of features, but {len(labels):,} of labels"
        )
    return features[labels >= 0], labels[labels >= 0]


def _smallest_labels(path: Path) -> np.ndarray:
    """The smallest label of each row, −1 for none: of ``label:1 label:1``, or with three numbers in
    the first line of ``label,label feature:value``."""
    (n_rows, *sizes), lines = _open(path)
    labels = np.full(n_rows, -1)
    for number, line in enumerate(_exactly(n_rows, lines, path)):
        if len(sizes) == 2:
            words = line.partition(" ")[0].split(",")
        else:
            words = [pair.partition(":")[0] for pair in line.split()]
        labels[number] = min((int(word) for word in words if word.strip()), default=-1)
    return labels


def _numbers(path: Path) -> np.ndarray:
    """An array from a text file with its shape in the first line."""
    shape, lines = _open(path)
    array = np.empty(shape, np.float32)
    for number, line in enumerate(_exactly(shape[0], lines, path)):
        array[number] = np.fromstring(line, np.float32, sep=" ")
    return array


def _open(path: Path) -> tuple[tuple[int, ...], Iterator[str]]:
    """The numbers in the first line of a file, and its other lines."""
    lines = path.open(encoding="ascii")
    return tuple(map(int, lines.readline().split())), lines


def _exactly(n_rows: int, lines: Iterator[str], path: Path) -> Iterator[str]:
    """The lines, if there are as many as the first one says."""
    count = 0
    for count, line in enumerate(lines, 1):
        if count <= n_rows:
            yield line
    if count != n_rows:
        raise ArgumentError(f"{path}: {count:,} rows, but the first line says {n_rows:,}")
