"""``label<TAB>text`` and fastText files."""

from __future__ import annotations

import gzip
import lzma
import tracemalloc

import numpy as np
import pytest

from extremax.data import read, read_blocks, scan
from extremax.errors import DataError
from extremax.labels import LabelLists

TSV = "dog\ta good dog\n\ncat\tmeow\tpurr\r\n\tnobody\n2\t\n"
FASTTEXT = "__label__b __label__a some  text\nno label\n__label__c\n \nx __label__d y __labels\n"


def test_tsv(write):
    path = write("a.tsv", TSV)
    data = read(path)
    assert data.kind == "text"
    # Only the first TAB separates label and text. Numbers stay strings.
    assert data.features == ["a good dog", "meow\tpurr", ""]
    assert data.labels.dtype == object
    assert data.labels.tolist() == ["dog", "cat", "2"]
    assert (data.n_dropped, data.n_multilabel, data.source) == (1, 0, (path,))


def test_fasttext(write):
    path = write("a.ft", FASTTEXT)
    data = read(path)
    # As in fastText, a label may occur anywhere in the line.
    assert data.features == ["some  text", "", "x y __labels"]
    assert data.labels.tolist() == ["b", "c", "d"]
    assert (data.n_dropped, data.n_multilabel) == (1, 1)
    assert read(path, keep_labels="smallest").labels.tolist() == ["a", "c", "d"]


def test_fasttext_with_all_labels(write):
    path = write("a.ft", FASTTEXT + "__label__a __label__a again\n")
    data = read(path, keep_labels="all")
    assert isinstance(data.labels, LabelLists)
    assert data.labels.tolist() == [["b", "a"], ["c"], ["d"], ["a"]]
    assert data.features == ["some  text", "", "x y __labels", "again"]
    assert (data.n_dropped, data.n_multilabel) == (1, 2)
    blocks = list(read_blocks(path, rows=2, keep_labels="all"))
    assert [block.labels.tolist() for block in blocks] == [[["b", "a"]], [["c"], ["d"]], [["a"]]]
    assert scan(path, keep_labels="all").classes == 4
    # Equal labels share one string across rows and blocks.
    names = [id(label) for block in blocks for label in block.labels.values]
    assert len(set(names)) == 4


def test_tsv_with_all_labels_splits_them_at_commas(write):
    path = write("a.tsv", "dog, my pet\tgood\n,\tnobody\n\tnor here\ncat,\tmeow, purr\n")
    data = read(path, keep_labels="all")
    assert data.labels.tolist() == [["dog", "my pet"], ["cat"]]
    assert data.features == ["good", "meow, purr"]
    assert (data.n_dropped, data.n_multilabel) == (2, 1)
    # With one label per row, a comma is part of the label.
    assert read(path).labels.tolist() == ["dog, my pet", ",", "cat,"]


def test_unlabeled_input_has_one_row_per_line(write):
    path = write("a.tsv", "just text\n\nlabel\ttext\n")
    data = read(path, unlabeled=True)
    assert data.features == ["just text", "", "text"]
    assert data.labels is None
    path = write("a.ft", FASTTEXT)
    data = read(path, unlabeled=True)
    assert data.features == ["some  text", "no label", "", "", "x y __labels"]
    assert data.n_dropped == data.n_multilabel == 0


def test_lines_end_only_at_newlines(write):
    # str.splitlines would split these texts. A byte-order mark is not part of the label.
    text = "a\tone\u2028two\x0bthree\x85\nb\tfour"
    data = read(write("a.tsv", b"\xef\xbb\xbf" + text.encode()))
    assert data.features == ["one\u2028two\x0bthree\x85", "four"]
    assert data.labels.tolist() == ["a", "b"]


INVALID = {
    "no TAB": ("a.tsv", "a\tb\n\nno tab\n", 3, 7, "no TAB"),
    "not UTF-8, tsv": ("a.tsv", b"a\tb\nb\tcaf\xe9\n", 2, 6, "0xe9 is not UTF-8"),
    "not UTF-8, fastText": ("a.ft", b"__label__a x\n\xff\n", 2, 1, "0xff is not UTF-8"),
    "empty label": ("a.ft", "__label__a x\ny __label__ z\n", 2, 3, "must be followed by the name"),
}


@pytest.mark.parametrize("name", INVALID)
def test_errors_name_line_and_column(write, name):
    file, content, line, column, message = INVALID[name]
    path = write(file, content)
    with pytest.raises(DataError, match=message) as raised:
        read(path)
    assert (raised.value.path, raised.value.line, raised.value.column) == (path, line, column)
    assert str(raised.value).startswith(f"{path}:{line}:{column}: ")


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed(write, suffix, compress):
    path = write("a.tsv" + suffix, compress(TSV.encode()))
    assert read(path).labels.tolist() == ["dog", "cat", "2"]
    path = write("b.ft" + suffix, compress(FASTTEXT.encode() * 100)[:-20])
    with pytest.raises(DataError, match="damaged or truncated") as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_limit_and_blocks(write):
    path = write("a.tsv", "a\t1\n\tdropped\nb\t2\n\nc\t3\nbroken\n")
    data = read(path, limit=4)
    assert (data.features, data.n_dropped) == (["1", "2", "3"], 1)
    blocks = list(read_blocks(path, rows=2, limit=4))
    assert [block.features for block in blocks] == [["1"], ["2", "3"]]
    assert [block.n_dropped for block in blocks] == [1, 0]
    assert np.concatenate([block.labels for block in blocks]).tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="rows"):
        read_blocks(path, rows=0)


def test_streaming_needs_memory_for_one_block(write):
    path = write("a.tsv", ("label\t" + 50 * "word ") + "\n")
    path.write_bytes(path.read_bytes() * 20_000)
    tracemalloc.start()
    try:
        assert sum(len(block) for block in read_blocks(path, rows=500)) == 20_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < path.stat().st_size / 5


def test_equal_labels_share_one_string(write):
    path = write("a.tsv", "long label name\tx\n" * 3)
    labels = np.concatenate([block.labels for block in read_blocks(path, rows=1)])
    assert len({id(label) for label in labels}) == 1


def test_scan(write):
    path = write("a.ft", FASTTEXT * 2)
    data = scan(path)
    assert (data.rows, data.features, data.classes, data.nonzeros) == (6, None, 3, None)
    assert (data.kind, data.bytes) == ("text", 2 * len(FASTTEXT))
    assert scan(path, unlabeled=True).classes is None
    assert scan(path, unlabeled=True).rows == 10
