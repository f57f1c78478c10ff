"""Texts with labels: ``label<TAB>text`` lines and fastText's ``__label__x text``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np

from extremax.data.dataset import Dataset, labelled
from extremax.data.source import Source
from extremax.data.streams import text_lines
from extremax.errors import DataError
from extremax.label_lists import LabelLists

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
        block.add([names.setdefault(name, name) for name in found], text)
        n_rows += 1
        if n_rows % rows == 0 or n_rows == source.limit:
            yield block.dataset(source)
            block = _Block()
        if n_rows == source.limit:
            return
    if block.texts:
        yield block.dataset(source)


class _Block:
    """The rows gathered so far."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.labels: list[str] = []
        self.label_indptr = [0]

    def add(self, found: list[str], text: str) -> None:
        self.texts.append(text)
        self.labels.extend(found)
        self.label_indptr.append(len(self.labels))

    def dataset(self, source: Source) -> Dataset:
        if source.unlabelled:
            return Dataset(self.texts, None, source.files)
        values = np.array(self.labels, dtype=object)
        return labelled(source, self.texts, LabelLists(values, np.array(self.label_indptr)))


def _tsv(source: Source, number: int, line: str) -> tuple[list[str], str]:
    label, tab, text = line.partition("\t")
    if not tab:
        if source.unlabelled:
            return [], line
        message = "no TAB in this line; it should be label<TAB>text"
        raise DataError(message, source.path, number, len(line) + 1)
    if source.keep_labels == "all":
        return [name for part in label.split(",") if (name := part.strip())], text
    return [label] if label else [], text


def _fasttext(source: Source, number: int, line: str) -> tuple[list[str], str]:
    found = []
    for match in _LABEL.finditer(line):
        if not match[1]:
            message = "__label__ without a name"
            raise DataError(message, source.path, number, match.start() + 1)
        found.append(match[1])
    return found, _LABEL.sub("", line).strip()
