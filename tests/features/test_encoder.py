"""Whatever comes in, dense rows come out: the same ones, checked, and copied only if needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.feature_extraction.text import HashingVectorizer

from extremax.features import Encoder

X = np.random.default_rng(0).standard_normal((60, 7)).astype(np.float32)
ROWS = sparse.random(400, 90, density=0.08, format="csr", random_state=0, dtype=np.float32)
TEXTS = [" ".join(f"w{j}" for j in row.indices) for row in ROWS]


def strided(array: np.ndarray) -> np.ndarray:
    wide = np.zeros((len(array), 2 * array.shape[1]), array.dtype)
    wide[:, ::2] = array
    return wide[:, ::2]


@pytest.mark.parametrize(
    "dense",
    [
        X,
        X.astype(np.float64),
        X.astype(np.float16),
        (X * 9).astype(np.int32),
        (X > 0),
        np.asfortranarray(X),
        strided(X),
        X[::-2],
    ],
)
def test_dense_arrays_pass_as_they_are(dense: np.ndarray) -> None:
    encoder = Encoder()
    assert encoder.fit_transform(dense) is dense
    assert encoder.transform(dense) is dense
    assert encoder.kind_ == "dense"
    assert encoder.n_features_in_ == dense.shape[1]


def test_a_tensor_is_seen_not_copied() -> None:
    tensor = torch.from_numpy(X.copy())
    seen = Encoder().fit_transform(tensor)
    assert np.shares_memory(seen, tensor.numpy())
    half = Encoder().fit_transform(tensor.to(torch.bfloat16))
    np.testing.assert_allclose(half, X, rtol=2**-7)


def test_lists_become_arrays() -> None:
    assert np.array_equal(Encoder().fit_transform([[1, 2], [3, 4]]), [[1, 2], [3, 4]])


def test_sparse_rows_keep_their_inner_products() -> None:
    # With as many dimensions as columns the projection is a rotation.
    encoder = Encoder(n_components=90)
    dense = encoder.fit_transform(ROWS)
    assert dense.dtype == np.float32
    assert encoder.kind_ == "sparse"
    np.testing.assert_allclose(dense @ dense.T, (ROWS @ ROWS.T).toarray(), atol=1e-4)
    assert np.array_equal(encoder.transform(ROWS), dense)


@pytest.mark.parametrize("n_components", [5, 30])
def test_few_dimensions_keep_as_much_as_any_could(n_components: int) -> None:
    dense = Encoder(n_components=n_components).fit_transform(ROWS)
    assert dense.shape == (400, n_components)
    singular = np.linalg.svd(ROWS.toarray(), compute_uv=False)
    best = np.square(singular[:n_components]).sum()
    assert np.square(dense).sum() > 0.97 * best


def test_over_the_budget_the_rows_wait_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extremax.features.encoder._PROJECT_ROWS", 64)
    in_memory = Encoder(n_components=8).fit_transform(ROWS, budget=4 * 400 * 8)
    on_disk = Encoder(n_components=8).fit_transform(ROWS, budget=4 * 400 * 8 - 1)
    assert isinstance(on_disk, np.memmap)
    assert not isinstance(in_memory, np.memmap)
    assert np.array_equal(in_memory, on_disk)


def test_texts_are_hashed_then_projected() -> None:
    encoder = Encoder(n_components=90, buckets=2**12)
    dense = encoder.fit_transform(TEXTS)
    assert encoder.kind_ == "text"
    # As wide as the buckets that have words in them: 2^12 is room for all of these words.
    vectorizer = HashingVectorizer(n_features=2**12, alternate_sign=False)
    filled = np.unique(vectorizer.transform(TEXTS).indices)
    assert encoder.n_features_in_ == len(filled) < 2**12
    lengths = np.linalg.norm(dense, axis=1)
    words = np.array([bool(text) for text in TEXTS])
    np.testing.assert_allclose(lengths[words], 1.0, atol=1e-3)
    assert np.array_equal(encoder.transform(TEXTS), dense)
    assert np.array_equal(encoder.transform(TEXTS[3:5]), dense[3:5])


def test_the_settings_for_texts_are_used() -> None:
    swapped = ["dog bites man", "man bites dog"] * 5
    plain, pairs = (
        Encoder(8).fit_transform(swapped),
        Encoder(8, ngrams=(1, 2)).fit_transform(swapped),
    )
    assert np.allclose(plain[0], plain[1], atol=1e-5)
    assert not np.allclose(pairs[0], pairs[1], atol=0.1)
    parts = Encoder(8, analyzer="char_wb", ngrams=(3, 3)).fit_transform(["walking", "walked"] * 5)
    assert parts[0] @ parts[1] > 0.1


@pytest.mark.parametrize("given", [X, ROWS, TEXTS], ids=["dense", "sparse", "text"])
def test_state_carries_over_to_an_equal_encoder(given: Any) -> None:
    encoder = Encoder(n_components=6)
    expected = encoder.fit_transform(given)
    copy = clone(encoder)
    copy.load_state(encoder.state())
    assert copy.kind_ == encoder.kind_
    assert copy.n_features_in_ == encoder.n_features_in_
    assert np.array_equal(copy.transform(given), expected)


def test_the_seed_of_the_projection() -> None:
    same, again, other = (Encoder(5).fit_transform(ROWS, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(same, again)
    assert not np.array_equal(same, other)


@pytest.mark.parametrize("row", [0, 31, 59])
@pytest.mark.parametrize("column", [0, 6])
@pytest.mark.parametrize(
    "make", [np.asarray, np.asfortranarray, sparse.csr_matrix, sparse.csc_array]
)
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_what_is_not_finite_is_refused_with_its_place(
    row: int, column: int, make: Any, value: float
) -> None:
    bad = X.astype(np.float64)
    bad[row, column] = value
    what = "NaN" if np.isnan(value) else "infinity or a value too large for float32"
    with pytest.raises(ValueError, match=f"contains {what} in row {row}, column {column};"):
        Encoder(3).fit_transform(make(bad))


def test_numbers_at_the_edge_of_float32_are_fine() -> None:
    edge = np.full((50, 4), np.finfo(np.float32).max)
    assert Encoder().fit_transform(edge) is edge


@pytest.mark.parametrize("given", [X, ROWS], ids=["dense", "sparse"])
def test_other_widths_are_refused(given: Any) -> None:
    encoder = Encoder(3)
    encoder.fit_transform(given)
    width = given.shape[1]
    for other in (np.ones((2, width + 1)), sparse.csr_matrix((2, width - 1))):
        with pytest.raises(ValueError, match=f"expecting {width} features"):
            encoder.transform(other)


def test_a_model_keeps_to_the_kind_it_was_trained_on() -> None:
    texts, sparse_rows, dense = Encoder(6), Encoder(6), Encoder()
    texts.fit_transform(TEXTS)
    sparse_rows.fit_transform(ROWS)
    dense.fit_transform(X)
    with pytest.raises(ValueError, match="trained on texts"):
        texts.transform(ROWS)
    for encoder in (sparse_rows, dense):
        with pytest.raises(ValueError, match="not trained on texts"):
            encoder.transform(TEXTS)
    # Between sparse and dense only the storage differs.
    np.testing.assert_allclose(
        sparse_rows.transform(ROWS.toarray()), sparse_rows.transform(ROWS), atol=1e-5
    )
    assert np.array_equal(dense.transform(sparse.csr_matrix(X)), X)


def test_the_input_is_never_changed() -> None:
    copies = X.copy(), ROWS.copy()
    for given in (X, ROWS):
        encoder = Encoder(4)
        encoder.fit_transform(given)
        encoder.transform(given)
    assert np.array_equal(X, copies[0])
    assert (copies[1] != ROWS).nnz == 0
