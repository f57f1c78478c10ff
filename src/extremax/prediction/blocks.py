"""Exact prediction over every class, in blocks of rows that fit a memory budget.

A `SparseHead` needs no blocks: it looks at the classes that share a feature with a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from extremax.errors import MemoryBudgetError
from extremax.features.rows import Rows, SparseRows
from extremax.noise.base import Noise
from extremax.objectives.base import Objective
from extremax.sparse_head import SparseHead

#: A `LinearHead` on dense rows, a `BagHead` or a `SparseHead` on sparse ones.
Head: TypeAlias = Any


class Ranking(NamedTuple):
    """The k best classes of each row, best first, with log-probabilities."""

    labels: torch.Tensor
    log_probs: torch.Tensor


class Likelihood(NamedTuple):
    """log p(true class) of each row, and whether the true class came first."""

    log_prob: torch.Tensor
    correct: torch.Tensor


class Blend(NamedTuple):
    """What a noise that is a good classifier knows besides ξ (`extremax.prediction.blending`):
    logits (ξ + Σ_l a_l log q_l + r)/T."""

    #: a_l, of the part of log q that each level of the tree has.
    levels: np.ndarray
    #: r of each class.
    prior: torch.Tensor


@dataclass
class Scorer:
    """Head, noise and objective together: features to softmax logits."""

    head: Head
    noise: Noise
    objective: Objective
    #: What logits are divided by (`extremax.prediction.calibration`).
    temperature: float = 1.0
    #: For objectives whose scores are logits by themselves.
    blend: Blend | None = None

    def logits(self, features: Rows) -> torch.Tensor:
        """(n, C) logits of float32 rows; Eq. 5 of Bamler & Mandt 2020 where the objective asks
        for it."""
        scores = self.head.scores_all(features)
        if not self.objective.adds_log_q:
            scores = self.objective.logits(scores, scores[:0])
        if self.objective.adds_log_q or self.blend:
            context = self.noise.context(features)
            for part in parts(len(scores)):
                scores[part] += self._beside(context[part])
        return scores if self.temperature == 1.0 else scores.div_(self.temperature)

    def _beside(self, context: Any) -> torch.Tensor:
        """What the noise says of every class."""
        if self.blend is None:
            return self.noise.log_prob_all(context)
        return self.noise.weighted_log_probs(context, self.blend.levels).add_(self.blend.prior)

    def bytes_a_row(self) -> int:
        """Peak bytes of `logits` for one row: the scores, and three numbers a class while the
        tree walks. Rows of a block need less, because the tree takes them in `parts`."""
        return 16 * self.head.n_classes


def parts(n_rows: int) -> Iterator[slice]:
    """Eighths of a block, for work that makes copies of what it is given."""
    step = max(1, n_rows // 8)
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def blocks(features: Rows, bytes_a_row: int, budget: int) -> Iterator[slice]:
    """Slices of rows whose work fits the budget."""
    rows = max(1, min(4096, budget // bytes_a_row))
    if bytes_a_row > budget:
        raise MemoryBudgetError(
            f"one row over all classes needs {bytes_a_row:,} bytes, "
            f"the memory budget is {budget:,}; raise memory_budget"
        )
    for start in range(0, len(features), rows):
        yield slice(start, min(start + rows, len(features)))


def taken(features: Rows, rows: Any) -> Any:
    """Some rows as a head takes them: float32, or sparse."""
    some = features[rows]
    return some if isinstance(some, SparseRows) else np.array(some, dtype=np.float32, order="C")


def _log_probs(scorer: Scorer, features: Rows, rows: slice) -> torch.Tensor:
    """log p of every class, for the rows of one block."""
    logits = scorer.logits(taken(features, rows))
    for part in parts(len(logits)):
        logits[part] = scorer.objective.log_normalise(logits[part])
    return logits


def topk(scorer: Scorer, features: Rows, k: int, budget: int) -> Ranking:
    """The k most probable classes, exactly."""
    k = min(k, scorer.head.n_classes)
    if isinstance(scorer.head, SparseHead):
        return Ranking(*scorer.head.topk(features, k, scorer.temperature))
    labels = torch.empty((len(features), k), dtype=torch.int64)
    log_probs = torch.empty((len(features), k))
    for rows in blocks(features, scorer.bytes_a_row(), budget):
        log_p = _log_probs(scorer, features, rows)
        log_probs[rows], labels[rows] = log_p.topk(k, dim=1)
        del log_p  # Before the next block is made.
    return Ranking(labels, log_probs)


def log_probs(scorer: Scorer, features: Rows, labels: np.ndarray, budget: int) -> torch.Tensor:
    """Exact log p of labels (n, j); −1 (a class the model has not) gives −inf."""
    if isinstance(scorer.head, SparseHead):
        own = scorer.head.log_probs(features, np.maximum(labels, 0), scorer.temperature)
        return own.masked_fill_(torch.from_numpy(labels < 0), -torch.inf)
    out = torch.empty(labels.shape)
    for rows in blocks(features, scorer.bytes_a_row(), budget):
        log_p = _log_probs(scorer, features, rows)
        wanted = torch.from_numpy(np.ascontiguousarray(labels[rows]))
        own = log_p.gather(1, wanted.clamp(min=0))
        out[rows] = own.masked_fill(wanted < 0, -torch.inf)
        del log_p
    return out


def log_probs_all(scorer: Scorer, features: Rows, budget: int) -> torch.Tensor:
    """Exact log p of every class, (n, C). The caller has made sure that this fits."""
    out = torch.empty((len(features), scorer.head.n_classes))
    for rows in blocks(features, scorer.bytes_a_row(), budget):
        out[rows] = _log_probs(scorer, features, rows)
    return out


def likelihood(scorer: Scorer, features: Rows, labels: np.ndarray, budget: int) -> Likelihood:
    """Exact log-likelihood of integer labels; −1 (a class the model has not) gives −inf."""
    truth = torch.from_numpy(np.asarray(labels, np.int64))
    if isinstance(scorer.head, SparseHead):
        own = log_probs(scorer, features, truth.numpy()[:, None], budget)[:, 0]
        return Likelihood(own, topk(scorer, features, 1, budget).labels[:, 0] == truth)
    log_prob = torch.empty(len(labels))
    correct = torch.empty(len(labels), dtype=torch.bool)
    for rows in blocks(features, scorer.bytes_a_row(), budget):
        log_p = _log_probs(scorer, features, rows)
        log_prob[rows] = log_p.gather(1, truth[rows].clamp(min=0)[:, None])[:, 0]
        correct[rows] = log_p.argmax(1) == truth[rows]
        del log_p
    log_prob[truth < 0] = -torch.inf
    return Likelihood(log_prob, correct)
