"""Several files are read as one, and so are those that a pattern matches."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys

import numpy as np
import pytest

from extremax.data import read, read_blocks, scan
from extremax.errors import DataError

PARTS = {"p-1.tsv": "a\tone\n\tnobody\nb\ttwo\n", "p-2.tsv": "a\tthree\nc\tfour\n"}


@pytest.fixture
def parts(write):
    return [write(name, content) for name, content in PARTS.items()]


def test_a_list_and_a_pattern_are_one_file(write, parts, tmp_path):
    whole = read(write("whole.tsv", "".join(PARTS.values())))
    for given in (parts, str(tmp_path / "p-*.tsv"), [tmp_path / "p-[12].tsv"]):
        data = read(given)
        assert data.features == whole.features == ["one", "two", "three", "four"]
        assert data.labels.tolist() == whole.labels.tolist()
        assert (data.n_dropped, data.source) == (1, tuple(parts))
        found = scan(given)
        assert (found.rows, found.classes) == (4, 3)
        assert found.bytes == sum(path.stat().st_size for path in parts)
    # In the order given.
    assert read(parts[::-1]).features == ["three", "four", "one", "two"]


def test_each_block_names_its_file(parts):
    blocks = list(read_blocks(parts, rows=2))
    assert [(block.source, len(block)) for block in blocks] == [
        ((parts[0],), 1), ((parts[0],), 1), ((parts[1],), 2),
    ]  # fmt: skip


@pytest.mark.parametrize(("limit", "rows"), [(1, 1), (2, 1), (3, 2), (4, 3), (9, 4)])
def test_a_limit_counts_the_rows_of_all_files(parts, limit, rows):
    assert len(read(parts, limit=limit)) == rows


def test_compressed_files_of_every_kind(write):
    packed = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}
    files = {
        "svm": ("1 1:2\n", 1), "xc": ("1 2 3\n1 1:2\n", 1), "tsv": ("1\ta\n", "1"),
        "csv": ("label,text\n1,a\n", "1"), "ft": ("__label__1 a\n", "1"),
        "sessions": ("2 1\n", "1"),
    }  # fmt: skip
    for name, (content, label) in files.items():
        for suffix, pack in packed.items():
            path = write(f"a.{name}{suffix}", pack(content.encode()))
            assert read(path).labels.tolist() == [label], path


def test_damaged_bz2(write):
    path = write("a.tsv.bz2", bz2.compress(b"a\tb\n" * 1000)[:-9])
    with pytest.raises(DataError, match="damaged or truncated"):
        read(path)
    with pytest.raises(DataError, match="damaged or truncated"):
        read(write("b.tsv.bz2", b"no bz2 at all"))


def test_sparse_files_of_different_widths(write):
    data = read([write("a.svm", "1 1:2\n"), write("b.svm", "2 5:1\n")])
    np.testing.assert_array_equal(data.features.toarray(), [[2, 0, 0, 0, 0], [0, 0, 0, 0, 1]])


def test_sessions_of_two_files_stay_apart(write):
    data = read([write("a.sessions", "a b c\nb c\n"), write("b.sessions", "c a b\n")])
    # Two prefixes of the first session, one of the second, two of the third.
    counts = np.unique(data.features.sessions, return_counts=True)[1]
    assert counts.tolist() == [2, 1, 2]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.tsv": "a\tb\n", "b.svm": "1 1:2\n"}, "b.svm: the format is svmlight, but that of"),
        ({"a.npy": "", "b.npy": ""}, "npy is read from one file; join the files first"),
        ({"a.sessions": "a b\n", "b.sessions": "a\tb\n"}, "it has lines of prefix<TAB>next item"),
    ],
)
def test_files_that_do_not_fit_together(write, files, message):
    with pytest.raises(DataError, match=message):
        read([write(name, content) for name, content in files.items()])


def test_parquet_files_of_different_widths(tmp_path):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    for name, width in (("a", 2), ("b", 3)):
        columns = {"label": [1], **{f"x{i}": [0.5] for i in range(width)}}
        parquet.write_table(arrow.table(columns), tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match=r"b.parquet: it has dense rows of 3 features, but .* of 2"):
        read(str(tmp_path / "*.parquet"))


def test_a_pattern_without_files_and_a_file_with_the_name_of_a_pattern(write, tmp_path):
    with pytest.raises(DataError, match="no file matches this pattern"):
        read(tmp_path / "x-*.tsv")
    path = write("[1].tsv", "a\tb\n")
    assert read(path).labels.tolist() == ["a"]


def test_zst_says_what_to_do(write):
    path = write("a.tsv.zst", b"")
    if sys.version_info < (3, 14):
        with pytest.raises(DataError, match=r"Python 3\.14 or newer; decompress the file first"):
            read(path)
