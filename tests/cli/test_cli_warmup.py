"""``extremax warmup`` compiles what a first fit and prediction would."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def test_kernels_are_stored_for_later_processes(program, tmp_path: Path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [*program, "warmup", "sessions"]
    first = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (first.returncode, first.stdout) == (0, "")
    stored = {path.name for path in tmp_path.rglob("*.nbc")}
    assert any(name.startswith("adam.") for name in stored)
    again = subprocess.run(command, env=environment, capture_output=True, text=True)
    # Nothing is left to compile.
    assert "sessions: 0.0 s of compilation" in again.stderr
    assert {path.name for path in tmp_path.rglob("*.nbc")} == stored


def test_an_unknown_kind_is_refused(run):
    done = run("warmup", "songs")
    assert done.status == 2
    assert "'songs' is no kind of rows; use dense, text, sessions" in done.err
