"""Loaded models have their parameters and can be trained; a refused fit leaves a model alone."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import BaseEstimator

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.errors import ModelFileError
from extremax.features import Encoder
from extremax.noise import FrequencyNoise, MixtureNoise, TreeNoise
from extremax.objectives import NCE, SampledSoftmax
from extremax.storage import load_model, model_folder

X, Y = clustered(400, 12, 6, seed=0)
SPARSE = sparse.csr_matrix(np.where(np.abs(X) > 0.3, X, 0.0))
TEXTS = [f"w{label} w{label % 5} w{i % 9}" for i, label in enumerate(Y)]
INPUTS: dict[str, Any] = {"dense": X, "sparse": SPARSE, "texts": TEXTS}


def small(**parameters: Any) -> ExtremeClassifier:
    return ExtremeClassifier(**{"epochs": 1, "n_jobs": 1, "random_state": 0} | parameters)


def round_trip(model: ExtremeClassifier, folder: Path) -> ExtremeClassifier:
    model.save(folder)
    return ExtremeClassifier.load(folder)


def plain(value: Any) -> Any:
    """Noises and other estimators as what they are made of: equal ones are different objects."""
    if isinstance(value, (tuple, list)):
        return type(value)(plain(v) for v in value)
    if isinstance(value, BaseEstimator):
        return type(value), {k: plain(v) for k, v in value.get_params(deep=False).items()}
    return value


PARAMETERS: dict[str, dict[str, Any]] = {
    "none": {"objective": None, "noise": None, "epochs": None, "batch_size": None},
    "names": {"objective": "nce", "noise": "frequency", "schedule": "constant"},
    "auto": {"objective": "auto", "noise": "auto"},
    "objects": {"objective": NCE(0.01), "noise": FrequencyNoise(0.75)},
    "numbers of numpy": {"noise": TreeNoise(np.int64(3)), "n_negatives": np.int64(3)},
    "a mixture": {"noise": MixtureNoise(("uniform", FrequencyNoise(0.5)), (1, 2))},
    "a mixture of dictionaries": {
        "noise": MixtureNoise([{"noise": "frequency", "power": 0.5}, "uniform"], [1.0, 2.0])
    },
    "absolute": {"objective": SampledSoftmax(absolute=True), "noise": "quadratic"},
    "encoder": {"encoder": Encoder(n_components=4, ngrams=(1, 2), buckets=2**10)},
    "the rest": {
        "n_negatives": 3, "learning_rate": 0.7, "accumulator_start": 0.5, "max_seconds": 9.5,
        "batch_size": 64, "validation_fraction": 0.2, "patience": 4, "calibrate": True,
        "bag_size": 32, "feature_dropout": 0.2, "memory_budget": 2**25,
    },
}  # fmt: skip


@pytest.mark.parametrize("parameters", PARAMETERS.values(), ids=PARAMETERS)
def test_the_parameters_of_a_loaded_model_are_those_it_was_made_with(
    parameters: dict[str, Any], tmp_path: Path
) -> None:
    model = small(**parameters).fit(X, Y)
    before = {name: plain(value) for name, value in model.get_params(deep=False).items()}
    loaded = round_trip(model, tmp_path)
    after = {name: plain(value) for name, value in loaded.get_params(deep=False).items()}
    assert after == before
    for part in ("objective", "encoder"):
        assert plain(getattr(loaded.model_, part)) == plain(getattr(model.model_, part))
    assert np.array_equal(loaded.predict_log_proba(X), model.predict_log_proba(X))


@pytest.mark.parametrize("value", [None, 0, 7, np.int64(7), 2**40])
def test_a_seed_comes_back(value: Any, tmp_path: Path) -> None:
    assert round_trip(small(random_state=value).fit(X, Y), tmp_path).random_state == value


GENERATORS: dict[str, Any] = {
    "RandomState": np.random.RandomState(3),
    "RandomState over PCG64": np.random.RandomState(np.random.PCG64(3)),
    **{
        name: np.random.Generator(getattr(np.random, name)(3))
        for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
    },
}


@pytest.mark.parametrize("generator", GENERATORS.values(), ids=GENERATORS)
def test_a_generator_comes_back_where_it_stood(generator: Any, tmp_path: Path) -> None:
    # An odd number of normal draws leaves one in store.
    generator.standard_normal(3)
    loaded = round_trip(small(random_state=generator).fit(X, Y), tmp_path).random_state
    assert type(loaded) is type(generator)
    for _ in range(3):
        assert np.array_equal(loaded.standard_normal(3), generator.standard_normal(3))
        assert np.array_equal(loaded.random(2), generator.random(2))


@pytest.mark.parametrize(
    "state",
    [{"generator": {"bit_generator": "seed"}}, {"generator": {}}, {"other": 3}, {}],
)
def test_a_generator_that_is_none_is_refused(state: Any, tmp_path: Path) -> None:
    small().fit(X, Y).save(tmp_path)
    folder = model_folder(tmp_path)
    card = json.loads(folder.manifest.read_text())
    card["parameters"]["random_state"] = state
    del card["checksum"]
    text = json.dumps(card, sort_keys=True, ensure_ascii=False)
    card["checksum"] = hashlib.sha256(text.encode()).hexdigest()
    folder.manifest.write_text(json.dumps(card))
    load_model(tmp_path)
    with pytest.raises(ModelFileError, match=r"parameters in .* are not those of this version"):
        ExtremeClassifier.load(tmp_path)


@pytest.mark.parametrize("first", INPUTS)
@pytest.mark.parametrize("second", INPUTS)
def test_a_loaded_model_can_be_fitted_to_rows_of_another_kind(
    first: str, second: str, tmp_path: Path
) -> None:
    loaded = round_trip(small().fit(INPUTS[first], Y), tmp_path)
    loaded.fit(INPUTS[second], [f"{v}" for v in Y])
    fresh = small().fit(INPUTS[second], [f"{v}" for v in Y])
    features = INPUTS[second][:50]
    assert np.array_equal(loaded.predict_proba(features), fresh.predict_proba(features))
    assert np.array_equal(loaded.predict(features), fresh.predict(features))


@pytest.mark.parametrize("name", INPUTS)
def test_a_loaded_model_trains_on_as_the_saved_one(name: str, tmp_path: Path) -> None:
    features, labels = INPUTS[name], [*Y[:-3], 90, 91, 90]
    model = small().fit(features, Y)
    loaded = round_trip(model, tmp_path)
    for one in (model, loaded):
        one.partial_fit(features, labels)
    for part in ("head", "noise"):
        ours, theirs = (getattr(m.model_, part).state() for m in (loaded, model))
        assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []
    assert np.array_equal(loaded.predict_proba(features), model.predict_proba(features))
    assert loaded.model_.labels.counts.tolist() == model.model_.labels.counts.tolist()


NAN = X.copy()
NAN[5, 2] = np.nan
REFUSALS: dict[str, tuple[dict[str, Any], Any, Any, str]] = {
    "NaN in X": ({}, NAN, Y, "NaN in row 5, column 2"),
    "fewer labels": ({}, X, Y[:-1], "400 rows but y has 399 labels"),
    "an unknown noise": ({"noise": "wind"}, X, Y, "wind"),
    "an unknown objective": ({"objective": "fame"}, X, Y, "fame"),
    "a noise of dense rows": ({"noise": "tree"}, SPARSE, Y, "TreeNoise needs dense rows"),
    "a rate of zero": ({"learning_rate": 0.0}, X, Y, "learning_rate must be > 0"),
    "labels that are NaN": ({}, X, np.where(Y > 3, np.nan, Y), "NaN"),
    "a rate that diverges": ({"learning_rate": 1e30}, X, Y, "not finite"),
}


@pytest.mark.parametrize(
    ("change", "features", "labels", "reason"), REFUSALS.values(), ids=REFUSALS
)
def test_a_refused_fit_leaves_the_model_of_an_earlier_one(
    change: dict[str, Any], features: Any, labels: Any, reason: str
) -> None:
    model = small().fit(X, Y)
    before, state = model.predict_log_proba(X), model.model_
    history, classes = model.history_, model.classes_
    model.set_params(**change)
    parameters = model.get_params()
    with pytest.raises((ValueError, ArithmeticError), match=reason):
        model.fit(features, labels)
    assert model.model_ is state
    assert np.array_equal(model.predict_log_proba(X), before)
    assert model.history_ is history
    assert model.classes_ is classes
    assert {k: plain(v) for k, v in model.get_params().items()} == {
        k: plain(v) for k, v in parameters.items()
    }


@pytest.mark.parametrize("name", [name for name in REFUSALS if "diverges" not in name])
def test_a_refused_partial_fit_leaves_the_model_as_it_was(name: str) -> None:
    change, features, labels, _ = REFUSALS[name]
    model = small().fit(X, Y)
    before, counts = model.predict_log_proba(X), model.model_.labels.counts
    model.set_params(**change)
    if not np.isnan(np.asarray(labels, float)).any():
        # A class that the model would have to grow for.
        labels = np.append(labels[:-1], 99)
    if name == "a noise of dense rows":
        features = SPARSE[:, :3]
    with pytest.raises(ValueError, match=r"."):
        model.partial_fit(features, labels)
    assert np.array_equal(model.predict_log_proba(X), before)
    assert model.model_.labels.counts is counts
    assert len(model.classes_) == 12


def damaged(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same tensor with one thing wrong."""
    other = torch.float64 if tensor.dtype != torch.float64 else torch.float32
    wrong = {"type": tensor.to(other), "shape": tensor[None].clone()}
    if tensor.ndim:
        wrong |= {"short": tensor[:-1].clone(), "long": torch.cat([tensor, tensor[-1:]])}
    if tensor.dtype.is_floating_point:
        wrong["NaN"] = tensor.clone()
        wrong["NaN"].view(-1)[-1] = torch.nan
    elif tensor.dtype == torch.int64:
        for value in (-(2**62), 2**62):
            wrong[f"{value}"] = tensor.clone()
            wrong[f"{value}"].view(-1)[0] = value
    return wrong


@pytest.mark.parametrize("objective", [None, "exact"])
@pytest.mark.parametrize("name", INPUTS)
def test_a_model_with_a_damaged_tensor_is_refused(
    name: str, objective: str | None, tmp_path: Path
) -> None:
    """Even if every checksum is right, nothing that kernels could stumble over is loaded."""
    small(objective=objective).fit(INPUTS[name], [f"{v}" for v in Y]).save(tmp_path)
    folder = model_folder(tmp_path)
    settings, parts = folder.read()
    settings = {k: v for k, v in settings.items() if k not in ("format", "files", "checksum")}
    accepted = []
    for part, tensors in parts.items():
        for key, tensor in tensors.items():
            for what, wrong in damaged(tensor).items():
                folder.write(settings, parts | {part: tensors | {key: wrong}})
                try:
                    ExtremeClassifier.load(tmp_path)
                    accepted.append((part, key, what))
                except ModelFileError as error:
                    assert str(tmp_path) in str(error)  # noqa: PT017
    assert accepted == []
    folder.write(settings, parts)
    ExtremeClassifier.load(tmp_path)


def test_an_unfitted_model_stays_unfitted_if_its_fit_is_refused(tmp_path: Path) -> None:
    model = small()
    with pytest.raises(ValueError, match="NaN"):
        model.fit(NAN, Y)
    with pytest.raises(ValueError, match="not fitted"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
