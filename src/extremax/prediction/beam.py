"""Sublinear top-k: a beam search through the noise tree, by what tree and head say together.

A range R of the tree's leaves promises a row x about

    ŝ w̄_R·x + log mean over y∈R of exp(b_y + ρ‖ŝx‖‖w_y − w̄_R‖) + log q(R|x),

w̄_R the mean of its classes' weights, ŝ the head's scale: the score of the mean, and beyond it
what a class gains if x has the cosine ρ to what sets the class apart (taken linear in ‖x‖ about
its usual size, so that two numbers a range will do). The tree alone is too poor a guide: it sees
k dimensions of x and is softened, and the head has the last word on the ranking. The search keeps
the ``width`` most promising ranges, looks at the ranges three levels below each, and so on; every
class of the last ranges gets its full logits ξ + log q.
"""

from __future__ import annotations

import math
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from extremax.head import LinearHead
from extremax.kernels.cpu import beam as kernel
from extremax.kernels.cpu.threads import parallel
from extremax.noise.tree import TreeNoise
from extremax.prediction.blocks import Ranking, Scorer

NORMALISATION = "candidates"
# Subtrees that the beam keeps if nobody says.
WIDTH = 64

# Rows and bytes of scores taken at a time.
_ROWS = 4096
_BYTES = 64 << 20
# Under this many products, threads cost more than they bring.
_PARALLEL_FLOATS = 1 << 20
# Classes in one of the last ranges at most; their half at least.
_RANGE = 32
# Levels between tiers of ranges, and the deepest the first one may be.
_STEP = 3
_FIRST = 7
# ρ, by trial on trees of 16 and 64 components: 0.3 to 0.5 are much alike.
_COSINE = 0.4


def topk(scorer: Scorer, features: np.ndarray, k: int, width: int) -> Ranking:
    """The k best of the beam's candidates. Log-probabilities are normalised over the candidates
    alone, so they are upper bounds: the classes not looked at are taken to have none."""
    noise, head = scorer.noise, scorer.head
    if not isinstance(noise, TreeNoise) or not scorer.objective.adds_log_q:
        raise ValueError(
            "beam search needs the tree noise and an objective whose logits are ξ + log q; "
            "use search='exact'"
        )
    k = min(k, head.n_classes)
    index = _index(head, noise)
    width = min(max(width, -(-k // index.leaves.fewest)), index.leaves.n_parents)
    labels = torch.empty((len(features), k), dtype=torch.int64)
    log_probs = torch.empty((len(features), k))
    step = max(1, min(_ROWS, _BYTES // index.bytes_a_row(width, noise.n_late_)))
    for start in range(0, len(features), step):
        rows = slice(start, start + step)
        block = np.array(features[rows], dtype=np.float32, order="C")
        found = index.search(head, noise, block, width)
        logits = found.logits.div_(scorer.temperature)
        best, at = logits.topk(k, dim=1)
        labels[rows] = found.classes(at)
        log_probs[rows] = best - logits.logsumexp(1, keepdim=True)
    return Ranking(labels, log_probs)


class _Tier:
    """Children, ranges of classes or classes at last, and which of them are a parent's.

    Child c has vector, base and slope number ids[c] and its leaves begin at bounds[c]; parent g
    has children first[g]..first[g + 1] − 1, `most` of them or one less.
    """

    def __init__(
        self,
        first: np.ndarray,
        bounds: np.ndarray,
        ids: np.ndarray,
        vectors: np.ndarray,
        base: np.ndarray,
        slope: np.ndarray,
    ) -> None:
        self.first, self.bounds, self.ids = first, bounds, ids
        self.vectors, self.base, self.slope = vectors, base, slope
        sizes = np.diff(first)
        self.fewest, self.most = int(sizes.min()), int(sizes.max())
        self.splits = _splits(self.fewest), _splits(self.most)

    @property
    def n_parents(self) -> int:
        return len(self.first) - 1


class _Found(NamedTuple):
    """Logits of each row's candidates, −inf for none: `most` for each range, then late classes."""

    logits: torch.Tensor
    ranges: torch.Tensor
    source: _Index

    def classes(self, at: torch.Tensor) -> torch.Tensor:
        """The classes in columns ``at`` (n, k) of the logits."""
        most, n_tree = self.source.leaves.most, len(self.source.order)
        slots = self.ranges.shape[1]
        parent = self.ranges.gather(1, (at // most).clamp(max=slots - 1))
        position = torch.from_numpy(self.source.leaves.first)[parent] + at % most
        inside = self.source.order[position.clamp(max=n_tree - 1)]
        return torch.where(at < slots * most, inside, at - slots * most + n_tree)


class _Index:
    """The tiers of ranges above a head's classes. It takes at most 1/14 of the memory of the
    head's weights, and 16 bytes a class."""

    def __init__(self, head: LinearHead, noise: TreeNoise) -> None:
        self.order, n = noise.order_, noise.n_tree_classes_
        order, weight, bias = self.order.numpy(), head.table(), head.bias.numpy()
        deepest = max(0, math.ceil(math.log2(n / _RANGE)))
        levels = list(range(deepest, 0, -_STEP))[::-1]
        while len(levels) > 1 and levels[1] <= _FIRST:
            del levels[0]
        self.tiers, above = [], 0
        for level in levels:
            first = np.arange(0, 2**level + 1, 2 ** (level - above))
            self.tiers.append(_ranges(head, order, _bounds(n, level), first))
            above = level
        # A class has no slope; it is searched for with lengths of zero.
        self.leaves = _Tier(_bounds(n, deepest), np.arange(n), order, weight, bias, bias)
        self._made_from = (head.weight._version, bias.copy())

    def is_of(self, head: LinearHead, noise: TreeNoise) -> bool:
        """Whether head and tree are as they were. Training kernels write to weights unseen by
        torch, but then to biases too. What slipped through would cost candidates, not logits."""
        version, bias = self._made_from
        return (
            noise.order_ is self.order
            and head.weight.data_ptr() == self.leaves.vectors.ctypes.data
            and head.bias.data_ptr() == self.leaves.base.ctypes.data
            and head.weight._version == version
            and np.array_equal(head.bias.numpy(), bias)
        )

    def bytes_a_row(self, width: int, n_late: int) -> int:
        """Peak bytes of `search` a row: scores and log q of a tier, features and late classes."""
        slots = [min(width, tier.n_parents) * tier.most for tier in (*self.tiers, self.leaves)]
        return 12 * max(slots) + 20 * n_late + 8 * self.leaves.vectors.shape[1]

    def search(
        self, head: LinearHead, noise: TreeNoise, features: np.ndarray, width: int
    ) -> _Found:
        n, scale = len(features), np.float32(head.scale)
        z = noise.context(features).numpy()
        length = scale * np.sqrt(
            np.einsum("ij,ij->i", features, features) / max(1, features.shape[1])
        )
        kept = np.zeros((n, 1), np.int64)
        log_q = np.full((n, 1), noise.log_tree_, np.float32)
        for tier in self.tiers:
            scores, below = _score(tier, kept, log_q, noise, features, z, length, scale)
            slots = min(width, len(tier.bounds))
            best, log_q = np.empty((n, slots), np.int64), np.empty((n, slots), np.float32)
            parallel(kernel.keep, n, 64, tier.first, kept, scores, below, best, log_q)
            kept = best
        nothing = np.zeros_like(length)
        logits, _ = _score(self.leaves, kept, log_q, noise, features, z, nothing, scale)
        found = torch.from_numpy(logits.reshape(n, -1))
        if noise.n_late_:
            late = torch.arange(noise.n_tree_classes_, noise.n_classes_).repeat(n, 1)
            beside = head.scores(features, np.arange(n), late) - math.log(noise.n_classes_)
            found = torch.cat([found, beside], 1)
        return _Found(found, torch.from_numpy(kept), self)


_indexes: WeakKeyDictionary[LinearHead, _Index] = WeakKeyDictionary()


def _index(head: LinearHead, noise: TreeNoise) -> _Index:
    """The index of this head, made when it is first needed and again when the head changed."""
    index = _indexes.get(head)
    if index is None or not index.is_of(head, noise):
        index = _indexes[head] = _Index(head, noise)
    return index


def _bounds(n_classes: int, level: int) -> np.ndarray:
    """Where the ranges of a level of the tree begin, and n_classes."""
    bounds = np.array([0, n_classes])
    for _ in range(level):
        finer = np.empty(2 * len(bounds) - 1, np.int64)
        finer[::2] = bounds
        finer[1::2] = bounds[:-1] + (bounds[1:] - bounds[:-1]) // 2
        bounds = finer
    return bounds


def _ranges(head: LinearHead, order: np.ndarray, bounds: np.ndarray, first: np.ndarray) -> _Tier:
    n, n_features = len(bounds) - 1, head.weight.shape[1]
    vectors = np.empty((n, n_features), np.float32)
    base, slope = np.empty(n, np.float32), np.empty(n, np.float32)
    # Rows have a root mean square of about 1 after scaling.
    reach = np.float32(_COSINE * math.sqrt(n_features))
    parallel(
        kernel.summarise, n, max(1, n // 64), bounds, order, head.table(),
        head.bias.numpy(), reach, vectors, base, slope,
    )  # fmt: skip
    return _Tier(first, bounds[:-1], np.arange(n), vectors, base, slope)


def _score(
    tier: _Tier,
    kept: np.ndarray,
    log_q: np.ndarray,
    noise: TreeNoise,
    features: np.ndarray,
    z: np.ndarray,
    length: np.ndarray,
    scale: np.float32,
) -> tuple[np.ndarray, np.ndarray]:
    """(rows, slots, children) scores of the children of what each row kept, and their log q."""
    pairs = np.empty(kept.size, np.int64)
    items = np.empty((tier.n_parents + kept.size // kernel.PAIRS, 3), np.int64)
    n_items = kernel.by_parent(kept, tier.n_parents, pairs, items)
    scores = np.full((kept.size, tier.most), -np.inf, np.float32)
    below = np.empty_like(scores)
    small = scores.size * features.shape[1] < _PARALLEL_FLOATS
    parallel(
        kernel.score, n_items, n_items if small else max(1, n_items // 64),
        items, pairs, log_q, features, z, length, scale, np.float32(noise.sharpness_),
        tier.vectors, tier.base, tier.slope, tier.ids, tier.first, tier.bounds,
        noise.nodes_.numpy(), *tier.splits, scores, below,
    )  # fmt: skip
    return scores.reshape(*kept.shape, -1), below.reshape(*kept.shape, -1)


def _splits(n: int) -> np.ndarray:
    """(lo, mid) of the nodes above n children, parents first."""
    ranges, splits = [(0, n)], []
    for lo, hi in ranges:
        if hi - lo > 1:
            mid = lo + (hi - lo) // 2
            splits.append((lo, mid))
            ranges += [(lo, mid), (mid, hi)]
    return np.array(splits, np.int64).reshape(-1, 2)
