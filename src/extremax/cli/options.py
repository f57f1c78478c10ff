"""Options shared by several commands, and the input file that they describe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from extremax.data import Dataset, Summary


class KeepLabels(str, Enum):
    """Choices of --keep-labels for multilabel commands."""

    first = "first"
    smallest = "smallest"
    all = "all"


class KeepLabel(str, Enum):
    """Choices of --keep-labels for commands that use one label per row."""

    first = "first"
    smallest = "smallest"


class Analyzer(str, Enum):
    """Choices of --analyzer."""

    word = "word"
    char_wb = "char_wb"


def at_least_one(value: int | None) -> int | None:
    """Typer callback: reject numbers below 1."""
    if value is not None and value < 1:
        raise typer.BadParameter(f"must be at least 1, got {value}")
    return value


File = Annotated[Path, typer.Argument(metavar="FILE", help="File of rows with labels.")]
ModelPath = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder written by `extremax train`.")
]
Format = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="npy, npz, svmlight, xc, parquet, tsv or fasttext. Detected by default from the "
        "file name or the first line.",
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Labels for an .npy or .npz FILE: an .npy, or a text file with one label per line.",
    ),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Parquet: column of labels, `label` by default."),
]
TextColumn = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Parquet: column of texts, `text` by default."),
]
ZeroBased = Annotated[
    bool | None,
    typer.Option(
        "--zero-based/--one-based",
        help="First feature index: by default 1 for svmlight and 0 for xc.",
    ),
]
WhichLabels = Annotated[
    KeepLabels,
    typer.Option(
        "--keep-labels",
        help="Which label to keep of rows with several labels: the first, the smallest, or all.",
    ),
]
WhichLabel = Annotated[
    KeepLabel,
    typer.Option("--keep-labels", help="Which label to keep of rows with several labels."),
]
Threads = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        callback=at_least_one,
        help="Number of threads, by default one per core. Results do not depend on it.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@dataclass(frozen=True)
class Input:
    """A file of rows, and how to read it."""

    path: Path
    format: str | None = None
    labels: Path | None = None
    label_column: str | None = None
    text_column: str | None = None
    zero_based: bool | None = None
    keep_labels: KeepLabels | KeepLabel = KeepLabels.first

    def _options(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "labels": self.labels,
            "label_column": self.label_column,
            "text_column": self.text_column,
            "zero_based": self.zero_based,
            "keep_labels": self.keep_labels.value,
        }

    def read(self, limit: int | None = None) -> Dataset:
        """Read up to ``limit`` rows; see `extremax.data.read`."""
        from extremax import data

        return data.read(self.path, limit=limit, **self._options())

    def blocks(self, rows: int, *, unlabeled: bool = False) -> Iterator[Dataset]:
        """Stream blocks of at most ``rows`` rows; see `extremax.data.read_blocks`."""
        from extremax import data

        return data.read_blocks(self.path, rows=rows, unlabeled=unlabeled, **self._options())

    def scan(self) -> Summary:
        """Return the size of the file; see `extremax.data.scan`."""
        from extremax import data

        return data.scan(self.path, **self._options())
