"""Options that several commands share, and the files they describe."""

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
    first = "first"
    smallest = "smallest"
    all = "all"


class KeepLabel(str, Enum):
    """For commands that take one label a row."""

    first = "first"
    smallest = "smallest"


class Analyzer(str, Enum):
    word = "word"
    char_wb = "char_wb"


def at_least_one(value: int | None) -> int | None:
    """Refuse what could only fail later."""
    if value is not None and value < 1:
        raise typer.BadParameter(f"{value} is not at least 1")
    return value


File = Annotated[Path, typer.Argument(metavar="FILE", help="Rows with labels.")]
Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="The folder that `extremax train` made.")
]
Format = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="npy, npz, svmlight, xc, parquet, tsv or fasttext; by default what the file's name "
        "or first line says.",
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="The labels of an .npy or .npz: an .npy, or text with one a line."
    ),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Parquet: the column of labels, by default `label`."),
]
TextColumn = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Parquet: the column of texts, by default `text`."),
]
ZeroBased = Annotated[
    bool | None,
    typer.Option(
        "--zero-based/--one-based",
        help="Where feature indices begin; by default svmlight at 1, xc at 0.",
    ),
]
WhichLabels = Annotated[
    KeepLabels,
    typer.Option(
        "--keep-labels", help="What a row with several labels keeps: one of them, or all."
    ),
]
WhichLabel = Annotated[
    KeepLabel, typer.Option("--keep-labels", help="The label that a row with several keeps.")
]
Threads = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        callback=at_least_one,
        help="Threads, by default one a core; results do not depend on it.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


@dataclass(frozen=True)
class Input:
    """A file of rows and how to read it."""

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
        from extremax import data

        return data.read(self.path, limit=limit, **self._options())

    def blocks(self, rows: int, *, unlabelled: bool = False) -> Iterator[Dataset]:
        from extremax import data

        return data.read_blocks(self.path, rows=rows, unlabelled=unlabelled, **self._options())

    def scan(self) -> Summary:
        from extremax import data

        return data.scan(self.path, **self._options())
