"""svmlight (libsvm) files and the text format of the extreme classification repository."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from extremax.data.dataset import Dataset, Summary, csr, labelled
from extremax.data.source import Source
from extremax.data.streams import open_bytes, whole_lines
from extremax.errors import DataError
from extremax.label_lists import LabelLists

_INDEX_LIMIT = int(np.iinfo(np.int32).max)
_NO_LIMIT = int(np.iinfo(np.int64).max)
_HEADER_BYTES = 1024


@dataclass(frozen=True)
class _Header:
    """The first line of an extreme classification file: ``N D L``."""

    rows: int
    features: int
    classes: int


def scan(source: Source) -> Summary:
    """The size of an extreme classification file, by its header."""
    with open_bytes(source.path) as stream:
        header = _header(stream.readline(_HEADER_BYTES), source.path)
    classes = None if source.unlabelled else header.classes
    return Summary(header.rows, header.features, classes, None, "sparse", source.n_bytes)


def _header(raw: bytes, path: Path) -> _Header:
    fields = raw.split()
    if len(fields) != 3 or not all(field.isdigit() for field in fields):
        message = "the first line should be a header of three numbers: rows features classes"
        raise DataError(message, path, 1, 1)
    header = _Header(*map(int, fields))
    if header.features > _INDEX_LIMIT:
        message = f"{header.features} features are more than an index can name ({_INDEX_LIMIT})"
        raise DataError(message, path, 1, len(raw) - len(raw.split(None, 1)[1]) + 1)
    return header


def blocks(source: Source, rows: int) -> Iterator[Dataset]:
    """Yield blocks of at most ``rows`` rows with CSR features.

    They are as wide as the header says or, without one, as the largest index so far needs.
    """
    with open_bytes(source.path) as stream:
        header = None
        if source.format == "xc":
            header = _header(stream.readline(_HEADER_BYTES), source.path)
        parser = _Parser(source, header)
        for text in whole_lines(stream):
            piece = parser.parse(text)
            for start in range(0, len(piece.labels), rows):
                yield piece.dataset(source, start, start + rows)
            if parser.n_rows == source.limit:
                return
    if header and parser.n_rows < header.rows:
        message = f"the file ends after {parser.n_rows} rows; its header says {header.rows}"
        raise DataError(message, source.path, parser.line - 1, 1)


@dataclass(frozen=True)
class _Piece:
    """Rows parsed from one piece of the file."""

    values: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    labels: LabelLists
    width: int

    def dataset(self, source: Source, start: int, stop: int) -> Dataset:
        """The rows from ``start`` on, those without a label dropped unless unlabelled."""
        indptr = self.indptr[start : stop + 1]
        part = slice(indptr[0], indptr[-1])
        features = csr(
            self.values[part],
            self.indices[part],
            # A piece of some megabytes is small enough for scipy's small indices.
            (indptr - indptr[0]).astype(np.int32),
            (len(indptr) - 1, self.width),
        )
        if source.unlabelled:
            return Dataset(features, None, source.files)
        return labelled(source, features, self.labels[start:stop])


class _Parser:
    """Parses a file piece by piece and knows how far it has come."""

    def __init__(self, source: Source, header: _Header | None) -> None:
        self.source = source
        self.header = header
        self.zero_based = header is not None if source.zero_based is None else source.zero_based
        self.n_features = header.features if header else _INDEX_LIMIT
        self.width = header.features if header else 0
        self.n_rows = 0
        # The line that the next piece begins with.
        self.line = 2 if header else 1

    def parse(self, text: bytes) -> _Piece:
        """Parse whole lines of the file, up to the limit or the header's number of rows."""
        # Numba takes a while to load, and only these formats need it.
        from extremax.data import sparse_kernel

        ended = text.endswith(b"\n")
        whole = text if ended else text + b"\n"
        n_lines, n_colons = whole.count(b"\n"), whole.count(b":")
        indptr = np.empty(n_lines + 1, dtype=np.int64)
        indices = np.empty(n_colons, dtype=np.int32)
        values = np.empty(n_colons, dtype=np.float32)
        labels = np.empty(n_lines + whole.count(b","), dtype=np.int64)
        label_indptr = np.empty(n_lines + 1, dtype=np.int64)
        wanted = min(self.source.limit or _NO_LIMIT, self.header.rows if self.header else _NO_LIMIT)
        code, at, line_start, line, n_rows = sparse_kernel.parse(
            np.frombuffer(whole, dtype=np.uint8),
            wanted - self.n_rows,
            self.header is not None,
            0 if self.zero_based else 1,
            self.n_features,
            self.header.classes if self.header else -1,
            indptr,
            indices,
            values,
            labels,
            label_indptr,
        )
        if code != sparse_kernel.OK:
            message = self._message(code, whole[at : at + 200])
            if not ended and b"\n" not in text[at:]:
                message += "; the file ends in this line: is it cut off?"
            raise DataError(message, self.source.path, self.line + line, at - line_start + 1)
        self.line += line
        self.n_rows += n_rows
        self._refuse_more_rows(whole[at:])
        n_entries = indptr[n_rows]
        if self.header is None and n_entries:
            self.width = max(self.width, int(indices[:n_entries].max()) + 1)
        return _Piece(
            values[:n_entries],
            indices[:n_entries],
            indptr[: n_rows + 1],
            LabelLists(labels[: label_indptr[n_rows]], label_indptr[: n_rows + 1]),
            self.width,
        )

    def _refuse_more_rows(self, rest: bytes) -> None:
        """After the header's last row only blank lines may follow."""
        if self.header is None or self.n_rows == self.source.limit:
            return
        blank = rest[: len(rest) - len(rest.lstrip())]
        self.line += blank.count(b"\n")
        if len(blank) < len(rest):
            message = f"a row after the {self.header.rows} that the header says"
            raise DataError(message, self.source.path, self.line, 1)

    def _message(self, code: int, rest: bytes) -> str:
        from extremax.data import sparse_kernel as kernel

        token = (rest.split(None, 1)[0] if rest[:1].strip() else b"").decode(errors="replace")
        label, shown = token.split(",")[0], token[:40]
        n_classes = self.header.classes if self.header else 0
        base = 0 if self.zero_based else 1
        messages = {
            kernel.BAD_LABEL: f"label {label[:40]!r} is not an integer (of at most 18 digits)",
            kernel.LABEL_RANGE: f"label {label} is not in {base}..{base + n_classes - 1}, "
            f"the {n_classes} classes of the header",
            kernel.BAD_INDEX: f"{shown!r} is not a feature; it should be index:value",
            kernel.NO_COLON: f"no colon in {shown!r}; a feature is index:value",
            kernel.ZERO_INDEX: "feature index 0, and indices count from 1 here; "
            "pass --zero-based (zero_based=True) if this file counts from 0",
            kernel.INDEX_RANGE: f"feature index {token.split(':')[0]} is beyond the "
            f"{self.n_features} features there can be",
            kernel.BAD_VALUE: f"value {shown!r} is not a finite number in float32",
            kernel.REPEATED_INDEX: f"feature index {token.split(':')[0]} is in this row twice",
        }
        return messages[code]
