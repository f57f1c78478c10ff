"""Loaded models have their parameters and can be trained; a refused fit leaves a model alone."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import BaseEstimator

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.errors import ArgumentError, DivergedError, ModelFileError
from extremax.features import Encoder
from extremax.noise import FrequencyNoise, MixtureNoise, TreeNoise
from extremax.objectives import NCE, SampledSoftmax
from extremax.storage.folder import model_folder
from extremax.storage.models import load_model

X, Y = clustered(400, 12, 6, seed=0)
SPARSE = sparse.csr_matrix(np.where(np.abs(X) > 0.3, X, 0.0))
TEXTS = [f"w{label} w{label % 5} w{i % 9}" for i, label in enumerate(Y)]
INPUTS: dict[str, Any] = {"dense": X, "sparse": SPARSE, "texts": TEXTS}


def small(**parameters: Any) -> ExtremeClassifier:
    return ExtremeClassifier(
        **{"epochs": 1, "n_negatives": 5, "n_jobs": 1, "random_state": 0} | parameters
    )


def round_trip(model: ExtremeClassifier, folder: Path) -> ExtremeClassifier:
    model.save(folder)
    return ExtremeClassifier.load(folder)


def write_manifest(folder: Path, card: dict[str, Any]) -> None:
    """With a good checksum."""
    card = {key: value for key, value in card.items() if key != "checksum"}
    text = json.dumps(card, sort_keys=True, ensure_ascii=False)
    card["checksum"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(card))


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
    "texts": {
        "objective": "nce(regularization=0.01)",
        "noise": "mixture(parts=(uniform, frequency(power=0.5)), weights=(1, 2))",
    },
    "start": {"start": "zeros"},
    "absolute": {"objective": SampledSoftmax(absolute=True), "noise": "quadratic"},
    "encoder": {"encoder": Encoder(n_components=4, ngrams=(1, 2), buckets=2**10)},
    "the rest": {
        "n_negatives": 3, "learning_rate": 0.7, "accumulator_start": 0.5, "max_seconds": 9.5,
        "accumulators": "row",
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
    write_manifest(tmp_path, card)
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


# Manifests with good checksums and bad content

DEEP: Any = "x"
for _ in range(500):
    DEEP = [DEEP]
CHANGES: list[tuple[str, Any]] = [
    *(("blend.temperature", value) for value in (0, 0.0, -1, np.nan, np.inf, "1", [1], True, None)),
    *(("blend.levels", value) for value in ("1", 1.0, [np.nan], ["1"], [[1.0]], {"a": 1.0}, [])),
    *(("blend.experts", value) for value in ("1", [1.0], [np.nan], None)),
    *(("experts", value) for value in ("x", ["x"], ["visited_together"], 3, None)),
    *(("blend.prior", value) for value in (np.inf, "0", {}, 10**400)),
    *(("head.scale", value) for value in (0.0, -1.0, np.nan, np.inf, "1", [])),
    *(("head.accumulator_start", value) for value in (0.0, np.inf, None)),
    *(("head.accumulators", value) for value in ("row", "class", None, 1)),
    *(("head.dropout", value) for value in (1.0, -0.1, "0")),
    *(("head.bag_size", value) for value in (0, -1, 1.5, "128")),
    *(("head.name", value) for value in ("deep", 3, ["linear"])),
    *(("labels.dtype", value) for value in ("<U999999999", "V8", "i8,f8", "no type", 3, DEEP)),
    *(("labels.n_classes", value) for value in (0, -1, 10**12, 10**400, 12.0, True, "12")),
    *(("labels.n_rows", value) for value in (-1, 1.5, "4")),
    *(("encoder.buckets", value) for value in (0, 2**40, "2")),
    *(("encoder.ngrams", value) for value in ([1], [1, 2, 3], 1, "12", [[1, 2]])),
    *(("encoder.n_components", value) for value in (-1, "4")),
    *((key, value) for key in ("noise", "objective") for value in ([], "x", 3, {}, DEEP)),
    *((key, value) for key in ("seed", "n_partial_fits") for value in (-1, 0.5, "1", True)),
    *((key, value) for key in ("history", "evaluations") for value in ({}, [1], [{}], [[]], "x")),
    *(("parameters", value) for value in ([], {}, {"momentum": 0.9}, "x", DEEP)),
    *(("parameters.noise", value) for value in (3, {}, {"object": []}, {"tuple": 3}, DEEP)),
    *(("parameters.objective", value) for value in ({"objective": "nce", "power": 2}, {})),
    *(("parameters.encoder", value) for value in ({}, "x", {"ngrams": 3}, [1])),
    *(("parameters.n_jobs", value) for value in (1.5, "2", [1])),
    *(("parameters.learning_rate", value) for value in (-1.0, "0.3", np.nan)),
    *(("parameters.random_state", value) for value in ({"generator": DEEP}, {"generator": 3})),
    *((f"{part}.more", 1) for part in ("blend", "head", "labels", "encoder", "parameters")),
    ("more", 1),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    small().fit(X, Y).save(folder)
    return folder


def test_a_manifest_with_a_good_checksum_and_bad_content_is_refused(saved: Path) -> None:
    whole = model_folder(saved).manifest.read_text()
    wrong = []
    for place, value in CHANGES:
        card = json.loads(whole)
        *parents, last = place.split(".")
        part = card
        for parent in parents:
            part = part[parent]
        part[last] = value
        write_manifest(saved, card)
        try:
            ExtremeClassifier.load(saved)
            wrong.append((place, value, "accepted"))
        except ModelFileError as error:
            if str(saved) not in str(error):
                wrong.append((place, value, f"{error}"))
        except BaseException as error:
            wrong.append((place, value, f"{error!r:.200}"))
    model_folder(saved).manifest.write_text(whole)
    assert wrong == []
    ExtremeClassifier.load(saved)


def keys_of(value: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, item in value.items():
        yield (key,)
        if isinstance(item, dict):
            yield from ((key, *more) for more in keys_of(item))


def test_a_manifest_without_one_of_its_keys_is_refused(saved: Path) -> None:
    whole = model_folder(saved).manifest.read_text()
    accepted = []
    for *parents, last in keys_of(json.loads(whole)):
        card = json.loads(whole)
        part = card
        for parent in parents:
            part = part[parent]
        del part[last]
        write_manifest(saved, card)
        try:
            ExtremeClassifier.load(saved)
            accepted.append((*parents, last))
        except ModelFileError:
            pass
    model_folder(saved).manifest.write_text(whole)
    # Which `write_manifest` writes again.
    assert accepted == [("checksum",)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"format": "extremax model 2", "x": ' + "[" * 10_000 + "]" * 10_000 + "}", "damaged"),
        ('{"format": "extremax model 2", "x": ' + "9" * 5_000 + "}", "damaged"),
        ('{"format": "extremax model 2", "x": "\\ud800"}', "damaged"),
        ('{"format": ["extremax model 2"]}', "is not an extremax model 2"),
    ],
)
def test_a_manifest_that_json_stumbles_over_is_refused(
    text: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").write_text(text)
    for load in (ExtremeClassifier.load, lambda path: model_folder(path).read_settings()):
        with pytest.raises(ModelFileError, match=reason):
            load(tmp_path)


def test_settings_that_ask_for_far_more_memory_than_there_is_file_are_refused(saved: Path) -> None:
    whole = model_folder(saved).manifest.read_text()
    card = json.loads(whole)
    card["labels"]["dtype"] = "<U99999999"
    write_manifest(saved, card)
    tracemalloc.start()
    with pytest.raises(ModelFileError, match=r"its labels would take 4,799,999,952 bytes"):
        ExtremeClassifier.load(saved)
    assert tracemalloc.get_traced_memory()[1] < 2**28
    tracemalloc.stop()
    model_folder(saved).manifest.write_text(whole)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("n_jobs", value) for value in (1.5, "2", 0, True)),
        *(("memory_budget", value) for value in (0, -1, 1.5e9, "1 GB")),
        *(("epochs", value) for value in (0, 1.5, "3", True)),
        *(("batch_size", value) for value in (0, 32.5, "32")),
        *(("learning_rate", value) for value in (0, -1, "0.3", np.nan)),
        *(("validation_fraction", value) for value in (1, -0.1, "0.1", None)),
        *(("schedule", value) for value in ("cosine", None, ["linear"])),
        *(("max_seconds", value) for value in (0, "60", np.nan)),
        *(("calibrate", value) for value in ("no", None)),
        *(("accumulators", value) for value in ("class", 1)),
        ("verbose", "loud"), ("encoder", "tfidf"), ("bag_size", -5), ("patience", 0),
    ],
)  # fmt: skip
def test_a_wrong_parameter_is_refused_by_name_before_anything_is_done(
    name: str, value: Any
) -> None:
    model = small().fit(X, Y)
    state = model.model_
    before = model.predict_log_proba(X)
    model.set_params(**{name: value})
    calls = [lambda: model.fit(X, Y), lambda: model.partial_fit(X, Y)]
    if name in ("n_jobs", "memory_budget"):
        calls += [lambda: model.predict(X), lambda: model.predict_proba(X)]
        calls += [lambda: model.evaluate(X, Y)]
    else:
        assert np.array_equal(model.predict_log_proba(X), before)
    for call in calls:
        with pytest.raises(ArgumentError, match=f"{name} must"):
            call()
    assert getattr(model, name) is value
    model.set_params(**{name: getattr(small(), name)})
    assert model.model_ is state
    assert np.array_equal(model.predict_log_proba(X), before)


@pytest.mark.parametrize(
    ("name", "value"),
    [*(("width", v) for v in (-5, 0, 2.5, "64", True)), *(("k", v) for v in (0, -1, 1.5, "5"))],
)
def test_a_wrong_argument_of_a_search_is_refused(name: str, value: Any) -> None:
    model = small().fit(X, Y)
    with pytest.raises(ArgumentError, match=f"{name} must be an integer >= 1, got {value!r}"):
        model.predict_topk(X, search="beam", **{name: value})


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("head", "scale"), 1e38),
        (("encoder", "analyzer"), "exact"),
        (("encoder", "ngrams"), [1000, 1]),
        (("parameters", "noise"), {"object": "mixture", "arguments": {"dict": "x"}}),
        (("parameters", "noise"), {"object": "mixture", "arguments": {}}),
    ],
)
def test_settings_that_no_training_gives_are_refused(
    tmp_path: Path, place: tuple[str, str], value: Any
) -> None:
    small().fit(TEXTS, Y).save(tmp_path)
    card = json.loads((tmp_path / "manifest.json").read_text())
    card[place[0]][place[1]] = value
    write_manifest(tmp_path, card)
    with pytest.raises(ModelFileError):
        ExtremeClassifier.load(tmp_path)


@pytest.mark.parametrize("size", [1e6, 1e14])
def test_probabilities_of_large_scores_sum_to_one(size: float) -> None:
    model = small().fit(X, Y)
    model.model_.head.vectors.bias.fill_(size)
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1.0, rtol=1e-5)
    assert np.all(model.predict_topk(X, k=12).log_probs <= 1e-5)


def test_scores_that_overflow_are_an_error() -> None:
    model = small().fit(X, Y)
    model.model_.head.vectors.weight.fill_(3e38)
    for predict in (model.predict_proba, model.predict_topk):
        with pytest.raises(DivergedError, match=r"scores of row \d+ overflow"):
            predict(np.full_like(X, 1e14))


def test_an_integer_starts_accumulators_as_a_float_does() -> None:
    models = [
        small(objective="exact", accumulator_start=start).fit(SPARSE, Y) for start in (2, 2.0)
    ]
    assert np.array_equal(*(model.predict_proba(SPARSE) for model in models))


def test_what_could_not_be_loaded_is_not_saved(saved: Path) -> None:
    before = ExtremeClassifier.load(saved)
    X, _ = clustered(5, 4, before.n_features_in_, seed=1)
    diverged = ExtremeClassifier.load(saved)
    diverged.model_.head.bias[1] = torch.nan
    with pytest.raises(ModelFileError, match=r"is not saved.*NaN.*is as it was"):
        diverged.save(saved)
    wrong = ExtremeClassifier.load(saved).set_params(encoder=Encoder(ngrams=1e30))
    with pytest.raises(ArgumentError, match="ngrams must be two integers"):
        wrong.save(saved)
    after = ExtremeClassifier.load(saved)
    assert np.array_equal(after.predict_log_proba(X), before.predict_log_proba(X))
