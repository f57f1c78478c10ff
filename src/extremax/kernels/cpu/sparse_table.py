"""The weights of a tree of sparse softmaxes, laid out for fast look-up, in numba.

A feature has weights for some children of a node. A hash table leads from (node, feature) to its
weights, which lie side by side. Each weight carries the number of its child, below 256, in the last
eight bits of its fraction: it is then exact to 2⁻¹⁵ and comes with its child in one line of memory.

These lines are scattered over memory, and waiting for them is most of the work. Therefore all slots
of the table are prefetched before any is read, and all weights before any is used.
"""

from __future__ import annotations

import numpy as np

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.prefetch import prefetch, prefetch_item

#: Bits of a weight that hold the number of its child.
CHILD = 255
# The lowest bits of a span hold the number of weights, the others where they begin.
_COUNT_BITS = 9


def packed(weight: np.ndarray, child: np.ndarray) -> np.ndarray:
    """Weights with the numbers of their children; read as float32, they are the weights."""
    bits = np.ascontiguousarray(weight, np.float32).view(np.int32)
    return (bits & ~CHILD) | child.astype(np.int32)


def hashed(node: np.ndarray, feature: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The hash table of (node, feature) pairs, whose weights follow one another, ``count`` of them
    each: a key and the span of the weights per slot, −1 where a slot is empty."""
    key = (node.astype(np.int64) << 32) | feature
    start = np.cumsum(count, dtype=np.int64) - count
    slots = np.full((2 * len(key) + 1, 2), -1, np.int64)
    _fill(slots, key, (start << _COUNT_BITS) | count)
    return slots


def pairs(slots: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arguments of `hashed`, from its result."""
    key, span = slots[slots[:, 0] >= 0].T
    by_span = np.argsort(span)
    key, span = key[by_span], span[by_span]
    return key >> 32, key & 0xFFFFFFFF, span & ((1 << _COUNT_BITS) - 1)


def weights_of_nodes(slots: np.ndarray, n_nodes: int) -> np.ndarray:
    """The number of weights of each node."""
    key, span = slots[slots[:, 0] >= 0].T
    counts = np.bincount(key >> 32, span & ((1 << _COUNT_BITS) - 1), n_nodes)
    return counts.astype(np.int64)


@kernel
def _fill(slots, keys, spans):
    """Open addressing, half full."""
    for i in range(keys.size):
        at = _slot(keys[i], slots.shape[0])
        while slots[at, 0] >= 0:
            at = at + 1 if at + 1 < slots.shape[0] else 0
        slots[at, 0], slots[at, 1] = keys[i], spans[i]


@kernel(inline="always")
def _slot(key, size):
    """The slot at which the search for a key begins."""
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xC2B2AE3D27D4EB4F)
    return np.int64(((mixed >> np.uint64(32)) * np.uint64(size)) >> np.uint64(32))


@kernel(inline="always")
def prefetch_slots(slots, n, indices, first, stop):
    """Prefetch the slots of a row's features in node n."""
    above = np.int64(n) << 32
    for e in range(first, stop):
        prefetch(slots, _slot(above | indices[e], slots.shape[0]), 0)


@kernel(inline="always")
def find_spans(slots, weights, n, indices, first, stop, spans):
    """Look up the spans of a row's features in node n, and prefetch their weights."""
    above = np.int64(n) << 32
    for e in range(first, stop):
        key = above | indices[e]
        at = _slot(key, slots.shape[0])
        while slots[at, 0] >= 0 and slots[at, 0] != key:
            at = at + 1 if at + 1 < slots.shape[0] else 0
        spans[e - first] = 0
        if slots[at, 0] == key:
            spans[e - first] = slots[at, 1]
            prefetch_item(weights, slots[at, 1] >> _COUNT_BITS)


@kernel(inline="always")
def add_weights(bits, weights, spans, values, first, stop, out):
    """out[child] += value · weight for every weight in the spans."""
    for e in range(first, stop):
        span = spans[e - first]
        begin = span >> _COUNT_BITS
        for k in range(begin, begin + (span & ((1 << _COUNT_BITS) - 1))):
            out[bits[k] & CHILD] += values[e] * weights[k]
