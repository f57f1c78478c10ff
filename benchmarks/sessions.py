"""Predict the next item of a shopping session from the items before it.

The figures are Recall@20 and MRR@20 over all test prefixes of diginetica (``--data DIR``), or of
synthetic sessions without it. Items that do not occur in training count as missed.

extremax       `SessionRecommender` with its defaults, and the same without the experts that count
               visits ("head alone").
popularity     the 20 most frequent items of training.
item-kNN       items that share sessions with those of the prefix, by the cosine of co-occurrence,
               (sessions with both) / √((sessions with i + 20) (sessions with j + 20)), as in Hidasi
               et al., "Session-based recommendations with recurrent neural networks" (2016), who
               use the last item only. Here the whole prefix counts, an item 0.7 for every step
               before the last one, rows of unit length.
item-kNN self  the same, with each item also its own neighbor. Harder to beat than it looks.
"""

from __future__ import annotations

import argparse
import lzma
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _common import finish, say, timed
from scipy import sparse

from extremax import SessionRecommender

K = 20
# Factor per step between an item and the last one.
DECAY = 0.7
# item-kNN: shrinkage, which lowers similarities of rare items, and prefixes per block.
SHRINK, BLOCK = 20.0, 4096


class Prefixes(NamedTuple):
    """Prefixes of lists of items, which are concatenated in ``items``.

    start, length:  position of each prefix in ``items``, and its length.
    target:         the next item. Items are numbers; −1 is an item that does not occur in training.
    """

    items: np.ndarray
    start: np.ndarray
    length: np.ndarray
    target: np.ndarray

    @property
    def lists(self) -> list[list[int]]:
        """The prefixes as lists, without the items that training does not have."""
        parts = zip(self.start, self.start + self.length, strict=True)
        return [[int(i) for i in self.items[a:b] if i >= 0] for a, b in parts]

    def bags(self, n_items: int) -> sparse.csr_matrix:
        """0.7^(steps before the last item), summed over visits of an item; rows of unit length."""
        ends = np.concatenate([[0], np.cumsum(self.length)])
        position = np.arange(ends[-1]) - np.repeat(ends[:-1], self.length)
        items = self.items[np.repeat(self.start, self.length) + position]
        age = np.repeat(self.length, self.length) - 1 - position
        weight = np.where(items < 0, 0.0, DECAY**age).astype(np.float32)
        rows = sparse.csr_matrix((weight, items.clip(0), ends), shape=(len(self.length), n_items))
        rows.sum_duplicates()
        rows.eliminate_zeros()
        length = np.sqrt(np.asarray(rows.multiply(rows).sum(1))).ravel()
        rows.data /= np.repeat(length, np.diff(rows.indptr)).astype(np.float32)
        return rows


class Task(NamedTuple):
    n_items: int
    sessions: list[list[int]]
    test: Prefixes

    @property
    def visits(self) -> np.ndarray:
        """The items of all sessions."""
        return np.concatenate([np.array(s) for s in self.sessions])


def task_of(sessions: list[list[str]], tests: list[tuple[list[str], str]]) -> Task:
    numbers: dict[str, int] = {}
    known = [[numbers.setdefault(item, len(numbers)) for item in s] for s in sessions]
    lengths = np.array([len(prefix) for prefix, _ in tests])
    test = Prefixes(
        np.array([numbers.get(item, -1) for prefix, _ in tests for item in prefix]),
        np.cumsum(lengths) - lengths,
        lengths,
        np.array([numbers.get(target, -1) for _, target in tests]),
    )
    return Task(len(numbers), known, test)


def diginetica(folder: Path) -> Task:
    with lzma.open(folder / "train_sessions.txt.xz", "rt") as file:
        sessions = [line.split() for line in file]
    with lzma.open(folder / "test_prefix_target.txt.xz", "rt") as file:
        tests = [line.rstrip("\n").split("\t") for line in file]
    return task_of(sessions, [(prefix.split(), target) for prefix, target in tests])


def synthetic(n_sessions: int, n_items: int) -> Task:
    """Sessions that stay at an item, move to one of the thirty items of its group, or elsewhere."""
    generator = np.random.default_rng(0)
    popular = np.arange(1, n_items + 1) ** -0.5
    popular /= popular.sum()
    lengths = generator.integers(2, 9, n_sessions)
    item = generator.choice(n_items, n_sessions, p=popular)
    steps = [item]
    for _ in range(lengths.max() - 1):
        near = np.minimum(item // 30 * 30 + generator.integers(30, size=n_sessions), n_items - 1)
        far = generator.choice(n_items, n_sessions, p=popular)
        kind = generator.random(n_sessions)
        item = np.where(kind < 0.2, item, np.where(kind < 0.8, near, far))
        steps.append(item)
    walks = np.stack(steps, 1).astype(str)
    sessions = [walk[:n].tolist() for walk, n in zip(walks, lengths, strict=True)]
    cut = n_sessions * 9 // 10
    tests = [(s[:t], s[t]) for s in sessions[cut:] for t in range(1, len(s))]
    return task_of(sessions[:cut], tests)


def popularity(task: Task) -> np.ndarray:
    """The most visited items, the same for every row."""
    best = np.argsort(-np.bincount(task.visits), kind="stable")[:K]
    return np.broadcast_to(best, (len(task.test.target), len(best)))


def item_knn(task: Task, with_self: bool = False) -> np.ndarray:
    """The items most similar to those of the prefix, then −1 if fewer than 20 share a session."""
    ends = np.cumsum([0] + [len(s) for s in task.sessions])
    ones = np.ones(ends[-1], np.float32)
    visited = sparse.csr_matrix((ones, task.visits, ends), shape=(len(ends) - 1, task.n_items))
    visited.sum_duplicates()
    visited.data[:] = 1.0
    together = sparse.csr_matrix(visited.T @ visited)
    scale = sparse.diags((together.diagonal() + SHRINK) ** -0.5)
    if not with_self:
        together.setdiag(0.0)
        together.eliminate_zeros()
    similar = sparse.csr_matrix(scale @ together @ scale)
    bags = task.test.bags(task.n_items)
    blocks = [bags[i : i + BLOCK] for i in range(0, bags.shape[0], BLOCK)]
    return np.concatenate([_best(sparse.csr_matrix(block @ similar)) for block in blocks])


def _best(scores: sparse.csr_matrix) -> np.ndarray:
    """Columns of the K largest entries of each row, largest first, then −1."""
    row = np.repeat(np.arange(scores.shape[0]), np.diff(scores.indptr))
    order = np.lexsort((scores.indices, -scores.data, row))
    rank = np.arange(len(row)) - scores.indptr[row]
    best = np.full((scores.shape[0], K), -1)
    kept = rank < K
    best[row[kept], rank[kept]] = scores.indices[order][kept]
    return best


def figures_of(ranked: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """Recall and mean reciprocal rank among the first K; a target of −1 is never found."""
    hit = (ranked == target[:, None]) & (target[:, None] >= 0)
    reciprocal = hit / np.arange(1, ranked.shape[1] + 1)
    return {
        "recall_at_20": float(hit.any(1).mean()),
        "mrr_at_20": float(reciprocal.sum(1).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few synthetic sessions")
    parser.add_argument("--data", type=Path, help="folder with diginetica")
    given = parser.parse_args()
    given.busy_before = os.getloadavg()[0]
    real = given.data is not None and not given.quick
    if real:
        task = diginetica(given.data / "diginetica")
    else:
        task = synthetic(*((4_000, 500) if given.quick else (40_000, 5_000)))
    target = task.test.target
    sizes = {
        "sessions": len(task.sessions), "rows": len(task.visits) - len(task.sessions),
        "items": task.n_items,
        "test_rows": len(target), "test_unseen": int((target < 0).sum()),
    }  # fmt: skip
    say(", ".join(f"{value:,} {name}" for name, value in sizes.items()))

    baselines: dict[str, Callable[[Task], np.ndarray]] = {
        "popularity": popularity,
        "item_knn": item_knn,
        "item_knn_self": partial(item_knn, with_self=True),
    }
    results = {name: figures_of(baseline(task), target) for name, baseline in baselines.items()}
    model = SessionRecommender(random_state=0, n_jobs=2)
    fit_seconds = timed(lambda: model.fit(task.sessions))
    start = time.perf_counter()
    ranked = model.recommend(task.test.lists, K).items
    seconds = time.perf_counter() - start
    results["extremax"] = figures_of(ranked, target)
    results["extremax"] |= {"fit_s": fit_seconds, "rows_per_s": len(target) / seconds}
    say(f"fit {fit_seconds:.0f} s, {len(model.history_)} epochs, {model.model_.blend}")
    model.model_.blend = model.model_.blend.as_trained(model.model_.objective)
    results["head_alone"] = figures_of(model.recommend(task.test.lists, K).items, target)
    for name, row in results.items():
        say(f"{name:<14} recall@20 {row['recall_at_20']:.4f}, MRR@20 {row['mrr_at_20']:.4f}")
    ours = results["extremax"]
    finish(
        given,
        {name: ours[name] for name in ("recall_at_20", "mrr_at_20", "fit_s")},
        results,
        sizes,
        data="diginetica" if real else "synthetic",
    )


if __name__ == "__main__":
    main()
