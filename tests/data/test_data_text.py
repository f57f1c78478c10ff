"""``label<TAB>text`` and fastText files."""

from __future__ import annotations

import gzip
import lzma
import tracemalloc

import numpy as np
import pytest

from extremax.data import read, read_blocks, scan
from extremax.errors import DataError
from extremax.label_lists import LabelLists

TSV = "dog\ta good dog\n\ncat\tmeow\tpurr\r\n\tnobody\n2\t\n"
FASTTEXT = "__label__b __label__a some  text\nno label\n__label__c\n \nx __label__d y __labels\n"


def test_tsv(write):
    path = write("a.tsv", TSV)
    found = read(path)
    assert found.kind == "text"
    # Only the first TAB separates; a number stays the string it is in the file.
    assert found.features == ["a good dog", "meow\tpurr", ""]
    assert found.labels.dtype == object
    assert found.labels.tolist() == ["dog", "cat", "2"]
    assert (found.n_dropped, found.n_multilabel, found.source) == (1, 0, (path,))


def test_fasttext(write):
    path = write("a.ft", FASTTEXT)
    found = read(path)
    # As fastText has it, a label may stand anywhere in the line.
    assert found.features == ["some  text", "", "x y __labels"]
    assert found.labels.tolist() == ["b", "c", "d"]
    assert (found.n_dropped, found.n_multilabel) == (1, 1)
    assert read(path, keep_labels="smallest").labels.tolist() == ["a", "c", "d"]


def test_fasttext_with_all_labels(write):
    path = write("a.ft", FASTTEXT + "__label__a __label__a again\n")
    found = read(path, keep_labels="all")
    assert isinstance(found.labels, LabelLists)
    assert found.labels.tolist() == [["b", "a"], ["c"], ["d"], ["a"]]
    assert found.features == ["some  text", "", "x y __labels", "again"]
    assert (found.n_dropped, found.n_multilabel) == (1, 2)
    blocks = list(read_blocks(path, rows=2, keep_labels="all"))
    assert [block.labels.tolist() for block in blocks] == [[["b", "a"]], [["c"], ["d"]], [["a"]]]
    assert scan(path, keep_labels="all").classes == 4
    # One string object a label, also across blocks and rows.
    names = [id(label) for block in blocks for label in block.labels.values]
    assert len(set(names)) == 4


def test_tsv_with_all_labels_separates_them_at_commas(write):
    path = write("a.tsv", "dog, my pet\tgood\n,\tnobody\n\tnor here\ncat,\tmeow, purr\n")
    found = read(path, keep_labels="all")
    assert found.labels.tolist() == [["dog", "my pet"], ["cat"]]
    assert found.features == ["good", "meow, purr"]
    assert (found.n_dropped, found.n_multilabel) == (2, 1)
    # Where a row has one label, a comma is part of it.
    assert read(path).labels.tolist() == ["dog, my pet", ",", "cat,"]


def test_unlabelled_has_a_row_for_each_line(write):
    path = write("a.tsv", "just text\n\nlabel\ttext\n")
    found = read(path, unlabelled=True)
    assert found.features == ["just text", "", "text"]
    assert found.labels is None
    path = write("a.ft", FASTTEXT)
    found = read(path, unlabelled=True)
    assert found.features == ["some  text", "no label", "", "", "x y __labels"]
    assert found.n_dropped == found.n_multilabel == 0


def test_lines_end_at_newlines_alone(write):
    # Python's splitlines would cut these texts; a byte-order mark is no part of the label.
    text = "a\tone\u2028two\x0bthree\x85\nb\tfour"
    found = read(write("a.tsv", b"\xef\xbb\xbf" + text.encode()))
    assert found.features == ["one\u2028two\x0bthree\x85", "four"]
    assert found.labels.tolist() == ["a", "b"]


PROBLEMS = {
    "no TAB": ("a.tsv", "a\tb\n\nno tab\n", 3, 7, "no TAB"),
    "not UTF-8, tsv": ("a.tsv", b"a\tb\nb\tcaf\xe9\n", 2, 6, "0xe9 is not UTF-8"),
    "not UTF-8, fastText": ("a.ft", b"__label__a x\n\xff\n", 2, 1, "0xff is not UTF-8"),
    "empty label": ("a.ft", "__label__a x\ny __label__ z\n", 2, 3, "without a name"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_problem_has_its_place(write, name):
    file, content, line, column, words = PROBLEMS[name]
    path = write(file, content)
    with pytest.raises(DataError, match=words) as caught:
        read(path)
    assert (caught.value.path, caught.value.line, caught.value.column) == (path, line, column)
    assert str(caught.value).startswith(f"{path}:{line}:{column}: ")


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed(write, suffix, compress):
    path = write("a.tsv" + suffix, compress(TSV.encode()))
    assert read(path).labels.tolist() == ["dog", "cat", "2"]
    path = write("b.ft" + suffix, compress(FASTTEXT.encode() * 100)[:-20])
    with pytest.raises(DataError, match="damaged or cut off") as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_limit_and_blocks(write):
    path = write("a.tsv", "a\t1\n\tdropped\nb\t2\n\nc\t3\nbroken\n")
    found = read(path, limit=4)
    assert (found.features, found.n_dropped) == (["1", "2", "3"], 1)
    blocks = list(read_blocks(path, rows=2, limit=4))
    assert [block.features for block in blocks] == [["1"], ["2", "3"]]
    assert [block.n_dropped for block in blocks] == [1, 0]
    assert np.concatenate([block.labels for block in blocks]).tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="rows"):
        read_blocks(path, rows=0)


def test_blocks_need_memory_for_a_block_alone(write):
    path = write("a.tsv", ("label\t" + 50 * "word ") + "\n")
    path.write_bytes(path.read_bytes() * 20_000)
    tracemalloc.start()
    try:
        assert sum(len(block) for block in read_blocks(path, rows=500)) == 20_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < path.stat().st_size / 5


def test_one_string_object_a_label(write):
    path = write("a.tsv", "long label name\tx\n" * 3)
    labels = np.concatenate([block.labels for block in read_blocks(path, rows=1)])
    assert len({id(label) for label in labels}) == 1


def test_scan(write):
    path = write("a.ft", FASTTEXT * 2)
    found = scan(path)
    assert (found.rows, found.features, found.classes, found.nonzeros) == (6, None, 3, None)
    assert (found.kind, found.bytes) == ("text", 2 * len(FASTTEXT))
    assert scan(path, unlabelled=True).classes is None
    assert scan(path, unlabelled=True).rows == 10
