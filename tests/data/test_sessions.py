"""Files of sessions."""

from __future__ import annotations

import gzip
import io
import lzma
import sys

import numpy as np
import pytest

from extremax.data import read, read_blocks, scan
from extremax.errors import DataError

LINES = "b a  b\n\nc\r\n a d\n\nd d d c\n"
PAIRS = "b a\tb\n\na\t d\n\tc\n"


def prefixes_of(lists: list[list[str]]) -> list[tuple[list[str], str]]:
    return [(one[:end], one[end]) for one in lists for end in range(1, len(one))]


def examples(data) -> list[tuple[list[str], str]]:
    return list(zip(data.features.tolist(), data.labels.tolist(), strict=True))


def test_labeled_rows_are_prefixes_and_the_next_item(write):
    path = write("a.sessions", LINES)
    data = read(path)
    assert data.kind == "sequences"
    assert examples(data) == prefixes_of([["b", "a", "b"], ["a", "d"], ["d", "d", "d", "c"]])
    # Prefixes of one session stay together; a session of one item has none.
    assert [np.unique(data.features.sessions, return_counts=True)[1].tolist()] == [[2, 1, 3]]
    assert (data.n_dropped, data.n_multilabel, data.source) == (1, 0, (path,))


def test_unlabeled_rows_are_lines(write):
    data = read(write("a.sessions", LINES), unlabeled=True)
    assert data.features.tolist() == [["b", "a", "b"], [], ["c"], ["a", "d"], [], list("dddc")]
    assert data.labels is None
    assert data.features.sessions is None


def test_pairs_of_prefix_and_next_item(write):
    path = write("a.sessions", PAIRS)
    assert examples(read(path)) == [(["b", "a"], "b"), (["a"], "d"), ([], "c")]
    [block] = read_blocks(path, unlabeled=True)
    assert block.features.tolist() == [["b", "a"], [], ["a"], []]
    assert block.n_ignored == 3
    # What is to be predicted need not be known.
    assert read(write("b.sessions", "a b\t\n"), unlabeled=True).features.tolist() == [["a", "b"]]


def test_scan_counts_prefixes_and_items(write):
    path = write("a.sessions", LINES)
    found = scan(path)
    # Every item is a class, also b, which no prefix of another is followed by, and c.
    assert (found.rows, found.features, found.classes, found.nonzeros) == (6, 4, 4, None)
    assert (found.kind, found.bytes) == ("sequences", len(LINES))
    assert (scan(path, unlabeled=True).rows, scan(path, unlabeled=True).classes) == (6, None)


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
@pytest.mark.parametrize("content", [LINES, PAIRS, "a\nb\n" * 5 + "a b c d e f g\nh i\n"])
@pytest.mark.parametrize("unlabeled", [False, True])
def test_blocks_are_parts_of_the_whole(write, rows, content, unlabeled):
    path = write("a.sessions", content)
    whole = read(path, unlabeled=unlabeled)
    blocks = list(read_blocks(path, rows=rows, unlabeled=unlabeled))
    assert max(map(len, blocks)) <= rows
    assert [row for block in blocks for row in block.features.tolist()] == whole.features.tolist()
    assert sum(block.n_dropped for block in blocks) == whole.n_dropped
    if not unlabeled:
        assert np.concatenate([block.labels for block in blocks]).tolist() == whole.labels.tolist()


def test_a_long_session_in_many_blocks_is_kept_once(write, monkeypatch):
    monkeypatch.setattr("extremax.data.reading._BLOCK_ROWS", 10)
    data = read(write("a.sessions", "x y\n" + " ".join(map(str, range(200))) + "\nz x\n"))
    assert len(data) == 201
    assert len(data.features.items) == 204
    assert data.features.tolist()[200] == ["z"]
    assert data.features.sessions.tolist() == [0] + [1] * 199 + [2]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 6, 99])
@pytest.mark.parametrize("unlabeled", [False, True])
def test_a_limit_is_one_of_rows(write, limit, unlabeled):
    path = write("a.sessions", LINES)
    some, whole = (read(path, unlabeled=unlabeled, limit=n) for n in (limit, None))
    assert some.features.tolist() == whole.features.tolist()[:limit]
    if not unlabeled:
        assert some.labels.tolist() == whole.labels.tolist()[:limit]
    # Nothing behind the last row asked for is read.
    assert len(read(write("b.sessions", b"a b\na b c\n\xff\n"), limit=3)) == 3


def test_items_end_at_ascii_blanks_only(write):
    content = "\ufeffa\u00a0b c\u2028d\x0ce\x0bf\x85\n"
    assert read(write("a.sessions", content), unlabeled=True).features.tolist() == [
        ["a\u00a0b", "c\u2028d", "e", "f\x85"]
    ]


def test_visits_of_one_item_share_a_string(write):
    data = read(write("a.sessions", "a-name b-name a-name\n" * 3))
    assert len({id(item) for item in data.features.items}) == 2


INVALID = {
    "a TAB among sessions": ("a b\n\nc\td\n", 3, 2, "a TAB in this line, but none in the first"),
    "no TAB among pairs": ("a\tb\nc d\n", 2, 4, "no TAB in this line, but one in the first line"),
    "two TABs": ("a\tb\tc\n", 1, 3, "one item after the only TAB"),
    "two next items": ("a\tb\nb\tc d\n", 2, 3, "one item after the only TAB"),
    "no next item": ("\n\na\t\n", 3, 3, "one item after the only TAB"),
    "not UTF-8": (b"a b\ncaf\xe9 b\n", 2, 4, "0xe9 is not UTF-8"),
}


@pytest.mark.parametrize("name", INVALID)
def test_errors_name_line_and_column(write, name):
    content, line, column, message = INVALID[name]
    path = write("a.sessions", content)
    with pytest.raises(DataError, match=message) as raised:
        read(path)
    assert (raised.value.path, raised.value.line, raised.value.column) == (path, line, column)


@pytest.mark.parametrize("content", ["a\nb\n", "a\n"])
def test_sessions_of_one_item_are_no_rows(write, content):
    path = write("a.sessions", content)
    with pytest.raises(DataError, match="no session has two items"):
        read(path)
    assert len(read(path, unlabeled=True)) == content.count("\n")


def test_a_row_has_one_next_item(write):
    with pytest.raises(DataError, match="keep_labels='all' is for rows with several labels"):
        read(write("a.sessions", LINES), keep_labels="all")


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed(write, suffix, compress):
    path = write("a.sessions" + suffix, compress(LINES.encode()))
    assert len(read(path)) == 6
    path = write("b.sessions" + suffix, compress(LINES.encode() * 100)[:-20])
    with pytest.raises(DataError, match="damaged or truncated"):
        read(path)


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINES.encode())))
    assert len(read("-", format="sessions")) == 6
