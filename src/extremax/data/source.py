"""The file to read, its format, and how to read it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, cast, get_args

from extremax.data.streams import COMPRESSED, open_bytes
from extremax.errors import DataError

Format: TypeAlias = Literal["npy", "npz", "svmlight", "xc", "parquet", "tsv", "fasttext"]
KeepLabels: TypeAlias = Literal["first", "smallest", "all"]

FORMATS: tuple[str, ...] = get_args(Format)
_EXTENSIONS: dict[str, Format] = {
    ".npy": "npy",
    ".npz": "npz",
    ".svm": "svmlight",
    ".svmlight": "svmlight",
    ".libsvm": "svmlight",
    ".xc": "xc",
    ".parquet": "parquet",
    ".tsv": "tsv",
    ".ft": "fasttext",
    ".fasttext": "fasttext",
}
_BINARY = ("npy", "npz", "parquet")
# The formats to which an option applies; passing it with any other format is an error.
_APPLIES: dict[str, tuple[str, ...]] = {
    "labels": ("npy", "npz"),
    "label_column": ("parquet",),
    "text_column": ("parquet",),
    "zero_based": ("svmlight", "xc"),
}
_XC_HEADER = re.compile(r" *\d+ +\d+ +\d+ *")
_SVMLIGHT_ROW = re.compile(r"\s*([-+]?\d+(,[-+]?\d+)*)?(\s+\d+:\S+|^\d+:\S+)+\s*(#.*)?")
_SNIFFED = 1 << 16


@dataclass(frozen=True)
class Source:
    """A file and how to read it."""

    path: Path
    format: Format
    labels: Path | None
    label_column: str | None
    text_column: str | None
    zero_based: bool | None
    keep_labels: KeepLabels
    limit: int | None
    unlabeled: bool

    @property
    def files(self) -> tuple[Path, ...]:
        """The file of features and, if there is one, the file of labels."""
        return (self.path,) if self.labels is None else (self.path, self.labels)

    @property
    def n_bytes(self) -> int:
        """Size of the files on disk."""
        return sum(file.stat().st_size for file in self.files)


def resolve(
    path: str | Path,
    format: str | None,
    labels: str | Path | None,
    label_column: str | None,
    text_column: str | None,
    zero_based: bool | None,
    keep_labels: str,
    limit: int | None,
    unlabeled: bool,
) -> Source:
    """Check the options against each other, and detect the format if it is None."""
    if keep_labels not in get_args(KeepLabels):
        raise ValueError(f"keep_labels must be 'first', 'smallest' or 'all', got {keep_labels!r}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if unlabeled and labels is not None:
        raise ValueError("labels must be None if unlabeled=True")
    path = _existing(path)
    chosen = _detect(path, unlabeled) if format is None else format
    if chosen not in FORMATS:
        raise DataError(f"unknown format {chosen!r}; choose one of {', '.join(FORMATS)}", path)
    if chosen in _BINARY and path.suffix.lower() in COMPRESSED:
        raise DataError(f"cannot read a compressed {chosen} file; decompress it first", path)
    options = {
        "labels": labels,
        "label_column": label_column,
        "text_column": text_column,
        "zero_based": zero_based,
    }
    for name, value in options.items():
        if value is not None and chosen not in _APPLIES[name]:
            formats = " and ".join(_APPLIES[name])
            raise DataError(f"{name} applies to {formats} files, but the format is {chosen}", path)
    return Source(
        path,
        cast(Format, chosen),
        None if labels is None else _existing(labels),
        label_column,
        text_column,
        zero_based,
        cast(KeepLabels, keep_labels),
        limit,
        unlabeled,
    )


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if not path.exists():
        raise DataError("no such file", path)
    if path.is_dir():
        raise DataError("this is a folder, expected a file", path)
    return path


def _detect(path: Path, unlabeled: bool) -> str:
    """Detect the format by the extension or, for ``.txt``, by the first line."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    extension = suffixes[-1] if suffixes else ""
    if extension in _EXTENSIONS:
        return _EXTENSIONS[extension]
    detected = _sniff(path, unlabeled) if extension == ".txt" else None
    if detected is None:
        evidence = "first line" if extension == ".txt" else "file name"
        formats = ", ".join(FORMATS)
        raise DataError(f"the {evidence} matches no format; pass one of format={formats}", path)
    return detected


def _sniff(path: Path, unlabeled: bool) -> str | None:
    """Detect a text format by its first line."""
    with open_bytes(path) as stream:
        raw = stream.readline(_SNIFFED)
    line = raw.decode("utf-8-sig", errors="replace").rstrip("\r\n")
    # A longer line is cut off here, possibly within a token: drop the last one.
    tokens = line if len(raw) < _SNIFFED else line.rpartition(" ")[0]
    if re.search(r"(?<!\S)__label__\S", line):
        return "fasttext"
    if _XC_HEADER.fullmatch(tokens):
        return "xc"
    if _SVMLIGHT_ROW.fullmatch(tokens):
        return "svmlight"
    return "tsv" if unlabeled or "\t" in line else None
