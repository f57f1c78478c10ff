"""Read sessions: a line of items each, or ``prefix<TAB>next item`` lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from extremax.data.dataset import Dataset
from extremax.data.sequences import Sequences
from extremax.data.source import Source
from extremax.data.streams import text_lines
from extremax.errors import DataError
from extremax.labels import object_array

# Items end at ASCII whitespace only: a name may contain a no-break space.
_ITEM = re.compile(r"\S+", re.ASCII)


class _Line(NamedTuple):
    """The items of a line; if it is a pair, the last one is the next item of the others."""

    items: list[str]
    n_rows: int
    is_pair: bool = False
    is_cut: bool = False


def blocks(source: Source, rows: int) -> Iterator[Dataset]:
    """Yield blocks of at most ``rows`` rows.

    A row is a prefix of a session, and its label the item that follows. With ``unlabeled`` a row
    is a whole session, and every line is one, so that prediction i belongs to line i of the file.
    """
    n_lines = 0
    for lines in _batches(_limited(source), rows):
        block = _dataset(source, lines, n_lines)
        n_lines += len(lines)
        yield replace(block, features=block.features[:rows], labels=_part(block, 0, rows))
        # A session of more rows than a block has.
        for start in range(rows, len(block), rows):
            features = block.features[start : start + rows]
            yield Dataset(features, _part(block, start, rows), source.files)


def _part(block: Dataset, start: int, rows: int) -> np.ndarray | None:
    return None if block.labels is None else block.label_values[start : start + rows]


def _dataset(source: Source, lines: list[_Line], n_before: int) -> Dataset:
    """The rows of some lines, which follow ``n_before`` others."""
    items = object_array(item for line in lines for item in line.items)
    sizes = np.array([len(line.items) for line in lines], np.int64)
    sessions = Sequences(items, np.cumsum(sizes), sizes)
    if source.unlabeled:
        n_ignored = sum(line.is_cut for line in lines)
        return Dataset(sessions, None, source.files, n_ignored=n_ignored)
    if lines[0].is_pair:
        prefixes = Sequences(items, sessions.ends - 1, sizes - 1)
        return Dataset(prefixes, items[prefixes.ends], source.files)
    prefixes, following = sessions.prefixes()
    assert prefixes.sessions is not None
    prefixes = replace(prefixes, sessions=prefixes.sessions + n_before)
    return Dataset(prefixes, following, source.files, n_dropped=int((sizes == 1).sum()))


def _batches(lines: Iterator[_Line], rows: int) -> Iterator[list[_Line]]:
    """Yield lines that have at most ``rows`` rows together, or one line that has more."""
    batch: list[_Line] = []
    n_rows = 0
    for line in lines:
        # A line without a row takes memory as well.
        size = max(1, line.n_rows)
        if batch and n_rows + size > rows:
            yield batch
            batch, n_rows = [], 0
        batch.append(line)
        n_rows += size
    if batch:
        yield batch


def _limited(source: Source) -> Iterator[_Line]:
    """Yield lines up to the limit; the session in which it is reached ends there."""
    left = source.limit
    for line in _parsed(source):
        if left is not None and line.n_rows >= left:
            ends_early = line.n_rows > left
            yield line._replace(items=line.items[: left + 1], n_rows=left) if ends_early else line
            return
        left = None if left is None else left - line.n_rows
        yield line


def _parsed(source: Source) -> Iterator[_Line]:
    """Yield every line or, unless the source is unlabeled, every line that is not blank.

    The first line that is not blank says what all are: pairs, if it has a TAB, or sessions.
    """
    # All visits of an item share one string object.
    interned: dict[str, str] = {}
    are_pairs: bool | None = None
    for number, line in text_lines(source.path):
        names = _ITEM.findall(line)
        items = [interned.setdefault(name, name) for name in names]
        if not items:
            if source.unlabeled:
                yield _Line(items, 1)
            continue
        if are_pairs is None:
            are_pairs = "\t" in line
        if are_pairs:
            n_next = _check_pair(source, number, line)
            known = items[: len(items) - n_next] if source.unlabeled else items
            yield _Line(known, 1, is_pair=True, is_cut=len(known) < len(items))
        elif "\t" in line:
            message = "a TAB in this line, but none in the first line: separate items by blanks"
            raise DataError(message, source.path, number, line.index("\t") + 1)
        else:
            yield _Line(items, 1 if source.unlabeled else len(items) - 1)


def _check_pair(source: Source, number: int, line: str) -> int:
    """The number of next items, which must be one; 0 is accepted of an unlabeled source."""
    prefix, tab, following = line.partition("\t")
    n_next = len(_ITEM.findall(following))
    if not tab:
        message = "no TAB in this line, but one in the first line: expected prefix<TAB>next item"
        raise DataError(message, source.path, number, len(line) + 1)
    if "\t" in following or n_next > 1 or (n_next == 0 and not source.unlabeled):
        message = "expected one item after the only TAB; in a line of one session, use blanks"
        raise DataError(message, source.path, number, len(prefix) + 2)
    return n_next
