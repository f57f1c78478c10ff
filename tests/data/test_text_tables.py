"""Tables of texts: csv, and tsv with named columns."""

from __future__ import annotations

import csv
import io

import pytest

from extremax.data import read, read_blocks, scan
from extremax.errors import DataError

ROWS = [
    ["dog", "a good, old dog", "1"],
    ["cat", 'says "meow"', "2"],
    ["", "nobody", "3"],
    ["my pet", "two\nlines", "4"],
]


def table(separator: str, header: list[str] | None = None, rows: list[list[str]] = ROWS) -> str:
    """As spreadsheets and pandas write it."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator="\r\n")
    writer.writerow(header or ["label", "text", "number"])
    writer.writerows(rows)
    return text.getvalue()


@pytest.mark.parametrize(("name", "separator"), [("a.csv", ","), ("a.tsv", "\t")])
def test_columns_are_found_by_their_names(write, name, separator):
    header = ["subject", "title", "text"]
    path = write(name, table(separator, header))
    data = read(path, label_column="subject", text_column="title")
    assert data.kind == "text"
    assert data.features == ["a good, old dog", 'says "meow"', "two\nlines"]
    assert data.labels.tolist() == ["dog", "cat", "my pet"]
    assert data.n_dropped == 1
    other = read(path, label_column="title", text_column="text")
    assert other.features == ["1", "2", "3", "4"]
    # One column named is enough; the other has its usual name.
    assert read(path, label_column="subject").features == ["1", "2", "4"]


def test_csv_has_a_header_and_usual_names(write):
    path = write("a.csv", "\ufeff" + table(","))
    assert read(path).labels.tolist() == ["dog", "cat", "my pet"]
    assert scan(path).classes == 3
    unlabeled = read(path, unlabeled=True)
    assert unlabeled.features == [text for _, text, _ in ROWS]
    assert (unlabeled.labels, unlabeled.n_ignored) == (None, 0)
    # Rows to predict need no labels.
    assert read(write("b.csv", "text\nmeow\n"), unlabeled=True).features == ["meow"]
    assert [len(block) for block in read_blocks(path, rows=2)] == [2, 1]


def test_tsv_without_named_columns_has_no_header(write):
    path = write("a.tsv", "label\ttext\ndog\tgood\n")
    assert read(path).labels.tolist() == ["label", "dog"]
    assert read(path, label_column="label").labels.tolist() == ["dog"]


def test_several_labels_are_separated_by_commas_if_all_are_kept(write):
    path = write("a.csv", 'text,label\ngood,"dog, my pet"\nmeow,cat\n')
    assert read(path, keep_labels="all").labels.tolist() == [["dog", "my pet"], ["cat"]]
    assert read(path).labels.tolist() == ["dog, my pet", "cat"]


def test_texts_may_be_long(write):
    text = "word " * 100_000
    assert read(write("a.csv", f"label,text\na,{text}\n")).features == [text]


INVALID = {
    "no text column": ("label,title\na,b\n", 1, "no column 'text'.*text_column=, one of: label, t"),
    "no label column": ("text,title\na,b\n", 1, "no column 'label'.*label_column=, one of: text"),
    "two columns": ("label,text,text\na,b,c\n", 1, "two columns are named 'text'"),
    "a comma too many": ("label,text\na,b\nc,d,e\n", 3, "3 fields, but the first row names 2"),
    "a field too few": ("label,text\na,b\n\nc\n", 4, "1 fields, but the first row names 2 columns"),
    "an open quote": ('label,text\na,"b\nc,d\n', 3, "unexpected end of data; quotes inside"),
    "a quote inside": ('label,text\na,"b" c\n', 2, "quotes inside of a quoted field must be doub"),
    "not UTF-8": (b"label,text\na,caf\xe9\n", 2, "0xe9 is not UTF-8"),
}


@pytest.mark.parametrize("name", INVALID)
def test_errors_name_the_line(write, name):
    content, line, message = INVALID[name]
    path = write("a.csv", content)
    with pytest.raises(DataError, match=message) as raised:
        read(path)
    assert (raised.value.path, raised.value.line) == (path, line)


def test_a_table_without_rows(write):
    for content in ("", "label,text\n"):
        with pytest.raises(DataError, match="no rows"):
            read(write("a.csv", content))
