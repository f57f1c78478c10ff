"""Writing predictions."""

from __future__ import annotations

import io
import json
import math
import os
import stat

import numpy as np
import pytest

from extremax.data import write_explanations, write_predictions
from extremax.errors import DataError

ROWS = [(["a", "é"], [math.log(0.75), math.log(0.125)]), (["b"], [0.0])]


def test_tsv(tmp_path):
    path = tmp_path / "p.tsv"
    assert write_predictions(path, ROWS) == 2
    assert path.read_bytes() == "a\t0.75\té\t0.125\nb\t1\n".encode()
    assert [file.name for file in tmp_path.iterdir()] == ["p.tsv"]


def test_json_lines(tmp_path):
    labels = np.array([[3, 1], [2, 0]])
    log_probs = np.log(np.array([[0.5, 0.25], [1 / 3, 1e-30]], dtype=np.float32))
    path = tmp_path / "p.jsonl"
    write_predictions(str(path), zip(labels, log_probs, strict=True), format="jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["labels"] for row in rows] == [[3, 1], [2, 0]]
    assert rows[0]["probabilities"] == [0.5, 0.25]
    np.testing.assert_allclose(rows[1]["probabilities"], [1 / 3, 1e-30], rtol=1e-5)


def test_streams(capsys):
    write_predictions(None, ROWS)
    assert capsys.readouterr().out == "a\t0.75\té\t0.125\nb\t1\n"
    stream = io.StringIO()
    write_predictions(stream, ROWS, format="jsonl")
    assert stream.getvalue().startswith('{"labels": ["a", "é"], "probabilities": [0.75, 0.125]}\n')


def test_rows_are_written_one_by_one():
    stream = io.StringIO()

    def rows():
        yield ROWS[1]
        assert stream.getvalue() == "b\t1\n"
        yield ROWS[1]

    write_predictions(stream, rows())


def test_an_error_leaves_the_old_file_unchanged(tmp_path):
    path = tmp_path / "p.tsv"
    path.write_text("old")

    def rows():
        yield ROWS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_predictions(path, rows())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_links_and_devices_are_kept(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_predictions(tmp_path / "link", ROWS[1:])
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "b\t1\n"
    write_predictions(os.devnull, ROWS)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_labels_that_a_tsv_cannot_hold_are_rejected(tmp_path):
    for label in ("a\tb", "a\nb", "a\rb"):
        with pytest.raises(DataError, match="write jsonl"):
            write_predictions(tmp_path / "p.tsv", [([label], [0.0])])
        write_predictions(tmp_path / "p.jsonl", [([label], [0.0])], format="jsonl")
        assert json.loads((tmp_path / "p.jsonl").read_text())["labels"] == [label]
    with pytest.raises(ValueError, match="format"):
        write_predictions(tmp_path / "p.csv", ROWS, format="csv")
    with pytest.raises(ValueError, match=r"shorter|longer"):
        write_predictions(tmp_path / "p.tsv", [(["a", "b"], [0.0])])


def test_formats_of_explanations_are_checked() -> None:
    with pytest.raises(ValueError, match="format must be 'text' or 'jsonl', got 'tsv'"):
        write_explanations(None, [], format="tsv")  # type: ignore[arg-type]
