"""The size of a training job before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from extremax.data import Dataset
from extremax.features import Encoder
from extremax.features.encoder import EncoderPlan
from extremax.labels import LabelLists
from extremax.rows import DenseRows, Needs, Sizes


@dataclass(frozen=True)
class Workload:
    """Rows, classes and features as they are read, and what the encoder makes of them.

    rows:       examples; a row with several labels counts once per label.
    features:   columns of the data; for texts, buckets that hashing fills.
    nonzeros:   values per row.
    row_bytes:  what a row takes in memory as it was read.
    kind, name: "dense", "sparse" or "text", and what messages call such rows.
    n_hashed:   texts that were hashed to measure the others.
    """

    rows: int
    features: int
    classes: int
    nonzeros: float
    row_bytes: float
    kind: str
    name: str
    encoded: EncoderPlan
    multilabel: bool = False
    n_hashed: int = 0

    @classmethod
    def dense(cls, rows: int, features: int, classes: int, number_bytes: int = 4) -> Workload:
        encoded = EncoderPlan(DenseRows, features, float(features), 0.0, Needs())
        row_bytes = float(number_bytes * features)
        nonzeros, name = float(features), DenseRows.name
        return cls(rows, features, classes, nonzeros, row_bytes, "dense", name, encoded)

    @classmethod
    def of(
        cls,
        sample: Dataset,
        n_classes: int,
        encoder: Encoder,
        n_rows: int | None = None,
        n_features: int | None = None,
    ) -> Workload:
        """The job on these rows, or on ``n_rows`` rows of which these are the first.

        n_features:  columns of the whole data, which the first rows need not all use.
        """
        table, n = sample.table, len(sample) if n_rows is None else n_rows
        features, nonzeros, n_hashed = encoder.measure(sample.features, n)
        features = max(features, n_features or 0)
        multilabel = isinstance(sample.labels, LabelLists)
        # The rows are read once; each label of a row makes an example.
        per_row = len(sample.label_values) / len(sample) if multilabel else 1.0
        examples = round(n * per_row)
        plan = encoder.plan(sample.features, examples, features, nonzeros, multilabel)
        return cls(
            examples, features, n_classes, nonzeros, table.bytes_per_row / per_row, table.kind,
            table.name, plan, multilabel, n_hashed,
        )  # fmt: skip

    @property
    def sizes(self) -> Sizes:
        """As heads and noises see it."""
        return Sizes(self.rows, self.encoded.width, self.classes, self.encoded.nonzeros)
