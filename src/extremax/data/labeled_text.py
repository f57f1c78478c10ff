"""Read texts with labels: ``label<TAB>text`` lines, fastText's ``__label__x text``, and tables with
a row of column names (csv, tsv)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

import numpy as np

from extremax.data.dataset import Dataset, labeled_dataset
from extremax.data.source import Source
from extremax.data.streams import text_lines
from extremax.data.text_tables import split_labels, table_rows
from extremax.errors import DataError
from extremax.labels import LabelLists

# fastText splits at ASCII whitespace and accepts labels anywhere in the line.
_LABEL = re.compile(r"(?<!\S)__label__(\S*)\s*", re.ASCII)


def blocks(source: Source, rows: int) -> Iterator[Dataset]:
    """Yield blocks of at most ``rows`` texts.

    Blank lines are skipped. With ``unlabeled`` every line is a row, so that prediction i belongs
    to line i of the file.
    """
    parsed = islice(_parsed(source), source.limit)
    while block := list(islice(parsed, rows)):
        texts = [text for _, text in block]
        if source.unlabeled:
            by_tab = source.format == "tsv" and not source.has_header
            n_ignored = sum(bool(labels) for labels, _ in block) if by_tab else 0
            yield Dataset(texts, None, source.files, n_ignored=n_ignored)
            continue
        values = np.array([label for labels, _ in block for label in labels], dtype=object)
        indptr = np.cumsum([0, *(len(labels) for labels, _ in block)])
        yield labeled_dataset(source, texts, LabelLists(values, indptr))


def _parsed(source: Source) -> Iterator[tuple[list[str], str]]:
    """Yield the labels and the text of each row."""
    # All rows with the same label share one string object.
    interned: dict[str, str] = {}
    for labels, text in table_rows(source) if source.has_header else _lines(source):
        yield [interned.setdefault(label, label) for label in labels], text


def _lines(source: Source) -> Iterator[tuple[list[str], str]]:
    """Every line is a row."""
    parse = _parse_fasttext if source.format == "fasttext" else _parse_tsv
    for number, line in text_lines(source.path):
        if source.unlabeled or line.strip():
            yield parse(source, number, line)


def _parse_tsv(source: Source, number: int, line: str) -> tuple[list[str], str]:
    label, tab, text = line.partition("\t")
    if not tab:
        if source.unlabeled:
            return [], line
        message = "no TAB in this line, expected label<TAB>text"
        raise DataError(message, source.path, number, len(line) + 1)
    return split_labels(source, label), text


def _parse_fasttext(source: Source, number: int, line: str) -> tuple[list[str], str]:
    labels = []
    for match in _LABEL.finditer(line):
        if not match[1]:
            message = "__label__ must be followed by the name of a label"
            raise DataError(message, source.path, number, match.start() + 1)
        labels.append(match[1])
    return labels, _LABEL.sub("", line).strip()
