"""Sublinear top-k: a beam search through the noise tree, guided by tree and head together.

A range R of the tree's leaves is ranked for a row x by the estimate

    ŝ w̄_R·x + log mean over y∈R of exp(b_y + ρ‖ŝx‖‖w_y − w̄_R‖) + log q(R|x),

w̄_R the mean weights of its classes, ŝ the head's scale: the score of the mean, plus the gain of a
class if x has cosine ρ with its deviation from the mean (linear in ‖x‖ around its usual size, so
that two numbers per range suffice). The tree alone is a poor guide: it sees k dimensions of x and
is softened, and the head decides the final ranking. The search keeps the ``width`` best ranges,
scores the ranges three levels below each, and so on; every class of the last ranges gets its full
logit ξ + log q. For other class frequencies, b_y + log π'_y/π_y takes the place of b_y in the
estimate. Where log q is no part of the logits, `extremax.search.vectors` finds more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from extremax.errors import ArgumentError
from extremax.kernels.cpu import beam as kernel
from extremax.kernels.cpu.beam import Queries, RangeVectors, Tier, Work
from extremax.kernels.cpu.threads import parallel
from extremax.kernels.cpu.tree import all_splits
from extremax.rows import Rows
from extremax.search.base import Candidates, Link, Searcher

if TYPE_CHECKING:
    from extremax.heads import ClassVectors, Head
    from extremax.labels import Prior
    from extremax.noise.late import BinaryTreeNoise

#: Rows and bytes of scores taken at a time.
BLOCK_ROWS = 4096
_BLOCK_BYTES = 64 << 20
#: With fewer products than this, threads cost more than they gain.
PARALLEL_FLOATS = 1 << 20
#: The most classes in one of the last ranges; they have at least half as many.
RANGE_SIZE = 32
#: Levels between tiers of ranges, and the deepest level of the first tier.
TIER_STEP = 3
FIRST_TIER = 7
# ρ, chosen on trees of 16 and 64 components: 0.3 to 0.5 perform alike.
_COSINE = 0.4
# The least log π'/π, in place of −∞ for classes that do not occur any more.
_LEAST = np.float32(-100.0)
# Scores that a link other than the identity would change.
_PROBE = torch.tensor([-1.0, 1.0])


class TreeSearcher(Searcher):
    """Finds classes of large ξ + log q. Log-probabilities normalized over the candidates are upper
    bounds, because all other classes are taken to have probability zero."""

    normalization = "over candidates"
    default_width = 64

    def __init__(self, noise: BinaryTreeNoise, head: Head, prior: Prior | None = None) -> None:
        self.noise, self.head, self.prior = noise, head, prior
        self._index: Index | None = None

    @property
    def index(self) -> Index:
        """The index of the head, built when first needed and again when head or tree changed."""
        vectors = self.head.vectors
        if self._index is None or not self._index.is_of(vectors, self.noise):
            self._index = Index(vectors, self.noise, self.prior)
        return self._index

    def fits(self, weights: np.ndarray, link: Link) -> bool:
        return list(weights) == [1.0] and torch.equal(link(_PROBE.clone()), _PROBE)

    def candidates(
        self, rows: Rows, k: int, width: int, weights: np.ndarray, link: Link,
        also: torch.Tensor | None = None,
    ) -> Iterator[Candidates]:  # fmt: skip
        if not self.fits(weights, link):
            raise ArgumentError(
                "beam search through TreeNoise needs an objective whose logits are ξ + log q; use "
                "search='exact'"
            )
        index, n_late = self.index, self.noise.n_late_
        width = min(max(width, -(-k // index.fewest)), index.n_ranges)
        size = max(1, min(BLOCK_ROWS, _BLOCK_BYTES // index.bytes_per_row(width, n_late)))
        array = rows.dense().array
        for start in range(0, len(rows), size):
            block = slice(start, min(start + size, len(rows)))
            features = np.array(array[block], dtype=np.float32, order="C")
            sums, ranges = index.search(features, width)
            others = torch.empty((len(features), 0))
            if also is not None:
                inputs = self.head.inputs(rows[block])
                none = torch.empty((len(features), 0), dtype=torch.int64)
                others = self.head.scores_shared(inputs, none, also)
            yield Candidates(block, sums, partial(index.classes, ranges), 0.0, others)


class Index:
    """The tiers of ranges above the classes of a head. It takes at most 1/14 of the memory of the
    class vectors, and 16 bytes per class."""

    def __init__(
        self, vectors: ClassVectors, noise: BinaryTreeNoise, prior: Prior | None = None
    ) -> None:
        self.vectors, self.noise, self.prior = vectors, noise, prior
        self.order, n = noise.order_, noise.n_tree_classes_
        deepest = max(0, math.ceil(math.log2(n / RANGE_SIZE)))
        levels = list(range(deepest, 0, -TIER_STEP))[::-1]
        while len(levels) > 1 and levels[1] <= FIRST_TIER:
            del levels[0]
        self.tiers, above = [], 0
        for level in levels:
            first = np.arange(0, 2**level + 1, 2 ** (level - above))
            self.tiers.append(self._tier_of_ranges(_bounds(n, level), first))
            above = level
        order, bias = self.order.numpy(), vectors.bias.numpy()
        # Classes have no slope: they are scored with lengths of zero.
        classes = RangeVectors(vectors.table(), bias, bias)
        self.leaves = _tier(classes, _bounds(n, deepest), np.arange(n), order)
        sizes = np.diff(self.leaves.first)
        #: Classes per range, at least and at most.
        self.fewest, self.most = int(sizes.min()), int(sizes.max())
        self._first = torch.from_numpy(self.leaves.first)
        tiers = (*self.tiers, self.leaves)
        self._sizes = [(len(tier.first) - 1, _most_children(tier)) for tier in tiers]
        weight = vectors.weight
        addresses = weight.data_ptr(), vectors.bias.data_ptr()
        self._made_from = addresses, weight._version, bias.copy()

    def _tier_of_ranges(self, bounds: np.ndarray, first: np.ndarray) -> Tier:
        vectors, n, n_features = self.vectors, len(bounds) - 1, self.vectors.weight.shape[1]
        summary = RangeVectors(
            np.empty((n, n_features), np.float32), np.empty(n, np.float32), np.empty(n, np.float32)
        )
        # Rows have a root mean square of about 1 after scaling.
        reach = np.float32(_COSINE * math.sqrt(n_features))
        bias = vectors.bias.numpy()
        if self.prior is not None:
            bias = bias + self.prior.log_ratio.clip(min=_LEAST)
        parallel(
            kernel.summarize, n, max(1, n // 64), bounds, self.order.numpy(), vectors.table(),
            bias, reach, summary,
        )  # fmt: skip
        return _tier(summary, first, bounds[:-1], np.arange(n))

    def is_of(self, vectors: ClassVectors, noise: BinaryTreeNoise) -> bool:
        """Whether the index is up to date.

        Training kernels change weights without torch noticing, but then they change biases too. A
        missed change would cost candidates; their logits would still be right.
        """
        weight, bias = vectors.weight, vectors.bias
        addresses, version, old_bias = self._made_from
        return (
            noise.order_ is self.order
            and (weight.data_ptr(), bias.data_ptr()) == addresses
            and weight._version == version
            and np.array_equal(bias.numpy(), old_bias)
        )

    @property
    def n_ranges(self) -> int:
        """Ranges in the last tier."""
        return len(self.leaves.first) - 1

    def bytes_per_row(self, width: int, n_late: int) -> int:
        """Peak bytes of `search` per row: scores and log q of a tier, features, late classes."""
        slots = max(min(width, n_parents) * most for n_parents, most in self._sizes)
        return 12 * slots + 20 * n_late + 8 * self.leaves.vectors.vectors.shape[1]

    def search(self, features: np.ndarray, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """ξ + log q of the candidates of each row, and the ranges they are in.

        There are as many candidates per range as the largest has, −∞ where a range has fewer; late
        classes follow.
        """
        noise, vectors, n = self.noise, self.vectors, len(features)
        scale = np.float32(vectors.scale)
        length = scale * np.sqrt(
            np.einsum("ij,ij->i", features, features) / max(1, features.shape[1])
        )
        queries = Queries(
            features, noise.context(features).numpy(), length, scale, noise.nodes_.numpy(),
            np.float32(noise.sharpness_),
        )  # fmt: skip
        kept = np.zeros((n, 1), np.int64)
        log_q = np.full((n, 1), noise.log_share_, np.float32)
        for tier in self.tiers:
            scores, below = _score(tier, kept, log_q, queries)
            slots = min(width, len(tier.bounds))
            best, log_q = np.empty((n, slots), np.int64), np.empty((n, slots), np.float32)
            parallel(kernel.keep, n, 64, tier.first, kept, scores, below, best, log_q)
            kept = best
        sums, _ = _score(self.leaves, kept, log_q, queries._replace(length=np.zeros_like(length)))
        found = torch.from_numpy(sums.reshape(n, -1))
        if noise.n_late_:
            late = torch.arange(noise.n_tree_classes_, noise.n_classes_).repeat(n, 1)
            scores_late = vectors.pair_scores(features, np.arange(n), late)
            found = torch.cat([found, scores_late - math.log(noise.n_classes_)], 1)
        return found, torch.from_numpy(kept)

    def classes(self, ranges: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """The classes in these columns (n, k) of the sums."""
        n_tree, slots = len(self.order), ranges.shape[1]
        parent = ranges.gather(1, (columns // self.most).clamp(max=slots - 1))
        position = self._first[parent] + columns % self.most
        inside = self.order[position.clamp(max=n_tree - 1)]
        after = columns - slots * self.most
        return torch.where(after < 0, inside, n_tree + after)


def _bounds(n_classes: int, level: int) -> np.ndarray:
    """Where the ranges of a level of the tree begin, and n_classes."""
    bounds = np.array([0, n_classes])
    for _ in range(level):
        finer = np.empty(2 * len(bounds) - 1, np.int64)
        finer[::2] = bounds
        finer[1::2] = bounds[:-1] + (bounds[1:] - bounds[:-1]) // 2
        bounds = finer
    return bounds


def _tier(vectors: RangeVectors, first: np.ndarray, bounds: np.ndarray, ids: np.ndarray) -> Tier:
    sizes = np.diff(first)
    return Tier(vectors, first, bounds, ids, all_splits(sizes.min())[0], all_splits(sizes.max())[0])


def _most_children(tier: Tier) -> int:
    """The most children of a parent."""
    return len(tier.more_splits) + 1


def _score(
    tier: Tier, kept: np.ndarray, log_q: np.ndarray, queries: Queries
) -> tuple[np.ndarray, np.ndarray]:
    """(rows, slots, children) scores of the children of the kept parents, and their log q."""
    n_parents = len(tier.first) - 1
    pairs = np.empty(kept.size, np.int64)
    items = np.empty((n_parents + kept.size // kernel.PAIRS, 3), np.int64)
    n_items = kernel.by_parent(kept, n_parents, pairs, items)
    scores = np.full((kept.size, _most_children(tier)), -np.inf, np.float32)
    below = np.empty_like(scores)
    small = scores.size * queries.features.shape[1] < PARALLEL_FLOATS
    parallel(
        kernel.score, n_items, n_items if small else max(1, n_items // 64),
        tier, queries, Work(items, pairs, log_q), scores, below,
    )  # fmt: skip
    return scores.reshape(*kept.shape, -1), below.reshape(*kept.shape, -1)
