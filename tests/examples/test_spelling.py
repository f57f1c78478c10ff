"""The demo in its quick form: it must run to its end, and correct most misspellings."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "spelling.py"


def test_the_spelling_demo(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    shares = dict(re.findall(r"^(\w+) (?:noise|lookup) +([\d.]+)%", run.stdout, re.M))
    assert set(shares) == {"adversarial", "uniform", "frequency", "symspellpy"}
    # A list this short is easy: what fails to learn stays far below.
    assert all(float(share) > 80 for share in shares.values())
    assert (tmp_path / "spelling.png").stat().st_size > 10_000
