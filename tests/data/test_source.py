"""Format detection, and options that do not apply to the format."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from extremax.data import read, read_blocks, source
from extremax.errors import DataError

FIRST_LINES = {
    "3 5 4\n0 1:1\n1 2:1\n2 3:1\n": "xc",
    "1 1:0.5 7:2\n": "svmlight",
    "-1,2 1:0.5 # comment\n": "svmlight",
    "7:2\n": "svmlight",
    "1 1:0.25" + " 7:2" * 40_000 + "\n": "svmlight",
    "__label__a text\n": "fasttext",
    "text __label__a\n": "fasttext",
    "label\ttext\n": "tsv",
    "3\t5 4\n": "tsv",
}


def resolve(path, format=None, unlabeled=False):
    return source.resolve(path, format, unlabeled=unlabeled).format


@pytest.mark.parametrize("content", FIRST_LINES, ids=range(len(FIRST_LINES)))
def test_txt_is_detected_by_its_first_line(tmp_path, content):
    path = tmp_path / "a.txt"
    path.write_text(content)
    assert resolve(path) == FIRST_LINES[content]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content.encode()))
    assert resolve(tmp_path / "a.txt.gz") == FIRST_LINES[content]


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.npy", "npy"),
        ("a.b.NPZ", "npz"),
        ("a.svm", "svmlight"),
        ("a.libsvm.xz", "svmlight"),
        ("a.xc.gz", "xc"),
        ("a.parquet", "parquet"),
        ("a.tsv", "tsv"),
        ("a.csv.bz2", "csv"),
        ("a.ft", "fasttext"),
    ],
)
def test_format_is_detected_by_the_extension(tmp_path, name, format):
    (tmp_path / name).touch()
    assert resolve(tmp_path / name) == format


def test_format_overrides_the_extension(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("1 1:2\n")
    assert read(path, format="svmlight").labels.tolist() == [1]


def test_plain_text_is_accepted_only_if_unlabeled(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("no tab\n")
    assert resolve(path, unlabeled=True) == "tsv"
    with pytest.raises(DataError, match=r"first line matches no format.*npy, npz, svmlight, xc"):
        read(path)


def test_errors_list_the_known_formats(tmp_path):
    path = tmp_path / "a.doc"
    path.touch()
    known = "npy, npz, svmlight, xc, parquet, csv, tsv, fasttext"
    with pytest.raises(DataError, match=known) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}: ")
    with pytest.raises(DataError, match=f"unknown format 'doc'; choose one of {known}"):
        read(path, format="doc")


def test_missing_files_and_folders_are_rejected(tmp_path):
    with pytest.raises(DataError, match="no such file") as raised:
        read_blocks(tmp_path / "a.npy")
    assert str(tmp_path / "a.npy") in str(raised.value)
    with pytest.raises(DataError, match="a folder"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("a.tsv", {"zero_based": True}, "zero_based applies to svmlight and xc files.* tsv"),
        ("a.npy", {"label_column": "y"}, "label_column applies to parquet, csv and tsv files"),
        ("a.svm", {"text_column": "y"}, "text_column applies to parquet"),
        ("a.svm", {"labels": "y.npy"}, "labels applies to npy and npz"),
        ("a.npy.gz", {}, "compressed npy"),
    ],
)
def test_options_of_other_formats_are_rejected(tmp_path, name, options, message):
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=message):
        read(tmp_path / name, **options)


@pytest.mark.parametrize(
    "options", [{"keep_labels": "last"}, {"limit": 0}, {"labels": "y", "unlabeled": True}]
)
def test_invalid_arguments_are_rejected(tmp_path, options):
    (tmp_path / "a.npy").touch()
    with pytest.raises(ValueError, match=next(iter(options))):
        read(tmp_path / "a.npy", **options)


def test_the_format_of_a_pipe_is_not_detected_by_reading_it(tmp_path):
    os.mkfifo(tmp_path / "a.txt")
    os.mkfifo(tmp_path / "a.npy")
    # Opening a pipe that nobody writes to would wait forever.
    with pytest.raises(DataError, match=r"name of this pipe matches no format; pass one of format"):
        read(tmp_path / "a.txt")
    for name, options in [("a.npy", {}), ("a.txt", {"format": "parquet"})]:
        with pytest.raises(DataError, match="cannot be read from a pipe"):
            read(tmp_path / name, **options)
    np.save(tmp_path / "X.npy", np.ones((2, 2)))
    with pytest.raises(DataError, match="cannot be read from a pipe") as raised:
        read(tmp_path / "X.npy", labels=tmp_path / "a.npy")
    assert str(raised.value).startswith(str(tmp_path / "a.npy"))


@pytest.mark.parametrize(
    ("format", "content"),
    [
        ("svmlight", "1 1:2\n"),
        ("xc", "1 2 3\n1 1:2\n"),
        ("tsv", "1\ta\n"),
        ("fasttext", "__label__1"),
    ],
)
def test_pipes_and_standard_input_are_read_once(tmp_path, format, content):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(content,))
    writer.start()
    assert [str(label) for label in read(pipe, format=format).labels] == ["1"]
    writer.join()
    code = "import sys, extremax.data as d; print(d.read('-', format=sys.argv[1]).labels[0])"
    command = [sys.executable, "-c", code, format]
    done = subprocess.run(command, input=content, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_standard_input_needs_a_format():
    with pytest.raises(DataError, match="matches no format; pass one of format"):
        read("-")
    with pytest.raises(DataError, match="npy cannot be read from a pipe"):
        read("-", format="npy")


def test_import_loads_neither_numpy_nor_numba():
    code = "import sys, extremax.data; print([m for m in ('numpy', 'numba') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_only_sparse_text_loads_numba(tmp_path):
    (tmp_path / "a.tsv").write_text("a\tb\n")
    code = "import sys, extremax.data as d; d.read(sys.argv[1]); assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, tmp_path / "a.tsv"], check=True)
