"""The folder of a comparison and what happens to it meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

from extremax.comparison.folder import RunFolder


def test_runs_after_the_folder_was_deleted_are_found_by_a_rerun(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    folder = RunFolder(path, {"seed": 1})
    folder.put("first", {"seconds": 1.0})
    shutil.rmtree(path)
    folder.put("second", {"seconds": 2.0})
    rerun = RunFolder(path, {"seed": 1})
    assert rerun.get("first", {"seconds"}) is None
    assert rerun.get("second", {"seconds"}) == {"seconds": 2.0}
