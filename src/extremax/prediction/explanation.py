"""Why a class: what each part of the input adds to its log-probability.

    contribution of part j  =  log p(y|x) − log p(y|x without j)

A part is a word of a text, a value of a row, or an item of a session. Nothing is linearized: head,
noise and every further expert are asked again, with every class scored. Parts that say the same
thing share the credit: without one of them, the other still says it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from extremax.data.sequences import Sequences
from extremax.errors import ArgumentError

# Parts of one input at most: each costs a prediction that scores every class.
_MOST = 10_000


@dataclass(frozen=True)
class Explanation:
    """What speaks for and against a label, the strongest first.

    parts:          words, numbers of columns, or items.
    contributions:  what each adds to log p of the label; negative if it speaks against it.
    """

    label: Any
    log_prob: float
    parts: list[Any]
    contributions: np.ndarray

    def __str__(self) -> str:
        lines = [f"{self.label}: p = {np.exp(self.log_prob):.3g}"]
        for part, contribution in zip(self.parts, self.contributions, strict=True):
            lines.append(f"{contribution:+9.3f}  {part}".replace("-", "−", 1))
        return "\n".join(lines)


def explain(x: Any, label: Any, kind: str, log_probs: Callable[[Any], np.ndarray]) -> Explanation:
    """Ask for x and for x without each part.

    kind:       "text", "sparse", "dense" or "sequences", see `Encoder.input_kind`.
    log_probs:  log p of the label for each of several inputs.
    """
    parts, inputs = _PARTS[kind](x)
    if len(parts) > _MOST:
        raise ArgumentError(f"x has {len(parts):,} parts, and {_MOST:,} can be explained at most")
    whole, *others = log_probs(inputs).tolist()
    contributions = whole - np.array(others)
    order = np.argsort(-np.abs(contributions), kind="stable")
    return Explanation(label, whole, [parts[i] for i in order], contributions[order])


def _words(x: Any) -> tuple[list[str], list[str]]:
    """A text, and the text without each word."""
    if not isinstance(x, str):
        raise ArgumentError(f"x must be a text, got {x!r:.80}")
    words = x.split()
    return words, [x, *(" ".join(words[:i] + words[i + 1 :]) for i in range(len(words)))]


def _items(x: Any) -> tuple[list[Any], Sequences]:
    """A session, and the session without each item."""
    items = Sequences.of([x]).tolist()[0]
    return items, Sequences.of([items, *(items[:i] + items[i + 1 :] for i in range(len(items)))])


def _sparse_values(x: Any) -> tuple[list[int], sparse.csr_matrix]:
    """A row, and the row without each of its values."""
    row = sparse.csr_matrix(x)
    if row.shape[0] != 1:
        raise ArgumentError(f"x must be one row, got {row.shape[0]}")
    row.sum_duplicates()
    row.eliminate_zeros()
    n = row.nnz
    several = sparse.csr_matrix(sparse.vstack([row] * (n + 1)))
    several.data[n + np.arange(n) * (n + 1)] = 0
    several.eliminate_zeros()
    return row.indices.tolist(), several


def _dense_values(x: Any) -> tuple[list[int], np.ndarray]:
    """A row, and the row with each of its values set to zero."""
    row = np.asarray(x)
    if row.ndim == 2 and len(row) == 1:
        row = row[0]
    if row.ndim != 1:
        raise ArgumentError(f"x must be one row, got shape {row.shape}")
    columns = np.flatnonzero(row)
    several = np.tile(row, (len(columns) + 1, 1))
    several[1 + np.arange(len(columns)), columns] = 0
    return columns.tolist(), several


_PARTS: dict[str, Callable[[Any], tuple[list[Any], Any]]] = {
    "text": _words, "sparse": _sparse_values, "dense": _dense_values, "sequences": _items,
}  # fmt: skip
