"""Text formats read a second way, in plain Python, from their descriptions in the docs.

A reading is what a file says, row by row; `expected` applies the options of `extremax.data.read`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

_BLANKS = b" \t\v\f\r"
_LABEL = re.compile(rb"[-+]?\d+")
_FEATURE = re.compile(rb"(\d+):([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")
_LARGEST_INDEX = 2**31 - 1


class InvalidFileError(Exception):
    """The file breaks a rule of its format."""


class Row(NamedTuple):
    """All labels of a row, and a text, a list of items, an array, or a dict of values by index."""

    labels: list[Any]
    features: Any


class Reading(NamedTuple):
    """The rows of a file; ``width`` is the number of features, None for texts and sequences."""

    kind: str
    rows: list[Row]
    width: int | None


class Options(NamedTuple):
    """The options of `extremax.data.read` that decide what is read."""

    keep_labels: str = "first"
    limit: int | None = None
    unlabeled: bool = False
    zero_based: bool | None = None


def svmlight(data: bytes, options: Options) -> Reading:
    rows: list[Row] = []
    width = 0
    base = 0 if options.zero_based else 1
    for line in _lines(data):
        if len(rows) == options.limit:
            break
        line = line.partition(b"#")[0].strip(_BLANKS)
        if line:
            rows.append(_sparse_row(line, base, _LARGEST_INDEX, None))
            width = max([width, *(index + 1 for index in rows[-1].features)])
    return Reading("sparse", rows, width)


def xc_header(data: bytes) -> tuple[int, int, int]:
    fields = data.partition(b"\n")[0].split()
    if len(fields) != 3 or not all(field.isdigit() and len(field) < 4000 for field in fields):
        raise InvalidFileError("the header is not three numbers")
    n_rows, n_features, n_classes = map(int, fields)
    if n_features > _LARGEST_INDEX or max(n_rows, n_classes) >= 2**63:
        raise InvalidFileError("the header has numbers that are too large")
    return n_rows, n_features, n_classes


def xc(data: bytes, options: Options) -> Reading:
    n_rows, n_features, n_classes = xc_header(data)
    base = 1 if options.zero_based is False else 0
    rows: list[Row] = []
    for line in _lines(data.partition(b"\n")[2]):
        if len(rows) == options.limit:
            break
        if len(rows) == n_rows:
            if line.strip(_BLANKS):
                raise InvalidFileError("more rows than the header states")
        else:
            rows.append(_sparse_row(line, base, n_features, range(base, base + n_classes)))
    if len(rows) < n_rows and len(rows) != options.limit:
        raise InvalidFileError("fewer rows than the header states")
    return Reading("sparse", rows, n_features)


def _sparse_row(line: bytes, base: int, n_features: int, classes: range | None) -> Row:
    """Parse a row; in xc, where the ``classes`` are known, a leading blank means no label."""
    tokens = re.split(rb"[ \t\v\f\r]+", line.strip(_BLANKS)) if line.strip(_BLANKS) else []
    unlabeled = classes is not None and line[:1] in (b" ", b"\t", b"\v", b"\f", b"\r")
    labels = []
    if tokens and not unlabeled and not re.match(rb"[-+]?\d+:", tokens[0]):
        for field in tokens.pop(0).split(b","):
            if not _LABEL.fullmatch(field) or len(field.lstrip(b"+-0")) > 18:
                raise InvalidFileError(f"label {field[:50]!r}")
            if classes is not None and int(field) not in classes:
                raise InvalidFileError(f"label {field[:50]!r} out of range")
            labels.append(int(field))
    features: dict[int, np.float32] = {}
    for token in tokens:
        match = _FEATURE.fullmatch(token)
        if not match or len(match[1].lstrip(b"0")) > 18:
            raise InvalidFileError(f"feature {token[:50]!r}")
        index = int(match[1].lstrip(b"0") or b"0") - base
        with np.errstate(over="ignore"):
            value = np.float32(float(match[2]))
        if not 0 <= index < n_features or index in features or not np.isfinite(value):
            raise InvalidFileError(f"feature {token[:50]!r}")
        features[index] = value
    return Row(labels, features)


def tsv(data: bytes, options: Options) -> Reading:
    def parse(line: str) -> Row:
        label, tab, text = line.partition("\t")
        if not tab:
            if not options.unlabeled:
                raise InvalidFileError("no TAB")
            return Row([], line)
        if options.keep_labels == "all":
            return Row([name.strip() for name in label.split(",") if name.strip()], text)
        return Row([label] if label else [], text)

    return _texts(data, options, parse)


def fasttext(data: bytes, options: Options) -> Reading:
    def parse(line: str) -> Row:
        labels = []
        text = ""
        for word, blanks in re.findall(r"([^ \t\n\r\f\v]*)([ \t\n\r\f\v]*)", line):
            if not word.startswith("__label__"):
                text += word + blanks
            elif word == "__label__":
                raise InvalidFileError("__label__ without a name")
            else:
                labels.append(word.removeprefix("__label__"))
        return Row(labels, text.strip())

    return _texts(data, options, parse)


def sessions(data: bytes, options: Options) -> Reading:
    if options.keep_labels == "all":
        raise InvalidFileError("a row of a session has one label")
    rows: list[Row] = []
    has_pairs: bool | None = None
    for text in _decoded(data):
        items, *others = (re.findall(r"[^ \t\r\f\v]+", part) for part in text.split("\t"))
        if items or any(others):
            has_pairs = bool(others) if has_pairs is None else has_pairs
            if len(others) != has_pairs:
                raise InvalidFileError("a TAB too many or too few")
            if has_pairs and len(others[0]) != 1 and (others[0] or not options.unlabeled):
                raise InvalidFileError("not one next item")
        if options.unlabeled:
            rows.append(Row([], items))
        elif has_pairs:
            rows += [Row(next_items, items) for next_items in others if next_items]
        else:
            rows += [Row([items[end]], items[:end]) for end in range(1, len(items))]
        if options.limit is not None and len(rows) >= options.limit:
            break
    return Reading("sequences", rows[: options.limit], None)


def _texts(data: bytes, options: Options, parse: Callable[[str], Row]) -> Reading:
    rows: list[Row] = []
    for text in _decoded(data):
        if options.unlabeled or text.strip():
            rows.append(parse(text))
        if len(rows) == options.limit:
            break
    return Reading("text", rows, None)


def _decoded(data: bytes) -> Iterator[str]:
    """The lines of a UTF-8 file, without its mark."""
    for number, line in enumerate(_lines(data)):
        line = line if number else line.removeprefix(b"\xef\xbb\xbf")
        try:
            yield line.rstrip(b"\r").decode()
        except UnicodeDecodeError as error:
            raise InvalidFileError("not UTF-8") from error


def _lines(data: bytes) -> Iterator[bytes]:
    lines = data.split(b"\n")
    yield from lines if lines[-1] else lines[:-1]


READERS: dict[str, Callable[[bytes, Options], Reading]] = {
    "svmlight": svmlight,
    "xc": xc,
    "tsv": tsv,
    "fasttext": fasttext,
    "sessions": sessions,
}


def expected(reading: Reading, options: Options) -> Reading:
    """The rows that `extremax.data.read` returns: labels selected, rows without labels dropped."""
    if options.unlabeled:
        return reading._replace(rows=[Row([], row.features) for row in reading.rows])
    kept = [row for row in reading.rows if row.labels]
    if options.keep_labels == "first":
        kept = [row._replace(labels=row.labels[:1]) for row in kept]
    elif options.keep_labels == "smallest":
        kept = [row._replace(labels=[min(row.labels)]) for row in kept]
    else:
        kept = [row._replace(labels=list(dict.fromkeys(row.labels))) for row in kept]
    return reading._replace(rows=kept)
