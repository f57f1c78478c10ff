"""What the classifier takes, what it refuses, and what it says when it does."""

from __future__ import annotations

import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered
from extremax.features import Encoder

X, Y = clustered(1500, 30, 8, seed=0)
GUESS = np.bincount(Y).max() / len(Y)


def small(**parameters: Any) -> ExtremeClassifier:
    return ExtremeClassifier(**{"epochs": 2, "n_jobs": 1, "random_state": 0} | parameters)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.float16, ">f4", "longdouble"])
def test_numbers_of_every_type(dtype: Any) -> None:
    features = (np.clip(X, -1.2, 1.2) * 100 + 125).astype(dtype)
    same = features.astype(np.float32)
    model = small().fit(features, Y)
    assert model.score(features, Y) > 2 * GUESS
    assert np.array_equal(model.predict_proba(features), small().fit(same, Y).predict_proba(same))


def test_booleans_are_numbers() -> None:
    model = small().fit(X > 0, Y)
    assert np.array_equal(model.predict(X > 0), model.predict((X > 0).astype(float)))
    assert model.score(X > 0, Y) > 1.5 * GUESS


def test_tensors_of_torch() -> None:
    tensor = torch.from_numpy(X).requires_grad_()
    model = small().fit(tensor, torch.from_numpy(Y))
    assert np.array_equal(model.predict(tensor), small().fit(X, Y).predict(X))
    half = tensor.detach().to(torch.bfloat16)
    assert small().fit(half, Y).score(half, Y) > 2 * GUESS


def test_the_scale_of_the_features_does_not_matter() -> None:
    expected = small(noise="uniform").fit(X, Y)
    for exponent in (-100, -10, 10, 40):
        scaled = np.ldexp(X, exponent)
        model = small(noise="uniform").fit(scaled, Y)
        # Powers of two round nothing, so that the models agree to the last digits.
        np.testing.assert_allclose(
            model.predict_proba(scaled), expected.predict_proba(X), rtol=1e-3, atol=1e-6
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("noise", ["tree", "frequency"])
def test_a_memmap_is_never_copied_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Any, order: Any, noise: str
) -> None:
    monkeypatch.setattr("extremax.rows.dense._BLOCK_BYTES", 1 << 17)
    monkeypatch.setattr("extremax.training.start._BLOCK_BYTES", 1 << 17)
    monkeypatch.setattr("extremax.heads.linear._FLOATS_AT_ONCE", 1 << 15)
    n, width = 8000, 160
    labels = np.random.default_rng(0).integers(20, size=n)
    file = np.lib.format.open_memmap(
        tmp_path / "x.npy", "w+", dtype, (n, width), fortran_order=order == "F"
    )
    for start in range(0, n, 1000):
        block = np.random.default_rng(start).standard_normal((1000, width))
        block[:, 0] += labels[start : start + 1000]
        file[start : start + 1000] = block * 8
    file.flush()
    del file
    features = np.load(tmp_path / "x.npy", mmap_mode="r")
    # Compiling counts for nothing.
    small(epochs=1, noise=noise).fit(features[:1000], labels[:1000]).predict(features[:10])
    tracemalloc.start()
    try:
        model = small(epochs=1, noise=noise, memory_budget=1 << 20).fit(features, labels)
        model.predict(features)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Besides blocks: the held-out tenth, and the sixteen numbers per row that the tree reads.
    assert peak < 0.6 * n * width * 4
    assert np.array_equal(features[:5], np.load(tmp_path / "x.npy")[:5])


def test_sparse_rows_of_every_make() -> None:
    dense = np.where(np.abs(X) > 0.3, X, 0.0)
    dense[3] = 0.0
    rows = sparse.csr_matrix(dense)
    assert rows[3].nnz == 0
    expected = small().fit(rows, Y)
    assert expected.score(rows, Y) > 2 * GUESS
    assert expected.model_.encoder.input_kind == "sparse"
    wide = rows.copy()
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    assert wide.indices.dtype == np.int64
    others = [wide, rows.tocsc(), rows.tocoo(), sparse.csr_array(rows), rows.astype(np.float64)]
    for same in others:
        model = small().fit(same, Y)
        assert np.array_equal(model.predict_proba(same), expected.predict_proba(rows))
    # Dense rows are fine for a model of sparse ones, and the other way round.
    np.testing.assert_allclose(
        expected.predict_proba(rows.toarray()), expected.predict_proba(rows), atol=1e-5
    )
    dense = small().fit(rows.toarray(), Y)
    assert np.array_equal(dense.predict(rows), dense.predict(rows.toarray()))


def test_sparse_rows_without_anything_in_them() -> None:
    empty = sparse.csr_matrix((len(Y), 40), dtype=np.float32)
    model = small().fit(empty, Y)
    assert np.isfinite(model.predict_log_proba(empty[:3])).all()


def test_texts() -> None:
    words = np.array([f"word{i}" for i in range(30)])
    rng = np.random.default_rng(0)
    texts = [f"{words[label]} and {words[rng.integers(30)]}" for label in Y]
    model = small(epochs=10, encoder=Encoder(n_components=30)).fit(texts, Y)
    assert model.score(texts, Y) > 2 * GUESS
    assert model.model_.encoder.input_kind == "text"
    expected = model.predict(texts)
    for same in (tuple(texts), np.array(texts), np.array(texts, dtype=object)):
        assert np.array_equal(model.predict(same), expected)
    # Words never seen say nothing, but are no mistake.
    assert np.isfinite(model.predict_log_proba(["", "unheard of", "?!"])).all()
    with pytest.raises(
        ValueError, match="trained on texts, and X is ndarray; pass a list or column of strings"
    ):
        model.predict(X)
    with pytest.raises(ValueError, match="not trained on texts"):
        small().fit(X, Y).predict(texts)
    with pytest.raises(ValueError, match="the text of row 2 is None, expected a string"):
        model.predict(["a", "b", None])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("make", [np.asarray, np.asfortranarray, sparse.csr_matrix, np.float64])
def test_numbers_that_are_none_are_refused_with_their_place(value: float, make: Any) -> None:
    bad = X.copy()
    bad[1203, 5] = value
    what = "NaN" if np.isnan(value) else "infinity"
    message = f"X contains {what}.* in row 1203, column 5"
    with pytest.raises(ValueError, match=message):
        small().fit(make(bad), Y)
    model = small().fit(make(X), Y)
    with pytest.raises(ValueError, match=message):
        model.predict(make(bad))
    with pytest.raises(ValueError, match=message):
        model.partial_fit(make(bad), Y)


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
def test_numbers_too_large_for_float32_are_refused_with_their_place(make: Any) -> None:
    bad = X.astype(np.float64)
    bad[7, 2] = 1e39
    with pytest.raises(ValueError, match="too large for float32 in row 7, column 2"):
        small().fit(make(bad), Y)


def test_bad_places_are_found_beyond_the_first_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extremax.rows.dense._BLOCK_BYTES", 1 << 10)
    bad = X.copy()
    bad[1499, 0] = np.nan
    with pytest.raises(ValueError, match="row 1499, column 0"):
        small().fit(bad, Y)


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("width", [7, 9])
def test_the_number_of_features_must_be_that_of_training(make: Any, width: int) -> None:
    model = small().fit(make(X), Y)
    other = make(np.ones((2, width), np.float32))
    for call in (model.predict, model.predict_proba, model.predict_topk):
        with pytest.raises(ValueError, match=f"X has {width} features, but .* expecting 8"):
            call(other)
    with pytest.raises(ValueError, match=f"X has {width} features"):
        model.partial_fit(other, [0, 1])


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.empty((0, 8), np.float32), r"0 sample\(s\)"),
        (np.empty((5, 0), np.float32), r"0 feature\(s\)"),
        ([], "Expected 2D array, got 1D array"),
        (np.ones(5), "Expected 2D array, got 1D array"),
        (np.ones((2, 2, 2)), "3"),
        (np.ones((5, 2), complex), "Complex data not supported"),
        (sparse.csr_matrix((0, 8)), r"0 sample\(s\)"),
    ],
)
def test_shapes_that_are_no_rows_are_refused(features: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small().fit(features, np.zeros(5))
    with pytest.raises(ValueError, match=message):
        small().fit(X, Y).predict(features)


def test_labels_must_fit_the_rows() -> None:
    with pytest.raises(ValueError, match="X has 1500 rows but y has 1499 labels"):
        small().fit(X, Y[:-1])
    with pytest.raises(ValueError, match="requires y to be passed"):
        small().fit(X, None)
    with pytest.raises(ValueError, match="an indicator matrix may only contain 0 and 1"):
        small().fit(X, np.stack([Y, Y], 1))
    with pytest.raises(ValueError, match=f"y contains NaN, first in row {(Y == 3).argmax()}"):
        small().fit(X, np.where(Y == 3, np.nan, Y))
    with pytest.raises(ValueError, match="y contains NaN, first in row 4"):
        small().fit(X[:6], ["a", "b", "a", "b", float("nan"), "a"])
    with pytest.raises(ValueError, match="Unknown label type"):
        small().fit(X, X[:, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="y contains infinity"):
            small().fit(X, np.where(Y == 3, np.inf, Y))
    model = small().fit(X, Y)
    for call in (model.evaluate, model.partial_fit):
        with pytest.raises(ValueError, match="X has 1500 rows but y has 3 labels"):
            call(X, Y[:3])


@pytest.mark.parametrize("noise", ["tree", "uniform", "frequency"])
def test_a_single_class_is_certain(noise: str) -> None:
    model = small(noise=noise).fit(X, ["only"] * len(X))
    assert set(model.predict(X)) == {"only"}
    np.testing.assert_allclose(model.predict_proba(X), 1.0, rtol=1e-6)
    assert model.predict_topk(X, 5).labels.shape == (len(X), 1)


@pytest.mark.parametrize("noise", ["tree", "uniform", "frequency"])
def test_a_handful_of_rows_is_enough(noise: str) -> None:
    model = small(noise=noise).fit(X[:3], ["a", "b", "c"])
    assert model.predict(X[:3]).shape == (3,)
    one = small(noise=noise).fit(X[:1], ["a"])
    assert one.predict(X[:1]).tolist() == ["a"]


def test_unfitted_models_say_so(tmp_path: Path) -> None:
    model = small()
    for call in (
        lambda: model.predict(X),
        lambda: model.predict_topk(X),
        lambda: model.predict_proba(X),
        lambda: model.evaluate(X, Y),
        lambda: model.save(tmp_path / "model"),
    ):
        with pytest.raises(ValueError, match="not fitted yet"):
            call()
    assert not (tmp_path / "model").exists()
