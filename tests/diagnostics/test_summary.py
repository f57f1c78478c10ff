"""The whole diagnosis of a model, and its picture."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.diagnostics import Diagnosis, diagnose
from extremax.diagnostics.bias import estimated_bias
from extremax.diagnostics.pictures import draw
from extremax.diagnostics.summary import SAMPLES, _leave_one_out
from extremax.rows import SparseRows
from extremax.noise import UniformNoise
from extremax.objectives import AugmentReduceProbit, SampledSoftmax
from extremax.prediction import Scorer


@pytest.fixture(scope="module")
def problem() -> tuple[np.ndarray, np.ndarray]:
    return clustered(900, 30, 6, seed=1, noise=0.4)


def trained(problem: tuple[np.ndarray, np.ndarray], **parameters: object) -> ExtremeClassifier:
    X, y = problem
    return ExtremeClassifier(epochs=2, random_state=0, n_jobs=1, **parameters).fit(X[:700], y[:700])


@pytest.fixture(scope="module")
def found(problem: tuple[np.ndarray, np.ndarray]) -> Diagnosis:
    return diagnose(trained(problem), problem[0][700:], problem[1][700:])


def test_the_softmax_noise_has_next_to_no_bias(problem: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = problem
    model = trained(problem, objective=SampledSoftmax(), noise="softmax")
    found = diagnose(model, X[700:], y[700:])
    assert found.own_noise == "softmax"
    at = SAMPLES.index(10)
    assert found.bias["softmax"].relative[at] < 0.1 * found.bias["uniform"].relative[at]
    # The model's own p is its noise, as good as can be.
    assert found.signal["softmax"].covered == pytest.approx(1.0, abs=1e-5)
    assert found.signal["softmax"].relative == pytest.approx(1.0, abs=1e-5)


def test_the_bias_is_that_of_the_head_without_the_tree_beside_it() -> None:
    X, y = clustered(900, 30, 40, seed=1, noise=0.4)
    rows = sparse.csr_matrix(np.maximum(X, 0))
    model = ExtremeClassifier(bag_size=8, random_state=0, n_jobs=1).fit(rows[:700], y[:700])
    assert min(model.model_.blend.levels) > 0
    found = diagnose(model, rows[700:], y[700:])
    assert found.own_noise == "tree"
    head = Scorer(model.model_.head, model.model_.noise, model.model_.objective)
    few = SparseRows.of(rows[700:])[: found.bias_rows], model.model_.labels.encode(y[700:])
    noise = UniformNoise()
    noise.extend(30)
    alone = estimated_bias(head, few[0], few[1][: found.bias_rows], noise, SAMPLES, 2**29)
    np.testing.assert_allclose(found.bias["uniform"].relative, alone.relative, rtol=1e-3)
    assert found.outcomes.log_likelihood == pytest.approx(
        model.log_likelihood(rows[700:], y[700:]), abs=1e-5
    )


def test_where_probabilities_are_no_softmax_there_is_no_such_bias(
    problem: tuple[np.ndarray, np.ndarray],
) -> None:
    X, y = problem
    model = trained(problem, objective=AugmentReduceProbit(), noise="uniform")
    found = diagnose(model, X[700:], y[700:])
    assert found.bias == {}
    assert list(found.signal) == ["uniform", "frequency"]
    assert len(draw(found, "probit").axes) == 1


def test_a_row_is_left_out_of_the_counts_that_judge_it() -> None:
    counts, labels = np.array([3, 1, 0, 2]), np.array([0, 0, 0, 1, 3, 3])
    # FrequencyNoise counts a class without examples as one.
    q = [2 / 6, 2 / 6, 2 / 6, 1 / 7, 1 / 6, 1 / 6]
    assert _leave_one_out(counts, labels) == pytest.approx(np.log(q).mean())


def test_the_picture_draws_the_figures(found: Diagnosis) -> None:
    left, right = draw(found, "costs $5 and $6").axes
    diagonal, plain, tempered = left.get_lines()
    assert diagonal.get_xdata()[-1] == diagonal.get_ydata()[-1] == 1
    some = found.reliability.accuracy > 0
    assert set(found.reliability.accuracy[some]) <= set(plain.get_ydata())
    assert tempered.get_xdata().max() == found.tempered_reliability.confidence.max()
    assert f"T = {found.temperature:.2f}" in tempered.get_label()
    lines = right.get_lines()
    assert [line.get_label() for line in lines] == ["tree (its own)", "uniform", "frequency"]
    for line, curve in zip(lines, found.bias.values(), strict=True):
        assert tuple(line.get_xdata()) == curve.m
        np.testing.assert_allclose(line.get_ydata(), curve.relative)


def test_rows_and_labels_must_match(problem: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = problem
    model = trained(problem)
    with pytest.raises(ValueError, match="3 rows but y has 2"):
        diagnose(model, X[:3], y[:2])
    with pytest.raises(ValueError, match="no row has a class"):
        diagnose(model, X[:3], y[:3] + 1000)
