"""The quick form: methods beat word frequencies, and a picture is drawn."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "word_vectors.py"


def test_word_vectors(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    row = r"^(negative sampling|NCE|exact softmax|word frequencies) +(-[\d.]+)"
    likelihoods = {name: float(value) for name, value in re.findall(row, run.stdout, re.M)}
    assert len(likelihoods) == 4
    prior = likelihoods.pop("word frequencies")
    # Exact softmax may need more than two seconds on a slow machine.
    assert likelihoods["negative sampling"] > prior
    assert likelihoods["NCE"] > prior
    assert "nearest neighbors, NCE" in run.stdout
    assert (tmp_path / "word_vectors.png").stat().st_size > 10_000
