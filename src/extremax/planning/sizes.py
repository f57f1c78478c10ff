"""The size of files: in full where that is quick, else extrapolated from their first part."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from extremax.data import Summary, read_blocks, scan
from extremax.data.source import Source, resolve_all
from extremax.data.streams import first_bytes
from extremax.errors import DataError

# Text that is read in about a second.
_MOST_BYTES = 16 << 20
# These have to be read from end to end to be counted.
_COUNTED = ("svmlight", "csv", "tsv", "fasttext", "sessions")


def survey(paths: list[Path], options: dict[str, Any]) -> tuple[Summary, bool]:
    """The size of what `extremax.data.read` would return, and whether it is an estimate."""
    sources = resolve_all(paths, **options)
    total = sum(source.n_bytes for source in sources)
    if sources[0].format not in _COUNTED or total <= _MOST_BYTES:
        return scan(paths, **options), False
    names: list[Any] = []
    rows = width = values = 0
    n_bytes = 0.0
    for source in sources:
        with TemporaryDirectory() as folder:
            part, share = _first_part(source, _MOST_BYTES, Path(folder))
            try:
                blocks = read_blocks(part, **options | {"format": source.format})
                for block in blocks:
                    table = block.table
                    rows += len(block)
                    names += block.class_values.tolist()
                    width = max(width, table.n_features or 0)
                    values += block.features.nnz if table.kind == "sparse" else 0
            except DataError as error:
                message = str(error).replace(str(part), str(source.path))
                raise DataError(message) from error
        n_bytes += share * source.n_bytes
        if n_bytes >= _MOST_BYTES or share < 1.0:
            break
    if not rows:
        raise DataError("no row of its first part has a label", sources[0].path)
    times = total / n_bytes
    classes = _extrapolated(names, times)
    kind = table.kind
    features = {"text": None, "sequences": classes}.get(kind, width)
    nonzeros = round(values * times) if kind == "sparse" else None
    return Summary(round(rows * times), features, classes, nonzeros, kind, total), True


def _first_part(source: Source, n_bytes: int, folder: Path) -> tuple[Path, float]:
    """A file of the first rows of another, and the share of it that they are."""
    text, share = first_bytes(source.path, n_bytes)
    if share < 1.0:
        end = text.rfind(b"\n") + 1
        while source.has_header and text.count(b'"', 0, end) % 2:
            end = text.rfind(b"\n", 0, end - 1) + 1  # inside of a quoted field
        if not end:
            message = f"a row is longer than {n_bytes:,} bytes; pass --rows, --features, --classes"
            raise DataError(message, source.path)
        text, share = text[:end], share * end / len(text)
    part = folder / "part"
    part.write_bytes(text)
    return part, share


def _extrapolated(labels: list[Any], times: float) -> int:
    """Classes of ``times`` as many labels, if they grow as a power of the number of labels: none
    are new where half of the labels had them all; as many as before in a file sorted by class."""
    half, whole = len(set(labels[: (len(labels) + 1) // 2])), len(set(labels))
    return round(whole * times ** min(1.0, math.log2(whole / half)))
