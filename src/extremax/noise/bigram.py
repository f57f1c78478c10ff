"""Bigram noise: classes by how often they followed one discrete context, backed off to unigram.

With n(c, y) rows of class y in context c, N_c of the context, and q(y) the class frequencies,

    q(y|c) = (n(c, y) + β q(y)) / (N_c + β)

(a Dirichlet prior of strength β around the unigram; MacKay & Peto 1995). The context of a row is
a previous word, a user, a shop: an integer in one column of the features.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch

from extremax.checks import check_rows, is_number
from extremax.noise.base import Draw, Noise, check_growth, check_labels
from extremax.noise.frequency import FrequencyNoise
from extremax.random import Stream

# β tried by "auto".
_BACKOFFS = 2.0 ** np.arange(-4, 21)
# Contexts beyond this do not fit an integer; nobody numbers so many.
_LARGEST = 2.0**62


class BigramNoise(Noise):
    """Drawn in O(1) by alias tables; log q takes a binary search among the context's classes.

    column:     where in the features the context is. Numbers are rounded down, so 2.0 and 2.9
                are one context. (float32 tells integers apart up to 2²⁴ = 16.8 million.)
    backoff:    β. "auto" takes the one under which each row of the fit is likeliest given all the
                others (leave one out).
    max_pairs:  memory: at most so many pairs (c, y) are kept, 32 bytes each, the most frequent
                ones, with a warning that tells how many rows that leaves out. A context gives the
                rows of pairs it has not kept to the unigram, too.

    A context never seen in the fit has the unigram, `FrequencyNoise(power=1)`. Classes that appear
    after the fit (`extend`) count as one row each beside all that is known, in every context.
    """

    def __init__(
        self, column: int = 0, backoff: float | str = "auto", max_pairs: int = 5_000_000
    ) -> None:
        self.column = column
        self.backoff = backoff
        self.max_pairs = max_pairs

    def fit(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        n_classes: int,
        rows: np.ndarray | None = None,
    ) -> BigramNoise:
        self._check_parameters()
        labels = check_labels(labels, n_classes)
        check_rows(features, labels)
        unigram = FrequencyNoise().fit(features, labels, n_classes, rows)
        values = self._values(features)
        if rows is not None:
            values, labels = values[rows], labels[rows]
        contexts, numbers = np.unique(values, return_inverse=True)
        pairs, counts = np.unique(numbers * np.int64(n_classes) + labels, return_counts=True)
        totals = np.bincount(numbers, minlength=len(contexts))
        backoff = self.backoff
        if backoff == "auto":
            backoff = _likeliest_backoff(pairs, counts, totals, unigram.log_q_.double().exp())
        if len(pairs) > self.max_pairs:
            pairs, counts = self._most_frequent(pairs, counts, len(labels))
        owners = pairs // n_classes
        kept = np.unique(owners)
        offsets = np.searchsorted(owners, np.append(kept, len(contexts)))
        state = {
            "contexts": contexts[kept],
            "totals": totals[kept],
            "offsets": offsets,
            "classes": pairs % n_classes,
            "counts": counts,
            "unigram": unigram.counts_.numpy(),
            "n_classes": np.array(n_classes),
            "backoff": np.array(float(backoff)),
        }
        self.load_state({k: torch.from_numpy(v) for k, v in state.items()})
        return self

    def _check_parameters(self) -> None:
        if not is_number(self.column, integer=True):
            raise ValueError(f"column must be an integer, got {self.column!r}")
        if self.backoff != "auto" and not (is_number(self.backoff) and self.backoff > 0):
            raise ValueError(f"backoff must be a number > 0 or 'auto', got {self.backoff!r}")
        if not (is_number(self.max_pairs, integer=True) and self.max_pairs >= 1):
            raise ValueError(f"max_pairs must be an integer >= 1, got {self.max_pairs!r}")

    def _most_frequent(
        self, pairs: np.ndarray, counts: np.ndarray, n_rows: int
    ) -> tuple[np.ndarray, np.ndarray]:
        best = np.sort(np.argsort(-counts, kind="stable")[: self.max_pairs])
        share = counts[best].sum() / n_rows
        warnings.warn(
            f"BigramNoise keeps {self.max_pairs:,} of {len(pairs):,} pairs of context and class, "
            f"those of {share:.1%} of the rows; the others back off to the unigram (max_pairs)",
            stacklevel=3,
        )
        return pairs[best], counts[best]

    def _values(self, features: np.ndarray) -> np.ndarray:
        """The contexts of rows, as int64."""
        width = features.shape[1]
        if not -width <= self.column < width:
            raise ValueError(f"column={self.column} is not among the {width} columns of features")
        numbers = np.floor(np.asarray(features[:, self.column], dtype=np.float64))
        if not np.all(np.abs(numbers) <= _LARGEST):
            bad = int(np.argmin(np.abs(numbers) <= _LARGEST))
            raise ValueError(
                f"row {bad} has {features[bad, self.column]} in column {self.column}: no context"
            )
        return numbers.astype(np.int64)

    def context(self, features: np.ndarray) -> torch.Tensor:
        """(n, 1) numbers of the contexts kept; what follows the last is any other."""
        values, known = self._values(features), self.contexts_.numpy()
        at = np.searchsorted(known, values)
        found = np.append(known, 0)[at] == values
        found &= at < len(known)
        return torch.from_numpy(np.where(found, at, len(known)))[:, None]

    def sample(self, context: torch.Tensor, m: int, stream: Stream) -> Draw:
        from extremax.kernels.cpu import bigram
        from extremax.kernels.cpu.threads import parallel

        labels = torch.empty((len(context), m), dtype=torch.int64)
        parallel(
            bigram.draw, len(labels), 2048, context.numpy(), self._offsets, self._classes,
            self._shares, self._threshold, self._alias, self._unigram._threshold,
            self._unigram._alias, *self._late, stream.key, stream.rows, labels.numpy(),
        )  # fmt: skip
        return Draw(labels, self.log_prob(context, labels))

    def log_prob(self, context: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from extremax.kernels.cpu import bigram
        from extremax.kernels.cpu.threads import parallel

        out = torch.empty(labels.shape)
        parallel(
            bigram.log_prob, len(labels), 2048, context.numpy(), *self._table, *self._late,
            labels.numpy(), out.numpy(),
        )  # fmt: skip
        return out

    def log_prob_all(self, context: torch.Tensor) -> torch.Tensor:
        from extremax.kernels.cpu import bigram
        from extremax.kernels.cpu.threads import parallel

        out = torch.empty((len(context), self.n_classes_))
        parallel(
            bigram.log_prob_all, len(context), 8, context.numpy(), *self._table, *self._late,
            self._unigram.log_q_.numpy(), out.numpy(),
        )  # fmt: skip
        return out

    def extend(self, n_classes: int) -> None:
        check_growth(self, n_classes)
        self.n_classes_ = n_classes

    @property
    def _late(self) -> tuple[float, int]:
        """q of each class that came after the fit, and their number."""
        n_late = self.n_classes_ - self._unigram.n_classes_
        return 1.0 / (self._n_rows + n_late), n_late

    def state(self) -> dict[str, torch.Tensor]:
        return {
            "contexts": self.contexts_,
            "totals": self.totals_,
            "offsets": torch.from_numpy(self._offsets[:-1]),
            "classes": torch.from_numpy(self._classes),
            "counts": torch.from_numpy(self._counts),
            "unigram": self._unigram.counts_,
            "n_classes": torch.tensor(self.n_classes_),
            "backoff": torch.tensor(self.backoff_, dtype=torch.float64),
        }

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        from extremax.kernels.cpu.bigram import build_aliases
        from extremax.kernels.cpu.threads import parallel

        self.n_classes_, self.backoff_ = int(state["n_classes"]), float(state["backoff"])
        self.contexts_, self.totals_ = state["contexts"], state["totals"]
        offsets, counts = state["offsets"].numpy(), state["counts"].numpy()
        self._classes, self._counts = state["classes"].numpy(), counts
        n_contexts = len(self.contexts_)
        self._threshold, self._alias = np.empty(len(counts)), np.empty(len(counts), np.int64)
        parallel(
            build_aliases, n_contexts, max(1, n_contexts // 64),
            offsets, counts, self._threshold, self._alias,
        )  # fmt: skip
        # One more context: all those not kept, with no pairs and nothing but the unigram.
        self._offsets = np.append(offsets, offsets[-1])
        per_count = 1.0 / (self.totals_.numpy() + self.backoff_)
        kept = np.add.reduceat(counts, offsets[:-1]) if n_contexts else np.zeros(0)
        rest = self.totals_.numpy() - kept + self.backoff_
        self._shares = np.append(rest * per_count, 1.0)
        self._unigram = FrequencyNoise()
        self._unigram.load_state({"counts": state["unigram"]})
        self._n_rows = int(state["unigram"].clamp(min=1).sum())
        unigram = self._unigram.log_q_.double().exp().numpy()
        self._table = (
            self._offsets, self._classes, counts, np.append(per_count, 0.0), self._shares, unigram,
        )  # fmt: skip


def _likeliest_backoff(
    pairs: np.ndarray, counts: np.ndarray, totals: np.ndarray, unigram: torch.Tensor
) -> float:
    """β with the largest Σ n(c, y) log((n(c, y) − 1 + β q(y)) / (N_c − 1 + β))."""
    q, own = unigram.numpy()[pairs % len(unigram)], totals[pairs // len(unigram)]
    likelihoods = [
        float((counts * np.log((counts - 1 + b * q) / (own - 1 + b))).sum()) for b in _BACKOFFS
    ]
    return float(_BACKOFFS[int(np.argmax(likelihoods))]) if len(pairs) else 1.0
