"""Write predictions row by row."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO

from extremax.disk import replacing
from extremax.errors import ArgumentError, DataError


def write_predictions(
    target: str | Path | TextIO | None,
    rows: Iterable[tuple[Sequence[Any], Sequence[float]]],
    format: Literal["tsv", "jsonl"] = "tsv",
) -> int:
    """Write the predicted labels and probabilities of each row, and return the number of rows.

    Args:
        target: A path, an open text stream, or None for standard output. The file at a path is
            replaced only after all rows are written.
        rows: One pair (labels, log-probabilities) per row, best label first.
        format: ``tsv`` or ``jsonl``.
    """
    if format not in ("tsv", "jsonl"):
        raise ArgumentError(f"format must be 'tsv' or 'jsonl', got {format!r}")
    as_line = _tsv_line if format == "tsv" else _json_line
    n_rows = 0
    with _opened(target) as stream:
        for labels, log_probs in rows:
            probabilities = [float(f"{math.exp(value):.6g}") for value in log_probs]
            # json cannot write numpy's scalars.
            plain = [label.item() if hasattr(label, "item") else label for label in labels]
            stream.write(as_line(plain, probabilities) + "\n")
            n_rows += 1
    return n_rows


def _tsv_line(labels: list[Any], probabilities: list[float]) -> str:
    names = [str(label) for label in labels]
    for name in names:
        if any(separator in name for separator in "\t\n\r"):
            raise DataError(f"label {name!r} contains a TAB or a line break; write jsonl instead")
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
        # Resolve links, so that the file they point to is replaced rather than the link.
        path = Path(target).resolve()
        if path.exists() and not path.is_file():
            # A pipe or a device such as /dev/null cannot be replaced by renaming.
            with path.open("w", encoding="utf-8") as stream:
                yield stream
        else:
            with (
                replacing(path) as temporary,
                temporary.open("w", encoding="utf-8", newline="\n") as stream,
            ):
                yield stream
