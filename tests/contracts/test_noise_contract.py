"""What every noise promises. A new one is tested by its line in ``NOISES``.

A noise that follows a head gets a small random one, and is treated as the classifier treats it:
attached after the fit, and again after head and noise have grown.
"""

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
from extremax.head import LinearHead
from extremax.kernels.cpu.threads import limit
from extremax.noise import NOISES, MixtureNoise, Noise, SoftmaxNoise
from extremax.random import Stream

N_CLASSES, N_EMPTY = 40, 5
# What a default leaves untried.
VARIANTS: dict[str, Noise] = {
    "softmax by gumbel": SoftmaxNoise(method="gumbel"),
    "mixture of five": MixtureNoise(
        ("uniform", "log_uniform", "bigram", {"noise": "tree", "n_components": 3}, "frequency"),
        (1, 2, 3, 4, 5),
    ),
    "mixture with softmax": MixtureNoise(("softmax", "bigram"), (0.3, 0.7)),
}
close = {"rtol": 1e-5, "atol": 2e-5}


@pytest.fixture(scope="module")
def problem() -> tuple[np.ndarray, np.ndarray]:
    """Clustered rows; the last classes have no example."""
    return clustered(1500, N_CLASSES - N_EMPTY, 8, seed=6, noise=0.3)


def random_head(n_classes: int, n_features: int) -> LinearHead:
    head = LinearHead(n_classes, n_features, 1.0, scale=0.7)
    generator = torch.Generator().manual_seed(n_features)
    head.weight.copy_(torch.randn(head.weight.shape, generator=generator))
    head.bias.copy_(0.5 * torch.randn(head.bias.shape, generator=generator))
    return head


@pytest.fixture
def head(problem: tuple[np.ndarray, np.ndarray]) -> LinearHead:
    return random_head(N_CLASSES, problem[0].shape[1])


def fitted(
    noise: Noise,
    features: np.ndarray,
    labels: np.ndarray,
    head: LinearHead,
    rows: np.ndarray | None = None,
) -> Noise:
    """Fitted to as many classes as the head has, and attached to it."""
    noise = noise.fit(features, labels, head.n_classes, rows=rows)
    noise.attach(head)
    return noise


def extend(noise: Noise, head: LinearHead, n_classes: int) -> None:
    """Room for more classes, as `ExtremeClassifier.partial_fit` makes it."""
    head.grow(n_classes)
    noise.extend(n_classes)
    noise.attach(head)


@pytest.fixture(params=[*sorted(NOISES), *VARIANTS])
def noise(
    request: pytest.FixtureRequest, problem: tuple[np.ndarray, np.ndarray], head: LinearHead
) -> Noise:
    name = request.param
    return fitted(clone(VARIANTS[name]) if name in VARIANTS else NOISES[name](), *problem, head)


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
    # A step takes no gradient through the noise.
    assert not any(array.requires_grad for array in (log_q, each, *draw))
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
def test_draws_follow_log_prob(
    noise: Noise, head: LinearHead, context: torch.Tensor, extended: bool
) -> None:
    if extended:
        extend(noise, head, N_CLASSES + 8)
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


def test_the_context_needs_no_head(
    noise: Noise, problem: tuple[np.ndarray, np.ndarray], context: torch.Tensor
) -> None:
    free = clone(noise).fit(*problem, N_CLASSES)
    assert torch.equal(free.context(problem[0][:60]), context)


def test_bits_do_not_depend_on_threads(
    noise: Noise, problem: tuple[np.ndarray, np.ndarray], head: LinearHead
) -> None:
    # More rows than a thread takes at a time.
    rows = np.arange(10_000)
    context = noise.context(problem[0])[torch.from_numpy(rows % 1500)]
    draws = []
    for n_threads in (1, 2, 3):
        with limit(n_threads):
            assert_same(noise, fitted(clone(noise), *problem, head), problem[0])
            draw = noise.sample(context, 2, Stream.of(4, rows=rows))
            draws.append((*draw, noise.log_prob(context, draw.labels)))
    for other in draws[1:]:
        assert all(torch.equal(a, b) for a, b in zip(draws[0], other, strict=True))


@pytest.mark.parametrize("extended", [False, True])
def test_state_and_settings_restore_it(
    noise: Noise,
    problem: tuple[np.ndarray, np.ndarray],
    head: LinearHead,
    tmp_path: Path,
    extended: bool,
) -> None:
    if extended:
        extend(noise, head, N_CLASSES + 3)
    write_tensors(tmp_path / "noise", noise.state(), {"settings": json.dumps(noise.settings())})
    tensors, meta = read_tensors(tmp_path / "noise")
    restored = type(noise)(**json.loads(meta["settings"]))
    restored.load_state(tensors)
    restored.attach(head)
    assert_same(noise, restored, problem[0][:200])
    extend(restored, head, N_CLASSES + 9)
    assert_consistent(restored, restored.context(problem[0][:20]))


def test_late_classes_are_added_beside_what_it_knows(
    noise: Noise, head: LinearHead, context: torch.Tensor
) -> None:
    before = all_rows(noise, context)
    extend(noise, head, N_CLASSES + 10)
    assert_consistent(noise, context)
    after = all_rows(noise, context)
    if not (noise.follows_head and isinstance(noise, MixtureNoise)):
        # Among the old classes the proportions are as they were.
        again = after[:, :N_CLASSES].log_softmax(1)
        torch.testing.assert_close(again, before.log_softmax(1), **close)
    many = context[:1].expand(4000, -1).contiguous()
    drawn = noise.sample(many, 5, Stream.of(3, rows=np.arange(4000))).labels
    # Whatever is expected so often turns up: one that does not is one in e^20.
    often = torch.arange(N_CLASSES + 10)[20_000 * after[0].exp() > 20]
    assert set(often.tolist()) <= set(drawn.unique().tolist())


def test_fewer_classes_are_refused(noise: Noise, context: torch.Tensor) -> None:
    before = all_rows(noise, context).clone()
    with pytest.raises(ValueError, match=rf"{N_CLASSES} classes .*{N_CLASSES - 1}"):
        noise.extend(N_CLASSES - 1)
    # Nothing has changed, and as many as there are is no change either.
    noise.extend(N_CLASSES)
    assert torch.equal(all_rows(noise, context), before)


def test_it_follows_its_head_step_by_step(
    noise: Noise, head: LinearHead, problem: tuple[np.ndarray, np.ndarray], context: torch.Tensor
) -> None:
    before = all_rows(noise, context).clone()
    generator = torch.Generator().manual_seed(2)
    for step in range(3):
        touched = torch.randint(N_CLASSES, (4, 3), generator=generator)
        change = torch.randn((12, head.weight.shape[1]), generator=generator)
        # As the kernels of training do it: unseen by torch.
        head.weight.numpy()[touched.ravel()] += change.numpy()
        head.bias.numpy()[touched.ravel()] += 0.3 * (step + 1)
        noise.refresh(touched)
        assert_consistent(noise, context)
    after = all_rows(noise, context)
    if not noise.follows_head:
        assert torch.equal(after, before)
        return
    assert not torch.allclose(after, before, atol=0.1)
    anew = fitted(clone(noise), *problem, head)
    torch.testing.assert_close(after, all_rows(anew, context), rtol=1e-4, atol=1e-4)


def test_without_the_head_it_follows_it_says_so(
    noise: Noise, problem: tuple[np.ndarray, np.ndarray], context: torch.Tensor
) -> None:
    free = clone(noise).fit(*problem, N_CLASSES)
    if not noise.follows_head:
        assert_same(free, noise, problem[0][:20])
        return
    stream = Stream.of(0, rows=np.arange(60))
    for use in (
        lambda: free.sample(context, 2, stream),
        lambda: free.log_prob(context, torch.zeros((60, 1), dtype=torch.int64)),
        lambda: free.log_prob_all(context),
    ):
        with pytest.raises(ValueError, match="attach"):
            use()


def test_only_the_rows_given_count(
    noise: Noise, problem: tuple[np.ndarray, np.ndarray], head: LinearHead
) -> None:
    features, labels = problem
    rows, other = np.arange(0, 1500, 2), labels.copy()
    other[1::2] = 0
    one = fitted(clone(noise), features, labels, head, rows)
    two = fitted(clone(noise), features, other, head, rows)
    assert_same(one, two, features[:100])


@pytest.mark.parametrize("bad", [-1, N_CLASSES])
def test_labels_out_of_range_are_refused(noise: Noise, bad: int) -> None:
    labels = np.array([3, 1, bad, 0])
    with pytest.raises(ValueError, match=rf"label {bad} in row 2"):
        clone(noise).fit(np.zeros((4, 2), np.float32), labels, N_CLASSES)


def test_labels_that_are_no_integers_are_refused(noise: Noise) -> None:
    with pytest.raises(ValueError, match="integers"):
        clone(noise).fit(np.zeros((2, 2), np.float32), np.array([0.0, 1.5]), N_CLASSES)


@pytest.mark.parametrize("n_rows", [3, 5])
def test_features_of_other_rows_than_the_labels_are_refused(noise: Noise, n_rows: int) -> None:
    labels = np.array([3, 1, 2, 0])
    with pytest.raises(ValueError, match=f"features have {n_rows} rows but labels 4"):
        clone(noise).fit(np.zeros((n_rows, 2), np.float32), labels, N_CLASSES)
    with pytest.raises(ValueError, match=r"features must have two dimensions.* \(4,\)"):
        clone(noise).fit(np.zeros(4, np.float32), labels, N_CLASSES)


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
    one = fitted(clone(noise), features, np.zeros(9, np.int64), random_head(1, 4))
    context = one.context(features)
    assert_consistent(one, context)
    assert math.isclose(float(one.log_prob_all(context).abs().max()), 0.0, abs_tol=1e-6)
