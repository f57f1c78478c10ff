"""Models as folders: the same to the last bit, or refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
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
from extremax.storage.folder import model_folder

X, Y = clustered(1500, 30, 8, seed=0)
SPARSE = sparse.csr_matrix(np.where(np.abs(X) > 0.3, X, 0.0))
TEXTS = [f"w{label} w{label % 5} w{i % 9}" for i, label in enumerate(Y)]
INPUTS: dict[str, Any] = {"dense": X, "sparse": SPARSE, "text": TEXTS}


def small(**parameters: Any) -> ExtremeClassifier:
    return ExtremeClassifier(
        **{"epochs": 2, "n_negatives": 5, "n_jobs": 1, "random_state": 0} | parameters
    )


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
    assert loaded.model_.noise.get_params() == noise.get_params()
    assert loaded.model_.objective.regularization == 1e-4
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
        [int(v) if v < 10 else (1, None) if v < 20 else f"{v}" for v in Y],
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
    assert torch.equal(loaded.model_.head.weight, model.model_.head.weight)


def test_a_model_made_by_partial_fit_can_be_saved(tmp_path: Path) -> None:
    model = small().partial_fit(X, Y)
    model.save(tmp_path)
    assert np.array_equal(ExtremeClassifier.load(tmp_path).predict(X), model.predict(X))


def test_one_file_per_part_and_one_that_people_can_read(
    model: ExtremeClassifier, tmp_path: Path
) -> None:
    model.save(str(tmp_path / "model"))
    names = sorted(path.name.split(".")[0] for path in (tmp_path / "model").iterdir())
    assert names == ["encoder", "head", "labels", "manifest", "noise"]
    card = json.loads((tmp_path / "model" / "manifest.json").read_text())
    assert card["labels"]["n_classes"] == 30
    assert card["encoder"]["input"] == "dense"
    assert card["probabilities"] == "bias-corrected"


def test_saving_again_replaces_the_model(model: ExtremeClassifier, tmp_path: Path) -> None:
    small(noise="uniform").fit(X[:, :3], [f"{v}" for v in Y]).save(tmp_path)
    model.save(tmp_path)
    assert np.array_equal(ExtremeClassifier.load(tmp_path).predict(X), model.predict(X))
    assert len(list(tmp_path.iterdir())) == 5


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
    with pytest.raises(ModelFileError, match=r"Unlisted is not in extremax\.noise\.NOISES"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def edited(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest as a program of another version might write it: with a good checksum."""
    settings, files = model_folder(folder).read()
    change(settings)
    kept = {k: v for k, v in settings.items() if k not in ("format", "files", "checksum")}
    model_folder(folder).write(kept, files)


def set_to(part: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda settings: settings.update({part: value})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (set_to("noise", {"noise": "pink"}), "pink"),
        (set_to("noise", {"noise": "tree", "leaves": 3}), "leaves"),
        (set_to("noise", {}), "noise must be one of"),
        (set_to("objective", {"objective": "hinge"}), "hinge"),
        (set_to("parameters", {"momentum": 0.9}), "parameters"),
        (lambda settings: settings["blend"].update(temperature=0.0), "a temperature of at least"),
        (lambda settings: settings["blend"].update(levels=[1.0, 1.0]), "levels"),
        (lambda settings: settings["blend"].update(experts=[1.0]), "further experts"),
        (lambda settings: settings["labels"].update(dtype="no type"), "no type"),
        (lambda settings: settings["labels"].update(n_classes=7), "labels"),
        (lambda settings: settings["head"].update(scale=-1.0), "scale"),
        (lambda settings: settings["head"].update(name="deep"), "deep"),
        *((lambda s, key=key: s.pop(key), key) for key in ("noise", "seed", "parameters", "blend")),
    ],
)
def test_a_model_of_another_version_is_refused_with_the_reason(
    model: ExtremeClassifier, tmp_path: Path, change: Callable[..., Any], reason: str
) -> None:
    model.save(tmp_path)
    edited(tmp_path, change)
    with pytest.raises(ModelFileError, match=reason):
        ExtremeClassifier.load(tmp_path)


def test_another_format_is_refused(model: ExtremeClassifier, tmp_path: Path) -> None:
    model.save(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace("extremax model 2", "extremax model 99"))
    with pytest.raises(ModelFileError, match="extremax model 99"):
        ExtremeClassifier.load(tmp_path)


def test_damage_to_any_file_is_refused(model: ExtremeClassifier, tmp_path: Path) -> None:
    model.save(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        content = path.read_bytes()
        for place in (3, 40, len(content) // 2, len(content) - 2):
            damaged = bytearray(content)
            damaged[place] ^= 0x10
            path.write_bytes(damaged)
            with pytest.raises(ModelFileError):
                ExtremeClassifier.load(tmp_path)
        path.write_bytes(content[:-10])
        with pytest.raises(ModelFileError, match=r"truncated|damaged"):
            ExtremeClassifier.load(tmp_path)
        path.unlink()
        with pytest.raises(ModelFileError, match=r"missing|has no manifest\.json"):
            ExtremeClassifier.load(tmp_path)
        path.write_bytes(content)
    assert np.array_equal(ExtremeClassifier.load(tmp_path).predict(X), model.predict(X))
    with pytest.raises(ModelFileError, match="elsewhere does not exist"):
        ExtremeClassifier.load(tmp_path / "elsewhere")


def test_a_file_of_another_model_is_refused(model: ExtremeClassifier, tmp_path: Path) -> None:
    model.save(tmp_path / "one")
    small(random_state=1).fit(X, Y).save(tmp_path / "other")
    one, other = (next((tmp_path / name).glob("head.*")) for name in ("one", "other"))
    assert one.stat().st_size == other.stat().st_size
    one.write_bytes(other.read_bytes())
    with pytest.raises(ModelFileError, match="checksum differs"):
        ExtremeClassifier.load(tmp_path / "one")
