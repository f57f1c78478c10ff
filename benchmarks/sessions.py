"""The next item of a shopping session, from the bag of the items before it.

Every prefix of a session is a row with a column for each item, in which later items weigh more, and
a second column for the last one; the item that comes next is its class. Recall@20 and MRR@20 over
all test prefixes of diginetica (``--data DIR``), or of synthetic sessions without it. Items that
training never saw count as missed. Two baselines:

popularity  the 20 items that training saw most.
item-kNN    items that shared sessions with those of the prefix: the cosine of co-occurrence,
            (sessions with both) / √((sessions with i + 20) (sessions with j + 20)), as in Hidasi et
            al., "Session-based recommendations with recurrent neural networks" (2016), which looks
            at the last item; here the whole prefix counts, weighted as in the bag, which is better.
"""

from __future__ import annotations

import argparse
import lzma
import os
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _common import finish, say, timed
from scipy import sparse

from extremax import ExtremeClassifier

K = 20
# Weight of an item for each step that it is away from the last one.
DECAY = 0.7


class Prefixes(NamedTuple):
    """Prefixes of lists of items that lie one after the other: where each begins in them, how long
    it is, and the item that came next. Items are numbers, −1 those that training never saw."""

    items: np.ndarray
    start: np.ndarray
    length: np.ndarray
    target: np.ndarray

    def bag(self, n_items: int, decay: float = DECAY) -> sparse.csr_matrix:
        """decay^(steps before the last item), summed over the visits of an item."""
        ends = np.concatenate([[0], np.cumsum(self.length)])
        position = np.arange(ends[-1]) - np.repeat(ends[:-1], self.length)
        items = self.items[np.repeat(self.start, self.length) + position]
        age = np.repeat(self.length, self.length) - 1 - position
        weight = np.where(items < 0, 0.0, decay**age).astype(np.float32)
        bag = sparse.csr_matrix((weight, items.clip(0), ends), shape=(len(self.length), n_items))
        bag.sum_duplicates()
        bag.eliminate_zeros()
        return bag

    def last(self, n_items: int) -> sparse.csr_matrix:
        """The last item alone."""
        return self._replace(start=self.start + self.length - 1, length=self.length.clip(0, 1)).bag(
            n_items
        )

    def rows(self, n_items: int) -> sparse.csr_matrix:
        """Bag and last item, each of unit length."""
        return sparse.hstack([_unit(self.bag(n_items)), self.last(n_items)], format="csr")


class Task(NamedTuple):
    n_items: int
    sessions: list[list[int]]
    test: Prefixes

    @property
    def train(self) -> Prefixes:
        """Every prefix of a session but the whole."""
        sizes = np.array([len(s) for s in self.sessions])
        items = np.concatenate([np.array(s) for s in self.sessions])
        begin = np.cumsum(sizes) - sizes
        start = np.repeat(begin, sizes - 1)
        length = np.arange(len(start)) - np.repeat(np.cumsum(sizes - 1) - sizes + 1, sizes - 1) + 1
        return Prefixes(items, start, length, items[start + length])


def _unit(rows: sparse.csr_matrix) -> sparse.csr_matrix:
    length = np.sqrt(np.asarray(rows.multiply(rows).sum(1))).ravel()
    return sparse.csr_matrix(sparse.diags(1 / np.maximum(length, 1e-9)) @ rows, dtype=np.float32)


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
    """Sessions that go from an item to one of its five neighbours, now and then elsewhere."""
    generator = np.random.default_rng(0)
    popular = np.arange(1, n_items + 1) ** -0.5
    popular /= popular.sum()
    neighbours = generator.choice(n_items, (n_items, 5), p=popular)
    lengths = generator.integers(2, 9, n_sessions)
    at = generator.choice(n_items, n_sessions, p=popular)
    steps = [at]
    for _ in range(lengths.max() - 1):
        near = neighbours[at, generator.integers(5, size=n_sessions)]
        far = generator.choice(n_items, n_sessions, p=popular)
        at = np.where(generator.random(n_sessions) < 0.8, near, far)
        steps.append(at)
    walks = np.stack(steps, 1).astype(str)
    sessions = [walk[:n].tolist() for walk, n in zip(walks, lengths, strict=True)]
    cut = n_sessions * 9 // 10
    tests = [(s[:t], s[t]) for s in sessions[cut:] for t in range(1, len(s))]
    return task_of(sessions[:cut], tests)


def popularity(task: Task) -> np.ndarray:
    """The most visited items, the same for every row."""
    visits = np.bincount(np.concatenate([np.array(s) for s in task.sessions]))
    best = np.argsort(-visits, kind="stable")[:K]
    return np.broadcast_to(best, (len(task.test.target), len(best)))


def item_knn(task: Task, shrink: float = 20.0) -> np.ndarray:
    """The items most similar to those of the prefix; −1 where fewer share a session with them."""
    ends = np.cumsum([0] + [len(s) for s in task.sessions])
    items = np.concatenate([np.array(s) for s in task.sessions])
    visited = sparse.csr_matrix(
        (np.ones(len(items), np.float32), items, ends), shape=(len(ends) - 1, task.n_items)
    )
    visited.sum_duplicates()
    visited.data[:] = 1.0
    together = sparse.csr_matrix(visited.T @ visited)
    scale = sparse.diags((together.diagonal() + shrink) ** -0.5)
    together.setdiag(0.0)
    together.eliminate_zeros()
    similar = sparse.csr_matrix(scale @ together @ scale)
    bag = task.test.bag(task.n_items)
    blocks = range(0, bag.shape[0], 4096)
    return np.concatenate([_best(sparse.csr_matrix(bag[i : i + 4096] @ similar)) for i in blocks])


def _best(scores: sparse.csr_matrix) -> np.ndarray:
    """Columns of the K largest entries of each row, largest first, then −1."""
    row = np.repeat(np.arange(scores.shape[0]), np.diff(scores.indptr))
    order = np.lexsort((scores.indices, -scores.data, row))
    rank = np.arange(len(row)) - scores.indptr[row]
    best = np.full((scores.shape[0], K), -1)
    kept = rank < K
    best[row[kept], rank[kept]] = scores.indices[order][kept]
    return best


def figures_of(found: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """Recall and mean reciprocal rank among the first K; a target of −1 is never found."""
    hit = (found == target[:, None]) & (target[:, None] >= 0)
    reciprocal = hit / np.arange(1, found.shape[1] + 1)
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
    train, target = task.train, task.test.target
    sizes = {
        "sessions": len(task.sessions), "rows": len(train.target), "items": task.n_items,
        "test_rows": len(target), "test_unseen": int((target < 0).sum()),
    }  # fmt: skip
    say(", ".join(f"{value:,} {name}" for name, value in sizes.items()))

    results = {}
    for name, baseline in (("popularity", popularity), ("item_knn", item_knn)):
        start = time.perf_counter()
        results[name] = figures_of(baseline(task), target)
        results[name]["seconds"] = time.perf_counter() - start
    model = ExtremeClassifier(random_state=0, n_jobs=2)
    fit_seconds = timed(lambda: model.fit(train.rows(task.n_items), train.target))
    rows = task.test.rows(task.n_items)
    start = time.perf_counter()
    found = model.predict_topk(rows, min(K, len(model.classes_))).labels
    seconds = time.perf_counter() - start
    results["extremax"] = figures_of(found, target)
    results["extremax"] |= {"fit_s": fit_seconds, "rows_per_s": len(target) / seconds}
    for name, own in results.items():
        say(f"{name:<12} recall@20 {own['recall_at_20']:.4f}, MRR@20 {own['mrr_at_20']:.4f}")
    own = results["extremax"]
    finish(
        given,
        {"recall_at_20": own["recall_at_20"], "mrr_at_20": own["mrr_at_20"]},
        results,
        sizes,
        data="diginetica" if real else "synthetic",
    )


if __name__ == "__main__":
    main()
