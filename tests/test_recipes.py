"""Which head, objective and noise the recipes choose, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.heads import BagHead, LinearHead, SupportHead
from extremax.noise import (
    FrequencyNoise,
    MixtureNoise,
    SparseTreeNoise,
    TreeNoise,
    UniformNoise,
)
from extremax.objectives import ExactSoftmax, NegativeSampling, SampledSoftmax
from extremax.preparation import settings_for
from extremax.recipes import Choice, choose
from extremax.rows import DenseRows, Rows, Sizes, SparseRows

SIZES = Sizes(rows=1000, features=256, classes=50, nonzeros=256.0)
LARGE = Sizes(rows=10**6, features=256, classes=10**5, nonzeros=256.0)


def chosen(
    rows: type[Rows],
    objective: Any = None,
    noise: Any = None,
    sizes: Sizes = SIZES,
    epochs: int | None = 10,
    max_seconds: float | None = None,
) -> Choice:
    return choose(rows, sizes, objective, noise, epochs, max_seconds)


def auto(n_rows: int, n_classes: int, max_seconds: float | None = None) -> type:
    sizes = Sizes(n_rows, 256, n_classes, 256.0)
    return type(chosen(DenseRows, "auto", None, sizes, 10, max_seconds).objective)


def kinds(choice: Choice) -> tuple[type, type, type]:
    return choice.head, type(choice.objective), type(choice.noise)


def test_defaults_by_kind_of_rows() -> None:
    assert kinds(chosen(DenseRows)) == (LinearHead, ExactSoftmax, UniformNoise)
    large = chosen(DenseRows, sizes=LARGE)
    # A batch shares its draws, which no tree can give.
    assert kinds(large) == (LinearHead, SampledSoftmax, FrequencyNoise)
    assert large.shared is not None
    # Whoever gives a noise or a number of draws gets what papers describe.
    assert kinds(chosen(DenseRows, noise="tree")) == (LinearHead, NegativeSampling, TreeNoise)
    few = choose(DenseRows, SIZES, None, None, 10, None, n_negatives=5)
    assert kinds(few) == (LinearHead, NegativeSampling, TreeNoise)
    few = choose(DenseRows, LARGE, "sampled_softmax", None, 10, None, n_negatives=5)
    assert few.shared is None
    assert kinds(few) == (LinearHead, SampledSoftmax, MixtureNoise)
    assert kinds(chosen(SparseRows)) == (BagHead, SampledSoftmax, SparseTreeNoise)


def test_exact_softmax_on_sparse_rows_has_a_head_of_its_own() -> None:
    assert kinds(chosen(DenseRows, "exact")) == (LinearHead, ExactSoftmax, UniformNoise)
    assert kinds(chosen(SparseRows, "exact")) == (SupportHead, ExactSoftmax, UniformNoise)
    # A noise would have no effect.
    assert kinds(chosen(SparseRows, "exact", "tree"))[2] is UniformNoise


def test_auto_is_exact_where_it_is_affordable() -> None:
    assert auto(10_000, 1_000) is ExactSoftmax
    assert auto(500_000, 200_000) is SampledSoftmax


def test_more_time_never_leaves_exact() -> None:
    is_exact = [auto(100_000, 10_000, s) is ExactSoftmax for s in (1.0, 60.0, 3600.0, 1e6)]
    assert is_exact == sorted(is_exact)
    assert set(is_exact) == {False, True}


def test_auto_is_the_same_on_sparse_rows_at_any_size() -> None:
    for n_classes in (2, 10**6):
        choice = chosen(SparseRows, "auto", "auto", Sizes(1000, 10**5, n_classes, 10.0))
        assert kinds(choice) == (BagHead, SampledSoftmax, SparseTreeNoise)


def test_an_objective_that_divides_by_q_gets_a_noise_bounded_from_below() -> None:
    assert isinstance(chosen(DenseRows, "negative_sampling", "auto").noise, TreeNoise)
    assert isinstance(chosen(DenseRows, "nce", "auto").noise, MixtureNoise)
    shared = chosen(DenseRows, "sampled_softmax", "auto").noise
    assert isinstance(shared, FrequencyNoise)
    assert shared.power == 0.5


def test_objects_are_cloned() -> None:
    objective, noise = NegativeSampling(regularization=0.3), TreeNoise(n_components=8)
    choice = chosen(DenseRows, objective, noise)
    assert choice.objective is not objective
    assert choice.noise is not noise
    assert choice.objective.get_params() == objective.get_params()
    assert choice.noise.get_params() == noise.get_params()


@pytest.mark.parametrize("noise", ["tree", "quadratic", "softmax", "mixture", TreeNoise()])
def test_a_noise_for_dense_rows_is_refused_on_sparse_rows_with_advice(noise: Any) -> None:
    with pytest.raises(ValueError, match="needs dense rows") as error:
        chosen(SparseRows, "sampled_softmax", noise)
    assert "sparse_tree, uniform, frequency, log_uniform" in str(error.value)
    assert "Encoder(n_components=256)" in str(error.value)


@pytest.mark.parametrize("noise", ["sparse_tree", "uniform", "frequency", "log_uniform"])
def test_noises_without_dense_features_serve_both_kinds_of_rows(noise: str) -> None:
    for rows in (DenseRows, SparseRows):
        choice = chosen(rows, "sampled_softmax", noise)
        assert type(choice.noise) is type(chosen(DenseRows, "nce", noise).noise)


class MyNoise(FrequencyNoise):
    """A noise that is not registered in NOISES."""


def test_an_unregistered_noise_is_taken_as_it_is() -> None:
    assert isinstance(chosen(SparseRows, None, MyNoise()).noise, MyNoise)


@pytest.mark.parametrize("noise", ["quadratic", "quartic", "fourier", "softmax"])
def test_a_noise_that_follows_its_head_is_refused_if_log_q_is_added(noise: str) -> None:
    with pytest.raises(ValueError, match="sampled_softmax or nce"):
        chosen(DenseRows, "negative_sampling", noise)
    assert chosen(DenseRows, "sampled_softmax", noise).noise.follows_head


@pytest.mark.parametrize("noise", ["quadratic", "quartic", "fourier", "softmax"])
def test_an_objective_left_open_suits_a_noise_that_follows_its_head(noise: str) -> None:
    assert type(chosen(DenseRows, None, noise).objective) is SampledSoftmax
    assert type(chosen(DenseRows, "auto", noise, max_seconds=1e-9).objective) is SampledSoftmax


def test_an_even_kernel_gets_absolute_logits_unless_told_otherwise() -> None:
    def absolute(objective: Any, noise: Any = "quadratic") -> Any:
        return chosen(DenseRows, objective, noise).objective.get_params()["absolute"]

    assert absolute(None)
    assert absolute("sampled_softmax")
    assert absolute("sampled_softmax(regularization=0.1)", "quartic(  )")
    assert not absolute("sampled_softmax(absolute=False)")
    assert not absolute(SampledSoftmax())
    assert not absolute("sampled_softmax", "fourier")
    assert not absolute("sampled_softmax", "uniform")


def test_batches_are_a_hundredth_of_the_rows_within_bounds() -> None:
    exact, fused = chosen(DenseRows, "exact"), chosen(DenseRows, noise="tree")
    bag = chosen(SparseRows)
    assert [c.batch_size(100) for c in (exact, fused, bag)] == [32, 32, 32]
    assert [c.batch_size(20_000) for c in (exact, fused, bag)] == [200, 200, 200]
    assert [c.batch_size(10**7) for c in (exact, fused, bag)] == [4096, 512, 1024]


@pytest.mark.parametrize(
    ("objective", "seconds", "expected"),
    [
        ("auto", None, (LinearHead, ExactSoftmax, UniformNoise)),
        ("auto", 1e-6, (LinearHead, SampledSoftmax, FrequencyNoise)),
        ("sampled_softmax", None, (LinearHead, SampledSoftmax, FrequencyNoise)),
    ],
)
def test_the_classifier_follows_the_recipe_on_dense_rows(
    objective: str, seconds: float | None, expected: tuple[type, ...]
) -> None:
    X, y = clustered(300, 5, 6, seed=0)
    classifier = ExtremeClassifier(
        objective, "auto", epochs=1, max_seconds=seconds, random_state=0, n_jobs=1
    ).fit(X, y)
    model = classifier.model_
    assert (type(model.head), type(model.objective), type(model.noise)) == expected
    assert np.isfinite(classifier.log_likelihood(X, y))


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (None, (BagHead, SampledSoftmax, SparseTreeNoise)),
        ("exact", (SupportHead, ExactSoftmax, UniformNoise)),
    ],
)
def test_the_classifier_follows_the_recipe_on_sparse_rows(
    objective: str | None, expected: tuple[type, ...]
) -> None:
    X, y = clustered(300, 5, 6, seed=0)
    rows = sparse.csr_matrix(np.maximum(X, 0))
    classifier = ExtremeClassifier(objective, epochs=1, bag_size=4, random_state=0, n_jobs=1).fit(
        rows, y
    )
    model = classifier.model_
    assert (type(model.head), type(model.objective), type(model.noise)) == expected
    assert np.isfinite(classifier.log_likelihood(rows, y))


def test_wrong_names_are_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(*arguments: Any, **named: Any) -> None:
        raise AssertionError("the rows were encoded")

    monkeypatch.setattr("extremax.features.Encoder.fit_transform", encode)
    X, y = np.zeros((3, 2)), [0, 1, 2]
    with pytest.raises(ValueError, match="objective must be one of"):
        ExtremeClassifier("sotfmax").fit(X, y)
    with pytest.raises(ValueError, match="noise must be one of"):
        ExtremeClassifier(noise="tre").fit(X, y)
    with pytest.raises(ValueError, match="noise must be one of"):
        ExtremeClassifier("exact", "tre").fit(X, y)
    with pytest.raises(ValueError, match="sampled_softmax or nce"):
        ExtremeClassifier("negative_sampling", "quadratic").fit(X, y)
    with pytest.raises(ValueError, match="needs dense rows"):
        ExtremeClassifier(noise="tree").fit(sparse.csr_matrix(X), y)


def test_the_learning_rate_is_that_of_the_recipe_unless_given() -> None:
    exact, shared = chosen(DenseRows), chosen(DenseRows, sizes=LARGE)
    pairs = chosen(DenseRows, "negative_sampling"), chosen(SparseRows), chosen(SparseRows, "exact")
    assert exact.learning_rate == shared.learning_rate > max(c.learning_rate for c in pairs)
    for choice in (exact, shared, *pairs):
        usual = settings_for(ExtremeClassifier(), choice, 1000)
        assert usual.learning_rate == choice.learning_rate
        given = settings_for(ExtremeClassifier(learning_rate=0.7), choice, 1000)
        assert given.learning_rate == 0.7
