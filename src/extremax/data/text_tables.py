"""Read tables of texts: csv, and tsv whose columns are named in the first row.

Fields may be in double quotes, as spreadsheets and pandas write them (RFC 4180): a quoted field may
contain separators, line breaks and, doubled, quotes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator

from extremax.data.source import Source
from extremax.data.streams import text_lines
from extremax.errors import DataError

_SEPARATORS = {"csv": ",", "tsv": "\t"}
# Longer than any text; Python's limit is 128 kB, for all files of a process.
_LONGEST_FIELD = 2**31 - 1


def table_rows(source: Source) -> Iterator[tuple[list[str], str]]:
    """Yield the labels and the text of each row; empty lines are none."""
    csv.field_size_limit(_LONGEST_FIELD)
    lines = (line + "\n" for _, line in text_lines(source.path))
    reader = csv.reader(lines, delimiter=_SEPARATORS[source.format], strict=True)
    try:
        header = next(reader, None)
        if header is None:
            return
        label, text = _places(source, header)
        for fields in reader:
            if not fields:
                continue
            if len(fields) != len(header):
                message = f"{len(fields)} fields, but the first row names {len(header)} columns"
                advice = "put fields that contain separators or line breaks in double quotes"
                raise DataError(f"{message}; {advice}", source.path, reader.line_num)
            yield [] if label is None else split_labels(source, fields[label]), fields[text]
    except csv.Error as error:
        message = f"{error}; quotes inside of a quoted field must be doubled"
        raise DataError(message, source.path, reader.line_num) from error


def _places(source: Source, header: list[str]) -> tuple[int | None, int]:
    """Where the label, None for unlabeled input, and the text are."""
    names = [name.strip() for name in header]
    wanted = {"text_column": source.text_column or "text"}
    if not source.unlabeled:
        wanted["label_column"] = source.label_column or "label"
    for parameter, name in wanted.items():
        if names.count(name) > 1:
            raise DataError(f"two columns are named {name!r}; rename one of them", source.path, 1)
        if name not in names:
            what = parameter.partition("_")[0]
            message = f"no column {name!r}; pass the column of {what}s as {parameter}=, one of: "
            raise DataError(message + ", ".join(names), source.path, 1)
    label = None if source.unlabeled else names.index(wanted["label_column"])
    return label, names.index(wanted["text_column"])


def split_labels(source: Source, cell: str) -> list[str]:
    """The labels of a row: separated by commas where all are kept, else one."""
    if source.keep_labels == "all":
        return [name for field in cell.split(",") if (name := field.strip())]
    return [cell] if cell else []
