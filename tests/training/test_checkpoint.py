"""Checkpoints: any run resumes where it was, and comes to the end it would have had."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered
from extremax.errors import DivergedError, ModelFileError
from extremax.features import Encoder
from extremax.heads import LinearHead
from extremax.noise import FrequencyNoise, TreeNoise
from extremax.storage.folder import Folder
from extremax.training.checkpoint import Checkpoint

X, Y = clustered(2000, 30, 8, seed=0)
TEXTS = [f"w{label} w{label % 5} w{i % 9}" for i, label in enumerate(Y)]


def small(**parameters: Any) -> ExtremeClassifier:
    return ExtremeClassifier(
        **{"epochs": 4, "n_negatives": 5, "n_jobs": 1, "random_state": 0} | parameters
    )


def assert_same(first: ExtremeClassifier, second: ExtremeClassifier) -> None:
    for part in ("head", "noise"):
        ours, theirs = (getattr(model.model_, part).state() for model in (first, second))
        assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []
    histories = [
        [{k: v for k, v in record.items() if k != "seconds"} for record in model.history_]
        for model in (first, second)
    ]
    assert histories[0] == histories[1]


def saved_state(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())["state"]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class Stop(Exception):
    pass


def stop_at(epoch: int) -> Any:
    def callback(record: dict[str, Any]) -> None:
        if record["epoch"] == epoch:
            raise Stop

    return callback


@pytest.mark.parametrize("noise", ["tree", "uniform", "frequency"])
@pytest.mark.parametrize("epoch", [1, 3, 4])
def test_a_run_that_broke_off_resumes_to_the_same_end(
    tmp_path: Path, noise: str, epoch: int
) -> None:
    with pytest.raises(Stop):
        small(noise=noise).fit(X, Y, checkpoint=tmp_path, callback=stop_at(epoch))
    assert saved_state(tmp_path)["epoch"] == epoch - 1
    seen: list[int] = []
    resumed = small(noise=noise).fit(
        X, Y, checkpoint=tmp_path, callback=lambda r: seen.append(r["epoch"])
    )
    assert seen == list(range(epoch, 5))
    assert_same(resumed, small(noise=noise).fit(X, Y))


def test_a_run_may_break_off_again_and_again(tmp_path: Path) -> None:
    for epoch in (1, 2, 4):
        with pytest.raises(Stop):
            small().fit(X, Y, checkpoint=str(tmp_path), callback=stop_at(epoch))
    assert_same(small().fit(X, Y, checkpoint=tmp_path), small().fit(X, Y))


def test_checkpoints_between_epochs_come_by_the_clock(
    tmp_path: Path, at_step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks() -> None:
        raise Stop

    steps = count()
    monkeypatch.setattr(Checkpoint, "due", lambda _: next(steps) % 8 == 0)
    at_step(80, breaks)
    with pytest.raises(Stop):
        small().fit(X, Y, checkpoint=tmp_path)
    state = saved_state(tmp_path)
    assert state["epoch"] == 1
    assert state["step"] > 0
    monkeypatch.undo()
    assert_same(small().fit(X, Y, checkpoint=tmp_path), small().fit(X, Y))


def test_due_after_the_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Checkpoint(every_seconds=-1.0).due()
    assert Checkpoint(tmp_path, every_seconds=-1.0).due()
    assert not Checkpoint(tmp_path, every_seconds=1e9).due()


def test_a_finished_run_returns_its_model_at_once(tmp_path: Path, at_step: Any) -> None:
    first = small().fit(X, Y, checkpoint=tmp_path)
    at_step(1, lambda: pytest.fail("trained again"))
    again = small().fit(X, Y, checkpoint=tmp_path, callback=lambda _: pytest.fail("called"))
    assert_same(first, again)
    assert again.history_ == first.history_
    assert np.array_equal(first.predict_proba(X), again.predict_proba(X))


def overfitting() -> ExtremeClassifier:
    return small(
        noise="uniform", epochs=60, patience=8, learning_rate=2.0, schedule="constant",
        validation_fraction=0.3,
    )  # fmt: skip


def test_the_best_head_survives_a_break(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((600, 80)).astype(np.float32)
    labels = np.where(rng.random(600) < 0.5, features[:, :10].argmax(1), rng.integers(10, size=600))
    expected = overfitting().fit(features, labels)
    seen = [record["log_likelihood"] for record in expected.history_]
    best = int(np.argmax(seen)) + 1
    assert best < len(seen)
    with pytest.raises(Stop):
        overfitting().fit(features, labels, checkpoint=tmp_path, callback=stop_at(best + 2))
    resumed = overfitting().fit(features, labels, checkpoint=tmp_path)
    assert_same(resumed, expected)
    assert_same(overfitting().fit(features, labels, checkpoint=tmp_path), expected)


def test_texts_and_object_parameters(tmp_path: Path) -> None:
    parts = {"noise": TreeNoise(n_components=3), "encoder": Encoder(12, buckets=2**10)}
    with pytest.raises(Stop):
        small(**parts).fit(TEXTS, Y, checkpoint=tmp_path, callback=stop_at(2))
    resumed = small(**parts, n_jobs=2, verbose=0).fit(TEXTS, Y, checkpoint=tmp_path)
    assert_same(resumed, small(**parts).fit(TEXTS, Y))


def test_a_run_without_a_seed_resumes_with_its_own(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        small(random_state=None).fit(X, Y, checkpoint=tmp_path, callback=stop_at(2))
    resumed = small(random_state=None).fit(X, Y, checkpoint=tmp_path)
    assert_same(resumed, small(random_state=Checkpoint(tmp_path).seed()).fit(X, Y))


FEW = X.copy()
FEW[1] += 1.0
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "seed": ({"random_state": 1}, {}, "seed"),
    "rate": ({"learning_rate": 0.31}, {}, "learning_rate"),
    "noise": ({"noise": "frequency"}, {}, "noise"),
    "part": ({"noise": TreeNoise(n_components=3)}, {}, "noise"),
    "epochs": ({"epochs": 5}, {}, "epochs"),
    "rows": ({}, {"X": X[:-1], "y": Y[:-1]}, "features, labels, rows"),
    "columns": ({}, {"X": X[:, :-1]}, "features"),
    "one row": ({}, {"X": FEW}, "features"),
    "labels": ({}, {"y": np.roll(Y, 1)}, "labels"),
    "weights": ({}, {"sample_weight": np.arange(len(Y))}, "sample_weight"),
}


@pytest.mark.parametrize(("parameters", "data", "reason"), CHANGES.values(), ids=CHANGES)
def test_a_checkpoint_of_another_run_is_refused(
    tmp_path: Path, parameters: dict[str, Any], data: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Stop):
        small().fit(X, Y, checkpoint=tmp_path, callback=stop_at(2))
    before = content(tmp_path)
    message = rf"belongs to another run \(differs in {reason}\); remove it or choose another"
    with pytest.raises(ModelFileError, match=message):
        small(**parameters).fit(**{"X": X, "y": Y} | data, checkpoint=tmp_path)
    assert content(tmp_path) == before


def test_what_does_not_change_the_result_may_change(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        small().fit(X, Y, checkpoint=tmp_path, callback=stop_at(2))
    other = small(n_jobs=2, memory_budget=2**22).fit(X, Y, checkpoint=tmp_path)
    assert torch.equal(other.model_.head.weight, small().fit(X, Y).model_.head.weight)


@pytest.mark.parametrize("length", [0, 4, 300, -1])
@pytest.mark.parametrize("seed", [0, None])
@pytest.mark.parametrize("name", ["manifest.json", "head.*.safetensors"])
def test_a_truncated_checkpoint_is_refused(
    tmp_path: Path, length: int, seed: int | None, name: str
) -> None:
    with pytest.raises(Stop):
        small().fit(X, Y, checkpoint=tmp_path, callback=stop_at(2))
    (path,) = tmp_path.glob(name)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ModelFileError, match=f"{path.name} (is damaged|has .* bytes, expected)"):
        small(random_state=seed).fit(X, Y, checkpoint=tmp_path)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    small(epochs=1).fit(X, Y).save(tmp_path)
    before = content(tmp_path)
    for seed in (0, None):
        with pytest.raises(ModelFileError, match=r"is not an extremax checkpoint .*extremax model"):
            small(random_state=seed).fit(X, Y, checkpoint=tmp_path)
    assert content(tmp_path) == before


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "diary").write_text("dear diary")
    with pytest.raises(ModelFileError, match="is a file; expected a folder"):
        small().fit(X, Y, checkpoint=tmp_path / "diary")
    assert (tmp_path / "diary").read_text() == "dear diary"


@pytest.mark.parametrize(
    "fault",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        SafetensorError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def half_a_file(tensors: Any, path: Path) -> None:
        Path(path).write_bytes(b"half")
        raise fault

    def fills(record: dict[str, Any]) -> None:
        if record["epoch"] == 2:
            monkeypatch.setattr("safetensors.torch.save_file", half_a_file)

    with pytest.raises(ModelFileError, match=r"could not write .*No space left"):
        small(validation_fraction=0.0).fit(X, Y, checkpoint=tmp_path, callback=fills)
    assert len(content(tmp_path)) == len(list(tmp_path.iterdir())) == 3
    assert saved_state(tmp_path)["epoch"] == 1
    monkeypatch.undo()
    resumed = small(validation_fraction=0.0).fit(X, Y, checkpoint=tmp_path)
    assert_same(resumed, small(validation_fraction=0.0).fit(X, Y))


def test_divergence_leaves_the_last_checkpoint_good(
    tmp_path: Path, at_step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode() -> None:
        take = LinearHead.logistic_steps

        def infinite(self: LinearHead, *args: Any) -> Any:
            self.options = self.options._replace(scale=np.inf)
            return take(self, *args)

        monkeypatch.setattr(LinearHead, "logistic_steps", infinite)

    at_step(80, explode)
    with pytest.raises(
        DivergedError, match=r"epoch 2, step \d+ .*the checkpoint in .* is still good"
    ):
        small().fit(X, Y, checkpoint=tmp_path)
    (path,) = tmp_path.glob("head.*.safetensors")
    assert all(tensor.isfinite().all() for tensor in load_file(path).values())
    monkeypatch.undo()
    assert_same(small().fit(X, Y, checkpoint=tmp_path), small().fit(X, Y))


def test_the_best_head_needs_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = small(noise=FrequencyNoise()).fit(X, Y)
    weight = model.model_.head.weight.clone()
    with Checkpoint() as checkpoint:
        checkpoint.save_best(model.model_.head)
        assert len(list(tmp_path.iterdir())) == 1
        model.model_.head.weight.zero_()
        checkpoint.load_best(model.model_.head, X.shape[1])
        assert torch.equal(model.model_.head.weight, weight)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_can_be_removed(tmp_path: Path) -> None:
    small().fit(X, Y, checkpoint=tmp_path / "run")
    Checkpoint(tmp_path / "run").remove()
    assert not (tmp_path / "run").exists()
    Checkpoint(tmp_path / "run").remove()
    Checkpoint().remove()


def test_a_model_saved_in_the_place_of_its_checkpoint_is_not_removed_with_it(
    tmp_path: Path,
) -> None:
    model = small().fit(X, Y, checkpoint=tmp_path)
    model.save(tmp_path)
    Checkpoint(tmp_path).remove()
    assert np.array_equal(ExtremeClassifier.load(tmp_path).predict(X), model.predict(X))
    assert not (tmp_path / "best").exists()


@pytest.mark.parametrize("part", ["head", "noise", "per_example", "none"])
def test_a_checkpoint_with_good_checksums_and_bad_tensors_is_refused(
    part: str, tmp_path: Path
) -> None:
    model = small(objective="augment_reduce", noise="tree")
    model.fit(X, Y, checkpoint=tmp_path, callback=lambda _: True)
    folder = Folder(tmp_path, "extremax checkpoint 3")
    settings, files = folder.read()
    if part == "head":
        files["head"]["table"] = files["head"]["table"][:, :, :3].clone()
    elif part == "noise":
        files["noise"]["order"] += 10**9
    elif part == "per_example":
        files["per_example"]["values"] = files["per_example"]["values"].double()
    else:
        files = {}
    folder.write({key: settings[key] for key in ("fingerprint", "state")}, files)
    with pytest.raises(ModelFileError, match=r"is damaged: .*remove it"):
        model.fit(X, Y, checkpoint=tmp_path)


STATES: dict[str, Any] = {
    "an unknown key": {"depth": 3},
    "a missing key": {"epoch": None},
    "a list": {"epoch": [1]},
    "text": {"seconds": "1"},
    "a truth value": {"step": True},
    "a negative count": {"examples": -1},
    "no number": {"loss": float("nan")},
    "a large number": {"loss": 10**400},
    "a history of something else": {"history": {"epoch": 1}},
    "a history of numbers": {"history": [1, 2]},
    "a history of texts": {"history": [{"seconds": "1"}]},
    "a history without times": {"evaluations": [{"epoch": 1}]},
}


@pytest.mark.parametrize("change", STATES.values(), ids=STATES)
def test_a_checkpoint_with_good_checksums_and_bad_state_is_refused(
    change: dict[str, Any], tmp_path: Path
) -> None:
    small().fit(X, Y, checkpoint=tmp_path, callback=lambda _: True)
    folder = Folder(tmp_path, "extremax checkpoint 3")
    settings, files = folder.read()
    (key,) = change
    state = {k: v for k, v in (settings["state"] | change).items() if v is not None}
    folder.write({"fingerprint": settings["fingerprint"], "state": state}, files)
    with pytest.raises(ModelFileError, match=rf"is damaged or of another version: it .*{key}"):
        small().fit(X, Y, checkpoint=tmp_path)


def test_a_best_head_with_good_checksums_and_bad_tensors_is_refused(tmp_path: Path) -> None:
    """Its class numbers would be places in memory."""
    features = sparse.csr_matrix(np.where(np.abs(X) > 0.5, X, 0.0))
    model = small(objective="exact", learning_rate=30.0, schedule="constant", epochs=2)
    model.fit(features, Y, checkpoint=tmp_path)
    assert saved_state(tmp_path)["best_epoch"] < len(model.history_)
    folder = Folder(tmp_path / "best", "extremax best head 1")
    _, files = folder.read()
    files["head"]["classes"][0] = 2**40
    folder.write({}, files)
    with pytest.raises(ModelFileError, match="classes of the saved best head has values"):
        model.fit(features, Y, checkpoint=tmp_path)


# Two runs, and files of others, in one folder


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    def second(record: dict[str, Any]) -> None:
        if record["epoch"] == 2:
            with pytest.raises(ModelFileError, match=rf"another run is using {tmp_path}; wait"):
                small().fit(X, Y, checkpoint=tmp_path)

    first = small().fit(X, Y, checkpoint=tmp_path, callback=second)
    assert_same(first, small().fit(X, Y))
    assert_same(small().fit(X, Y, checkpoint=tmp_path), first)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_that_was_killed_keeps_no_other_out(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from extremax.training.checkpoint import Checkpoint\n"
        "with Checkpoint(sys.argv[1]):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=300, check=False)
    assert run.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == [".extremax-run-lock"]
    with Checkpoint(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_files_of_others_survive_a_run_in_their_folder(tmp_path: Path) -> None:
    others = ["best.safetensors", "head.safetensors", ".model.json.bak", "best/notes.txt"]
    (tmp_path / "best").mkdir()
    for name in others:
        (tmp_path / name).write_text("mine")
    small().fit(X, Y, checkpoint=tmp_path)
    Checkpoint(tmp_path).remove()
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(tmp_path)) for path in found) == sorted(others)
    assert all(path.read_text() == "mine" for path in found)
