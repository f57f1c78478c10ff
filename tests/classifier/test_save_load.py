"""Models as folders: the same to the last bit, or refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered
from extremax.errors import ModelFileError
from extremax.features import Encoder
from extremax.noise import FrequencyNoise, TreeNoise, UniformNoise
from extremax.objectives import NegativeSampling

X, Y = clustered(1500, 30, 8, seed=0)
SPARSE = sparse.csr_matrix(np.where(np.abs(X) > 0.3, X, 0.0))
TEXTS = [f"w{label} w{label % 5} w{i % 9}" for i, label in enumerate(Y)]
INPUTS: dict[str, Any] = {"dense": X, "sparse": SPARSE, "text": TEXTS}


def small(**parameters: Any) -> ExtremeClassifier:
    return ExtremeClassifier(**{"epochs": 2, "n_jobs": 1, "random_state": 0} | parameters)


@pytest.fixture(scope="module")
def model() -> ExtremeClassifier:
    return small().fit(X, Y)


@pytest.mark.parametrize("noise", [TreeNoise(n_components=5), UniformNoise(), FrequencyNoise(0.75)])
@pytest.mark.parametrize("kind", INPUTS)
def test_a_loaded_model_predicts_the_same(noise: Any, kind: str, tmp_path: Path) -> None:
    features = INPUTS[kind]
    encoder = Encoder(n_components=8, ngrams=(1, 2), buckets=2**12)
    model = small(noise=noise, encoder=encoder, objective=NegativeSampling(1e-4)).fit(features, Y)
    model.save(tmp_path / "model")
    loaded = ExtremeClassifier.load(tmp_path / "model")
    assert np.array_equal(loaded.predict_proba(features), model.predict_proba(features))
    assert np.array_equal(loaded.predict(features), model.predict(features))
    assert loaded.evaluate(features, Y) == model.evaluate(features, Y)
    assert loaded.noise_.get_params() == noise.get_params()
    assert loaded.objective_.regularization == 1e-4
    assert loaded.history_ == model.history_
    assert loaded.n_features_in_ == model.n_features_in_
    if isinstance(noise, TreeNoise):
        ours = model.predict_topk(features, 3, search="beam", width=4)
        theirs = loaded.predict_topk(features, 3, search="beam", width=4)
        assert np.array_equal(ours.labels, theirs.labels)
        assert np.array_equal(ours.log_probs, theirs.log_probs)


@pytest.mark.parametrize(
    "labels",
    [
        Y.astype(np.uint8),
        Y.astype(np.float64),
        Y > 9,
        np.array([f"straße {v}" for v in Y]),
        [(int(v) % 3, f"{v}") for v in Y],
        [int(v) if v < 10 else None if v < 20 else f"{v}" for v in Y],
    ],
    ids=["uint8", "float64", "bool", "string", "tuple", "mixed"],
)
def test_labels_of_every_kind_come_back(labels: Any, tmp_path: Path) -> None:
    model = small(epochs=1).fit(X, labels)
    model.save(tmp_path)
    loaded = ExtremeClassifier.load(tmp_path)
    assert loaded.classes_.dtype == model.classes_.dtype
    assert loaded.classes_.tolist() == model.classes_.tolist()
    assert loaded.predict(X).tolist() == model.predict(X).tolist()
    assert loaded.evaluate(X, labels) == model.evaluate(X, labels)


def test_the_parameters_come_back_and_serve_another_fit(tmp_path: Path) -> None:
    parameters = {
        "n_negatives": 3,
        "learning_rate": 0.7,
        "accumulator_start": 0.5,
        "schedule": "constant",
        "epochs": np.int64(2),
        "batch_size": 64,
        "validation_fraction": 0.2,
        "patience": 4,
        "memory_budget": 2**25,
        "n_jobs": 1,
        "verbose": 0,
    }
    model = small(noise=TreeNoise(n_components=np.int64(3)), **parameters).fit(X, Y)
    model.save(tmp_path)
    loaded = ExtremeClassifier.load(tmp_path)
    assert {k: getattr(loaded, k) for k in parameters} == parameters
    loaded.set_params(random_state=0).fit(X, Y)
    assert torch.equal(loaded.head_.weight, model.head_.weight)


def test_a_model_made_by_partial_fit_can_be_saved(tmp_path: Path) -> None:
    model = small().partial_fit(X, Y)
    model.save(tmp_path)
    assert np.array_equal(ExtremeClassifier.load(tmp_path).predict(X), model.predict(X))


def test_there_are_two_files_and_one_can_be_read_by_people(
    model: ExtremeClassifier, tmp_path: Path
) -> None:
    model.save(str(tmp_path / "model"))
    names = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert names == ["model.json", "tensors.safetensors"]
    card = json.loads((tmp_path / "model" / "model.json").read_text())
    assert card["n_classes"] == 30
    assert card["input"] == "dense"
    assert card["probabilities"] == "bias-corrected"


def test_saving_again_replaces_the_model(model: ExtremeClassifier, tmp_path: Path) -> None:
    small(noise="uniform").fit(X[:, :3], [f"{v}" for v in Y]).save(tmp_path)
    model.save(tmp_path)
    assert np.array_equal(ExtremeClassifier.load(tmp_path).predict(X), model.predict(X))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_loaded_model_survives_the_replacement_of_its_files(
    model: ExtremeClassifier, tmp_path: Path
) -> None:
    model.save(tmp_path)
    loaded = ExtremeClassifier.load(tmp_path)
    small(noise="uniform").fit(X[:, :3], Y).save(tmp_path)
    assert np.array_equal(loaded.predict_proba(X), model.predict_proba(X))
    loaded.save(tmp_path)
    assert np.array_equal(ExtremeClassifier.load(tmp_path).predict(X), model.predict(X))


def test_labels_that_cannot_be_saved_are_refused_before_anything_is_written(
    model: ExtremeClassifier, tmp_path: Path
) -> None:
    sets = small(epochs=1).fit(X, [frozenset({int(v)}) for v in Y])
    with pytest.raises(ModelFileError, match="labels of type frozenset cannot be saved"):
        sets.save(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    model.save(tmp_path / "old")
    with pytest.raises(ModelFileError, match="frozenset"):
        sets.save(tmp_path / "old")
    assert np.array_equal(ExtremeClassifier.load(tmp_path / "old").predict(X), model.predict(X))


class Unlisted(UniformNoise):
    """A noise that no table knows."""


def test_a_noise_that_could_not_be_loaded_is_refused(tmp_path: Path) -> None:
    model = small(epochs=1, noise=Unlisted()).fit(X, Y)
    with pytest.raises(ModelFileError, match="Unlisted is not in the table"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def edited(folder: Path, **changes: Any) -> None:
    path = folder / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"noise": {"class": "KernelNoise", "parameters": {}}}, "KernelNoise is not known"),
        ({"noise": {"class": "TreeNoise", "parameters": {"leaves": 3}}}, "leaves"),
        ({"objective": {"class": "Hinge", "parameters": {}}}, "Hinge is not known"),
        ({"encoder": {"class": "Encoder", "parameters": {"depth": 1}}}, "depth"),
        ({"parameters": {"momentum": 0.9}}, "momentum"),
        ({"noise": {}}, "class"),
        ({"label_dtype": "no type"}, "no type"),
        ({"format": "extremax model 99"}, "extremax model 99"),
    ],
)
def test_a_model_of_another_version_is_refused_with_the_reason(
    model: ExtremeClassifier, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    model.save(tmp_path)
    edited(tmp_path, **changes)
    with pytest.raises(ModelFileError, match=reason):
        ExtremeClassifier.load(tmp_path)


@pytest.mark.parametrize("key", ["noise", "scale", "seed", "parameters", "history", "tensors"])
def test_a_missing_setting_is_named(model: ExtremeClassifier, tmp_path: Path, key: str) -> None:
    model.save(tmp_path)
    path = tmp_path / "model.json"
    card = json.loads(path.read_text())
    del card[key]
    path.write_text(json.dumps(card))
    with pytest.raises(ModelFileError, match=key):
        ExtremeClassifier.load(tmp_path)


def test_damage_is_refused(model: ExtremeClassifier, tmp_path: Path) -> None:
    model.save(tmp_path)
    path = tmp_path / "tensors.safetensors"
    whole = path.read_bytes()
    for at in (3, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(ModelFileError, match="damaged"):
            ExtremeClassifier.load(tmp_path)
    path.write_bytes(whole[:-100])
    with pytest.raises(ModelFileError, match="truncated"):
        ExtremeClassifier.load(tmp_path)
    path.unlink()
    with pytest.raises(ModelFileError, match="missing"):
        ExtremeClassifier.load(tmp_path)
    with pytest.raises(ModelFileError, match="holds no model"):
        ExtremeClassifier.load(tmp_path / "elsewhere")


def test_tensors_of_another_model_are_refused(model: ExtremeClassifier, tmp_path: Path) -> None:
    model.save(tmp_path / "one")
    small(random_state=1).fit(X, Y).save(tmp_path / "other")
    one, other = (tmp_path / name / "tensors.safetensors" for name in ("one", "other"))
    assert one.stat().st_size == other.stat().st_size
    one.write_bytes(other.read_bytes())
    with pytest.raises(ModelFileError, match="checksum differs"):
        ExtremeClassifier.load(tmp_path / "one")
