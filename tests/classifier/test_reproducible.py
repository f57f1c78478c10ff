"""One seed, one model: whatever the threads, the memory, the layout or the company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered
from extremax.features import Encoder
from extremax.kernels.cpu import threads

X, Y = clustered(6000, 200, 24, seed=0)
SPARSE = sparse.random(4000, 900, density=0.02, format="csr", random_state=0, dtype=np.float32)


def fitted(features: Any = X, labels: Any = Y, **parameters: Any) -> ExtremeClassifier:
    settings = {"epochs": 2, "n_negatives": 5, "n_jobs": 1, "random_state": 0} | parameters
    return ExtremeClassifier(**settings).fit(features, labels)


def parts(model: ExtremeClassifier) -> dict[str, torch.Tensor]:
    """Everything learned."""
    return {
        f"{name}.{key}": value
        for name in ("head", "noise", "encoder")
        for key, value in getattr(model.model_, name).state().items()
    }


def differing(first: ExtremeClassifier, second: ExtremeClassifier) -> list[str]:
    ours, theirs = parts(first), parts(second)
    assert ours.keys() == theirs.keys()
    return [key for key in ours if not torch.equal(ours[key], theirs[key])]


def figures(model: ExtremeClassifier) -> list[dict[str, float]]:
    return [{k: v for k, v in r.items() if k != "seconds"} for r in model.history_]


@pytest.fixture
def shared_work(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every region large enough for threads; lists how many helpers each shared region had."""
    helpers: list[int] = []
    pool = threads._pool

    def noted(n: int) -> Any:
        helpers.append(n)
        return pool(n)

    monkeypatch.setattr(threads, "_pool", noted)
    monkeypatch.setattr("extremax.heads.table._PARALLEL_FLOATS", 1)
    monkeypatch.setattr("extremax.heads.linear._PARALLEL_FLOATS", 1)
    return helpers


@pytest.mark.parametrize("noise", ["tree", "uniform", "frequency"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_number_of_threads_changes_nothing(
    noise: str, dtype: Any, shared_work: list[int]
) -> None:
    features = X.astype(dtype)
    one = fitted(features, noise=noise, n_jobs=1)
    assert not shared_work
    two = fitted(features, noise=noise, n_jobs=2)
    # At least once an epoch.
    assert shared_work.count(1) > 2
    three = fitted(features, noise=noise, n_jobs=3)
    assert shared_work.count(2) > 2
    assert differing(one, two) == differing(one, three) == []
    assert figures(one) == figures(two)
    assert np.array_equal(one.predict_proba(X[:99]), two.predict_proba(X[:99]))


def test_the_number_of_threads_changes_nothing_of_sparse_rows() -> None:
    """The tree, votes of similar rows, the blend and its calibration, and a search whose blocks of
    rows depend on the number of threads."""
    rows = sparse.vstack([SPARSE, SPARSE[::2]], format="csr")
    # Classes that a few features tell apart, and more of them than a search looks at.
    labels = np.asarray(rows[:, :700].argmax(1)).ravel()
    models = {
        n: ExtremeClassifier(epochs=2, n_jobs=n, random_state=0).fit(rows, labels)
        for n in (1, 2, 5)
    }
    one, found = models[1], models[1].predict_topk(rows, 4)
    assert one.model_.rest is not None
    for n, other in models.items():
        assert differing(one, other) == []
        assert figures(one) == figures(other)
        assert other.model_.blend == one.model_.blend
        assert other.model_.rest == one.model_.rest
        assert other.model_.confidence == one.model_.confidence
        assert other.validation_ == one.validation_
        again = one.set_params(n_jobs=n).predict_topk(rows, 4)
        for first, second in zip(found, again, strict=True):
            np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("text", [False, True])
def test_the_number_of_threads_changes_nothing_of_the_encoder(
    text: bool, shared_work: list[int]
) -> None:
    rng = np.random.default_rng(0)
    features: Any = SPARSE
    if text:
        features = [" ".join(f"w{w}" for w in rng.zipf(1.5, 12) % 900) for _ in range(4000)]
    labels = rng.integers(50, size=4000)
    encoder = Encoder(n_components=20, buckets=2**12)
    one = fitted(features, labels, encoder=encoder, n_jobs=1)
    assert not shared_work
    two = fitted(features, labels, encoder=encoder, n_jobs=2)
    assert shared_work
    assert differing(one, two) == []


def test_a_repeated_fit_is_the_same_and_another_seed_another() -> None:
    model = fitted()
    assert differing(model, fitted()) == []
    assert differing(model, model.__class__(**model.get_params()).fit(X, Y)) == []
    assert "head.table" in differing(model, fitted(random_state=1))
    refitted = fitted(random_state=1)
    refitted.set_params(random_state=0).fit(X, Y)
    assert differing(model, refitted) == []


def test_without_a_seed_every_fit_differs() -> None:
    assert "head.table" in differing(fitted(random_state=None), fitted(random_state=None))


def test_generators_are_accepted_and_advance() -> None:
    for make in (np.random.default_rng, np.random.RandomState):
        first = fitted(random_state=make(5))
        assert differing(first, fitted(random_state=make(5))) == []
        generator = make(5)
        once, twice = fitted(random_state=generator), fitted(random_state=generator)
        assert differing(first, once) == []
        assert "head.table" in differing(once, twice)


def test_the_memory_budget_changes_nothing() -> None:
    ample = fitted()
    tight = fitted(memory_budget=16 * 200 * 3)
    assert differing(ample, tight) == []
    for ours, theirs in zip(figures(ample), figures(tight), strict=True):
        # Matrix products of other shapes round otherwise.
        assert ours == pytest.approx(theirs, rel=1e-5)
    one, other = ample.predict_topk(X[:50], 3), tight.predict_topk(X[:50], 3)
    assert np.array_equal(one.labels, other.labels)
    np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)


def test_sparse_rows_over_the_budget_wait_on_disk_with_the_same_result() -> None:
    labels = np.random.default_rng(0).integers(50, size=4000)
    encoder = Encoder(n_components=20)
    ample = fitted(SPARSE, labels, encoder=encoder)
    tight = fitted(SPARSE, labels, encoder=encoder, memory_budget=4 * 4000 * 20 - 1)
    assert differing(ample, tight) == []


def test_the_layout_of_the_array_changes_nothing() -> None:
    model = fitted()
    double = X.astype(np.float64)
    wide = np.zeros((len(X), 48), np.float32)
    wide[:, ::2] = X
    for same in (double, np.asfortranarray(X), np.asfortranarray(double), wide[:, ::2]):
        assert differing(model, fitted(same)) == []
    assert differing(model, fitted(X.tolist())) == []
    assert differing(model, fitted(torch.from_numpy(X))) == []


def test_looking_at_the_model_changes_nothing() -> None:
    model = ExtremeClassifier(n_negatives=5, epochs=2, n_jobs=1, random_state=0)
    predictions = []
    model.fit(X, Y, callback=lambda _: predictions.append(model.predict_topk(X[:10])))
    assert len(predictions) == 2
    assert differing(model, fitted()) == []
