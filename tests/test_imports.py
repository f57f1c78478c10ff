"""What imports and the command line's quick answers load: modules are counted, not seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from extremax import ExtremeClassifier

HEAVY = {"numpy", "scipy", "torch", "numba", "sklearn", "pandas", "pyarrow", "matplotlib"}
MODULES = [
    "comparison", "data", "diagnostics", "discrete", "evaluation", "experts", "features", "heads",
    "nn", "noise", "objectives", "softmax",
]  # fmt: skip


def modules_after(code: str) -> set[str]:
    """The modules that some code loads in a fresh interpreter."""
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


def test_importing_the_package_loads_nothing_else() -> None:
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
def test_help_and_usage_errors_load_no_numerics(arguments: list[str]) -> None:
    loaded = modules_after(run_app(*arguments))
    assert "extremax.cli.train" in loaded
    assert not HEAVY & loaded
    # rich, which draws the panels of help, has about a hundred.
    assert len(loaded) < 450


def test_names_of_the_package_are_loaded_on_first_use() -> None:
    loaded = modules_after("import extremax; extremax.ExtremeClassifier")
    assert {"numpy", "torch", "sklearn", "extremax.classifier"} <= loaded


def test_modules_of_the_package_are_reachable_without_numba() -> None:
    """numba takes a second to load; it is loaded by the first kernel that runs."""
    reached = ", ".join(f"extremax.{name}" for name in MODULES)
    listed = f"assert set({MODULES}) < set(dir(extremax))"
    loaded = modules_after(f"import extremax; {listed}; {reached}")
    assert {f"extremax.{name}" for name in MODULES} <= loaded
    assert "numba" not in loaded


@pytest.mark.parametrize(
    ("name", "content", "unused"),
    [
        ("a.tsv", "one\tsome words\ntwo\tmore words\n", {"torch", "numba"}),
        ("a.sessions", "tent stove lamp\n", {"torch", "numba"}),
        # The parser of this format is a kernel.
        ("a.svm", "3 1:0.5 4:1\n1,2 2:1\n", {"torch"}),
    ],
)
def test_reading_data_loads_no_torch(
    tmp_path: Path, name: str, content: str, unused: set[str]
) -> None:
    """So that a mistake in the file is reported at once."""
    file = tmp_path / name
    file.write_text(content)
    read = f"import extremax.labels, extremax.data as d; assert len(d.read({str(file)!r})) == 2"
    loaded = modules_after(read)
    assert "extremax.labels.classes" in loaded
    assert not unused & loaded


def test_describing_a_model_loads_no_torch(tmp_path: Path) -> None:
    X, y = np.random.default_rng(0).standard_normal((60, 4)), np.arange(60) % 5
    ExtremeClassifier(noise="uniform", epochs=1, random_state=0).fit(X, y).save(tmp_path / "m")
    loaded = modules_after(run_app("info", str(tmp_path / "m")))
    assert "extremax.storage.folder" in loaded
    assert not {"torch", "numba", "sklearn"} & loaded


def test_training_does_not_load_the_compiler_of_torch() -> None:
    fit = (
        "import numpy as np; from extremax import ExtremeClassifier\n"
        "X, y = np.random.default_rng(0).standard_normal((300, 4)), np.arange(300) % 5\n"
        "ExtremeClassifier(epochs=1, random_state=0).fit(X, y)"
    )
    loaded = modules_after(fit)
    assert {"extremax.training.start", "numba"} <= loaded
    assert "torch._dynamo" not in loaded
