"""Bigram noise: class frequencies in a context, backed off to those of all rows."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
import torch
from scipy import stats

from extremax.noise import BigramNoise, FrequencyNoise
from extremax.random import Stream

N_CLASSES = 6
# (context, class): 7 saw class 1 three times and class 4 once, 9 saw class 2 twice.
ROWS = np.array([[7, 1], [7, 1], [9, 2], [7, 4], [7, 1], [9, 2]])


def fit(noise: BigramNoise, rows: np.ndarray = ROWS, n_classes: int = N_CLASSES) -> BigramNoise:
    return noise.fit(rows[:, :1].astype(np.float32), rows[:, 1], n_classes)


def q(noise: BigramNoise, context: float) -> np.ndarray:
    found = noise.log_prob_all(noise.context(np.array([[context]], np.float32)))
    return found[0].double().exp().numpy()


def unigram(rows: np.ndarray = ROWS, n_classes: int = N_CLASSES) -> np.ndarray:
    counts = np.maximum(np.bincount(rows[:, 1], minlength=n_classes), 1)
    return counts / counts.sum()


def many_rows(n: int = 4000) -> np.ndarray:
    """Twenty contexts, each fond of a few of fifty classes."""
    rng = np.random.default_rng(1)
    contexts = rng.integers(0, 20, n)
    return np.stack([contexts, (3 * contexts + rng.geometric(0.3, n)) % 50], 1)


@pytest.mark.parametrize("backoff", [0.01, 1.0, 5.0, 1e6])
def test_q_is_the_counts_plus_beta_of_the_unigram(backoff: float) -> None:
    noise, base = fit(BigramNoise(backoff=backoff)), unigram()
    for context, counts in ((7, [0, 3, 0, 0, 1, 0]), (9, [0, 0, 2, 0, 0, 0])):
        expected = (np.array(counts) + backoff * base) / (sum(counts) + backoff)
        np.testing.assert_allclose(q(noise, context), expected, rtol=1e-5)


@pytest.mark.parametrize("context", [-1, 0, 8, 10, 1e9])
def test_a_context_never_seen_has_the_unigram(context: float) -> None:
    np.testing.assert_allclose(q(fit(BigramNoise()), context), unigram(), rtol=1e-6)


def test_numbers_are_rounded_down_to_contexts() -> None:
    noise = fit(BigramNoise(backoff=2.0))
    for same in (7.0, 7.25, 7.99):
        assert np.array_equal(q(noise, same), q(noise, 7.0))
    assert np.array_equal(q(noise, 6.99), q(noise, 0.0))
    below = np.array([[-0.5, 0], [-1.0, 0], [0.0, 1]])
    noise = BigramNoise(backoff=1.0).fit(below[:, :1], below[:, 1].astype(int), 2)
    assert noise.contexts_.tolist() == [-1, 0]


@pytest.mark.parametrize("column", [2, -1])
def test_the_context_is_in_the_column_named(column: int) -> None:
    features = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    features[:, 2] = ROWS[:, 0]
    noise = BigramNoise(column, backoff=1.0).fit(features, ROWS[:, 1], N_CLASSES)
    plain = fit(BigramNoise(backoff=1.0))
    assert torch.equal(
        noise.log_prob_all(noise.context(features)),
        plain.log_prob_all(plain.context(features[:, 2:])),
    )


@pytest.mark.parametrize("column", [1, -2])
def test_a_column_that_is_not_there_is_refused(column: int) -> None:
    with pytest.raises(ValueError, match=f"column={column} .* 1 column"):
        fit(BigramNoise(column))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1e30])
def test_contexts_must_be_finite_numbers(bad: float) -> None:
    features = np.array([[1.0], [bad]], np.float32)
    with pytest.raises(ValueError, match=r"row 1,? .*column 0"):
        BigramNoise().fit(features, np.array([0, 1]), 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("column", 0.5),
        ("backoff", 0.0),
        ("backoff", -1.0),
        ("backoff", math.inf),
        ("backoff", "much"),
        ("max_pairs", 0),
        ("max_pairs", 2.5),
        ("max_pairs", "a"),
    ],
)
def test_bad_parameters_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        fit(BigramNoise(**{name: value}))


@pytest.mark.parametrize("context", [7.0, 9.0, 3.0])
@pytest.mark.parametrize("late", [0, 3])
def test_draws_follow_q(context: float, late: int) -> None:
    noise = fit(BigramNoise(backoff=2.0))
    noise.extend(N_CLASSES + late)
    same = noise.context(np.full((8000, 1), context, np.float32))
    drawn = noise.sample(same, 4, Stream.of(3, rows=np.arange(8000))).labels.numpy()
    observed = np.bincount(drawn.ravel(), minlength=N_CLASSES + late)
    p = q(noise, context)
    assert p.sum() == pytest.approx(1.0, abs=1e-6)
    assert stats.chisquare(observed, 32_000 * p / p.sum()).pvalue > 1e-4


def test_late_classes_count_as_a_row_each_beside_what_is_known() -> None:
    noise = fit(BigramNoise(backoff=2.0))
    before = {context: q(noise, context) for context in (7.0, 9.0, 3.0)}
    noise.extend(N_CLASSES + 2)
    # Six rows, and one for each of three classes without any.
    for context, old in before.items():
        np.testing.assert_allclose(q(noise, context)[N_CLASSES:], 1 / 11, rtol=1e-5)
        np.testing.assert_allclose(q(noise, context)[:N_CLASSES], old * 9 / 11, rtol=1e-5)
    # As the unigram has it.
    plain = FrequencyNoise().fit(np.empty((6, 0)), ROWS[:, 1], N_CLASSES)
    plain.extend(N_CLASSES + 2)
    torch.testing.assert_close(
        torch.from_numpy(q(noise, 3.0)).float(), plain.log_q_.exp(), rtol=1e-5, atol=0
    )


def test_auto_finds_the_backoff_that_leaving_one_out_likes_best() -> None:
    rows = many_rows(600)
    chosen = fit(BigramNoise(), rows, 50).backoff_

    def left_out(backoff: float) -> float:
        # The unigram stays that of all rows.
        base, total = unigram(rows, 50), 0.0
        for i, (context, label) in enumerate(rows):
            others = np.delete(rows, i, 0)
            others = others[others[:, 0] == context, 1]
            p = ((others == label).sum() + backoff * base[label]) / (len(others) + backoff)
            total += math.log(p)
        return total

    assert left_out(chosen) >= max(left_out(chosen / 2), left_out(chosen * 2))


def test_auto_backs_off_where_contexts_say_nothing() -> None:
    rng = np.random.default_rng(0)
    labels = rng.zipf(1.4, 5000) % 50
    useless = np.stack([rng.integers(0, 500, 5000), labels], 1)
    telling = np.stack([labels // 5, labels], 1)
    assert fit(BigramNoise(), useless, 50).backoff_ > 100 * fit(BigramNoise(), telling, 50).backoff_


def test_it_knows_more_of_unseen_rows_than_the_unigram() -> None:
    rows = many_rows()
    noise = fit(BigramNoise(), rows[:3000], 50)
    context = noise.context(rows[3000:, :1].astype(np.float32))
    own = noise.log_prob(context, torch.from_numpy(rows[3000:, 1:]))
    base = np.log(unigram(rows[:3000], 50)[rows[3000:, 1]])
    assert float(own.mean()) > base.mean() + 0.5


def test_a_cap_keeps_the_most_frequent_pairs_and_says_so() -> None:
    with pytest.warns(UserWarning, match=r"keeps 2 of 3 pairs .* 83\.3% of the rows"):
        noise = fit(BigramNoise(backoff=2.0, max_pairs=2))
    base = unigram()
    # The row of (7, 4) is given to the unigram.
    expected = (np.array([0, 3, 0, 0, 0, 0]) + (1 + 2.0) * base) / (4 + 2.0)
    np.testing.assert_allclose(q(noise, 7.0), expected, rtol=1e-5)
    expected = (np.array([0, 0, 2, 0, 0, 0]) + 2.0 * base) / (2 + 2.0)
    np.testing.assert_allclose(q(noise, 9.0), expected, rtol=1e-5)
    with pytest.warns(UserWarning, match="keeps 1 of 3"):
        noise = fit(BigramNoise(backoff=2.0, max_pairs=1))
    assert noise.contexts_.tolist() == [7]
    np.testing.assert_allclose(q(noise, 9.0), base, rtol=1e-6)


def test_a_cap_bounds_what_is_stored() -> None:
    rows = many_rows()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = fit(BigramNoise(), rows, 50)
    with pytest.warns(UserWarning, match="max_pairs"):
        small = fit(BigramNoise(max_pairs=40), rows, 50)
    assert len(whole.state()["classes"]) > 40
    assert all(len(small.state()[k]) <= 41 for k in ("classes", "counts", "contexts", "offsets"))
    # How much to back off is a question of all pairs.
    assert small.backoff_ == whole.backoff_
    restored = BigramNoise(**json.loads(json.dumps(small.settings())))
    restored.load_state(small.state())
    assert np.array_equal(q(restored, 3.0), q(small, 3.0))


def test_without_rows_q_is_uniform() -> None:
    noise = BigramNoise().fit(np.empty((0, 1)), np.zeros(0, np.int64), 4)
    np.testing.assert_allclose(q(noise, 0.0), 0.25, rtol=1e-6)
    drawn = noise.sample(
        noise.context(np.zeros((50, 1))), 4, Stream.of(0, rows=np.arange(50))
    ).labels
    assert drawn.unique().tolist() == [0, 1, 2, 3]
