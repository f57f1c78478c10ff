"""Softmax noise against the head's own softmax in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone

import extremax.noise.softmax as module
from extremax.heads import LinearHead
from extremax.kernels.cpu.softmax import TILE, score_tiles
from extremax.noise import QuarticNoise, SoftmaxNoise
from extremax.noise.softmax import ScoredNoise
from extremax.random import Stream

NOISES = {
    "inverse": SoftmaxNoise(),
    "gumbel": SoftmaxNoise("gumbel"),
    "absolute": SoftmaxNoise(absolute=True),
    "absolute gumbel": SoftmaxNoise("gumbel", absolute=True),
    "quartic": QuarticNoise(),
}
every_noise = pytest.mark.parametrize("name", NOISES)


def head_of(n_classes: int, n_features: int = 6, size: float = 1.0) -> LinearHead:
    generator = torch.Generator().manual_seed(3)
    head = LinearHead(n_classes, n_features, 1.0, scale=0.4)
    head.weight.copy_(size * torch.randn(head.weight.shape, generator=generator))
    head.bias.copy_(size * torch.randn(head.bias.shape, generator=generator))
    return head


def rows_of(n: int, n_features: int = 6) -> np.ndarray:
    return np.random.default_rng(5).standard_normal((n, n_features), dtype=np.float32)


def noise_of(head: LinearHead, name: str = "inverse") -> ScoredNoise:
    noise = clone(NOISES[name]).fit(np.empty((0, 6)), np.zeros(0, np.int64), head.n_classes)
    noise.attach(head.vectors)
    return noise


def truth(head: LinearHead, features: np.ndarray, name: str = "inverse") -> torch.Tensor:
    x = torch.from_numpy(features).double() * head.scale
    scores = x @ head.weight.double().T + head.bias.double()
    if name == "quartic":
        mass = scores**4 + 1.0
        return torch.log(mass / mass.sum(1, keepdim=True))
    return (scores.abs() if "absolute" in name else scores).log_softmax(1)


@every_noise
@pytest.mark.parametrize("n_classes", [1, 2, 63, 64, 65, 131])
def test_it_is_the_softmax_of_its_head(name: str, n_classes: int) -> None:
    head, features = head_of(n_classes), rows_of(7)
    noise = noise_of(head, name)
    context, expected = noise.context(features), truth(head, features, name).float()
    every = torch.arange(n_classes).expand(7, -1)
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(noise.log_prob_all(context), expected, **close)
    torch.testing.assert_close(noise.log_prob(context, every), expected, **close)
    draw = noise.sample(context, 9, Stream.of(1, rows=np.arange(7)))
    torch.testing.assert_close(draw.log_q, expected.gather(1, draw.labels), **close)
    # And again right after a draw, when the sum over all classes is remembered.
    torch.testing.assert_close(noise.log_prob(context, every), expected, **close)


@every_noise
@pytest.mark.parametrize("size", [0.3, 2.0])
def test_draws_follow_the_softmax(name: str, size: float) -> None:
    head, features = head_of(90, size=size), rows_of(1)
    noise = noise_of(head, name)
    same = noise.context(np.repeat(features, 5000, 0))
    drawn = noise.sample(same, 6, Stream.of(2, rows=np.arange(5000))).labels
    expected = 30_000 * truth(head, features, name)[0].exp().numpy()
    observed = np.bincount(drawn.ravel(), minlength=90)
    rare = expected < 10
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    assert stats.chisquare(observed[keep], expected[keep]).pvalue > 1e-4


def test_inverse_draws_are_those_of_the_distribution_function() -> None:
    head, features, stream = head_of(70), rows_of(40), Stream.of(6, rows=np.arange(40))
    drawn = noise_of(head).sample(torch.from_numpy(features), 5, stream).labels
    below = truth(head, features).exp().cumsum(1).numpy()
    uniform = stream.uniform(5)
    expected = [[np.searchsorted(below[i], u) for u in uniform[i]] for i in range(40)]
    assert np.array_equal(drawn, expected)


def test_gumbel_draws_are_the_largest_noisy_scores() -> None:
    head, features, stream = head_of(70), rows_of(40), Stream.of(6, rows=np.arange(40))
    drawn = noise_of(head, "gumbel").sample(torch.from_numpy(features), 3, stream).labels
    gumbel = -np.log(-np.log(stream.uniform(3 * 70))).reshape(40, 3, 70)
    expected = (truth(head, features).numpy()[:, None] + gumbel).argmax(2)
    assert np.array_equal(drawn, expected)


@every_noise
def test_blocks_of_rows_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head, features, stream = head_of(200), rows_of(50), Stream.of(6, rows=np.arange(50))
    noise = noise_of(head, name)
    context = noise.context(features)
    whole = noise.sample(context, 4, stream)
    noise.refresh(torch.zeros(0, dtype=torch.int64))
    own = noise.log_prob(context, whole.labels)
    # Blocks of seven rows, and of one where not even that fits.
    for size in (4 * 200 * 7, 1):
        monkeypatch.setattr(module, "BLOCK_BYTES", size)
        for method in (noise, noise_of(head, name)):
            part = method.sample(context, 4, stream)
            assert torch.equal(part.labels, whole.labels)
            assert torch.equal(part.log_q, whole.log_q)
            method.refresh(torch.zeros(0, dtype=torch.int64))
            assert torch.equal(method.log_prob(context, whole.labels), own)


@pytest.mark.parametrize("n_features", [1, 3, 16, 37])
def test_a_score_does_not_depend_on_the_rows_beside_it(n_features: int) -> None:
    head, features = head_of(3 * TILE + 5, n_features), rows_of(23, n_features)
    weight, bias = head.weight.numpy(), head.bias.numpy()
    whole = np.empty((23, len(bias)), np.float32)
    score_tiles(0, 4, weight, bias, features, whole)
    expected = features.astype(np.float64) @ weight.T + bias
    np.testing.assert_allclose(whole, expected, rtol=1e-5, atol=1e-5)
    for rows in ([4], [22, 0], list(range(5, 20))):
        part = np.empty((len(rows), len(bias)), np.float32)
        # Tile by tile, as threads might take them.
        for tile in (3, 1, 0, 2):
            score_tiles(tile, tile + 1, weight, bias, features[rows], part)
        assert np.array_equal(part, whole[rows])


@every_noise
def test_scores_far_apart_leave_log_q_finite(name: str) -> None:
    head, features = head_of(50, size=300.0), rows_of(9)
    noise = noise_of(head, name)
    context = noise.context(features)
    draw = noise.sample(context, 5, Stream.of(0, rows=np.arange(9)))
    expected = truth(head, features, name)
    assert name == "quartic" or expected.min() < -1000
    far = {"rtol": 1e-5, "atol": 1e-3}
    torch.testing.assert_close(draw.log_q.double(), expected.gather(1, draw.labels), **far)
    every = torch.arange(50).expand(9, -1)
    torch.testing.assert_close(noise.log_prob(context, every).double(), expected, **far)


def test_a_head_with_nan_gives_valid_classes_and_log_q_of_nan() -> None:
    head = head_of(30)
    head.bias[4] = torch.nan
    for name in NOISES:
        noise = noise_of(head, name)
        draw = noise.sample(noise.context(rows_of(5)), 3, Stream.of(0, rows=np.arange(5)))
        assert ((draw.labels >= 0) & (draw.labels < 30)).all()
        assert draw.log_q.isnan().all()


def test_a_head_of_another_size_is_refused() -> None:
    noise = noise_of(head_of(30))
    with pytest.raises(ValueError, match="31 classes, not 30"):
        noise.attach(head_of(31).vectors)
    noise.extend(33)
    with pytest.raises(ValueError, match="33 classes and its head 30"):
        noise.log_prob_all(noise.context(rows_of(2)))


def test_another_method_is_refused() -> None:
    with pytest.raises(ValueError, match="method must be 'inverse' or 'gumbel', got 'exact'"):
        SoftmaxNoise("exact").fit(rows_of(2), np.array([0, 1]), 2)


def test_absolute_is_true_or_false_and_makes_the_noise_even() -> None:
    assert SoftmaxNoise(absolute=True).is_even
    assert not SoftmaxNoise().is_even
    with pytest.raises(ValueError, match="absolute must be True or False, got 1"):
        SoftmaxNoise(absolute=1).fit(np.empty((0, 6)), np.zeros(0, np.int64), 3)
