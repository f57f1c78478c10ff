"""Folders of saved models, damaged or forged, then loaded and asked.

Damage must be noticed, or the answers must be those of the whole model. What is forged, with the
right checksums, must be refused, or the answers must be probabilities.
"""

from __future__ import annotations

import resource
import shutil
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from typer.testing import CliRunner

from extremax import ExtremeClassifier
from extremax.cli import app
from extremax.errors import ExtremaxError
from tests.campaign.forgery import MANIFEST, forge_settings, forge_tensors
from tests.campaign.mutations import mutate
from tests.campaign.tiny_models import SavedModel, answers, save_models
from tests.campaign.trial import Result

NAME = "folders"
FULL = 12_000
TIMEOUT = 300.0

#: What loading may take beyond four times the files, and a limit for reserved memory.
_MOST_BYTES = 256 << 20
_SPARE_BYTES = 4 << 30
_models: list[SavedModel] = []


def prepare(folder: Path) -> None:
    """Train the models, run everything once, then limit memory."""
    torch.set_num_threads(1)
    _models[:] = save_models(folder / "models")
    shutil.rmtree(folder / "models")
    for model in _models:
        path = folder / "model"
        path.mkdir()
        _write(path, model.files)
        if _check(model, path, "", _same_answers).outcome != "accepted":
            raise AssertionError(f"{model.name} is not as it was before it was saved")
        _show(path, "")
        shutil.rmtree(path)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def run(seed: int, folder: Path) -> Result:
    """Write the files of a model with something wrong, load them, and ask for probabilities."""
    random = Random(f"folders {seed}")
    model, other = random.choice(_models), random.choice(_models)
    path = folder / "model"
    path.mkdir()
    try:
        # A reader waits for files that a writer may be about to replace; here there is none.
        with patch("extremax.storage.folder._WAIT_SECONDS", 0.0):
            if random.random() < 0.3:
                _write(path, model.files)
                change = _damage(random, path, model, other)
                return _check(model, path, f"{model.name}: {change}", _same_answers)
            forge = random.choice((forge_settings, forge_tensors))
            _write(path, forge(random, model.files, other.files))
            detail = f"{model.name}: {forge.__name__}"
            if random.random() < 0.1:
                return _show(path, detail)
            return _check(model, path, detail, _probabilities)
    finally:
        shutil.rmtree(path)


def _write(path: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (path / name).write_bytes(content)


def _damage(random: Random, path: Path, model: SavedModel, other: SavedModel) -> str:
    """Damage one file without a word to the manifest; return what was done."""
    name = random.choice(sorted(model.files))
    file = path / name
    change = random.choice(
        ("bytes",) * 6 + ("delete", "swap", "foreign", "extra", "folder", "link")
    )
    if change == "bytes":
        file.write_bytes(mutate(random, model.files[name], textual=name == MANIFEST))
    elif change == "delete":
        file.unlink()
    elif change == "swap":
        second = random.choice(sorted(model.files))
        file.write_bytes(model.files[second])
        (path / second).write_bytes(model.files[name])
    elif change == "foreign":
        file.write_bytes(random.choice(list(other.files.values())))
    elif change == "extra":
        extra = random.choice(("notes.txt", ".hidden", "head.safetensors", "manifest.json.bak"))
        (path / extra).write_bytes(random.randbytes(100))
    elif change == "folder":
        file.unlink()
        file.mkdir()
    else:
        file.unlink()
        file.symlink_to(random.choice(("nowhere", name, "/dev/null", ".")))
    return f"{change} {name}"


def _check(model: SavedModel, path: Path, detail: str, compare: Any) -> Result:
    before = _reset_peak()
    try:
        classifier = ExtremeClassifier.load(path)
        grown = _peak() - before
        if grown > 4 * sum(map(len, model.files.values())) + _MOST_BYTES:
            return Result("silently_wrong", f"{detail}: loading took {grown:,} bytes")
        found = answers(classifier, model.X)
    except ExtremaxError:
        return Result("refused")
    problem = compare(model, *found)
    if problem:
        return Result("silently_wrong", f"{detail}: {problem}")
    try:
        classifier.partial_fit(model.X, model.y)
        problem = _probabilities(model, *answers(classifier, model.X))
    except ExtremaxError:
        return Result("accepted")
    if problem:
        return Result("silently_wrong", f"{detail}: after partial_fit, {problem}")
    return Result("accepted")


def _same_answers(model: SavedModel, probabilities: np.ndarray, best: np.ndarray) -> str:
    if np.array_equal(probabilities, model.probabilities) and np.array_equal(best, model.best):
        return ""
    return "accepted with other answers"


def _probabilities(model: SavedModel, probabilities: np.ndarray, best: np.ndarray) -> str:
    """What is wrong with the answers of a model, or ""."""
    if not np.isfinite(probabilities).all() or not np.isfinite(best).all():
        return f"answers are not finite: {probabilities!r:.300} {best!r:.300}"
    if (probabilities < 0).any() or not np.allclose(probabilities.sum(1), 1, atol=1e-3):
        return f"probabilities sum to {probabilities.sum(1)}"
    if (best > 1e-3).any() or (np.diff(best, axis=1) > 1e-6).any():
        return f"the best log-probabilities are {best}"
    return ""


def _show(path: Path, detail: str) -> Result:
    """`extremax info` on the folder: exit status 0, or 2 with a message that names the folder."""
    result = CliRunner().invoke(app, ["info", str(path)], prog_name="extremax")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code not in (0, 2):
        return Result("traceback", f"{detail}: info ends with status {result.exit_code}")
    if result.exit_code == 2 and str(path) not in result.stderr.replace("\n", ""):
        return Result("traceback", f"{detail}: the message names no file: {result.stderr}")
    return Result("accepted" if result.exit_code == 0 else "refused")


def _reset_peak() -> int:
    """Forget the peak of resident memory; return its present size in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
