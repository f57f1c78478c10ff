"""The data of a comparison, encoded and split once for all cells."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from extremax.data.tables import as_table
from extremax.errors import ArgumentError
from extremax.features import Encoder
from extremax.labels import LabelIndex, label_array
from extremax.random import Stream
from extremax.training.holdout import FEWEST

_TEST = 11
# Cells are compared on dense rows: the default number of dimensions of a projection.
_COMPONENTS = 256


@dataclass(frozen=True, eq=False)
class Problem:
    """Dense rows and class numbers 0..C−1 for training and tuning, and separate test rows.

    test_labels:  class numbers, −1 for a class that does not occur in training.
    checksum:     identifies the data and their encoding.
    """

    features: np.ndarray
    labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    n_classes: int
    checksum: str

    @classmethod
    def split(
        cls,
        features: Any,
        labels: Any,
        *,
        test: tuple[Any, Any] | None = None,
        test_fraction: float = 0.1,
        max_test_rows: int = 10_000,
        encoder: Encoder | None = None,
        seed: int = 0,
        memory_budget: int = 2**31,
    ) -> Problem:
        """Hold out test rows, or use the given ones, and fit the encoder to the other rows.

        Sparse rows and texts are always projected: to 256 dimensions if ``encoder`` does not set
        ``n_components``. The first row of each class is never held out.

        test:           features and labels of test rows; None holds out ``test_fraction``.
        max_test_rows:  use a random sample of more test rows, because each is scored exactly.
        """
        if as_table(features).kind == "sequences":
            raise ArgumentError("a comparison needs dense rows, sparse rows or texts, not sessions")
        labels = _checked_labels("training rows", features, labels)
        checksum = _checksum(features, labels)
        if test is None:
            kept, held_out = _hold_out(labels, test_fraction, seed)
            test_features, test_labels = as_table(features).take(held_out), labels[held_out]
            features, labels = as_table(features).take(kept), labels[kept]
        else:
            test_features, test_labels = test[0], _checked_labels("test rows", *test)
            checksum += " " + _checksum(test_features, test_labels)
        sample = _sample(len(test_labels), max_test_rows, seed)
        index = LabelIndex.of(labels)
        test_codes = index.encode(test_labels[sample])
        if not (test_codes >= 0).any():
            raise ArgumentError(
                "no test row has a class of the training rows, so nothing can be measured; check "
                "that the labels of both are written in the same way"
            )
        encoder = Encoder() if encoder is None else clone(encoder)
        if encoder.n_components is None:
            encoder.set_params(n_components=_COMPONENTS)
        rows = encoder.fit_transform(features, seed=seed, budget=memory_budget)
        try:
            test_rows = encoder.transform(as_table(test_features).take(sample))
        except ValueError as error:
            raise ArgumentError(f"test rows: {error}") from error
        if encoder.input_kind != "dense":
            # Another encoding of the same texts or sparse rows gives other features.
            checksum += f", {encoder.get_params()}"
        return cls(
            rows.dense().array,
            index.encode(labels),
            test_rows.dense().array,
            test_codes,
            len(index),
            checksum,
        )

    def prior(self) -> dict[str, float]:
        """Return the test metrics of the class frequencies, the best model without features."""
        counts = np.bincount(self.labels, minlength=self.n_classes)
        known = self.test_labels >= 0
        share = counts[self.test_labels[known]] / len(self.labels)
        return {
            "accuracy": float((self.test_labels == counts.argmax()).mean()),
            "log_likelihood": float(np.log(share).mean()),
        }

    def about(self) -> dict[str, int]:
        """Return the sizes, for the report."""
        return {
            "rows": len(self.labels),
            "classes": self.n_classes,
            "features": int(self.features.shape[1]),
            "test_rows": len(self.test_labels),
            "test_rows_of_unseen_classes": int((self.test_labels < 0).sum()),
        }


def _hold_out(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of training and test rows."""
    if not 0 < fraction < 1:
        raise ArgumentError(f"test_fraction must be in (0, 1), got {fraction!r}")
    codes = LabelIndex.of(labels).encode(labels)
    chance = Stream.of(seed, _TEST, rows=np.arange(len(codes))).uniform(1)[:, 0]
    is_first = np.zeros(len(codes), bool)
    is_first[np.unique(codes, return_index=True)[1]] = True
    held_out = (chance < fraction) & ~is_first
    if held_out.sum() < FEWEST:
        raise ArgumentError(
            f"only {int(held_out.sum())} of {len(codes):,} rows can be held out for the test, "
            f"because the first row of each class is used for training; a comparison needs "
            f"{FEWEST}. Provide more rows, separate test rows, or a larger test_fraction"
        )
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _checked_labels(name: str, features: Any, labels: Any) -> np.ndarray:
    labels = label_array(labels)
    n_rows = len(as_table(features))
    if n_rows != len(labels):
        raise ArgumentError(f"there are {n_rows:,} {name}, but {len(labels):,} labels")
    return labels


def _sample(n_rows: int, most: int, seed: int) -> np.ndarray:
    """Return the numbers of at most ``most`` rows, drawn at random."""
    if n_rows <= most:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng([seed, _TEST]).permutation(n_rows)[:most])


def _checksum(features: Any, labels: np.ndarray) -> str:
    """Return the number of rows and checksums of the labels and of up to 2,000 rows."""
    n_rows = len(labels)
    step = max(1, n_rows // 1000)
    content = as_table(features).content(step)
    names = labels.tobytes() if labels.dtype != object else repr(labels.tolist()).encode()
    return f"{n_rows} rows, {zlib.crc32(content):08x}, {zlib.crc32(names):08x}"
