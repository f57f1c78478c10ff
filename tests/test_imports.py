"""What ``import extremax`` and ``extremax --help`` load: modules are counted, not seconds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"numpy", "scipy", "torch", "numba", "sklearn", "pandas", "pyarrow", "matplotlib"}


def modules_after(code: str) -> set[str]:
    """The modules a fresh interpreter has after some code, beyond those it starts with."""
    report = (
        "import sys, json; before = set(sys.modules)\n"
        f"{code}\n"
        "print('\\n' + json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def run_app(*arguments: str) -> str:
    return (
        "from extremax.cli import app\n"
        f"try: app({list(arguments)!r}, prog_name='extremax')\n"
        "except SystemExit: pass"
    )


def test_importing_the_package_loads_nothing_else():
    loaded = modules_after("import extremax")
    assert not HEAVY & loaded
    assert "typer" not in loaded
    # Only itself, its version and a few of the standard library.
    assert {name for name in loaded if name.startswith("extremax")} == {
        "extremax",
        "extremax._version",
    }
    assert len(loaded) < 40


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["train", "--help"], ["predict"], ["plan", "--epochs", "0"]],
    ids=" ".join,
)
def test_answers_about_the_command_line_load_no_numerics(arguments):
    loaded = modules_after(run_app(*arguments))
    assert "extremax.cli.train" in loaded
    assert not HEAVY & loaded
    assert len(loaded) < 300


def test_names_of_the_package_still_arrive_when_asked_for():
    loaded = modules_after("import extremax; extremax.ExtremeClassifier")
    assert {"numpy", "torch", "sklearn", "extremax.classifier"} <= loaded


def test_modules_of_files_load_no_torch():
    assert not {"torch", "numba"} & modules_after("import extremax.files, extremax.model_files")


def test_training_does_not_load_the_compiler_of_torch():
    fit = (
        "import numpy as np; from extremax import ExtremeClassifier\n"
        "X, y = np.random.default_rng(0).standard_normal((300, 4)), np.arange(300) % 5\n"
        "ExtremeClassifier(epochs=1, random_state=0).fit(X, y)"
    )
    loaded = modules_after(fit)
    assert "extremax.training.start" in loaded
    assert "torch._dynamo" not in loaded
