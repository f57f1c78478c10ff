"""Texts with labels: ``label<TAB>text`` lines and fastText's ``__label__x text``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np

from extremax.data.dataset import Dataset
from extremax.data.source import Source
from extremax.data.streams import text_lines
from extremax.errors import DataError

# fastText splits at ASCII blanks and takes a label anywhere in the line.
_LABEL = re.compile(r"(?<!\S)__label__(\S*)\s*", re.ASCII)


def blocks(source: Source, rows: int) -> Iterator[Dataset]:
    """Yield blocks of at most ``rows`` lines, as a Dataset of texts.

    Blank lines are no rows, unless ``unlabelled``: there each line is one, so that line i
    of the predictions answers line i of the file.
    """
    parse: Callable[[Source, int, str], tuple[list[str], str]]
    parse = _fasttext if source.format == "fasttext" else _tsv
    # One string object a label, however many rows have it.
    names: dict[str, str] = {}
    block = _Block()
    n_rows = 0
    for number, line in text_lines(source.path):
        if not source.unlabelled and not line.strip():
            continue
        found, text = parse(source, number, line)
        block.add(source, [names.setdefault(name, name) for name in found], text)
        n_rows += 1
        if n_rows % rows == 0 or n_rows == source.limit:
            yield block.dataset(source)
            block = _Block()
        if n_rows == source.limit:
            return
    if block.texts or block.n_dropped:
        yield block.dataset(source)


class _Block:
    """The rows gathered so far."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.labels: list[str] = []
        self.n_dropped = self.n_multilabel = 0

    def add(self, source: Source, found: list[str], text: str) -> None:
        if not source.unlabelled:
            if not found:
                self.n_dropped += 1
                return
            self.n_multilabel += len(found) > 1
            self.labels.append(found[0] if source.single_label == "first" else min(found))
        self.texts.append(text)

    def dataset(self, source: Source) -> Dataset:
        labels = None if source.unlabelled else np.array(self.labels, dtype=object)
        return Dataset(self.texts, labels, source.files, self.n_dropped, self.n_multilabel)


def _tsv(source: Source, number: int, line: str) -> tuple[list[str], str]:
    label, tab, text = line.partition("\t")
    if not tab:
        if source.unlabelled:
            return [], line
        message = "no TAB in this line; it should be label<TAB>text"
        raise DataError(message, source.path, number, len(line) + 1)
    return [label] if label else [], text


def _fasttext(source: Source, number: int, line: str) -> tuple[list[str], str]:
    found = []
    for match in _LABEL.finditer(line):
        if not match[1]:
            message = "__label__ without a name"
            raise DataError(message, source.path, number, match.start() + 1)
        found.append(match[1])
    return found, _LABEL.sub("", line).strip()
