"""The files to read, their format, and how to read them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from glob import glob
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from extremax.data.streams import COMPRESSED, STANDARD_INPUT, is_stream, open_bytes
from extremax.errors import ArgumentError, DataError

KeepLabels: TypeAlias = Literal["first", "smallest", "all"]

# The module that reads a format, and the extensions that it is detected by.
_FORMATS = {
    "npy": ("arrays", (".npy",)),
    "npz": ("arrays", (".npz",)),
    "svmlight": ("sparse_text", (".svm", ".svmlight", ".libsvm")),
    "xc": ("sparse_text", (".xc",)),
    "parquet": ("parquet", (".parquet",)),
    "csv": ("labeled_text", (".csv",)),
    "tsv": ("labeled_text", (".tsv",)),
    "fasttext": ("labeled_text", (".ft", ".fasttext")),
    "sessions": ("sessions", (".sessions",)),
}
FORMATS = tuple(_FORMATS)
_EXTENSIONS = {ending: name for name, (_, endings) in _FORMATS.items() for ending in endings}
_BINARY = ("npy", "npz", "parquet")
# Formats of which a file is read as a whole, with labels of its own: several make no sense.
_ALONE = ("npy", "npz")
_TABLES = ("parquet", "csv", "tsv")
# The formats to which an option applies; passing it with any other format is an error.
_APPLIES: dict[str, tuple[str, ...]] = {
    "labels": ("npy", "npz"),
    "label_column": _TABLES,
    "text_column": _TABLES,
    "zero_based": ("svmlight", "xc"),
}
_XC_HEADER = re.compile(r" *\d+ +\d+ +\d+ *")
_SVMLIGHT_ROW = re.compile(r"\s*([-+]?\d+(,[-+]?\d+)*)?(\s+\d+:\S+|^\d+:\S+)+\s*(#.*)?")
_SNIFFED = 1 << 16


@dataclass(frozen=True)
class Source:
    """A file and how to read it; the fields are the parameters of `extremax.data.read`."""

    path: Path
    format: str
    labels: Path | None = None
    label_column: str | None = None
    text_column: str | None = None
    zero_based: bool | None = None
    keep_labels: KeepLabels = "first"
    limit: int | None = None
    unlabeled: bool = False

    def __post_init__(self) -> None:
        """Check the options against each other."""
        if self.keep_labels not in get_args(KeepLabels):
            raise ArgumentError(
                f"keep_labels must be 'first', 'smallest' or 'all', got {self.keep_labels!r}"
            )
        if self.limit is not None and self.limit < 1:
            raise ArgumentError(f"limit must be at least 1, got {self.limit}")
        if self.unlabeled and self.labels is not None:
            raise ArgumentError("labels must be None if unlabeled=True")
        if self.format not in FORMATS:
            message = f"unknown format {self.format!r}; choose one of {', '.join(FORMATS)}"
            raise DataError(message, self.path)
        if self.format in _BINARY and self.path.suffix.lower() in COMPRESSED:
            message = f"cannot read a compressed {self.format} file; decompress it first"
            raise DataError(message, self.path)
        if self.format == "sessions" and self.keep_labels == "all":
            message = "keep_labels='all' is for rows with several labels, but a row of a session"
            raise DataError(f"{message} has one, the next item", self.path)
        for name, formats in _APPLIES.items():
            if getattr(self, name) is not None and self.format not in formats:
                known = " and ".join([", ".join(formats[:-1]), formats[-1]])
                message = f"{name} applies to {known} files"
                raise DataError(f"{message}, but the format is {self.format}", self.path)

    @property
    def has_header(self) -> bool:
        """Whether the first row of a text file names its columns: where columns are named, tsv has
        them too."""
        named = self.label_column is not None or self.text_column is not None
        return self.format == "csv" or (self.format == "tsv" and named)

    @property
    def reader(self) -> Any:
        """The module that reads the format; no other is imported: numba and pyarrow load slowly."""
        return import_module(f"extremax.data.{_FORMATS[self.format][0]}")

    @property
    def files(self) -> tuple[Path, ...]:
        """The file of features and, if there is one, the file of labels."""
        return (self.path,) if self.labels is None else (self.path, self.labels)

    @property
    def n_bytes(self) -> int:
        """Size of the files on disk; streams count for nothing."""
        return sum(file.stat().st_size for file in self.files if not is_stream(file))


def resolve(
    path: str | Path, format: str | None = None, labels: str | Path | None = None, **options: Any
) -> Source:
    """Check the options of `extremax.data.read`, and detect the format if it is None."""
    path = _existing(path)
    chosen = format or _detect(path, options.get("unlabeled", False))
    source = Source(path, chosen, None if labels is None else Path(labels), **options)
    for file in map(_existing, source.files):
        if is_stream(file) and (source.format in _BINARY or file.suffix.lower() == ".npy"):
            message = f"{source.format} cannot be read from a pipe; save it to a file first"
            raise DataError(message, file)
    return source


def resolve_all(
    paths: str | Path | Sequence[str | Path], format: str | None = None, **options: Any
) -> list[Source]:
    """`resolve` each of several files, or of those that a pattern such as ``part-*.tsv`` matches;
    all must have the same format."""
    named = [paths] if isinstance(paths, str | Path) else list(paths)
    if not named:
        raise ArgumentError("there are no files to read")
    sources = [resolve(path, format, **options) for name in named for path in _matching(name)]
    if len(sources) > 1:
        for source in sources:
            if source.format in _ALONE:
                message = f"{source.format} is read from one file; join the files first"
                raise DataError(message, source.path)
            if source.format != sources[0].format:
                message = f"the format is {source.format}, but that of {sources[0].path} is "
                raise DataError(message + sources[0].format, source.path)
    return sources


def _matching(path: str | Path) -> list[str | Path]:
    """The files that a pattern matches, sorted by name; the path itself if it is a file or none."""
    pattern = str(path)
    if Path(path).exists() or not any(sign in pattern for sign in "*?["):
        return [path]
    found = sorted(glob(pattern, recursive=True))
    if not found:
        raise DataError("no file matches this pattern", path)
    return list(found)


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if path != STANDARD_INPUT and not path.exists():
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
    if extension == ".zst":
        raise DataError("reading .zst takes Python 3.14 or newer; decompress the file first", path)
    if extension in _EXTENSIONS:
        return _EXTENSIONS[extension]
    evidence, detected = "file name", None
    if extension == ".txt" and is_stream(path):
        evidence = "name of this pipe"  # whose first line would be lost by looking at it
    elif extension == ".txt":
        evidence, detected = "first line", _sniff(path, unlabeled)
    if detected is None:
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
