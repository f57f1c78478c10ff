"""Which file to read, in which format, with which options."""

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
# The formats an option means something for; anywhere else it is a mistake worth saying.
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
    unlabelled: bool

    @property
    def files(self) -> tuple[Path, ...]:
        """The file of features and, where there is one, that of labels."""
        return (self.path,) if self.labels is None else (self.path, self.labels)

    @property
    def n_bytes(self) -> int:
        """The size of the files on disk."""
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
    unlabelled: bool,
) -> Source:
    """Check the options against each other and find the format out if it is not given."""
    if keep_labels not in get_args(KeepLabels):
        raise ValueError(f"keep_labels must be 'first', 'smallest' or 'all', not {keep_labels!r}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    if unlabelled and labels is not None:
        raise ValueError("labels were given for unlabelled input")
    path = _existing(path)
    chosen = _detect(path, unlabelled) if format is None else format
    if chosen not in FORMATS:
        raise DataError(f"unknown format {chosen!r}; known are {', '.join(FORMATS)}", path)
    if chosen in _BINARY and path.suffix.lower() in COMPRESSED:
        raise DataError(f"a compressed {chosen} file cannot be read; decompress it first", path)
    given = {
        "labels": labels,
        "label_column": label_column,
        "text_column": text_column,
        "zero_based": zero_based,
    }
    for name, value in given.items():
        if value is not None and chosen not in _APPLIES[name]:
            formats = " and ".join(_APPLIES[name])
            raise DataError(f"{name} is for {formats} files, and this one is {chosen}", path)
    return Source(
        path,
        cast(Format, chosen),
        None if labels is None else _existing(labels),
        label_column,
        text_column,
        zero_based,
        cast(KeepLabels, keep_labels),
        limit,
        unlabelled,
    )


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if not path.exists():
        raise DataError("no such file", path)
    if path.is_dir():
        raise DataError("this is a folder; name a file", path)
    return path


def _detect(path: Path, unlabelled: bool) -> str:
    """The format by the extension or, for ``.txt``, by the first line."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    extension = suffixes[-1] if suffixes else ""
    if extension in _EXTENSIONS:
        return _EXTENSIONS[extension]
    found = _sniff(path, unlabelled) if extension == ".txt" else None
    if found is None:
        reason = "the first line fits no" if extension == ".txt" else "the file name tells no"
        raise DataError(f"{reason} format; pass one of format={', '.join(FORMATS)}", path)
    return found


def _sniff(path: Path, unlabelled: bool) -> str | None:
    with open_bytes(path) as stream:
        raw = stream.readline(_SNIFFED)
    line = raw.decode("utf-8-sig", errors="replace").rstrip("\r\n")
    # Of a longer line this is a piece, which may end in half a token.
    whole = line if len(raw) < _SNIFFED else line.rpartition(" ")[0]
    if re.search(r"(?<!\S)__label__\S", line):
        return "fasttext"
    if _XC_HEADER.fullmatch(whole):
        return "xc"
    if _SVMLIGHT_ROW.fullmatch(whole):
        return "svmlight"
    return "tsv" if unlabelled or "\t" in line else None
