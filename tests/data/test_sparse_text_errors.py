"""Every error in a svmlight or extreme classification file is reported with its position."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from extremax.data import read, streams
from extremax.errors import DataError


def check_position(error: DataError, path: Path, line: int, column: int) -> None:
    assert (error.path, error.line, error.column) == (path, line, column)
    assert str(error).startswith(f"{path}:{line}:{column}: ")


INVALID_SVMLIGHT = {
    "bad value": ("1 1:0.5\n2 3:x\n", 2, 5, "'x'"),
    "no value": ("1 3:\n", 1, 5, "finite"),
    "nan": ("1 5:nan\n", 1, 5, "'nan' is not a finite"),
    "infinity": ("1 2:1 5:-inf\n", 1, 9, "'-inf' is not a finite"),
    "beyond float32": ("1 5:1e39\n", 1, 5, "'1e39' is not a finite"),
    "two points": ("1 5:1.2.3\n", 1, 5, "'1.2.3'"),
    "exponent without digits": ("1 5:1e\n", 1, 5, "'1e'"),
    "no colon": ("# comment\n\n1 2:1 3\n", 3, 7, "no colon in '3'"),
    "query id": ("1 qid:3 1:1\n", 1, 3, "'qid:3'"),
    "negative index": ("1 -2:1\n", 1, 3, "'-2:1'"),
    "index zero": ("1 1:1\n1 0:1\n", 2, 3, "zero_based=True"),
    "index beyond int32": ("1 3000000000:1\n", 1, 3, "3000000000"),
    "repeated": ("1 2:1 2:3\n", 1, 7, "index 2 occurs twice"),
    "repeated, unsorted": ("1,3 5:1 2:1 7:1 5:2\n", 1, 17, "index 5 occurs twice"),
    "label no integer": ("1 1:1\nx 1:1\n", 2, 1, "'x' is not an integer"),
    "label with a fraction": ("1.5 1:1\n", 1, 1, "'1.5' is not an integer"),
    "second label": ("1,b,2 1:1\n", 1, 3, "'b' is not an integer"),
    "label missing": ("1, 2:1\n", 1, 3, "label '' is not"),
    "label too long": ("9999999999999999999 1:1\n", 1, 1, "18 digits"),
    "truncated": ("1 1:1\n2 5:", 2, 5, "is it truncated?"),
}


@pytest.mark.parametrize("chunk", [4, 4 << 20])
@pytest.mark.parametrize("name", INVALID_SVMLIGHT)
def test_svmlight_errors_name_line_and_column(write, monkeypatch, name, chunk):
    content, line, column, message = INVALID_SVMLIGHT[name]
    monkeypatch.setattr(streams, "CHUNK", chunk)
    path = write("a.svm", content)
    with pytest.raises(DataError, match=re.escape(message)) as raised:
        read(path)
    check_position(raised.value, path, line, column)


INVALID_XC = {
    "header": ("2 3\n0 1:1\n", 1, 1, "rows features classes"),
    "header too long": ("1 10 4" + " " * 1100 + "\n2 0:1\n", 1, 1, "rows features classes"),
    "header not numbers": ("a b c\n", 1, 1, "rows features classes"),
    "too many features": ("1 3000000000 2\n", 1, 3, "3000000000 features"),
    "too many rows": (f"{10**19} 3 2\n", 1, 1, f"{10**19} is too large"),
    "too many classes": (f"1 3 {2**63}\n0 1:1\n", 1, 1, f"{2**63} is too large"),
    "label beyond": ("2 3 2\n0 1:1\n0,2 1:1\n", 3, 3, "label 2 is not in 0..1"),
    "label negative": ("1 3 2\n-1 1:1\n", 2, 1, "label -1 is not in 0..1"),
    "index beyond": ("1 3 2\n0 1:1 3:1\n", 2, 7, "index 3 exceeds the number of features, 3"),
    "no label, no colon": ("1 3 2\n 1 2:1\n", 2, 2, "no colon in '1'"),
    "comment": ("1 3 2\n1 2:1 # c\n", 2, 7, "'#'"),
    "rows missing": ("3 3 2\n0 1:1\n1 1:1\n", 3, 1, "ends after 2 rows, but its header states 3"),
    "no rows": ("3 3 2\n", 1, 1, "ends after 0 rows, but its header states 3"),
    "rows too many": ("1 3 2\n0 1:1\n\n1 1:1\n", 4, 1, "more rows than the 1"),
    "truncated": ("2 3 2\n0 1:1\n1 2", 3, 3, "is it truncated?"),
}


@pytest.mark.parametrize("chunk", [4, 4 << 20])
@pytest.mark.parametrize("name", INVALID_XC)
def test_xc_errors_name_line_and_column(write, monkeypatch, name, chunk):
    content, line, column, message = INVALID_XC[name]
    monkeypatch.setattr(streams, "CHUNK", chunk)
    path = write("a.xc", content)
    with pytest.raises(DataError, match=re.escape(message)) as raised:
        read(path)
    check_position(raised.value, path, line, column)
