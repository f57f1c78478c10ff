"""The data of a comparison: split once, encoded without using the test rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from extremax.comparison import Problem
from extremax.data import clustered
from extremax.features import Encoder


def test_test_rows_are_held_out_and_every_class_trains():
    X, y = clustered(600, 30, 5, seed=0)
    problem = Problem.split(X, np.array([f"c{v}" for v in y]), test_fraction=0.3)
    assert len(problem.labels) + len(problem.test_labels) == 600
    assert 120 < len(problem.test_labels) < 220
    assert set(problem.labels) == set(range(30))
    assert problem.test_labels.min() >= 0
    ours, theirs = ({tuple(row) for row in rows} for rows in (problem.features, problem.test))
    assert not ours & theirs
    assert len(ours | theirs) == 600
    again = Problem.split(X, np.array([f"c{v}" for v in y]), test_fraction=0.3)
    assert np.array_equal(again.test, problem.test)


def test_a_separate_test_set_may_have_unseen_classes():
    X, y = clustered(200, 10, 5, seed=0)
    problem = Problem.split(X, y, test=(X[:90], np.where(y[:90] == 3, 99, y[:90])))
    assert len(problem.labels) == 200
    assert np.array_equal(problem.test_labels < 0, y[:90] == 3)
    about = problem.about()
    assert about["test_rows_of_unseen_classes"] == int((y[:90] == 3).sum())


def test_the_prior_is_the_class_frequencies_on_rows_of_known_classes():
    X, y = np.ones((8, 2), np.float32), np.array([0, 0, 0, 0, 0, 1, 1, 2])
    problem = Problem.split(X, y, test=(X[:4], np.array([0, 1, 2, 7])))
    prior = problem.prior()
    assert prior["accuracy"] == 0.25
    assert prior["log_likelihood"] == pytest.approx(np.log([5 / 8, 2 / 8, 1 / 8]).mean())


def test_the_encoder_is_fitted_to_training_rows_only():
    X, y = clustered(400, 8, 20, seed=0)
    rows = sparse.csr_matrix(np.maximum(X, 0))
    problem = Problem.split(rows, y, encoder=Encoder(n_components=4), test_fraction=0.3)
    assert problem.features.shape[1] == problem.test.shape[1] == 4
    kept = Problem.split(np.arange(400)[:, None], y, test_fraction=0.3).features[:, 0]
    alone = Encoder(n_components=4).fit_transform(rows[kept], seed=0)
    assert np.array_equal(problem.features, alone.dense().array)


@pytest.mark.parametrize("encoder", [None, Encoder()])
def test_sparse_rows_are_projected_by_default(encoder):
    X, y = clustered(800, 8, 300, seed=0)
    rows = sparse.csr_matrix(np.maximum(X, 0))
    problem = Problem.split(rows, y, encoder=encoder, test_fraction=0.3)
    assert isinstance(problem.features, np.ndarray)
    assert problem.features.shape[1] == problem.test.shape[1] == 256
    # The encoder that was passed is not changed.
    assert encoder is None or encoder.n_components is None


def test_many_test_rows_are_sampled():
    X, y = clustered(1000, 8, 3, seed=0)
    problem = Problem.split(X, y, test_fraction=0.5, max_test_rows=60)
    assert len(problem.test) == len(problem.test_labels) == 60
    assert len(problem.labels) < 600


@pytest.mark.parametrize("kind", ["dense", "sparse", "text"])
def test_checksums_differ_for_other_data(kind):
    X, y = clustered(300, 4, 3, seed=0)
    other = X.copy()
    other[7] += 1
    if kind == "sparse":
        X, other = sparse.csr_matrix(X), sparse.csr_matrix(other)
    elif kind == "text":
        X, other = ([f"word{int(9 * v)} b" for v in rows[:, 0]] for rows in (X, other))
    sums = {Problem.split(rows, labels, test_fraction=0.3).checksum
            for rows, labels in ((X, y), (other, y), (X, np.roll(y, 1)))}  # fmt: skip
    assert len(sums) == 3
    assert Problem.split(X, y, test_fraction=0.3).checksum in sums


@pytest.mark.parametrize("kind", ["sparse", "text"])
def test_checksums_differ_for_other_encodings_of_the_same_data(kind):
    X, y = clustered(300, 4, 12, seed=0)
    rows = sparse.csr_matrix(np.maximum(X, 0))
    encoders = [Encoder(4), Encoder(5)]
    if kind == "text":
        rows = [" ".join(f"word{int(9 * v)}" for v in row) for row in X]
        encoders += [Encoder(4, "char_wb", (2, 3)), Encoder(4, "char_wb", (2, 4))]
    split = [Problem.split(rows, y, test_fraction=0.3, encoder=e) for e in encoders]
    assert len({problem.checksum for problem in split}) == len(encoders)
    again = Problem.split(rows, y, test_fraction=0.3, encoder=Encoder(4))
    assert again.checksum == split[0].checksum


def test_the_checksum_of_dense_rows_does_not_depend_on_the_encoder():
    X, y = clustered(300, 4, 3, seed=0)
    one, two = (Problem.split(X, y, test_fraction=0.3, encoder=Encoder(k)) for k in (4, 5))
    assert one.checksum == two.checksum


def test_a_test_set_of_only_unseen_classes_is_rejected():
    X, y = clustered(200, 10, 5, seed=0)
    with pytest.raises(ValueError, match="no test row has a class of the training rows"):
        Problem.split(X, y, test=(X[:50], y[:50] + 10))
    with pytest.raises(ValueError, match="no test row has a class of the training rows"):
        Problem.split(X, y, test=(X[:50], y[:50].astype(str)))


def test_rows_and_labels_of_different_length_are_rejected():
    X, y = clustered(200, 10, 5, seed=0)
    with pytest.raises(ValueError, match="there are 50 test rows, but 49 labels"):
        Problem.split(X, y, test=(X[:50], y[:49]))
    with pytest.raises(ValueError, match="there are 199 training rows, but 200 labels"):
        Problem.split(sparse.csr_matrix(X[:199]), y)


def test_test_rows_of_another_width_are_rejected():
    X, y = clustered(200, 10, 5, seed=0)
    with pytest.raises(ValueError, match="test rows: X has 4 features"):
        Problem.split(X, y, test=(X[:, :4], y))


def test_too_few_rows_are_rejected():
    X, y = clustered(100, 4, 3, seed=0)
    with pytest.raises(ValueError, match=r"only \d+ of 100 rows can be held out for the test"):
        Problem.split(X, y)
    with pytest.raises(ValueError, match=r"test_fraction must be in \(0, 1\)"):
        Problem.split(X, y, test_fraction=1.0)
