"""The complete diagnosis of a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.diagnostics import diagnose, estimated_bias
from extremax.diagnostics.summary import DRAWS, leave_one_out_log_q
from extremax.noise import UniformNoise
from extremax.objectives import AugmentReduceProbit, SampledSoftmax
from extremax.prediction import Blend
from extremax.rows import SparseRows


@pytest.fixture(scope="module")
def problem() -> tuple[np.ndarray, np.ndarray]:
    return clustered(900, 30, 6, seed=1, noise=0.4)


def trained(problem: tuple[np.ndarray, np.ndarray], **parameters: object) -> ExtremeClassifier:
    X, y = problem
    parameters = {"noise": "tree"} | parameters
    model = ExtremeClassifier(epochs=2, random_state=0, n_jobs=1, **parameters)
    return model.fit(X[:700], y[:700])


def test_softmax_noise_has_almost_no_bias(problem: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = problem
    model = trained(problem, objective=SampledSoftmax(), noise="softmax")
    diagnosis = diagnose(model, X[700:], y[700:])
    assert diagnosis.own_noise == "softmax"
    i = DRAWS.index(10)
    assert diagnosis.bias["softmax"].relative[i] < 0.1 * diagnosis.bias["uniform"].relative[i]
    # The noise equals the probabilities of the model: the best possible noise.
    assert diagnosis.signal["softmax"].covered == pytest.approx(1.0, abs=1e-5)
    assert diagnosis.signal["softmax"].relative == pytest.approx(1.0, abs=1e-5)


def test_the_bias_is_that_of_the_head_without_the_blended_tree() -> None:
    X, y = clustered(900, 30, 40, seed=1, noise=0.4)
    rows = sparse.csr_matrix(np.maximum(X, 0))
    classifier = ExtremeClassifier(bag_size=8, random_state=0, n_jobs=1).fit(rows[:700], y[:700])
    model = classifier.model_
    assert min(model.blend.levels) > 0
    diagnosis = diagnose(classifier, rows[700:], y[700:])
    assert diagnosis.own_noise == "sparse_tree"
    head_only, n = replace(model, blend=Blend(), experts=()), diagnosis.bias_rows
    noise = UniformNoise()
    noise.extend(30)
    selected, labels = SparseRows.of(rows[700 : 700 + n]), model.labels.encode(y[700 : 700 + n])
    alone = estimated_bias(head_only, selected, labels, noise, DRAWS, 2**29)
    np.testing.assert_allclose(diagnosis.bias["uniform"].relative, alone.relative, rtol=1e-3)
    assert diagnosis.outcomes.log_likelihood == pytest.approx(
        classifier.log_likelihood(rows[700:], y[700:]), abs=1e-5
    )


def test_the_temperature_comes_on_top_of_the_blend(problem: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = problem
    classifier = trained(problem)
    plain = diagnose(classifier, X[700:], y[700:])
    classifier.model_.blend = replace(classifier.model_.blend, temperature=2.0)
    warmer = diagnose(classifier, X[700:], y[700:])
    assert warmer.temperature == pytest.approx(plain.temperature / 2.0, rel=2e-3)
    assert warmer.tempered.log_likelihood == pytest.approx(plain.tempered.log_likelihood, abs=1e-4)
    assert warmer.outcomes.log_likelihood < plain.tempered.log_likelihood
    # Training uses no temperature, so the bias is the same.
    np.testing.assert_allclose(warmer.bias["tree"].relative, plain.bias["tree"].relative, rtol=1e-6)


def test_there_is_no_bias_if_probabilities_are_not_a_softmax(
    problem: tuple[np.ndarray, np.ndarray],
) -> None:
    X, y = problem
    model = trained(problem, objective=AugmentReduceProbit(), noise="uniform")
    diagnosis = diagnose(model, X[700:], y[700:])
    assert diagnosis.bias == {}
    assert list(diagnosis.signal) == ["uniform", "frequency"]


def test_each_row_is_left_out_of_the_counts_that_define_its_q() -> None:
    counts, labels = np.array([3, 1, 0, 2]), np.array([0, 0, 0, 1, 3, 3])
    # FrequencyNoise counts a class without examples as one.
    q = [2 / 6, 2 / 6, 2 / 6, 1 / 7, 1 / 6, 1 / 6]
    assert leave_one_out_log_q(counts, labels) == pytest.approx(np.log(q).mean())


def test_several_labels_per_row(problem: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = problem
    lists = [[label, (label + 1) % 30] if label % 2 else [label] for label in y.tolist()]
    model = ExtremeClassifier(epochs=2, random_state=0, n_jobs=1).fit(X[:700], lists[:700])
    rows, truth = X[700:], lists[700:]
    # A row without labels counts for nothing.
    diagnosis = diagnose(model, np.concatenate([rows, rows[:1]]), [*truth, []])
    result = model.evaluate(rows, truth)
    assert diagnosis.outcomes.accuracy == pytest.approx(result.accuracy)
    assert diagnosis.outcomes.log_likelihood == pytest.approx(result.log_likelihood, abs=1e-4)
    best = model.predict_topk(rows, 1, search="exact").marginals[:, 0]
    assert diagnosis.reliability.count.sum() == len(rows)
    mean = (diagnosis.reliability.confidence * diagnosis.reliability.count).sum() / len(rows)
    assert mean == pytest.approx(best.mean(), rel=1e-4)
    # Lists of one label are single labels.
    one, listed = diagnose(model, rows, y[700:]), diagnose(model, rows, [[v] for v in y[700:]])
    assert one.temperature == listed.temperature
    assert one.reliability.error == listed.reliability.error


def test_invalid_input_is_refused(problem: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = problem
    model = trained(problem)
    with pytest.raises(ValueError, match="3 rows but y has 2"):
        diagnose(model, X[:3], y[:2])
    with pytest.raises(ValueError, match="no row has a label that training saw"):
        diagnose(model, X[:3], y[:3] + 1000)
