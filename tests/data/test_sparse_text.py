"""svmlight and extreme classification files against scikit-learn and a plain Python parser."""

from __future__ import annotations

import gzip
import lzma
import re
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from extremax.data import read, read_blocks, scan, streams
from extremax.errors import DataError
from extremax.labels import LabelLists

SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    n, k = draw(st.integers(1, 12)), draw(st.integers(1, 9))
    value = st.one_of(st.just(0.0), st.floats(width=32, allow_nan=False, allow_infinity=False))
    X = draw(st.lists(st.lists(value, min_size=k, max_size=k), min_size=n, max_size=n))
    y = draw(st.lists(st.integers(-(2**40), 2**40), min_size=n, max_size=n))
    return np.array(X, dtype=np.float32), np.array(y, dtype=np.int64)


@SETTINGS
@given(problem=problems(), zero_based=st.booleans(), chunk=st.integers(5, 200))
def test_svmlight_agrees_with_sklearn(tmp_path, problem, zero_based, chunk):
    X, y = problem
    path = tmp_path / "a.svm"
    dump_svmlight_file(X, y, str(path), zero_based=zero_based)
    expected, expected_labels = load_svmlight_file(
        str(path), zero_based=zero_based, dtype=np.float64
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "CHUNK", chunk)
        found = read(path, zero_based=zero_based)
    assert found.kind == "sparse"
    assert found.features.dtype == np.float32
    if expected.nnz == 0:
        expected = expected[:, :0]  # Without any index, scikit-learn reports one feature.
    assert found.features.shape == expected.shape
    np.testing.assert_array_equal(found.labels, expected_labels.astype(np.int64))
    np.testing.assert_array_equal(found.features.toarray(), expected.toarray().astype(np.float32))


NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
TOKENS = [
    "1",
    "2,3",
    "5,2,5",
    "-4",
    "9,-1,",
    "x",
    "1:0.5",
    "2:1e3",
    "7:-.5",
    "0:1",
    "3:",
    "5:nan",
    "6",
]
GLUE = [" ", "  ", "\t", "\n", "\r\n", "", "#", " # 1:2\n"]


def plain_parser(text: str) -> tuple[list, int]:
    """Return rows as (labels, {index: value}), and the line of the first error or 0."""
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        tokens = line.split("#")[0].split()
        if not tokens:
            continue
        labels = [] if ":" in tokens[0] else tokens.pop(0).split(",")
        if not all(re.fullmatch(r"[-+]?\d+", label) for label in labels):
            return rows, number
        features = {}
        for token in tokens:
            index, colon, value = token.partition(":")
            if not colon or not index.isdigit() or int(index) < 1 or int(index) in features:
                return rows, number
            if not NUMBER.fullmatch(value):
                return rows, number
            features[int(index)] = np.float32(float(value))
        rows.append(([int(label) for label in labels], features))
    return rows, 0


def distinct(labels: list[int]) -> list[int]:
    return list(dict.fromkeys(labels))


@settings(SETTINGS, max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from(TOKENS), st.sampled_from(GLUE)), min_size=1, max_size=12),
    st.integers(4, 40),
    st.sampled_from(["first", "smallest", "all"]),
)
def test_svmlight_agrees_with_a_plain_parser_also_on_invalid_files(write, tokens, chunk, keep):
    text = "".join(token + glue for token, glue in tokens)
    rows, bad_line = plain_parser(text)
    path = write("a.svm", text)
    found, error = [], None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "CHUNK", chunk)
        try:
            found = list(read_blocks(path, keep_labels=keep))
        except DataError as raised:
            error = raised
    if bad_line:
        assert error is not None
        assert error.line == bad_line
        return
    assert error is None
    labeled = [(labels, features) for labels, features in rows if labels]
    assert sum(block.n_dropped for block in found) == len(rows) - len(labeled)
    assert sum(block.n_multilabel for block in found) == sum(len(la) > 1 for la, _ in labeled)
    got = []
    for block in found:
        for i, label in enumerate(block.labels.tolist()):
            row = block.features[i]
            got.append((label, dict(zip((row.indices + 1).tolist(), row.data, strict=True))))
    kept = {"first": lambda labels: labels[0], "smallest": min, "all": distinct}[keep]
    assert got == [(kept(labels), features) for labels, features in labeled]


@pytest.mark.parametrize(
    "number",
    [
        "1",
        "-0",
        "+.5",
        "5.",
        "-1E+10",
        "1e-3",
        "3.4e38",
        "1e-400",
        "0e999",
        "0.1000000000000000000000001",
        "0.00000000000000000000000000000012345",
        "123456789012345678901234567890e-20",
    ],
)
def test_numbers_are_parsed_as_by_python(write, number):
    found = read(write("a.svm", f"1 1:{number}\n"))
    assert found.features[0, 0] == np.float32(float(number))


XC = "4 5 3\n2,0 0:1 4:0.5\n 1:2\n1\n0,2,1 3:-1 2:4\n"


def test_xc(write):
    found = read(write("a.xc", XC))
    assert found.labels.tolist() == [2, 1, 0]
    assert found.labels.dtype == np.int64
    expected = [[1, 0, 0, 0, 0.5], [0, 0, 0, 0, 0], [0, 0, 4, -1, 0]]
    assert found.features.toarray().tolist() == expected
    assert (found.n_dropped, found.n_multilabel) == (1, 2)
    assert found.features.has_sorted_indices
    smallest = read(write("a.xc", XC), keep_labels="smallest")
    assert smallest.labels.tolist() == [0, 1, 0]


def test_xc_with_all_labels(write, monkeypatch):
    path = write("a.xc", XC)
    found = read(path, keep_labels="all")
    assert isinstance(found.labels, LabelLists)
    assert found.labels.tolist() == [[2, 0], [1], [0, 2, 1]]
    assert found.labels.values.dtype == np.int64
    # Rows without labels are dropped, as with one label per row.
    assert (found.n_dropped, found.n_multilabel) == (1, 2)
    assert found.features.shape == (3, 5)
    assert read(path, keep_labels="all", limit=1).labels.tolist() == [[2, 0]]
    monkeypatch.setattr(streams, "CHUNK", 8)
    blocks = list(read_blocks(path, rows=1, keep_labels="all"))
    assert [block.labels.tolist() for block in blocks] == [[[2, 0]], [], [[1]], [[0, 2, 1]]]
    assert [block.n_dropped for block in blocks] == [0, 1, 0, 0]
    assert read(path, keep_labels="all").labels.tolist() == found.labels.tolist()
    assert read(path, keep_labels="all", unlabeled=True).labels is None


def test_xc_unlabeled_keeps_every_row(write):
    # An empty line is a row: the header counts it.
    path = write("a.xc", "3 2 2\n0:1\n\n1 1:1\n")
    found = read(path, unlabeled=True)
    assert found.labels is None
    assert found.features.toarray().tolist() == [[1, 0], [0, 0], [0, 1]]
    assert found.n_dropped == 0


def test_xc_may_end_with_blank_lines(write):
    assert len(read(write("a.xc", XC + "\n \n"))) == 3


def test_xc_one_based(write):
    found = read(write("a.xc", "1 2 3\n3 2:1\n"), zero_based=False)
    assert found.labels.tolist() == [3]
    assert found.features.toarray().tolist() == [[0, 1]]


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed(write, suffix, compress):
    path = write("a.xc" + suffix, compress(XC.encode()))
    assert read(path).labels.tolist() == [2, 1, 0]
    whole = compress(XC.encode() * 50)
    for name, damaged in [("cut", whole[: len(whole) // 2]), ("not", b"1 1:1\n")]:
        path = write(name + ".svm" + suffix, damaged)
        with pytest.raises(DataError, match="damaged or truncated") as raised:
            read(path)
        assert str(raised.value).startswith(f"{path}: ")


def test_nothing_is_read_after_the_limit(write):
    path = write("a.svm", "1 1:1\n 2:1\n3 3:1\nbroken\n")
    found = read(path, limit=3)
    assert found.labels.tolist() == [1, 3]
    assert found.n_dropped == 1
    assert found.features.shape == (2, 3)
    assert len(read(write("a.xc", XC), limit=1)) == 1


def test_blocks_have_at_most_the_requested_number_of_rows(write, monkeypatch):
    lines = [f"{i} {i % 7 + 1}:{i}" for i in range(100)]
    path = write("a.svm", "\n".join(lines))
    monkeypatch.setattr(streams, "CHUNK", 256)
    blocks = list(read_blocks(path, rows=9))
    assert max(len(block) for block in blocks) == 9
    assert np.concatenate([block.labels for block in blocks]).tolist() == list(range(100))
    values = [block.features.sum(axis=1).A1 for block in blocks]
    assert np.concatenate(values).tolist() == list(range(100))


def test_streaming_needs_memory_for_one_block(write, monkeypatch):
    path = write("a.svm", "1 1:0.25 7:0.5 9:0.125\n" * 200_000)
    monkeypatch.setattr(streams, "CHUNK", 1 << 16)
    next(iter(read_blocks(path)))  # Compile before measuring.
    tracemalloc.start()
    try:
        assert sum(len(block) for block in read_blocks(path)) == 200_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < path.stat().st_size / 5


def test_read_does_not_hold_the_data_twice(write, monkeypatch):
    path = write("a.svm", "1 1:0.25 7:0.5 9:0.125 10:1 11:1 12:1\n" * 100_000)
    monkeypatch.setattr(streams, "CHUNK", 1 << 16)
    read(path, limit=1)
    tracemalloc.start()
    try:
        X = read(path).features
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert X.shape == (100_000, 12)
    assert peak < 1.6 * (X.data.nbytes + X.indices.nbytes + X.indptr.nbytes)


def test_scan(write):
    path = write("a.svm", "5 1:1 9:2\n# none\n 3:1\n5,2 2:1\n-7 4:1\n")
    found = scan(path)
    assert (found.rows, found.features, found.classes, found.nonzeros) == (3, 9, 2, 4)
    assert (found.kind, found.bytes) == ("sparse", path.stat().st_size)
    assert scan(path, keep_labels="all").classes == 3
    # Only the header is read; the row after it is invalid.
    path = write("a.xc", "7 11 13\nbroken\n")
    found = scan(path)
    assert (found.rows, found.features, found.classes, found.nonzeros) == (7, 11, 13, None)


def test_files_without_rows_are_rejected(write):
    with pytest.raises(DataError, match="no rows"):
        read(write("a.svm", "# nothing\n"))
    with pytest.raises(DataError, match="none of the 2 rows has a label"):
        read(write("a.svm", " 1:1\n 2:1\n"))
    with pytest.raises(DataError, match="no rows"):
        scan(write("a.svm", ""))
