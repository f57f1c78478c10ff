"""Sparse rows and texts, from fit to prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.errors import DivergedError
from extremax.features import Encoder
from extremax.heads import BagHead, SupportHead
from extremax.noise import SparseTreeNoise, TreeNoise, sparse_tree_shape
from extremax.prediction import Blend
from extremax.training import calibration
from extremax.training.checkpoint import Interrupted

N_CLASSES = 12


def _titles(n: int, seed: int) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Each class has three words of its own of which a row has two, and there are common ones."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, N_CLASSES, n)
    own = 3 * labels[:, None] + rng.permuted(np.tile(np.arange(3), (n, 1)), axis=1)[:, :2]
    common = 3 * N_CLASSES + rng.integers(0, 10, (n, 3))
    columns = np.concatenate([own, common], 1)
    rows = sparse.csr_matrix(
        (np.ones(columns.size, np.float32), columns.ravel(), np.arange(0, columns.size + 1, 5)),
        shape=(n, 3 * N_CLASSES + 10),
    )
    rows.sum_duplicates()
    return rows, labels


@pytest.fixture(scope="module")
def titles() -> tuple[sparse.csr_matrix, np.ndarray]:
    return _titles(3_000, 0)


@pytest.fixture(scope="module")
def model(titles: tuple[sparse.csr_matrix, np.ndarray]) -> ExtremeClassifier:
    return ExtremeClassifier("sampled_softmax", random_state=0).fit(*titles)


def test_sparse_rows_stay_sparse_and_are_learned(model: ExtremeClassifier) -> None:
    assert isinstance(model.model_.head, BagHead)
    assert isinstance(model.model_.noise, SparseTreeNoise)
    rows, labels = _titles(500, 1)
    found = model.evaluate(rows, labels)
    assert found.accuracy > 0.97
    assert found.log_likelihood > -0.3


@pytest.mark.parametrize("objective", ["negative_sampling", "nce", "one_vs_each", "exact"])
@pytest.mark.parametrize("noise", ["sparse_tree", "frequency"])
def test_any_objective_learns(
    titles: tuple[sparse.csr_matrix, np.ndarray], objective: str, noise: str
) -> None:
    model = ExtremeClassifier(objective, noise, epochs=10, random_state=0).fit(*titles)
    assert isinstance(model.model_.head, SupportHead if objective == "exact" else BagHead)
    assert model.score(*_titles(500, 1)) > 0.9
    proba = model.predict_proba(_titles(20, 2)[0])
    np.testing.assert_allclose(proba.sum(1), 1.0, atol=1e-4)


def test_rows_may_be_memory_maps(
    titles: tuple[sparse.csr_matrix, np.ndarray], model: ExtremeClassifier, tmp_path: Path
) -> None:
    """Rows larger than memory: nothing is written to them, and their values are not copied."""
    rows, labels = titles
    parts = []
    for name in ("data", "indices", "indptr"):
        np.save(tmp_path / name, getattr(rows, name))
        parts.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    mapped = sparse.csr_matrix(tuple(parts), shape=rows.shape)
    again = ExtremeClassifier("sampled_softmax", random_state=0).fit(mapped, labels)
    assert np.shares_memory(again.model_.encoder.transform(mapped).values, parts[0])
    for name, value in model.model_.head.state().items():
        assert torch.equal(value, again.model_.head.state()[name]), name


def test_both_experts_are_heard(titles: tuple[sparse.csr_matrix, np.ndarray]) -> None:
    """The blend is no less likely than the head alone or the tree alone."""
    model = ExtremeClassifier(random_state=0, epochs=1).fit(*titles)
    rows, labels = _titles(2_000, 3)
    both = model.log_likelihood(rows, labels)
    log_q = model.model_.noise.log_prob(
        model.model_.noise.context(rows), torch.from_numpy(labels)[:, None]
    )
    model.model_.blend = Blend()
    head = model.log_likelihood(rows, labels)
    # Fitted on other rows: a little may be lost.
    assert both > max(head, float(log_q.mean())) - 0.02


def test_data_distribution_is_recovered() -> None:
    """Rows of one feature each: p(y|x) is a table, and it is found."""
    rng = np.random.default_rng(0)
    table = rng.dirichlet(np.ones(6), 4)
    which = rng.integers(0, 4, 40_000)
    labels = (rng.random(len(which))[:, None] > table.cumsum(1)[which]).sum(1)
    rows = sparse.csr_matrix(np.eye(4, dtype=np.float32)[which])
    model = ExtremeClassifier(random_state=0).fit(rows, labels)
    found = model.predict_proba(sparse.eye(4, format="csr", dtype=np.float32))
    empirical = np.stack([np.bincount(labels[which == i], minlength=6) for i in range(4)])
    empirical = empirical / empirical.sum(1, keepdims=True)
    assert np.abs(found - empirical).sum(1).max() / 2 < 0.03


def test_a_wide_search_finds_what_scoring_every_class_finds(model: ExtremeClassifier) -> None:
    rows, _ = _titles(200, 4)
    exact = model.predict_topk(rows, 3, search="exact")
    found = model.predict_topk(rows, 3, width=N_CLASSES)
    np.testing.assert_array_equal(found.labels, exact.labels)
    np.testing.assert_allclose(found.log_probs, exact.log_probs, atol=0.02)
    assert exact.normalization == "exact" != found.normalization
    np.testing.assert_array_equal(model.predict(rows), exact.labels[:, 0])
    everything = model.predict_topk(rows, 100)
    assert everything.labels.shape == (200, N_CLASSES)
    assert (np.sort(everything.labels, 1) == np.arange(N_CLASSES)).all()
    np.testing.assert_allclose(np.exp(everything.log_probs).sum(1), 1.0, atol=1e-4)


@pytest.fixture
def deep(
    titles: tuple[sparse.csr_matrix, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> ExtremeClassifier:
    """With two levels, weights from some classes only, and a class that came late."""
    monkeypatch.setattr(sparse_tree_shape, "HALVINGS", 2)
    monkeypatch.setattr(calibration, "_PROPOSED", 4)
    monkeypatch.setattr(calibration, "_DRAWN", 3)
    model = ExtremeClassifier("sampled_softmax", random_state=0).fit(*titles)
    assert len(model.model_.blend.levels) == 2
    rows = np.union1d(np.arange(50), np.flatnonzero(titles[1] == 3))
    return model.partial_fit(titles[0][rows], np.where(titles[1][rows] == 3, 99, titles[1][rows]))


@pytest.mark.parametrize("heard", [True, False])
def test_a_wide_search_of_a_deep_tree_finds_what_exact_search_finds(
    deep: ExtremeClassifier, heard: bool, tmp_path: Path
) -> None:
    deep.save(tmp_path / "model")
    model = ExtremeClassifier.load(tmp_path / "model")
    assert model.model_.blend.levels == deep.model_.blend.levels
    assert model.model_.blend.prior == deep.model_.blend.prior != 0.0
    if not heard:
        model.model_.blend, model.model_.experts = Blend(), ()
    rows, _ = _titles(200, 4)
    exact = model.predict_topk(rows, 3, search="exact")
    np.testing.assert_array_equal(model.predict_topk(rows, 3, width=20).labels, exact.labels)
    found = set(exact.labels.ravel().tolist())
    # The tree knows these titles; the head by itself knows hardly more than frequencies.
    assert 99 in found or not heard
    assert len(found) > N_CLASSES // 2


def test_top_classes_of_the_sparse_head_are_exact(
    titles: tuple[sparse.csr_matrix, np.ndarray],
) -> None:
    model = ExtremeClassifier("exact", random_state=0).fit(*titles)
    rows, _ = _titles(50, 4)
    found = model.predict_topk(rows, N_CLASSES)
    expected = model.predict_log_proba(rows)
    np.testing.assert_allclose(
        np.take_along_axis(expected, found.labels, 1), found.log_probs, atol=1e-4
    )
    assert (np.diff(found.log_probs) <= 1e-6).all()


@pytest.mark.parametrize("objective", [None, "exact"])
def test_save_and_load(
    titles: tuple[sparse.csr_matrix, np.ndarray], tmp_path: Path, objective: str | None
) -> None:
    model = ExtremeClassifier(objective, random_state=0).fit(*titles)
    rows, labels = _titles(50, 5)
    model.save(tmp_path / "model")
    again = ExtremeClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_log_proba(rows), model.predict_log_proba(rows))
    np.testing.assert_array_equal(again.predict(rows), model.predict(rows))
    assert again.model_.labels.counts.tolist() == np.bincount(titles[1]).tolist()
    assert again.model_.labels.n_rows == 3_000
    for one in (model, again):
        one.partial_fit(rows, labels)
    np.testing.assert_array_equal(again.predict_log_proba(rows), model.predict_log_proba(rows))


def test_texts(tmp_path: Path) -> None:
    texts = ["red apple fruit", "green pear fruit", "fast red car", "slow blue car"] * 50
    labels = np.array(["apple", "pear", "sports car", "old car"] * 50)
    model = ExtremeClassifier(random_state=0, epochs=20).fit(texts, labels)
    assert model.predict(["a red apple", "a blue car that is slow"]).tolist() == [
        "apple",
        "old car",
    ]
    model.save(tmp_path / "model")
    again = ExtremeClassifier.load(tmp_path / "model")
    assert again.predict(["green pear", ""]).tolist()[0] == "pear"
    with pytest.raises(ValueError, match="texts"):
        again.predict(np.ones((1, 4)))


def test_several_labels() -> None:
    """A row has the label of each of its two words."""
    rng = np.random.default_rng(0)
    words = np.stack([rng.permutation(8)[:2] for _ in range(2_000)])
    rows = sparse.csr_matrix(
        (np.ones(words.size, np.float32), words.ravel(), np.arange(0, words.size + 1, 2)),
        shape=(2_000, 8),
    )
    rows.sort_indices()
    lists = [[f"w{w}" for w in pair] for pair in words]
    indicator = sparse.csr_matrix(rows)
    for y, name in ((lists, "w{}"), (indicator, None)):
        model = ExtremeClassifier(random_state=0, epochs=10).fit(rows, y)
        assert model.model_.labels.multilabel
        assert model.model_.labels.n_rows == 2_000
        assert model.model_.labels.counts.sum() == 4_000
        top = model.predict_topk(rows[:50], 2).labels
        for pair, found in zip(words, top, strict=False):
            assert {*found.tolist()} == {name.format(w) if name else w for w in pair}
    # Rows without any label train nothing.
    indicator = sparse.csr_matrix(indicator.multiply(np.arange(2_000)[:, None] > 0))
    model = ExtremeClassifier(random_state=0, epochs=1).fit(rows, indicator)
    assert model.model_.labels.counts.sum() == 3_998


def test_threads_and_resuming_change_no_bit(
    titles: tuple[sparse.csr_matrix, np.ndarray], model: ExtremeClassifier, tmp_path: Path
) -> None:
    parameters = {"objective": "sampled_softmax", "random_state": 0}
    one = ExtremeClassifier(**parameters, n_jobs=1).fit(*titles)
    stopping: dict[str, Any] = {"n": 0}

    def stop(_: dict[str, Any]) -> bool:
        stopping["n"] += 1
        if stopping["n"] == 2:
            raise KeyboardInterrupt
        return False

    parts = ExtremeClassifier(**parameters)
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        parts.fit(*titles, checkpoint=tmp_path, callback=stop)
    resumed = ExtremeClassifier(**parameters).fit(*titles, checkpoint=tmp_path)
    for other in (one, resumed):
        assert other.model_.blend.levels == model.model_.blend.levels
        assert other.model_.blend.prior == model.model_.blend.prior
        assert other.model_.blend.temperature == model.model_.blend.temperature
        for name, value in model.model_.head.state().items():
            assert torch.equal(value, other.model_.head.state()[name]), name


def test_dense_rows_are_taken_by_a_model_of_sparse_ones(model: ExtremeClassifier) -> None:
    rows, _ = _titles(20, 6)
    np.testing.assert_array_equal(model.predict(rows.toarray()), model.predict(rows))


def test_new_classes_are_found(titles: tuple[sparse.csr_matrix, np.ndarray]) -> None:
    rows, labels = titles
    known = labels < N_CLASSES - 1
    model = ExtremeClassifier(random_state=0, learning_rate=1.0)
    model.partial_fit(rows[known], labels[known])
    for _ in range(10):
        model.partial_fit(rows, labels)
    late = np.flatnonzero(~known)
    assert (model.predict(rows[late]) == N_CLASSES - 1).mean() > 0.8


def test_rows_without_features_get_the_frequencies(
    titles: tuple[sparse.csr_matrix, np.ndarray],
) -> None:
    rows, labels = titles
    mixed = sparse.vstack([rows, sparse.csr_matrix((200, rows.shape[1]), dtype=np.float32)])
    model = ExtremeClassifier(random_state=0).fit(mixed, np.append(labels, np.zeros(200, int)))
    empty = model.predict_proba(sparse.csr_matrix((1, rows.shape[1]), dtype=np.float32))
    assert empty[0].argmax() == 0
    assert np.isfinite(np.log(empty)).all()


def test_what_needs_dense_rows_says_so(titles: tuple[sparse.csr_matrix, np.ndarray]) -> None:
    for noise in ("quadratic", TreeNoise(), "mixture"):
        with pytest.raises(ValueError, match="n_components"):
            ExtremeClassifier(noise=noise).fit(*titles)
    dense = ExtremeClassifier(
        "sampled_softmax", "quadratic", encoder=Encoder(n_components=30), random_state=0
    ).fit(*titles)
    assert dense.score(*_titles(300, 7)) > 0.9


def test_bad_input_names_the_place(titles: tuple[sparse.csr_matrix, np.ndarray]) -> None:
    rows, labels = titles
    broken = rows.copy()
    broken.data[7] = np.nan
    with pytest.raises(ValueError, match="row 1, column"):
        ExtremeClassifier().fit(broken, labels)
    with pytest.raises(ValueError, match="rows"):
        ExtremeClassifier().fit(rows, labels[:-1])
    for name, value in (("bag_size", 0), ("feature_dropout", 1.0)):
        with pytest.raises(ValueError, match=name):
            ExtremeClassifier(**{name: value}).fit(rows, labels)


def test_rows_far_larger_than_those_of_training_are_refused(
    titles: tuple[sparse.csr_matrix, np.ndarray],
) -> None:
    rows, labels = titles
    model = ExtremeClassifier(bag_size=8, epochs=1, random_state=0)
    model.fit(rows * np.float32(1e-38), labels)
    # RuntimeWarnings of the package are errors here: the error must be the only one to tell.
    with pytest.raises(DivergedError, match="scores of row 0 overflow"):
        model.predict(rows * np.float32(1e14))


def test_one_class() -> None:
    rows, _ = _titles(100, 0)
    model = ExtremeClassifier(random_state=0).fit(rows, np.zeros(100, int))
    assert (model.predict(rows) == 0).all()
