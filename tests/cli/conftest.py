"""Small training files, and models trained on them, shared by all tests of commands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from extremax.cli import app
from extremax.data import clustered


@dataclass(frozen=True)
class Outcome:
    """Exit status, standard output and standard error of a command."""

    status: int
    out: str
    err: str


def _run(*arguments: object) -> Outcome:
    result = CliRunner().invoke(app, [str(a) for a in arguments], prog_name="extremax")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


@pytest.fixture(scope="session")
def run() -> Callable[..., Outcome]:
    """Run a command in this process: ``run("info", folder)``."""
    return _run


@pytest.fixture(scope="session")
def program() -> list[str]:
    """The start of a command line that runs in a separate process."""
    return [sys.executable, "-c", "from extremax.cli import main; main()"]


def texts(n: int, seed: int) -> list[tuple[str, str]]:
    """(label, text) pairs of thirty classes, each with two distinctive and three common words."""
    rng = np.random.default_rng(seed)
    rows = []
    for label in rng.integers(0, 30, n):
        words = [f"own{label}", f"mark{label}", *(f"common{j}" for j in rng.integers(0, 20, 3))]
        rows.append((f"class {label}", " ".join(words)))
    return rows


def svmlight(X: np.ndarray, y: np.ndarray) -> str:
    """Format rows as svmlight text with indices from 1, leaving out values below 0.3."""
    lines = []
    for row, label in zip(X, y, strict=True):
        pairs = [f"{j + 1}:{v:.4f}" for j, v in enumerate(row) if abs(v) > 0.3]
        lines.append(" ".join([str(label), *pairs]))
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Files:
    """Files of training and test rows: texts, sparse rows, dense rows."""

    tsv: Path
    tsv_test: Path
    svm: Path
    svm_test: Path
    npy: Path
    npy_labels: Path


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("data")
    paths = Files(*(folder / n for n in ("a.tsv", "t.tsv", "a.svm", "t.svm", "X.npy", "y.npy")))
    for path, n, seed in ((paths.tsv, 900, 0), (paths.tsv_test, 50, 1)):
        path.write_text("".join(f"{label}\t{text}\n" for label, text in texts(n, seed)))
    X, y = clustered(1500, 60, 20, seed=0)
    paths.svm.write_text(svmlight(X[:1200], y[:1200]))
    paths.svm_test.write_text(svmlight(X[1200:], y[1200:]))
    np.save(paths.npy, X)
    np.save(paths.npy_labels, y)
    return paths


@pytest.fixture(scope="session")
def text_model(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "text"
    options = ("--components", 32, "--noise", "tree", "--epochs", 5, "--quiet")
    assert _run("train", files.tsv, "-o", folder, *options).status == 0
    return folder


@pytest.fixture(scope="session")
def sparse_model(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "sparse"
    options = ("--components", 16, "--noise", "tree", "--epochs", 3, "--quiet")
    assert _run("train", files.svm, "-o", folder, *options).status == 0
    return folder


@pytest.fixture(scope="session")
def bag_model(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of texts that stay sparse."""
    folder = tmp_path_factory.mktemp("models") / "bag"
    options = ("--objective", "sampled_softmax", "--quiet")
    assert _run("train", files.tsv, "-o", folder, "--bag-size", 24, *options).status == 0
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a small file and return its path."""

    def write_file(name: str, content: str) -> Path:
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        return path

    return write_file
