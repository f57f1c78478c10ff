"""What the encoder makes of arrays, sparse matrices and texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.feature_extraction.text import HashingVectorizer

from extremax.errors import ArgumentError, ModelFileError
from extremax.features import Encoder
from extremax.rows import DenseRows, Rows, SparseRows
from extremax.rows.base import LARGEST
from extremax.tensors import Tensors

X = np.random.default_rng(0).standard_normal((60, 7)).astype(np.float32)
ROWS = sparse.random(400, 90, density=0.08, format="csr", random_state=0, dtype=np.float32)
TEXTS = [" ".join(f"w{j}" for j in row.indices) for row in ROWS]
every_input = pytest.mark.parametrize("given", [X, ROWS, TEXTS], ids=["dense", "sparse", "text"])


def dense(rows: Rows) -> np.ndarray:
    """The array of dense rows; fails for sparse ones."""
    return rows.dense().array


def as_array(rows: Rows) -> np.ndarray:
    return rows.sparse().matrix.toarray() if isinstance(rows, SparseRows) else dense(rows)


def strided(array: np.ndarray) -> np.ndarray:
    wide = np.zeros((len(array), 2 * array.shape[1]), array.dtype)
    wide[:, ::2] = array
    return wide[:, ::2]


@pytest.mark.parametrize(
    "array",
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
@pytest.mark.parametrize("n_components", [None, 3])
def test_dense_arrays_are_not_copied_or_projected(
    array: np.ndarray, n_components: int | None
) -> None:
    encoder = Encoder(n_components)
    assert encoder.rows_class(array) is DenseRows
    assert dense(encoder.fit_transform(array)) is array
    assert dense(encoder.transform(array)) is array
    assert encoder.input_kind == "dense"
    assert encoder.n_features_in_ == encoder.n_features_out == array.shape[1]


def test_tensors_are_not_copied() -> None:
    tensor = torch.from_numpy(X.copy())
    assert np.shares_memory(dense(Encoder().fit_transform(tensor)), tensor.numpy())
    half = dense(Encoder().fit_transform(tensor.to(torch.bfloat16)))
    np.testing.assert_allclose(half, X, rtol=2**-7)


def test_lists_become_arrays() -> None:
    assert np.array_equal(dense(Encoder().fit_transform([[1, 2], [3, 4]])), [[1, 2], [3, 4]])


def test_sparse_rows_stay_sparse_without_a_projection() -> None:
    encoder = Encoder()
    assert encoder.rows_class(ROWS) is SparseRows
    for rows in (encoder.fit_transform(ROWS), encoder.transform(ROWS)):
        assert isinstance(rows, SparseRows)
        assert (rows.matrix != ROWS).nnz == 0
    assert encoder.input_kind == "sparse"
    assert encoder.n_features_in_ == encoder.n_features_out == 90


def test_a_projection_of_full_rank_keeps_inner_products() -> None:
    # With as many components as columns the projection is a rotation.
    encoder = Encoder(n_components=90)
    assert encoder.rows_class(ROWS) is DenseRows
    rows = dense(encoder.fit_transform(ROWS))
    assert rows.dtype == np.float32
    assert encoder.input_kind == "sparse"
    np.testing.assert_allclose(rows @ rows.T, (ROWS @ ROWS.T).toarray(), atol=1e-4)
    assert np.array_equal(dense(encoder.transform(ROWS)), rows)


@pytest.mark.parametrize("n_components", [5, 30])
def test_a_projection_keeps_nearly_as_much_as_the_best_of_its_rank(n_components: int) -> None:
    encoder = Encoder(n_components=n_components)
    rows = dense(encoder.fit_transform(ROWS))
    assert rows.shape == (400, n_components)
    assert (encoder.n_features_in_, encoder.n_features_out) == (90, n_components)
    singular = np.linalg.svd(ROWS.toarray(), compute_uv=False)
    best = np.square(singular[:n_components]).sum()
    assert np.square(rows).sum() > 0.97 * best


def test_a_projection_over_the_budget_goes_to_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extremax.features.encoder._PROJECT_ROWS", 64)
    in_memory = dense(Encoder(n_components=8).fit_transform(ROWS, budget=4 * 400 * 8))
    on_disk = dense(Encoder(n_components=8).fit_transform(ROWS, budget=4 * 400 * 8 - 1))
    assert isinstance(on_disk, np.memmap)
    assert not isinstance(in_memory, np.memmap)
    assert np.array_equal(in_memory, on_disk)


def test_texts_are_hashed_to_sparse_rows() -> None:
    encoder = Encoder(buckets=2**12)
    assert encoder.rows_class(TEXTS) is SparseRows
    rows = encoder.fit_transform(TEXTS)
    assert isinstance(rows, SparseRows)
    assert encoder.input_kind == "text"
    # One column per bucket with words; 2^12 buckets are enough for all of these words.
    vectorizer = HashingVectorizer(n_features=2**12, alternate_sign=False)
    filled = np.unique(vectorizer.transform(TEXTS).indices)
    assert encoder.n_features_in_ == encoder.n_features_out == len(filled) < 2**12
    assert (encoder.transform(TEXTS[3:5]).sparse().matrix != rows[3:5].matrix).nnz == 0


def test_texts_are_hashed_then_projected() -> None:
    encoder = Encoder(n_components=90, buckets=2**12)
    assert encoder.rows_class(TEXTS) is DenseRows
    rows = dense(encoder.fit_transform(TEXTS))
    assert encoder.input_kind == "text"
    lengths = np.linalg.norm(rows, axis=1)
    words = np.array([bool(text) for text in TEXTS])
    np.testing.assert_allclose(lengths[words], 1.0, atol=1e-3)
    assert np.array_equal(dense(encoder.transform(TEXTS)), rows)
    assert np.array_equal(dense(encoder.transform(TEXTS[3:5])), rows[3:5])


def test_the_settings_for_texts_are_used() -> None:
    swapped = ["dog bites man", "man bites dog"] * 5
    plain = dense(Encoder(8).fit_transform(swapped))
    pairs = dense(Encoder(8, ngrams=(1, 2)).fit_transform(swapped))
    assert np.allclose(plain[0], plain[1], atol=1e-5)
    assert not np.allclose(pairs[0], pairs[1], atol=0.1)
    inflected = ["walking", "walked"] * 5
    parts = dense(Encoder(8, analyzer="char_wb", ngrams=(3, 3)).fit_transform(inflected))
    assert parts[0] @ parts[1] > 0.1


@every_input
@pytest.mark.parametrize("n_components", [None, 6])
def test_state_restores_an_equal_encoder(given: Any, n_components: int | None) -> None:
    encoder = Encoder(n_components)
    expected = encoder.fit_transform(given)
    copy = clone(encoder)
    copy.validate(Tensors(encoder.state(), "encoder"))
    copy.load_state(encoder.state())
    assert copy.input_kind == encoder.input_kind
    assert copy.n_features_in_ == encoder.n_features_in_
    assert copy.n_features_out == encoder.n_features_out == expected.n_features
    rows = copy.transform(given)
    assert type(rows) is type(expected)
    assert np.array_equal(as_array(rows), as_array(expected))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", torch.tensor(0)),
        ("kind", torch.tensor(2)),
        ("n_features", torch.tensor(0)),
        ("buckets_used", torch.arange(90).flip(0)),
        ("buckets_used", torch.arange(90) + 2**40),
        ("idf", torch.full((90,), torch.nan)),
        ("components", torch.zeros(3, 3)),
        ("unknown", torch.zeros(1)),
    ],
)
def test_a_damaged_state_is_refused(name: str, value: torch.Tensor) -> None:
    encoder = Encoder(6)
    encoder.fit_transform(TEXTS)
    with pytest.raises(ModelFileError):
        encoder.validate(Tensors(encoder.state() | {name: value}, "encoder"))


def test_the_projection_depends_on_the_seed() -> None:
    same, again, other = (dense(Encoder(5).fit_transform(ROWS, seed=seed)) for seed in (0, 0, 1))
    assert np.array_equal(same, again)
    assert not np.array_equal(same, other)


@pytest.mark.parametrize("row", [0, 31, 59])
@pytest.mark.parametrize("column", [0, 6])
@pytest.mark.parametrize(
    "make", [np.asarray, np.asfortranarray, sparse.csr_matrix, sparse.csc_array]
)
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_non_finite_values_are_refused_with_their_position(
    row: int, column: int, make: Any, value: float
) -> None:
    bad = X.astype(np.float64)
    bad[row, column] = value
    what = "NaN" if np.isnan(value) else "infinity or a value too large for float32"
    with pytest.raises(ValueError, match=f"contains {what} in row {row}, column {column};"):
        Encoder(3).fit_transform(make(bad))


def test_the_largest_value_that_models_can_bear_is_accepted() -> None:
    edge = np.full((50, 4), np.float32(LARGEST))
    assert dense(Encoder().fit_transform(edge)) is edge
    for huge in (1.01 * edge, -edge.astype(np.float64) * 1e20):
        for given in (huge, sparse.csr_matrix(huge)):
            with pytest.raises(ArgumentError, match=r"beyond ±1e\+15, in row 0, column 0"):
                Encoder().fit_transform(given)
            encoder = Encoder()
            encoder.fit_transform(np.sign(given) if given is huge else given.sign())
            with pytest.raises(
                ArgumentError, match="in row 0, column 0; remove, impute or rescale"
            ):
                encoder.transform(given)


@pytest.mark.parametrize("n_components", [None, 3])
@pytest.mark.parametrize("given", [X, ROWS], ids=["dense", "sparse"])
def test_other_widths_are_refused(given: Any, n_components: int | None) -> None:
    encoder = Encoder(n_components)
    encoder.fit_transform(given)
    width = given.shape[1]
    for other in (np.ones((2, width + 1)), sparse.csr_matrix((2, width - 1))):
        with pytest.raises(ValueError, match=f"expecting {width} features"):
            encoder.transform(other)


def test_texts_and_numbers_do_not_mix() -> None:
    texts, sparse_rows, dense_rows = Encoder(6), Encoder(6), Encoder()
    texts.fit_transform(TEXTS)
    sparse_rows.fit_transform(ROWS)
    dense_rows.fit_transform(X)
    with pytest.raises(ValueError, match="trained on texts"):
        texts.transform(ROWS)
    for encoder in (sparse_rows, dense_rows):
        with pytest.raises(ValueError, match="not trained on texts"):
            encoder.transform(TEXTS)


def test_sparse_and_dense_numbers_do() -> None:
    projected, kept, plain = Encoder(6), Encoder(), Encoder()
    for encoder, given in ((projected, ROWS), (kept, ROWS), (plain, X)):
        encoder.fit_transform(given)
    np.testing.assert_allclose(
        dense(projected.transform(ROWS.toarray())), dense(projected.transform(ROWS)), atol=1e-5
    )
    assert (kept.transform(ROWS.toarray()).sparse().matrix != ROWS).nnz == 0
    assert np.array_equal(dense(plain.transform(sparse.csr_matrix(X))), X)


def test_the_input_is_never_changed() -> None:
    copies = X.copy(), ROWS.copy()
    for given in (X, ROWS):
        for encoder in (Encoder(), Encoder(4)):
            encoder.fit_transform(given)
            encoder.transform(given)
    assert np.array_equal(X, copies[0])
    assert (copies[1] != ROWS).nnz == 0


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("buckets", (-1, 0, 1.5, True, None, "x", 2**31)),
        ("ngrams", ((2, 1), (0, 1), (1, 1.5), (1,), 1, None, "ab")),
        ("n_components", (-1, 0, 1.5, True, "x", float("nan"))),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(ArgumentError, match=f"{name} must be "):
            Encoder(**{name: value}).fit_transform(TEXTS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "X has no rows"),
        ("one text", r"X is one string; pass a list of strings"),
        (ROWS, "X is csr_"),
    ],
)
def test_what_is_no_text_is_refused_in_its_own_words(given: object, message: str) -> None:
    encoder = Encoder()
    encoder.fit_transform(TEXTS)
    with pytest.raises(ValueError, match=f"was trained on texts, and {message}"):
        encoder.transform(given)


def test_a_table_is_asked_for_its_column_of_texts() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"title": TEXTS, "length": range(len(TEXTS))})
    encoder = Encoder()
    encoder.fit_transform(TEXTS)
    with pytest.raises(ValueError, match="pass the one with the texts, of 'title', 'length'"):
        encoder.transform(table)
    with pytest.raises(ValueError, match="X has text in column 'title'; pass that column alone"):
        Encoder().fit_transform(table)


def test_words_that_training_never_saw_count_for_nothing() -> None:
    encoder = Encoder()
    encoder.fit_transform([f"word{i}" for i in range(20_000)])
    unknown = encoder.transform([f"other{i}" for i in range(1000)]).sparse().matrix
    # 20,000 words in 2²⁴ buckets: one in 800 others is taken for one of them.
    assert np.diff(unknown.indptr).sum() <= 8
