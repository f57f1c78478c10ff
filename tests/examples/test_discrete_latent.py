"""The quick version of the example: every estimator on both problems."""

import math
import re
import subprocess
import sys
from pathlib import Path

from extremax.discrete import ESTIMATORS

SCRIPT = Path(__file__).parents[2] / "examples" / "discrete_latent.py"


def test_the_quick_version(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    rows = {line.split()[0]: line.split()[1:] for line in run.stdout.splitlines() if line.strip()}
    assert set(ESTIMATORS) < set(rows)
    for column, t in ((0, 0.45), (2, 0.499)):
        loss = {name: float(rows[name][column]) for name in ESTIMATORS}
        # Training starts at θ = ½; no loss can be below t².
        start = ((1 - t) ** 2 + t**2) / 2
        assert all(t**2 <= value < start + 0.005 for value in loss.values())
        assert loss["exact"] == min(loss.values()) < start
        assert float(rows["relax"][column + 1]) < float(rows["reinforce"][column + 1])
    for name in ESTIMATORS:
        if name != "exact":
            # Better than guessing every pixel with probability ½.
            assert -64 * math.log(2) < float(rows[name][4]) < 0
    assert re.search(r"^optimum +0\.2025 +0\.2490", run.stdout, re.M)
    for picture in ("discrete_toy.png", "discrete_digits.png"):
        assert (tmp_path / picture).stat().st_size > 10_000
