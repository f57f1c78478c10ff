"""Read svmlight (libsvm) files and the text format of the extreme classification repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import sparse

from extremax.data.dataset import Dataset, Summary, csr, labeled_dataset
from extremax.data.source import Source
from extremax.data.streams import open_bytes, whole_lines
from extremax.errors import DataError
from extremax.labels import LabelLists

_MAX_INDEX = int(np.iinfo(np.int32).max)
# Rows and labels are counted in int64, and labels have at most 18 digits.
_MAX_COUNT = 10**18
_HEADER_BYTES = 1024


class _Header(NamedTuple):
    """The first line of an extreme classification file: ``rows features classes``."""

    rows: int
    features: int
    classes: int


def scan(source: Source) -> Summary:
    """Return the size of an extreme classification file as stated by its header."""
    with open_bytes(source.path) as stream:
        header = _parse_header(stream.readline(_HEADER_BYTES), source.path)
    classes = None if source.unlabeled else header.classes
    return Summary(header.rows, header.features, classes, None, "sparse", source.n_bytes)


def _parse_header(raw: bytes, path: Path) -> _Header:
    fields = raw.split()
    is_cut = len(raw) == _HEADER_BYTES and not raw.endswith(b"\n")
    if is_cut or len(fields) != 3 or not all(field.isdigit() for field in fields):
        message = "the first line must be a header of three numbers: rows features classes"
        raise DataError(message, path, 1, 1)
    header = _Header(*map(int, fields))
    if max(header) > _MAX_COUNT:
        raise DataError(f"{max(header)} is too large, at most {_MAX_COUNT}", path, 1, 1)
    if header.features > _MAX_INDEX:
        message = f"{header.features} features exceed the largest possible index, {_MAX_INDEX}"
        raise DataError(message, path, 1, len(raw) - len(raw.split(None, 1)[1]) + 1)
    return header


def blocks(source: Source, rows: int) -> Iterator[Dataset]:
    """Yield blocks of at most ``rows`` rows with CSR features.

    Blocks are as wide as the header states or, without a header, as the largest index read so
    far requires.
    """
    with open_bytes(source.path) as stream:
        header = None
        if source.format == "xc":
            header = _parse_header(stream.readline(_HEADER_BYTES), source.path)
        parser = _Parser(source, header)
        for text in whole_lines(stream):
            features, lists = parser.parse(text)
            for start in range(0, len(lists), rows):
                # Slicing copies, so a piece that fits in a block is passed as it is.
                part = features if len(lists) <= rows else features[start : start + rows]
                yield labeled_dataset(source, part, lists[start : start + rows])
            if parser.n_rows == source.limit:
                return
    if header and parser.n_rows < header.rows:
        message = f"the file ends after {parser.n_rows} rows, but its header states {header.rows}"
        raise DataError(message, source.path, parser.line - 1, 1)


class _Parser:
    """Parses a file piece by piece, and keeps track of its line and row numbers."""

    def __init__(self, source: Source, header: _Header | None) -> None:
        self.source = source
        self.header = header
        zero_based = header is not None if source.zero_based is None else source.zero_based
        self.base = 0 if zero_based else 1
        self.n_classes = header.classes if header else -1
        self.n_features = header.features if header else _MAX_INDEX
        self.width = header.features if header else 0
        self.max_rows = min(source.limit or _MAX_COUNT, header.rows if header else _MAX_COUNT)
        self.n_rows = 0
        # Number of the first line of the next piece.
        self.line = 2 if header else 1

    def parse(self, text: bytes) -> tuple[sparse.csr_matrix, LabelLists]:
        """Parse complete lines, up to the limit or the header's number of rows."""
        # numba loads slowly, and only these formats need it.
        from extremax.data import sparse_parser

        complete = text.endswith(b"\n")
        lines = text if complete else text + b"\n"
        n_lines, n_colons = lines.count(b"\n"), lines.count(b":")
        out = sparse_parser.Parsed(
            values=np.empty(n_colons, dtype=np.float32),
            indices=np.empty(n_colons, dtype=np.int32),
            indptr=np.empty(n_lines + 1, dtype=np.int64),
            labels=np.empty(n_lines + lines.count(b","), dtype=np.int64),
            label_indptr=np.empty(n_lines + 1, dtype=np.int64),
        )
        rules = sparse_parser.Rules(
            self.header is not None, self.base, self.n_features, self.n_classes
        )
        code, position, line_start, line, n_rows = sparse_parser.parse(
            np.frombuffer(lines, dtype=np.uint8), self.max_rows - self.n_rows, rules, out
        )
        if code != sparse_parser.OK:
            message = self._message(code, lines[position : position + 200])
            if not complete and b"\n" not in text[position:]:
                message += "; the file ends in this line, is it truncated?"
            raise DataError(message, self.source.path, self.line + line, position - line_start + 1)
        self.line += line
        self.n_rows += n_rows
        self._check_rest(lines[position:])
        indptr, label_indptr = out.indptr[: n_rows + 1], out.label_indptr[: n_rows + 1]
        values, indices = out.values[: indptr[-1]], out.indices[: indptr[-1]]
        if self.header is None:
            self.width = max(self.width, int(indices.max(initial=-1)) + 1)
        # A piece is a few megabytes, so int32 offsets suffice.
        features = csr(values, indices, indptr.astype(np.int32), (n_rows, self.width))
        return features, LabelLists(out.labels[: label_indptr[-1]], label_indptr)

    def _check_rest(self, rest: bytes) -> None:
        """Only blank lines may follow the last row that the header counts."""
        if self.header is None or self.n_rows == self.source.limit:
            return
        blank = rest[: len(rest) - len(rest.lstrip())]
        self.line += blank.count(b"\n")
        if len(blank) < len(rest):
            message = f"more rows than the {self.header.rows} that the header states"
            raise DataError(message, self.source.path, self.line, 1)

    def _message(self, code: int, rest: bytes) -> str:
        from extremax.data import sparse_parser as codes

        token = (rest.split(None, 1)[0] if rest[:1].strip() else b"").decode(errors="replace")
        label, index, shown = token.split(",")[0], token.split(":")[0], token[:40]
        base, n_classes = self.base, self.n_classes
        messages = {
            codes.BAD_LABEL: f"label {label[:40]!r} is not an integer of at most 18 digits",
            codes.LABEL_RANGE: f"label {label} is not in {base}..{base + n_classes - 1}, "
            f"the {n_classes} classes of the header",
            codes.BAD_INDEX: f"{shown!r} is not a feature, expected index:value",
            codes.NO_COLON: f"no colon in {shown!r}, expected index:value",
            codes.ZERO_INDEX: "feature index 0, but indices start at 1; if they start at 0 in this "
            "file, pass zero_based=True",
            codes.INDEX_RANGE: f"feature index {index} exceeds the number of features, "
            f"{self.n_features}",
            codes.BAD_VALUE: f"value {shown!r} is not a finite number in float32",
            codes.REPEATED_INDEX: f"feature index {index} occurs twice in this row",
        }
        return messages[code]
