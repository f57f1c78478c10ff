"""What every noise promises. A new one is tested by its line in ``NOISES``."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone

from extremax.data.synthetic import clustered
from extremax.files import read_tensors, write_tensors
from extremax.kernels.cpu.threads import limit
from extremax.noise import NOISES, Noise
from extremax.random import Stream

N_CLASSES, N_EMPTY = 40, 5
close = {"rtol": 1e-5, "atol": 2e-5}


@pytest.fixture(scope="module")
def problem() -> tuple[np.ndarray, np.ndarray]:
    """Clustered rows; the last classes have no example."""
    return clustered(1500, N_CLASSES - N_EMPTY, 8, seed=6, noise=0.3)


@pytest.fixture(params=sorted(NOISES))
def noise(request: pytest.FixtureRequest, problem: tuple[np.ndarray, np.ndarray]) -> Noise:
    return NOISES[request.param]().fit(*problem, N_CLASSES)


@pytest.fixture
def context(noise: Noise, problem: tuple[np.ndarray, np.ndarray]) -> torch.Tensor:
    return noise.context(problem[0][:60])


def every_class(n: int, noise: Noise) -> torch.Tensor:
    return torch.arange(noise.n_classes_).repeat(n, 1)


def all_rows(noise: Noise, context: torch.Tensor) -> torch.Tensor:
    """log q of every class, with a row an example also where q does not depend on it."""
    return noise.log_prob_all(context).expand(len(context), -1)


def chi_square(labels: torch.Tensor, probabilities: torch.Tensor) -> float:
    """p-value of the draws under the probabilities; classes expected under 10 times are one."""
    observed = np.bincount(labels.ravel(), minlength=len(probabilities))
    expected = probabilities.double().numpy() * labels.numel()
    rare = expected < 10
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


def assert_consistent(noise: Noise, context: torch.Tensor) -> None:
    """q sums to one and is above zero; sample, log_prob and log_prob_all say the same."""
    log_q = all_rows(noise, context)
    assert log_q.shape == (len(context), noise.n_classes_)
    assert log_q.dtype == torch.float32
    assert log_q.isfinite().all()
    ones = torch.ones(len(context), dtype=torch.float64)
    torch.testing.assert_close(log_q.double().exp().sum(1), ones, rtol=0, atol=5e-5)
    each = noise.log_prob(context, every_class(len(context), noise))
    torch.testing.assert_close(each, log_q, **close)
    draw = noise.sample(context, 7, Stream.of(0, rows=np.arange(len(context))))
    assert draw.labels.shape == draw.log_q.shape == (len(context), 7)
    assert draw.labels.dtype == torch.int64
    torch.testing.assert_close(draw.log_q, log_q.gather(1, draw.labels), **close)


def assert_same(one: Noise, other: Noise, features: np.ndarray) -> None:
    context = one.context(features)
    assert torch.equal(context, other.context(features))
    assert one.n_classes_ == other.n_classes_
    assert torch.equal(one.log_prob_all(context), other.log_prob_all(context))
    stream = Stream.of(1, rows=np.arange(len(features)))
    for a, b in zip(one.sample(context, 5, stream), other.sample(context, 5, stream), strict=True):
        assert torch.equal(a, b)


def test_it_is_a_distribution_over_all_classes(noise: Noise, context: torch.Tensor) -> None:
    assert noise.n_classes_ == N_CLASSES
    assert len(context) == 60
    assert_consistent(noise, context)


@pytest.mark.parametrize("extended", [False, True])
def test_draws_follow_log_prob(noise: Noise, context: torch.Tensor, extended: bool) -> None:
    if extended:
        noise.extend(N_CLASSES + 8)
    log_q = all_rows(noise, context)
    for row in (0, 31):
        same = context[row].expand(4000, -1).contiguous()
        drawn = noise.sample(same, 4, Stream.of(row, 2, rows=np.arange(4000))).labels
        assert chi_square(drawn, log_q[row].exp()) > 1e-4


def test_the_draws_of_a_row_are_independent(noise: Noise, context: torch.Tensor) -> None:
    same = context[3].expand(8000, -1).contiguous()
    drawn = noise.sample(same, 3, Stream.of(5, rows=np.arange(8000))).labels
    # Fold classes into four groups of about equal probability, so that every cell is full.
    order = all_rows(noise, context)[3].argsort()
    mass = all_rows(noise, context)[3][order].exp().cumsum(0)
    group = torch.empty(N_CLASSES, dtype=torch.int64)
    group[order] = (mass * 4).long().clamp(max=3)
    for a, b in ((0, 1), (1, 2), (0, 2)):
        pairs = group[drawn[:, a]] * 4 + group[drawn[:, b]]
        table = np.bincount(pairs, minlength=16).reshape(4, 4)
        table = table[table.sum(1) > 0][:, table.sum(0) > 0]
        assert min(table.shape) > 1
        assert stats.chi2_contingency(table).pvalue > 1e-4


def test_a_row_draws_the_same_in_any_company(noise: Noise, context: torch.Tensor) -> None:
    rows = np.arange(60) * 17
    whole = noise.sample(context, 3, Stream.of(8, rows=rows))
    part = np.random.default_rng(0).permutation(60)[:13]
    alone = noise.sample(context[part], 3, Stream.of(8, rows=rows[part]))
    assert torch.equal(alone.labels, whole.labels[part])
    assert torch.equal(alone.log_q, whole.log_q[part])
    other = noise.sample(context, 3, Stream.of(9, rows=rows))
    assert not torch.equal(other.labels, whole.labels)


def test_the_context_of_a_row_does_not_depend_on_the_others(
    noise: Noise, problem: tuple[np.ndarray, np.ndarray]
) -> None:
    features = problem[0]
    whole = noise.context(features)
    assert torch.equal(noise.context(features[100:117]), whole[100:117])
    assert torch.equal(noise.context(features[5:6].astype(np.float64)), whole[5:6])


def test_bits_do_not_depend_on_threads(
    noise: Noise, problem: tuple[np.ndarray, np.ndarray]
) -> None:
    for n_threads in (1, 2, 3):
        with limit(n_threads):
            assert_same(noise, clone(noise).fit(*problem, N_CLASSES), problem[0])


@pytest.mark.parametrize("extended", [False, True])
def test_state_and_settings_restore_it(
    noise: Noise, problem: tuple[np.ndarray, np.ndarray], tmp_path: Path, extended: bool
) -> None:
    if extended:
        noise.extend(N_CLASSES + 3)
    write_tensors(tmp_path / "noise", noise.state(), {"settings": json.dumps(noise.settings())})
    tensors, meta = read_tensors(tmp_path / "noise")
    restored = type(noise)(**json.loads(meta["settings"]))
    restored.load_state(tensors)
    assert_same(noise, restored, problem[0][:200])
    restored.extend(N_CLASSES + 9)
    assert_consistent(restored, restored.context(problem[0][:20]))


def test_late_classes_are_added_beside_what_it_knows(noise: Noise, context: torch.Tensor) -> None:
    before = all_rows(noise, context)
    noise.extend(N_CLASSES + 10)
    assert_consistent(noise, context)
    after = all_rows(noise, context)
    # Among the old classes the proportions are as they were.
    again = after[:, :N_CLASSES].log_softmax(1)
    torch.testing.assert_close(again, before.log_softmax(1), **close)
    many = context[:1].expand(4000, -1).contiguous()
    drawn = noise.sample(many, 5, Stream.of(3, rows=np.arange(4000))).labels
    assert set(range(N_CLASSES, N_CLASSES + 10)) <= set(drawn.unique().tolist())


def test_only_the_rows_given_count(noise: Noise, problem: tuple[np.ndarray, np.ndarray]) -> None:
    features, labels = problem
    rows, other = np.arange(0, 1500, 2), labels.copy()
    other[1::2] = 0
    one = clone(noise).fit(features, labels, N_CLASSES, rows=rows)
    two = clone(noise).fit(features, other, N_CLASSES, rows=rows)
    assert_same(one, two, features[:100])


@pytest.mark.parametrize("bad", [-1, N_CLASSES])
def test_labels_out_of_range_are_refused(noise: Noise, bad: int) -> None:
    labels = np.array([3, 1, bad, 0])
    with pytest.raises(ValueError, match=rf"label {bad} in row 2"):
        clone(noise).fit(np.zeros((4, 2), np.float32), labels, N_CLASSES)


def test_labels_that_are_no_integers_are_refused(noise: Noise) -> None:
    with pytest.raises(ValueError, match="integers"):
        clone(noise).fit(np.zeros((2, 2), np.float32), np.array([0.0, 1.5]), N_CLASSES)


def test_no_classes_are_refused(noise: Noise) -> None:
    with pytest.raises(ValueError, match="n_classes"):
        clone(noise).fit(np.zeros((0, 2), np.float32), np.zeros(0, np.int64), 0)


def test_parameters_are_those_of_scikit_learn(noise: Noise) -> None:
    copy = clone(noise)
    assert copy.get_params() == noise.get_params()
    assert not hasattr(copy, "n_classes_")
    assert noise.settings() == noise.get_params(deep=False)


def test_one_class_is_certain(noise: Noise) -> None:
    features = np.random.default_rng(0).standard_normal((9, 4), dtype=np.float32)
    one = clone(noise).fit(features, np.zeros(9, np.int64), 1)
    context = one.context(features)
    assert_consistent(one, context)
    assert math.isclose(float(one.log_prob_all(context).abs().max()), 0.0, abs_tol=1e-6)
