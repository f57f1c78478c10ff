"""The quick form runs every noise, and files in the format of Penn Treebank are read."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from extremax.noise import NOISES

SCRIPT = Path(__file__).parents[2] / "examples" / "language_model.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_language_model(tmp_path: Path) -> None:
    done = run("--quick", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(\w+) +(\d*) +([\d.]+) +([\d.]+) +([\d.]+) +\d+ *$", done.stdout, re.M)
    perplexities = {(name, m): float(test) for name, m, _, test, _ in rows}
    noises = {"uniform", "unigram", "bigram", "quadratic", "quartic", "softmax", "tree", "mixture"}
    assert set(perplexities) == {("exact", "")} | {(n, m) for n in noises for m in ("5", "20")}
    assert min(perplexities.values()) > 10
    # A better noise gives a better model.
    assert perplexities["unigram", "20"] < perplexities["uniform", "5"]
    assert (tmp_path / "language_model.png").stat().st_size > 10_000


@pytest.mark.parametrize("noise", ["exact", "uniform", "bigram", "quadratic", "quartic", "tree"])
def test_layers_with_even_kernels_predict_by_absolute_scores(
    noise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    example = importlib.import_module("language_model")
    stream = torch.arange(60) % 12
    layer = example.output_layer(noise, 5, 8, example.Text(stream, stream, stream, 12)).eval()
    hidden = torch.randn((4, 8), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        layer.weight.normal_(generator=torch.Generator().manual_seed(1))
        scores = torch.nn.functional.linear(hidden, layer.weight, layer.bias)
        assert (scores < 0).any(1).all()
        even = noise in NOISES and NOISES[noise]().is_even
        expected = (scores.abs() if even else scores).log_softmax(1)
        torch.testing.assert_close(layer.log_prob(hidden), expected)


def test_files_in_the_format_of_the_treebank(tmp_path: Path) -> None:
    missing = run("--data", str(tmp_path))
    assert missing.returncode != 0
    assert "ptb.train.txt is missing" in missing.stderr
    rng = np.random.default_rng(0)
    for part, n in (("train", 60), ("valid", 40), ("test", 40)):
        lines = [" ".join(f"w{i}" for i in rng.integers(60, size=9)) for _ in range(n)]
        (tmp_path / f"ptb.{part}.txt").write_text("\n".join(lines) + "\n")
    done = run("--quick", "--data", str(tmp_path), "--noises", "tree", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    # Sixty words and the end of a line; ten words per line.
    assert "61 words = classes | 600 words to train on, 400 to test" in done.stdout
