"""Write predictions, and why they were made, row by row."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO

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
    return _write(target, (as_line(_plain(p), _rounded(q)) for p, q in rows))


def write_explanations(
    target: str | Path | TextIO | None,
    rows: Iterable[Sequence[Explained]],
    format: Literal["text", "jsonl"] = "text",
) -> int:
    """Write why the labels of each row were predicted, and return the number of rows.

    Args:
        target: As in `write_predictions`.
        rows: The explanations of each row, see `ExtremeClassifier.explain`.
        format: ``text``, with an empty line after each row, or ``jsonl``, which has a list of pairs
            (part of the input, contribution) for each label.
    """
    if format not in ("text", "jsonl"):
        raise ArgumentError(f"format must be 'text' or 'jsonl', got {format!r}")
    return _write(target, map(_explained_text if format == "text" else _explained_json, rows))


class Explained(Protocol):
    """What is written of an `extremax.prediction.explanation.Explanation`."""

    @property
    def label(self) -> Any: ...
    @property
    def log_prob(self) -> float: ...
    @property
    def parts(self) -> list[Any]: ...
    @property
    def contributions(self) -> Any: ...


def _explained_text(row: Sequence[Explained]) -> str:
    return "".join(f"{explanation}\n" for explanation in row) or "no class\n"


def _explained_json(row: Sequence[Explained]) -> str:
    pairs = [
        [
            [part, float(f"{value:.6g}")]
            for part, value in zip(_plain(one.parts), one.contributions.tolist(), strict=True)
        ]
        for one in row
    ]
    labels, log_probs = _plain([one.label for one in row]), [one.log_prob for one in row]
    return _json_line(labels, _rounded(log_probs), explanations=pairs)


def _plain(values: Sequence[Any]) -> list[Any]:
    """Without numpy's scalars, which json cannot write."""
    return [value.item() if hasattr(value, "item") else value for value in values]


def _rounded(log_probs: Sequence[float]) -> list[float]:
    return [float(f"{math.exp(value):.6g}") for value in log_probs]


def _write(target: str | Path | TextIO | None, lines: Iterable[str]) -> int:
    """Write lines as they come, and return their number."""
    n_lines = 0
    with _opened(target) as stream:
        for line in lines:
            stream.write(line + "\n")
            n_lines += 1
    return n_lines


def _tsv_line(labels: list[Any], probabilities: list[float]) -> str:
    names = [str(label) for label in labels]
    for name in names:
        if any(separator in name for separator in "\t\n\r"):
            raise DataError(f"label {name!r} contains a TAB or a line break; write jsonl instead")
    pairs = zip(names, probabilities, strict=True)
    return "\t".join(f"{name}\t{probability:.6g}" for name, probability in pairs)


def _json_line(labels: list[Any], probabilities: list[float], **more: Any) -> str:
    row = {"labels": labels, "probabilities": probabilities, **more}
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
