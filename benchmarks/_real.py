"""Dense features of real data, computed once and stored in bench-out/."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import sparse

from extremax.features import SparseSVD
from extremax.features.svd import csr_product

STORED = Path(__file__).resolve().parent.parent / "bench-out"


class Task(NamedTuple):
    train: np.ndarray
    labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray


def _yso(folder: Path) -> Task:
    """TF-IDF of the words of a title, projected to 512 dimensions by SVD."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    def read(name: str) -> tuple[list[str], list[str]]:
        with lzma.open(folder / name, "rt", encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
        return [r[0] for r in rows], [r[1] for r in rows]

    texts, subjects = read("train.tsv.xz")
    test_texts, test_subjects = read("test.tsv.xz")
    vectorizer = TfidfVectorizer(min_df=5, sublinear_tf=True, dtype=np.float32)
    rows = vectorizer.fit_transform(texts)
    svd = SparseSVD(512).fit(rows)
    test = svd.transform(vectorizer.transform(test_texts))
    return Task(svd.transform(rows), np.array(subjects), test, np.array(test_subjects))


def _diginetica(folder: Path) -> Task:
    """Items are spectral embeddings of the graph of items that share a session; a session prefix
    is the weighted mean of its items, with larger weights for the last ones."""
    with lzma.open(folder / "train_sessions.txt.xz", "rt") as file:
        sessions = [line.split() for line in file]
    with lzma.open(folder / "test_prefix_target.txt.xz", "rt") as file:
        tests = [line.rstrip("\n").split("\t") for line in file]
    index = {item: i for i, item in enumerate(sorted({i for s in sessions for i in s}))}

    def bags(lists: list[list[str]], decay: float) -> sparse.csr_matrix:
        known = [[index[i] for i in items if i in index] for items in lists]
        ages = [decay ** np.arange(len(items))[::-1] for items in known]
        ends = np.cumsum([0] + [len(items) for items in known])
        flat = np.concatenate([np.array(items, np.int64) for items in known])
        values = np.concatenate(ages).astype(np.float32)
        bag = sparse.csr_matrix((values, flat, ends), shape=(len(lists), len(index)))
        bag.sum_duplicates()
        return bag

    together = bags(sessions, 1.0)
    together.data[:] = 1.0
    graph = (together.T @ together).tocsr()
    degree = sparse.diags(np.asarray(graph.sum(1)).ravel() ** -0.5)
    graph = (degree @ graph @ degree).tocsr().astype(np.float32)
    basis = SparseSVD(256, iterations=8).fit(graph).components_.numpy()
    strength = np.linalg.norm(csr_product(graph, basis), axis=0)
    items = _unit_rows(basis * np.sqrt(strength))
    prefixes = [(s[:t], s[t]) for s in sessions for t in range(1, len(s))]
    return Task(
        _unit_rows(csr_product(bags([p for p, _ in prefixes], 0.7), items)),
        np.array([t for _, t in prefixes]),
        _unit_rows(csr_product(bags([p.split() for p, _ in tests], 0.7), items)),
        np.array([t for _, t in tests]),
    )


def _unit_rows(rows: np.ndarray) -> np.ndarray:
    return (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)).astype(np.float32)


_TASKS = {"yso-finna-en": _yso, "diginetica": _diginetica}


def folder_of(name: str, data: Path) -> Path:
    """Return a folder with train.npy, labels.npy, test.npy and test_labels.npy."""
    folder = STORED / name
    if not (folder / f"{Task._fields[-1]}.npy").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for field, array in _TASKS[name](data / name)._asdict().items():
            np.save(folder / f"{field}.npy", array)
    return folder


def features_of(name: str, data: Path) -> Task:
    """Return memory maps of the arrays in `folder_of`."""
    folder = folder_of(name, data)
    return Task(*(np.load(folder / f"{field}.npy", mmap_mode="r") for field in Task._fields))
