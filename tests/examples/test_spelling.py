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
    found = re.findall(r"^(extremax|nearest word|symspellpy)[^%\d]* +([\d.]+)%", run.stdout, re.M)
    shares = {name: float(share) for name, share in found}
    # A list this short is easy, and what training adds to the nearest word is little, but there.
    assert shares["extremax"] > shares["nearest word"] > shares["symspellpy"] > 80
    assert (tmp_path / "spelling.png").stat().st_size > 10_000
