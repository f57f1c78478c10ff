"""The quick version of the example: measured variances match the closed forms."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "reparameterize.py"


def test_the_quick_version(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    number = r" +([-\d.,]+)"
    rows = re.findall(rf"^(REINFORCE|reparameterized){number * 7}", run.stdout, re.M)
    assert len(rows) == 8
    for name, _, _, _, mean, exact, variance, closed in rows:
        found, expected = (float(text.replace(",", "")) for text in (variance, closed))
        # 500 draws; the estimates of REINFORCE have heavy tails.
        assert abs(found / expected - 1) < (0.8 if name == "REINFORCE" else 0.3)
        assert abs(float(mean) - float(exact)) < 5 * (expected / 500) ** 0.5
    # The optimum is −1.5; at this step size θ fluctuates around it by about 0.1.
    assert abs(float(rows[-1][2]) + 1.5) < 0.5
    assert (tmp_path / "reparameterize.png").stat().st_size > 10_000
