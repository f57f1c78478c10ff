"""Several models that predict together: their mean, through the whole surface of the classifier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

from extremax import ExtremeClassifier, SessionRecommender, ensemble
from extremax.data import clustered
from extremax.diagnostics import diagnose
from extremax.ensemble import Ensemble, distinct
from extremax.errors import ArgumentError, ModelFileError
from extremax.heads import Ranking
from extremax.noise import MixtureNoise, SparseTreeNoise, with_seed
from extremax.preparation import seconds_per_model
from extremax.training.checkpoint import Checkpoint

N_CLASSES = 90


def titles(n: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Six words, two of which say the class, more or less."""
    random = np.random.default_rng(seed)
    y = random.integers(N_CLASSES, size=n)
    guess = np.where(random.random(n) < 0.7, y, random.integers(N_CLASSES, size=n))
    words = np.stack([guess % 10, guess // 10, *random.integers(30, size=(4, n))], 1)
    return [" ".join(f"{'abcdef'[i]}{w}" for i, w in enumerate(row)) for row in words], y


X, Y = titles(2_500, 0)
TEST, TRUTH = titles(400, 1)
SEVERAL = [[y, (y + 7) % N_CLASSES] if y % 2 else [y] for y in Y.tolist()]


def small(**parameters: Any) -> ExtremeClassifier:
    usual = {"n_models": 3, "epochs": 2, "bag_size": 16, "n_jobs": 1, "random_state": 0}
    return ExtremeClassifier(**usual | parameters)


@pytest.fixture(scope="module")
def model() -> ExtremeClassifier:
    return small().fit(X, Y)


@pytest.fixture(scope="module")
def several() -> ExtremeClassifier:
    return small(n_models=2).fit(X, SEVERAL)


def alone(model: ExtremeClassifier, number: int) -> ExtremeClassifier:
    """A classifier with one of the members."""
    one = clone(model).set_params(n_models=1)
    one._fitted = model._fitted.__class__(model.model_.members[number], 0, [], [])
    return one


def mean_of_members(model: ExtremeClassifier, texts: list[str]) -> np.ndarray:
    each = [alone(model, i).predict_proba(texts) for i in range(len(model.model_.members))]
    return np.mean(np.array(each, np.float64), 0)


def test_p_is_the_mean_of_the_members(model: ExtremeClassifier) -> None:
    expected = mean_of_members(model, TEST)
    assert len({alone(model, i).predict_proba(TEST[:1]).tobytes() for i in range(3)}) == 3
    np.testing.assert_allclose(model.predict_proba(TEST), expected, rtol=1e-4, atol=1e-7)
    labels = np.stack([TRUTH, (TRUTH + 1) % N_CLASSES], 1)
    log_p = model.predict_log_proba(TEST, labels)
    np.testing.assert_allclose(
        np.exp(log_p), np.take_along_axis(expected, labels, 1), rtol=1e-4, atol=1e-7
    )
    found = model.evaluate(TEST, TRUTH)
    assert found.accuracy == np.mean(expected.argmax(1) == TRUTH)
    of_truth = np.take_along_axis(expected, TRUTH[:, None], 1)
    assert found.log_likelihood == pytest.approx(np.log(of_truth).mean(), rel=1e-4)


def test_members_differ_in_tree_and_head_and_share_the_rest(model: ExtremeClassifier) -> None:
    first, *others = model.model_.members
    for other in others:
        assert other.noise.seed != first.noise.seed
        assert not torch.equal(other.head.bias, first.head.bias)
        assert other.encoder is first.encoder
        assert other.labels is first.labels
        assert other.experts == first.experts
    # The first is what one model would be.
    one = small(n_models=1).fit(X, Y)
    assert alone(model, 0).predict_proba(TEST).tobytes() == one.predict_proba(TEST).tobytes()
    assert not isinstance(one.model_, Ensemble)


def test_every_part_of_a_mixture_gets_the_seed() -> None:
    mixture = with_seed(MixtureNoise(("sparse_tree", SparseTreeNoise(seed=3), "frequency")), 7)
    assert [part.get_params().get("seed") for part in mixture.leaves()] == [7, 7, None]


def test_search_finds_what_scoring_every_class_finds(model: ExtremeClassifier) -> None:
    found, exact = model.predict_topk(TEST, 5), model.predict_topk(TEST, 5, search="exact")
    assert found.normalization.endswith("in each of 3 models")
    assert np.mean(found.labels[:, 0] == exact.labels[:, 0]) > 0.99
    p = np.exp(model.predict_log_proba(TEST, found.labels))
    # A tree's own estimate of what all other classes have.
    np.testing.assert_allclose(np.exp(found.log_probs), p, atol=0.05)
    # With as many candidates as classes nothing is estimated.
    every = model.predict_topk(TEST[:50], N_CLASSES, width=N_CLASSES)
    p = np.exp(model.predict_log_proba(TEST[:50], every.labels))
    np.testing.assert_allclose(np.exp(every.log_probs), p, rtol=1e-3, atol=1e-6)


def test_classes_of_all_members_are_joined() -> None:
    rankings = [
        Ranking(torch.tensor([[4, 1], [2, 0]]), torch.tensor([[-0.1, -3.0], [-0.1, -torch.inf]])),
        Ranking(torch.tensor([[1, 3], [2, 5]]), torch.tensor([[-0.1, -3.0], [-0.1, -3.0]])),
    ]
    assert distinct(rankings, 2).tolist() == [[1, 3, 4], [-1, 2, 5]]
    assert distinct(rankings, 4).tolist() == [[-1, 1, 3, 4], [-1, -1, 2, 5]]


def test_a_class_that_a_member_did_not_propose_has_its_probability_too(
    model: ExtremeClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ensemble, "_CANDIDATES", 1)
    best = [alone(model, i).predict_topk(TEST, 1).labels for i in range(3)]
    differ = (best[0] != best[1])[:, 0]
    assert differ.sum() > 10
    top = model.predict_topk(TEST, 1)
    p = np.exp(model.predict_log_proba(TEST, top.labels))
    np.testing.assert_allclose(np.exp(top.log_probs)[differ], p[differ], atol=0.05)
    # Without what the others think of it, two thirds of it or more would be missing.
    own = np.max([np.exp(alone(model, i).predict_log_proba(TEST, top.labels)) for i in range(3)], 0)
    assert (p[differ] > own[differ] / 3.0 + 0.05).any()


def test_other_class_frequencies_shift_the_mean(model: ExtremeClassifier) -> None:
    counts = np.bincount(Y, minlength=N_CLASSES)
    prior = np.random.default_rng(0).random(N_CLASSES) + 0.1
    prior[5] = 0.0
    view = model.with_prior(prior)
    expected = mean_of_members(model, TEST) * prior / counts
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(view.predict_proba(TEST), expected, rtol=1e-3, atol=1e-7)
    found = view.predict_topk(TEST, 5)
    assert np.mean(found.labels[:, 0] == expected.argmax(1)) > 0.99
    assert np.isnan(found.standard_error).all()
    p = np.take_along_axis(expected, found.labels, 1)
    np.testing.assert_allclose(np.exp(found.log_probs), p, atol=0.05)


def test_limits_and_explanations_work_as_with_one_model(model: ExtremeClassifier) -> None:
    best = model.predict_topk(TEST[:20], 1).labels[:, 0]
    left = model.predict_topk(TEST[:20], 3, exclude=[best[0]], renormalize=True)
    assert best[0] not in left.labels
    some = model.predict_topk(TEST[:20], 2, among=[1, 2, 3], renormalize=True, threshold=0.6)
    assert set(some.labels.ravel()) <= {1, 2, 3}
    assert model.explain(TEST[0]).label == best[0]
    assert model.score(TEST, TRUTH) > 0.5


def test_several_labels_have_marginals_of_the_mean(several: ExtremeClassifier) -> None:
    truth = [[y, (y + 7) % N_CLASSES] if y % 2 else [y] for y in TRUTH.tolist()]
    for search in ("beam", "exact"):
        top = several.predict_topk(TEST, 20, search=search)
        right = np.array(
            [[y in row for y in found] for found, row in zip(top.labels, truth, strict=True)]
        )
        assert top.marginals.mean() == pytest.approx(right.mean(), abs=0.02)
    lengths = np.array([len(row) for row in truth])
    assert several.expected_labels(TEST).mean() == pytest.approx(lengths.mean(), abs=0.3)
    assert several.evaluate(TEST, truth).ranking.precision[0] > 0.5


def test_a_saved_ensemble_is_one_folder_with_equal_bits(
    model: ExtremeClassifier, several: ExtremeClassifier, tmp_path: Path
) -> None:
    for one in (model, several):
        one.save(tmp_path)
        loaded = ExtremeClassifier.load(tmp_path)
        assert loaded.get_params()["n_models"] == one.n_models
        assert loaded.history_ == one.history_
        for k in ("exact", "beam"):
            ours, theirs = (m.predict_topk(TEST, 3, search=k) for m in (one, loaded))
            assert ours.log_probs.tobytes() == theirs.log_probs.tobytes()
            assert ours.marginals.tobytes() == theirs.marginals.tobytes()
        parts = [path.name.split(".")[0] for path in tmp_path.glob("*.safetensors")]
        # What members share is there once; the folder has nothing of the model before it.
        expected = ["encoder", "head", "head_1", "labels", "noise", "noise_1", "similar_rows"]
        assert sorted(parts) == sorted(expected + ["head_2", "noise_2"] * (one is model))


@pytest.mark.parametrize("part", ["head_1", "noise_2"])
def test_a_damaged_member_is_refused(model: ExtremeClassifier, part: str, tmp_path: Path) -> None:
    model.save(tmp_path)
    (path,) = tmp_path.glob(f"{part}.*")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=f"{part}.*damaged"):
        ExtremeClassifier.load(tmp_path)
    path.unlink()
    with pytest.raises(ModelFileError, match=part):
        ExtremeClassifier.load(tmp_path)


class Stop(Exception):
    pass


@pytest.mark.parametrize("n_epochs", [1, 3, 5])
def test_a_run_that_broke_off_in_any_member_resumes_to_the_same_end(
    model: ExtremeClassifier, n_epochs: int, tmp_path: Path
) -> None:
    seen: list[int] = []

    def stop(record: dict[str, Any]) -> None:
        seen.append(record["epoch"])
        if len(seen) == n_epochs:
            raise Stop

    # Without a seed of its own, the run takes that of the checkpoint.
    with pytest.raises(Stop):
        small().fit(X, Y, checkpoint=tmp_path, callback=stop)
    resumed = small(random_state=None).fit(
        X, Y, checkpoint=tmp_path, callback=lambda r: seen.append(r["epoch"])
    )
    # The epoch that broke off runs again, and no other.
    assert len(seen) == 7
    assert resumed.predict_proba(TEST).tobytes() == model.predict_proba(TEST).tobytes()
    with pytest.raises(ModelFileError, match=r"another run .*n_models"):
        small(n_models=2).fit(X, Y, checkpoint=tmp_path)
    Checkpoint(tmp_path).remove()
    assert not tmp_path.exists()


def test_history_has_every_member_and_the_seconds_of_all(model: ExtremeClassifier) -> None:
    assert [(r["model"], r["epoch"]) for r in model.history_] == [
        (i, epoch) for i in range(3) for epoch in (1, 2)
    ]
    for key in ("seconds", "examples"):
        values = [record[key] for record in model.history_]
        assert values == sorted(values)
    assert model.history_[-1]["examples"] == 3 * model.history_[1]["examples"]
    assert model.n_iter_ == 6


def test_further_rows_train_every_member(tmp_path: Path) -> None:
    late = Y % 5 == 2
    texts = np.array(X, object)
    model = small(n_models=2).partial_fit(texts[~late].tolist(), Y[~late])
    before = [m.head.bias.clone() for m in model.model_.members]
    model.partial_fit(texts.tolist(), Y)
    for member, bias in zip(model.model_.members, before, strict=True):
        assert member.n_classes == N_CLASSES
        assert not torch.equal(member.head.bias[: len(bias)], bias)
    assert model.model_.labels.counts.sum() == (~late).sum() + len(Y)
    np.testing.assert_allclose(
        model.predict_proba(TEST), mean_of_members(model, TEST), rtol=1e-4, atol=1e-7
    )
    assert model.score(TEST, TRUTH) > 0.4
    # Loaded, it trains on to the same model.
    model.save(tmp_path)
    loaded = ExtremeClassifier.load(tmp_path).partial_fit(X, Y)
    model.partial_fit(X, Y)
    assert loaded.predict_proba(TEST).tobytes() == model.predict_proba(TEST).tobytes()


@pytest.mark.parametrize("noise", [None, "tree", "softmax"])
def test_dense_rows(noise: str | None) -> None:
    rows, y = clustered(1_000, 40, 8, seed=0)
    model = small(n_models=2, noise=noise).fit(rows, y)
    expected = mean_of_members(model, rows[:100])
    np.testing.assert_allclose(model.predict_proba(rows[:100]), expected, rtol=1e-4, atol=1e-7)
    found = model.predict_topk(rows[:100], 3, search="beam")
    assert np.mean(found.labels[:, 0] == model.classes_[expected.argmax(1)]) > 0.99


def test_sessions() -> None:
    random = np.random.default_rng(0)
    sessions = [[f"i{(s + 2 * j) % 30}" for j in range(3)] for s in random.integers(0, 30, 300)]
    model = SessionRecommender(n_models=2, epochs=3, bag_size=16, random_state=0, n_jobs=1)
    model.fit(sessions)
    first, second = model.model_.members
    assert first.experts == second.experts
    each = [
        np.exp(m.log_probs_all(model.model_.encoder.transform([["i3"]])).numpy())
        for m in (first, second)
    ]
    items, p = model.recommend(["i3"], k=30)
    expected = np.mean(each, 0)[0][np.searchsorted(model.classes_, items)]
    np.testing.assert_allclose(p, expected, rtol=1e-4, atol=1e-7)


def test_time_is_shared_by_all_models() -> None:
    assert seconds_per_model(small(n_models=2, max_seconds=3.0)) == 1.5
    assert seconds_per_model(small(n_models=2)) is None
    # Each gets its turn.
    model = small(n_models=2, max_seconds=1e-9).fit(X, Y)
    assert [record["model"] for record in model.history_] == [0, 1]


def test_a_diagnosis_tempers_the_mean(model: ExtremeClassifier) -> None:
    found = diagnose(model, TEST, TRUTH)
    logits = np.log(mean_of_members(model, TEST)) / found.temperature
    log_p = logits - np.logaddexp.reduce(logits, 1, keepdims=True)
    expected = np.take_along_axis(log_p, TRUTH[:, None], 1).mean()
    assert found.tempered.log_likelihood == pytest.approx(expected, rel=1e-3)
    assert found.tempered.log_likelihood >= found.outcomes.log_likelihood


@pytest.mark.parametrize("n_models", [0, 101, 1.5, None, True])
def test_a_wrong_number_of_models_is_refused(n_models: Any) -> None:
    with pytest.raises(ArgumentError, match="n_models must be an integer from 1 to 100"):
        small(n_models=n_models).fit(X, Y)


def test_a_member_that_the_manifest_does_not_fit_is_refused(
    model: ExtremeClassifier, tmp_path: Path
) -> None:
    from extremax.storage.folder import model_folder

    model.save(tmp_path)
    settings, files = model_folder(tmp_path).read()
    for key in ("format", "files", "checksum"):
        del settings[key]
    settings["others"].append(json.loads(json.dumps(settings["others"][0])))
    model_folder(tmp_path).write(settings, files)
    with pytest.raises(ModelFileError, match="head_3"):
        ExtremeClassifier.load(tmp_path)
    del settings["others"][2]["blend"]
    model_folder(tmp_path).write(settings, files)
    with pytest.raises(ModelFileError, match="blend"):
        ExtremeClassifier.load(tmp_path)
