"""Read texts with labels: ``label<TAB>text`` lines and fastText's ``__label__x text``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np

from extremax.data.dataset import Dataset, labeled_dataset
from extremax.data.source import Source
from extremax.data.streams import text_lines
from extremax.errors import DataError
from extremax.labels import LabelLists

# fastText splits at ASCII whitespace and accepts labels anywhere in the line.
_LABEL = re.compile(r"(?<!\S)__label__(\S*)\s*", re.ASCII)


def blocks(source: Source, rows: int) -> Iterator[Dataset]:
    """Yield blocks of at most ``rows`` texts.

    Blank lines are skipped. With ``unlabeled`` every line is a row, so that prediction i belongs
    to line i of the file.
    """
    parse: Callable[[Source, int, str], tuple[list[str], str]]
    parse = _parse_fasttext if source.format == "fasttext" else _parse_tsv
    # All rows with the same label share one string object.
    interned: dict[str, str] = {}
    block = _Block()
    n_rows = 0
    for number, line in text_lines(source.path):
        if not source.unlabeled and not line.strip():
            continue
        labels, text = parse(source, number, line)
        block.add([interned.setdefault(label, label) for label in labels], text)
        n_rows += 1
        if n_rows % rows == 0 or n_rows == source.limit:
            yield block.dataset(source)
            block = _Block()
        if n_rows == source.limit:
            return
    if block.texts:
        yield block.dataset(source)


class _Block:
    """Rows collected for the next block."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.labels: list[str] = []
        self.label_indptr = [0]

    def add(self, labels: list[str], text: str) -> None:
        self.texts.append(text)
        self.labels.extend(labels)
        self.label_indptr.append(len(self.labels))

    def dataset(self, source: Source) -> Dataset:
        if source.unlabeled:
            return Dataset(self.texts, None, source.files)
        values = np.array(self.labels, dtype=object)
        return labeled_dataset(source, self.texts, LabelLists(values, np.array(self.label_indptr)))


def _parse_tsv(source: Source, number: int, line: str) -> tuple[list[str], str]:
    label, tab, text = line.partition("\t")
    if not tab:
        if source.unlabeled:
            return [], line
        message = "no TAB in this line, expected label<TAB>text"
        raise DataError(message, source.path, number, len(line) + 1)
    if source.keep_labels == "all":
        return [name for field in label.split(",") if (name := field.strip())], text
    return [label] if label else [], text


def _parse_fasttext(source: Source, number: int, line: str) -> tuple[list[str], str]:
    labels = []
    for match in _LABEL.finditer(line):
        if not match[1]:
            message = "__label__ must be followed by the name of a label"
            raise DataError(message, source.path, number, match.start() + 1)
        labels.append(match[1])
    return labels, _LABEL.sub("", line).strip()
