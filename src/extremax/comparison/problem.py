"""The data of a comparison: encoded once, split once, the same for every cell."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from extremax.features import Encoder
from extremax.labels import LabelIndex, label_array
from extremax.random import Stream

_TEST = 11
# The classifier holds out no fewer than this, see `extremax.training.holdout`.
_FEWEST = 50
# Methods are compared on dense rows: dimensions that others are projected to if nobody says.
_COMPONENTS = 256


@dataclass(frozen=True, eq=False)
class Problem:
    """Dense rows and labels 0..C−1 to train and tune on, and test rows nobody has looked at.

    A test label of −1 is of a class that training has not.
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
        most_test_rows: int = 10_000,
        encoder: Encoder | None = None,
        seed: int = 0,
        memory_budget: int = 2**31,
    ) -> Problem:
        """Hold test rows out, or take those given, and fit the encoder to the others.

        Sparse rows and texts are always projected: to 256 dimensions if the encoder has none.
        The first row of each class always trains. Of more than ``most_test_rows`` a random
        part is used: exact figures look at every class.
        """
        labels = _labels_of("rows to train on", features, labels)
        checksum = _checksum(features, labels)
        if test is None:
            rows, out = _hold_out(labels, test_fraction, seed)
            test, test_labels = _take(features, out), labels[out]
            features, labels = _take(features, rows), labels[rows]
        else:
            test, test_labels = test[0], _labels_of("test rows", *test)
            checksum += " " + _checksum(test, test_labels)
        some = _some(len(test_labels), most_test_rows, seed)
        index = LabelIndex.of(labels)
        test_codes = index.encode(test_labels[some])
        if not (test_codes >= 0).any():
            raise ValueError(
                "no test row has a class of the rows to train on, so nothing could be measured; "
                "are the labels of both written in the same way?"
            )
        encoder = Encoder() if encoder is None else clone(encoder)
        if encoder.n_components is None:
            encoder.set_params(n_components=_COMPONENTS)
        dense = encoder.fit_transform(features, seed=seed, budget=memory_budget)
        dense_test = encoder.transform(_take(test, some))
        # The encoder projects what is sparse.
        assert isinstance(dense, np.ndarray)
        assert isinstance(dense_test, np.ndarray)
        if encoder.kind_ != "dense":
            # The same texts or sparse rows encoded in another way are other features.
            checksum += f", {encoder.get_params()}"
        return cls(
            dense,
            index.encode(labels),
            dense_test,
            test_codes,
            len(index),
            checksum,
        )

    def prior(self) -> dict[str, float]:
        """Test figures of the class frequencies: what a model that sees no features knows."""
        counts = np.bincount(self.labels, minlength=self.n_classes)
        known = self.test_labels >= 0
        share = counts[self.test_labels[known]] / len(self.labels)
        return {
            "accuracy": float((self.test_labels == counts.argmax()).mean()),
            "log_likelihood": float(np.log(share).mean()) if known.any() else float("-inf"),
        }

    def about(self) -> dict[str, int]:
        """Sizes, for a report."""
        return {
            "rows": len(self.labels),
            "classes": self.n_classes,
            "features": int(self.features.shape[1]),
            "test_rows": len(self.test_labels),
            "test_rows_of_unseen_classes": int((self.test_labels < 0).sum()),
        }


def _hold_out(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    if not 0 < fraction < 1:
        raise ValueError(f"test_fraction must be in (0, 1), got {fraction!r}")
    codes = LabelIndex.of(labels).encode(labels)
    chance = Stream.of(seed, _TEST, rows=np.arange(len(codes))).uniform(1)[:, 0]
    first = np.zeros(len(codes), bool)
    first[np.unique(codes, return_index=True)[1]] = True
    out = (chance < fraction) & ~first
    if out.sum() < _FEWEST:
        raise ValueError(
            f"of {len(codes):,} rows only {int(out.sum())} can be held out for the test, as each "
            f"class keeps its first; a comparison needs {_FEWEST}. Bring more rows, a test file "
            "or a larger test fraction"
        )
    return np.flatnonzero(~out), np.flatnonzero(out)


def _labels_of(rows: str, features: Any, labels: Any) -> np.ndarray:
    labels = label_array(labels)
    n = features.shape[0] if hasattr(features, "shape") else len(features)
    if n != len(labels):
        raise ValueError(f"there are {n:,} {rows} but {len(labels):,} labels of them")
    return labels


def _some(n: int, most: int, seed: int) -> np.ndarray:
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng([seed, _TEST]).permutation(n)[:most])


def _take(features: Any, rows: np.ndarray) -> Any:
    if isinstance(features, list):
        return [features[i] for i in rows]
    return features[rows]


def _checksum(features: Any, labels: np.ndarray) -> str:
    """Size, labels and some of the rows: enough to tell another file from the same one."""
    n = len(labels)
    step = max(1, n // 1000)
    if isinstance(features, list):
        some = "\n".join(features[::step]).encode()
    elif hasattr(features, "indptr"):
        part = features[::step]
        some = np.ascontiguousarray(part.indices).tobytes() + part.data.tobytes()
    else:
        some = np.ascontiguousarray(features[::step], dtype=np.float32).tobytes()
    names = labels.tobytes() if labels.dtype != object else repr(labels.tolist()).encode()
    return f"{n} rows, {zlib.crc32(some):08x}, {zlib.crc32(names):08x}"
