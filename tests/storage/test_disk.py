"""Files are replaced in one step; what a killed process leaves goes with the next write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from extremax.disk import replacing

KILLED = """
import os, sys
from pathlib import Path
from extremax.disk import replacing

with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half of it")
    os._exit(9)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_killed_writer_leaves_the_old_file_and_the_next_removes_its_part(tmp_path: Path) -> None:
    path = tmp_path / "out [1].tsv"
    path.write_text("old")
    (tmp_path / ".notes.1.part").write_text("mine")
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
        assert path.read_text() == "old"
        assert len(names(tmp_path)) == 3
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert names(tmp_path) == [".notes.1.part", "out [1].tsv"]


def test_a_part_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.tsv"
    with replacing(path) as temporary:
        temporary.write_text("first")
        code = KILLED.replace("os._exit(9)", "pass")
        subprocess.run([sys.executable, "-c", code, str(path)], check=True)
        assert path.read_text() == "half of it"
        assert temporary.read_text() == "first"
    assert path.read_text() == "first"
    assert names(tmp_path) == ["out.tsv"]


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.tsv"
    path.write_text("old")
    writing = replacing(path)
    writing.__enter__().write_text("half")
    error = OSError("full")
    assert not writing.__exit__(OSError, error, error.__traceback__)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["out.tsv"]
    assert os.access(path, os.W_OK)
