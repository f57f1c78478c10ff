"""Sizes of files from their first part."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from extremax.data import scan
from extremax.errors import DataError
from extremax.planning import survey

MODULE = "extremax.planning.sizes._MOST_BYTES"
N_ROWS = 20_000


def lines(labels: np.ndarray, separator: str = "\t") -> str:
    rng = np.random.default_rng(1)
    words = rng.integers(0, 999, len(labels))
    return "".join(f"c{y}{separator}some words {w}\n" for y, w in zip(labels, words, strict=True))


SHUFFLED = np.random.default_rng(0).integers(0, 300, N_ROWS)


def test_small_files_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(lines(SHUFFLED))
    assert survey([path], {}) == (scan(path), False)


@pytest.mark.parametrize(
    ("name", "labels", "classes"),
    [
        ("a.tsv", SHUFFLED, 300),
        ("a.csv", SHUFFLED, 300),
        # As many new classes in every part of the file.
        ("sorted.tsv", np.arange(N_ROWS) // 10, N_ROWS // 10),
    ],
)
def test_large_files_are_extrapolated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, labels: np.ndarray, classes: int
) -> None:
    path = tmp_path / name
    text = lines(labels)
    if ".csv" in name:
        text = "label,text\n" + lines(labels, ",")
    path.write_text(text)
    monkeypatch.setattr(MODULE, len(text) // 4)
    found, is_estimate = survey([path], {})
    assert is_estimate
    assert found.rows == pytest.approx(N_ROWS, rel=0.1)
    assert found.classes == pytest.approx(classes, rel=0.15)
    assert (found.kind, found.features) == ("text", None)


def test_a_large_compressed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, rng = tmp_path / "a.tsv.gz", np.random.default_rng(0)
    text = "".join(f"c{y}\t{rng.bytes(100).hex()}\n" for y in SHUFFLED)
    path.write_bytes(gzip.compress(text.encode(), compresslevel=1))
    monkeypatch.setattr(MODULE, len(text) // 3)
    found, is_estimate = survey([path], {})
    assert is_estimate
    assert found.rows == pytest.approx(N_ROWS, rel=0.15)
    assert found.classes == pytest.approx(300, rel=0.02)


def test_several_large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{i}.svm" for i in range(4)]
    for path in paths:
        path.write_text(
            "".join(f"{y} {1 + i % 50}:1 60:2\n" for i, y in enumerate(SHUFFLED[:5000]))
        )
    monkeypatch.setattr(MODULE, int(1.5 * paths[0].stat().st_size))
    found, is_estimate = survey(paths, {})
    assert is_estimate
    assert found.rows == pytest.approx(N_ROWS, rel=0.02)
    assert found.nonzeros == pytest.approx(2 * N_ROWS, rel=0.02)
    assert (found.features, found.classes) == (60, 300)


def test_a_quoted_line_break_is_not_the_end_of_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("label,text\n" + "".join(f'c{i % 7},"one\ntwo\nthree"\n' for i in range(2000)))
    for n_bytes in range(5000, 5040):
        monkeypatch.setattr(MODULE, n_bytes)
        found, _ = survey([path], {})
        assert found.rows == pytest.approx(2000, rel=0.1)
        assert found.classes == 7


def test_errors_name_the_file_and_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\nno tab\n" + "a\tb\n" * 1000)
    monkeypatch.setattr(MODULE, 500)
    with pytest.raises(DataError) as raised:
        survey([path], {})
    assert str(raised.value).startswith(f"{path}:2:7: no TAB in this line")
