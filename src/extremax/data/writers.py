"""Predictions, written as they come."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO

from extremax.errors import DataError


def write_predictions(
    target: str | Path | TextIO | None,
    rows: Iterable[tuple[Sequence[Any], Sequence[float]]],
    format: Literal["tsv", "jsonl"] = "tsv",
) -> int:
    """Write each row's labels with their probabilities; returns the number of rows.

    ``rows`` are pairs of labels and log-probabilities, best first. A path gets its file only
    when all is written; None is standard output.
    """
    if format not in ("tsv", "jsonl"):
        raise ValueError(f"format must be 'tsv' or 'jsonl', not {format!r}")
    as_line = _tsv_line if format == "tsv" else _json_line
    n_rows = 0
    with _opened(target) as stream:
        for labels, log_probs in rows:
            probabilities = [float(f"{math.exp(value):.6g}") for value in log_probs]
            stream.write(as_line([_plain(label) for label in labels], probabilities) + "\n")
            n_rows += 1
    return n_rows


def _plain(label: Any) -> Any:
    """A numpy scalar as the Python one, which json knows."""
    return label.item() if hasattr(label, "item") else label


def _tsv_line(labels: list[Any], probabilities: list[float]) -> str:
    names = [str(label) for label in labels]
    for name in names:
        if any(mark in name for mark in "\t\n\r"):
            raise DataError(f"label {name!r} would break the lines of a TSV; write jsonl instead")
    pairs = zip(names, probabilities, strict=True)
    return "\t".join(f"{name}\t{probability:.6g}" for name, probability in pairs)


def _json_line(labels: list[Any], probabilities: list[float]) -> str:
    row = {"labels": labels, "probabilities": probabilities}
    return json.dumps(row, ensure_ascii=False, allow_nan=False)


@contextmanager
def _opened(target: str | Path | TextIO | None) -> Iterator[TextIO]:
    if target is None:
        yield sys.stdout
    elif not isinstance(target, str | Path):
        yield target
    else:
        # Through links, so that the file they lead to is replaced and not the link.
        path = Path(target).resolve()
        if path.exists() and not path.is_file():
            # A pipe or a device such as /dev/null: nothing to rename.
            with path.open("w", encoding="utf-8") as stream:
                yield stream
        else:
            with _renamed_when_done(path) as stream:
                yield stream


@contextmanager
def _renamed_when_done(path: Path) -> Iterator[TextIO]:
    """A file beside ``path`` that takes its name at the end, or is removed on an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
