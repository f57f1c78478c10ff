"""Bigram noise: class frequencies given one discrete context, backed off to the unigram.

With n(c, y) rows of class y in context c, N_c rows of the context, and class frequencies q(y),

    q(y|c) = (n(c, y) + β q(y)) / (N_c + β)

(a Dirichlet prior of strength β around the unigram; MacKay & Peto 1995). The context of a row is
a previous word, a user, a shop: an integer in one column of the features.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from extremax.errors import ArgumentError
from extremax.kernels.cpu.threads import parallel
from extremax.noise.base import Draw, Noise, check_number, filled
from extremax.noise.frequency import FrequencyNoise, check_counts
from extremax.random import Stream
from extremax.rows import Needs, Sizes, as_rows
from extremax.tensors import Tensors

if TYPE_CHECKING:
    from extremax.kernels.cpu.bigram import BigramTable

# β tried by "auto".
_BACKOFFS = 2.0 ** np.arange(-4, 21)
# Larger numbers may not fit in an int64.
_LARGEST = 2.0**62


class BigramNoise(Noise):
    """Drawn in O(1) by alias tables; log q takes a binary search among the classes of the context.

    A context not seen in the fit has the unigram, `FrequencyNoise(power=1)`. Classes that appear
    after the fit (`extend`) count as one further row each, in every context.

    column:     column of the features that holds the context. Numbers are rounded down, so 2.0 and
                2.9 are the same context. (float32 tells integers apart up to 2²⁴ = 16.8 million.)
    backoff:    β. "auto" maximizes the likelihood of each row of the fit given all the others
                (leave one out).
    max_pairs:  the most pairs (c, y) kept, 32 bytes each: the most frequent ones, with a warning
                that says how many rows they cover. Rows of other pairs count toward the unigram of
                their context.
    """

    _table: BigramTable

    needs_dense = True

    def __init__(
        self, column: int = 0, backoff: float | str = "auto", max_pairs: int = 5_000_000
    ) -> None:
        self.column = column
        self.backoff = backoff
        self.max_pairs = max_pairs

    def learn(self, features: Any, labels: np.ndarray, n_classes: int, rows: np.ndarray) -> None:
        unigram = FrequencyNoise().fit(features, labels, n_classes, rows)
        values, labels = self._values(features)[rows], labels[rows]
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
        state = {
            "contexts": contexts[kept],
            "totals": totals[kept],
            "offsets": np.searchsorted(owners, np.append(kept, len(contexts))),
            "classes": pairs % n_classes,
            "counts": counts,
            "unigram": unigram.counts_.numpy(),
            "n_classes": np.array(n_classes),
            "backoff": np.array(float(backoff)),
        }
        self.load_state({k: torch.from_numpy(v) for k, v in state.items()})

    def check_parameters(self) -> None:
        check_number(self, "column", integer=True)
        check_number(self, "backoff", above=0, auto=True)
        check_number(self, "max_pairs", least=1, integer=True)

    def _most_frequent(
        self, pairs: np.ndarray, counts: np.ndarray, n_rows: int
    ) -> tuple[np.ndarray, np.ndarray]:
        best = np.sort(np.argsort(-counts, kind="stable")[: self.max_pairs])
        share = counts[best].sum() / n_rows
        warnings.warn(
            f"BigramNoise keeps {self.max_pairs:,} of {len(pairs):,} pairs of context and class, "
            f"which cover {share:.1%} of the rows; the others back off to the unigram (max_pairs)",
            stacklevel=3,
        )
        return pairs[best], counts[best]

    def _values(self, features: Any) -> np.ndarray:
        """The contexts of rows, as int64."""
        array = as_rows(features).dense().array
        width = array.shape[1]
        if not -width <= self.column < width:
            raise ArgumentError(
                f"column={self.column} is not among the {width} columns of features"
            )
        numbers = np.floor(np.asarray(array[:, self.column], dtype=np.float64))
        bad = np.flatnonzero(~(np.abs(numbers) <= _LARGEST))
        if len(bad):
            raise ArgumentError(
                f"row {bad[0]} has {array[bad[0], self.column]} in column {self.column}, which is "
                "not the number of a context"
            )
        return numbers.astype(np.int64)

    def context(self, features: Any) -> torch.Tensor:
        """(n, 1) indices of the kept contexts; the index after the last stands for all others."""
        values, known = self._values(features), self.contexts_.numpy()
        indices = np.searchsorted(known, values)
        is_known = np.append(known, 0)[indices] == values
        is_known &= indices < len(known)
        return torch.from_numpy(np.where(is_known, indices, len(known)))[:, None]

    def sample(self, context: torch.Tensor, m: int, stream: Stream) -> Draw:
        from extremax.kernels.cpu.bigram import draw

        labels = filled(
            draw, (len(context), m), 2048, self._table, context.numpy(), stream.key, stream.rows,
            dtype=torch.int64,
        )  # fmt: skip
        return Draw(labels, self.log_prob(context, labels))

    def log_prob(self, context: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from extremax.kernels.cpu.bigram import log_prob

        shape = tuple(labels.shape)
        return filled(log_prob, shape, 2048, self._table, context.numpy(), labels.numpy())

    def log_prob_all(self, context: torch.Tensor) -> torch.Tensor:
        from extremax.kernels.cpu.bigram import log_prob_all

        shape = len(context), self.n_classes_
        return filled(log_prob_all, shape, 8, self._table, context.numpy())

    def extend(self, n_classes: int) -> None:
        super().extend(n_classes)
        n_late = n_classes - len(self._table.unigram)
        n_rows = int(self.unigram_.clamp(min=1).sum())
        self._table = self._table._replace(late=1.0 / (n_rows + n_late), n_late=n_late)

    def state(self) -> dict[str, torch.Tensor]:
        return super().state() | {
            "contexts": self.contexts_,
            "totals": self.totals_,
            "offsets": torch.from_numpy(self._table.offsets[:-1]),
            "classes": torch.from_numpy(self._table.classes),
            "counts": torch.from_numpy(self._table.counts),
            "unigram": self.unigram_,
            "backoff": torch.tensor(self.backoff_, dtype=torch.float64),
        }

    def check_state(self, tensors: Tensors, n_classes: int, n_features: int) -> None:
        super().check_state(tensors, n_classes, n_features)
        tensors.number("backoff", 1e-300, 1e300, torch.float64)
        unigram = check_counts(tensors, "unigram", None)
        classes = tensors.indices("classes", len(unigram), None)
        counts = tensors.indices("counts", 1 << 53, len(classes), low=1)
        contexts = tensors.array("contexts", torch.int64, None)
        totals = check_counts(tensors, "totals", len(contexts))
        offsets = tensors.offsets("offsets", len(classes), len(contexts) + 1)
        if not 1 <= len(unigram) <= n_classes:
            raise ArgumentError(f"unigram has {len(unigram)} classes, expected 1 to {n_classes}")
        if not np.all(contexts[1:] > contexts[:-1]):
            raise ArgumentError("contexts must rise")
        if not np.all(np.diff(offsets) > 0):
            raise ArgumentError("every context must have pairs")
        if not np.all((np.diff(classes) > 0) | np.isin(np.arange(1, len(classes)), offsets)):
            raise ArgumentError("classes must rise within a context")
        if len(contexts) and np.any(np.add.reduceat(counts, offsets[:-1], dtype=float) > totals):
            raise ArgumentError("counts of a context sum to more than its total")
        if not -n_features <= self.column < n_features:
            raise ArgumentError(f"column={self.column} is not among the {n_features} features")

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        from extremax.kernels.cpu.bigram import BigramTable, build_aliases

        self.backoff_, self.unigram_ = float(state["backoff"]), state["unigram"]
        self.contexts_, self.totals_ = state["contexts"], state["totals"]
        offsets, counts = state["offsets"].numpy(), state["counts"].numpy()
        n_contexts, totals = len(self.contexts_), self.totals_.numpy()
        threshold, alias = np.empty(len(counts)), np.empty(len(counts), np.int64)
        parallel(
            build_aliases, n_contexts, max(1, n_contexts // 64), offsets, counts, threshold, alias
        )
        per_count = 1.0 / (totals + self.backoff_)
        kept = np.add.reduceat(counts, offsets[:-1]) if n_contexts else np.zeros(0)
        shares = (totals - kept + self.backoff_) * per_count
        unigram = FrequencyNoise()
        unigram.load_state({"counts": self.unigram_})
        # One more context stands for all others: it has no pairs and nothing but the unigram.
        self._table = BigramTable(
            offsets=np.append(offsets, offsets[-1]),
            classes=state["classes"].numpy(),
            counts=counts,
            threshold=threshold,
            alias=alias,
            per_count=np.append(per_count, 0.0),
            shares=np.append(shares, 1.0),
            unigram=unigram.log_q_.double().exp().numpy(),
            log_unigram=unigram.log_q_.numpy(),
            unigram_threshold=unigram.threshold_,
            unigram_alias=unigram.alias_,
            late=0.0,
            n_late=0,
        )
        self.n_classes_ = unigram.n_classes_
        self.extend(int(state["n_classes"]))

    def needs(self, sizes: Sizes, n_threads: int) -> Needs:
        pairs = float(min(sizes.rows, self.max_pairs))
        # The fit sorts contexts and pairs with copies; each context has at least one pair.
        return Needs(
            kept=72.0 * pairs + 36.0 * sizes.classes,
            passing=64.0 * sizes.rows,
            saved=40.0 * pairs + 8.0 * sizes.classes,
        )

    def context_bytes(self, sizes: Sizes) -> float:
        return 8.0 * sizes.rows


def _likeliest_backoff(
    pairs: np.ndarray, counts: np.ndarray, totals: np.ndarray, unigram: torch.Tensor
) -> float:
    """β with the largest Σ n(c, y) log((n(c, y) − 1 + β q(y)) / (N_c − 1 + β))."""
    q, sizes = unigram.numpy()[pairs % len(unigram)], totals[pairs // len(unigram)]
    likelihoods = [
        float((counts * np.log((counts - 1 + b * q) / (sizes - 1 + b))).sum()) for b in _BACKOFFS
    ]
    return float(_BACKOFFS[int(np.argmax(likelihoods))]) if len(pairs) else 1.0
