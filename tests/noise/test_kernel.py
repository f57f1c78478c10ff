"""Kernel noises against their formulas worked out over all classes, and against rebuilt ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from extremax.heads import LinearHead
from extremax.kernels.cpu.threads import limit
from extremax.noise import FourierNoise, QuadraticNoise, QuarticWalkNoise
from extremax.noise.kernel import KernelNoise
from extremax.random import Stream

ALL = [QuadraticNoise(), QuarticWalkNoise(), FourierNoise(n_features=32)]
close = {"rtol": 1e-5, "atol": 1e-5}

every_kernel = pytest.mark.parametrize("kind", ALL, ids=lambda noise: type(noise).__name__)


def random_head(n_classes: int, n_features: int = 6, size: float = 0.7) -> LinearHead:
    head = LinearHead(n_classes, n_features, 1.0, scale=0.8)
    generator = torch.Generator().manual_seed(n_classes)
    head.weight.copy_(size * torch.randn(head.weight.shape, generator=generator))
    head.bias.copy_(size * torch.randn(head.bias.shape, generator=generator))
    return head


def rows_for(head: LinearHead, n: int = 9) -> np.ndarray:
    width = head.weight.shape[1]
    return np.random.default_rng(n).standard_normal((n, width), dtype=np.float32)


def attached(kind: KernelNoise, head: LinearHead) -> KernelNoise:
    noise = type(kind)(**kind.get_params())
    noise.fit(rows_for(head, 2), np.zeros(2, np.int64), head.n_classes)
    noise.attach(head.vectors)
    return noise


def scores(head: LinearHead, features: np.ndarray) -> np.ndarray:
    weight = head.weight.double().numpy()
    return head.scale * (features.astype(np.float64) @ weight.T) + head.bias.double().numpy()


def every_class(n: int, noise: KernelNoise) -> torch.Tensor:
    return torch.arange(noise.n_classes_).repeat(n, 1)


def by_halves(mass: Callable[[int, int], np.ndarray], kernel: np.ndarray, most: int) -> np.ndarray:
    """log q from its formula: halves by their mass, classes of a leaf by the kernel."""
    log_q = np.empty(kernel.shape)

    def descend(lo: int, hi: int, log_p: np.ndarray) -> None:
        if hi - lo <= most:
            own = kernel[:, lo:hi]
            log_q[:, lo:hi] = log_p[:, None] + np.log(own / own.sum(1, keepdims=True))
            return
        mid = lo + (hi - lo) // 2
        left, right = mass(lo, mid), mass(mid, hi)
        descend(lo, mid, log_p + np.log(left / (left + right)))
        descend(mid, hi, log_p + np.log(right / (left + right)))

    descend(0, kernel.shape[1], np.zeros(len(kernel)))
    return log_q


def formula(noise: KernelNoise, head: LinearHead, features: np.ndarray) -> np.ndarray:
    """log q of every class, from the docstring of the noise."""
    xi = scores(head, features)
    d = head.weight.shape[1] + 1
    if isinstance(noise, QuadraticNoise):
        kernel = noise.alpha * xi**2 + 1
        return np.log(kernel / kernel.sum(1, keepdims=True))
    if isinstance(noise, QuarticWalkNoise):
        return by_halves(
            lambda lo, hi: (xi[:, lo:hi] ** 2).sum(1) ** 2 / (hi - lo) + hi - lo,
            xi**4 + 1,
            max(8, 3 * d // 2),
        )
    assert isinstance(noise, FourierNoise)
    u = unit(np.column_stack([head.scale * features.astype(np.float64), np.ones(len(features))]))
    v = unit(torch.column_stack([head.weight, head.bias]).double().numpy())
    estimates = waves(noise, u) @ waves(noise, v).T
    distance = ((u[:, None] - v) ** 2).sum(2)
    return by_halves(
        lambda lo, hi: np.maximum(estimates[:, lo:hi].sum(1), noise.clip * (hi - lo)),
        np.exp(-noise.nu * distance / 2),
        32,
    )


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)


def waves(noise: FourierNoise, rows: np.ndarray) -> np.ndarray:
    angles = rows @ noise.frequencies_.numpy().T
    return np.concatenate([np.cos(angles), np.sin(angles)], 1) / np.sqrt(noise.n_features)


def assert_as_the_formula(noise: KernelNoise, head: LinearHead, features: np.ndarray) -> None:
    expected = torch.from_numpy(formula(noise, head, features))
    context = noise.context(features)
    torch.testing.assert_close(noise.log_prob_all(context).double(), expected, **close)
    each = noise.log_prob(context, every_class(len(features), noise))
    torch.testing.assert_close(each.double(), expected, **close)
    draw = noise.sample(context, 20, Stream.of(1, rows=np.arange(len(features))))
    torch.testing.assert_close(draw.log_q.double(), expected.gather(1, draw.labels), **close)


def step(head: LinearHead, noise: KernelNoise, seed: int, size: float = 0.3) -> None:
    """Some classes change, as in training, and the noise is told, of some twice."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, head.n_classes, (4, 3))
    for c in np.unique(classes):
        head.weight[c] += size * torch.from_numpy(rng.standard_normal(head.weight.shape[1])).float()
        head.bias[c] -= size * rng.random()
    noise.refresh(torch.from_numpy(classes))


@every_kernel
@pytest.mark.parametrize("n_features", [1, 6, 20])
@pytest.mark.parametrize("n_classes", [1, 2, 3, 50, 333, 1024])
def test_q_is_what_its_formula_says(kind: KernelNoise, n_classes: int, n_features: int) -> None:
    head = random_head(n_classes, n_features)
    assert_as_the_formula(attached(kind, head), head, rows_for(head))


@pytest.mark.parametrize("alpha", [1e-3, 1.0, 1e4])
def test_alpha_is_the_weight_of_the_square(alpha: float) -> None:
    head = random_head(200)
    assert_as_the_formula(attached(QuadraticNoise(alpha), head), head, rows_for(head))


def test_many_features_give_the_gaussian_kernel() -> None:
    head, features = random_head(300), rows_for(random_head(300))
    noise = attached(FourierNoise(n_features=20_000, nu=2.0, clip=1e-3), head)
    u = unit(np.column_stack([head.scale * features.astype(np.float64), np.ones(len(features))]))
    v = unit(torch.column_stack([head.weight, head.bias]).double().numpy())
    kernel = np.exp(2.0 * u @ v.T)
    expected = np.log(kernel / kernel.sum(1, keepdims=True))
    found = noise.log_prob_all(noise.context(features)).numpy()
    assert np.abs(found - expected).max() < 0.05


def distance(log_p: np.ndarray, log_q: np.ndarray) -> float:
    """KL(p ‖ q) in nats, the mean over rows."""
    return float((np.exp(log_p) * (log_p - log_q)).sum(1).mean())


def normalized(log_weights: np.ndarray) -> np.ndarray:
    return log_weights - np.log(np.exp(log_weights).sum(1, keepdims=True))


def log_q_of(noise: KernelNoise, features: np.ndarray) -> np.ndarray:
    return noise.log_prob_all(noise.context(features)).double().numpy()


@pytest.mark.parametrize("deviation", [0.1, 1.0, 10.0])
def test_the_quartic_walk_is_near_its_kernel_where_scores_are_normal(deviation: float) -> None:
    head, features = random_head(4096, 31, size=1.0), rows_for(random_head(1, 31), 20)
    head.weight.mul_(deviation)
    head.bias.mul_(0.0)
    features /= 0.8 * np.linalg.norm(features, axis=1, keepdims=True)  # The head's scale.
    xi = scores(head, features)
    assert xi.std() == pytest.approx(deviation, rel=0.05)
    found = log_q_of(attached(QuarticWalkNoise(), head), features)
    kernel = normalized(np.log(xi**4 + 1))
    assert distance(found, kernel) < 0.05
    # Not by being near to anything: uniform noise is far off where scores matter.
    uniform = np.full_like(kernel, -np.log(4096))
    assert deviation < 1.0 or distance(uniform, kernel) > 0.3


@pytest.mark.parametrize("clustered", [False, True])
def test_fourier_noise_is_near_its_kernel_and_no_class_far_below_its_due(clustered: bool) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((4000, 32))
    if clustered:
        rows = 0.7 * rows + rng.standard_normal((20, 32))[rng.integers(0, 20, 4000)]
    head = LinearHead(4000, 32, 1.0)
    head.weight.copy_(torch.from_numpy(rows))
    features = rows[:50].astype(np.float32)
    u = unit(np.column_stack([features.astype(np.float64), np.ones(50)]))
    kernel = normalized(4.0 * u[:, :32] @ unit(rows).T)
    found = log_q_of(attached(FourierNoise(), head), features)
    assert distance(kernel, found) < 0.1
    assert distance(kernel, np.full_like(kernel, -np.log(4000))) > 0.2
    assert (found - kernel).min() > np.log(0.2)
    sharp = log_q_of(attached(FourierNoise(clip=0.001), head), features)
    assert (sharp - kernel).min() < np.log(0.01)


@every_kernel
def test_draws_follow_log_q(kind: KernelNoise) -> None:
    head = random_head(333)
    noise = attached(kind, head)
    context = noise.context(rows_for(head, 1)).expand(20_000, -1).contiguous()
    drawn = noise.sample(context, 20, Stream.of(3, rows=np.arange(20_000))).labels
    expected = noise.log_prob_all(context[:1])[0].double().exp().numpy() * drawn.numel()
    observed = np.bincount(drawn.ravel(), minlength=333)
    often = expected >= 10
    observed = np.append(observed[often], observed[~often].sum())
    expected = np.append(expected[often], expected[~often].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    scaled = expected * observed.sum() / expected.sum()
    assert stats.chisquare(observed, scaled).pvalue > 1e-4


@every_kernel
def test_thousands_of_updates_leave_the_bits_of_a_rebuild(kind: KernelNoise) -> None:
    head = random_head(500)
    noise = attached(kind, head)
    features = rows_for(head)
    context = noise.context(features)
    noise.log_prob_all(context)
    for seed in range(400):
        step(head, noise, seed)
    anew = attached(kind, head)
    assert torch.equal(noise.log_prob_all(context), anew.log_prob_all(context))
    assert np.array_equal(noise.sums_.tree.z, anew.sums_.tree.z)
    assert_as_the_formula(noise, head, features)


@every_kernel
def test_updates_do_not_depend_on_threads(kind: KernelNoise) -> None:
    found = []
    for n_threads in (1, 2, 3):
        head = random_head(5000)
        noise = attached(kind, head)
        context = noise.context(rows_for(head, 200))
        with limit(n_threads):
            noise.sample(context, 3, Stream.of(0, rows=np.arange(200)))
            head.weight.add_(0.1)
            noise.refresh(torch.arange(5000).reshape(50, 100))
            draw = noise.sample(context, 3, Stream.of(1, rows=np.arange(200)))
            found.append((*draw, torch.from_numpy(noise.sums_.tree.z)))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@every_kernel
def test_a_restored_noise_makes_the_same_draws(kind: KernelNoise) -> None:
    head = random_head(300)
    noise = attached(kind, head)
    context = noise.context(rows_for(head))
    noise.log_prob_all(context)
    for seed in range(10):
        step(head, noise, seed)
    restored = type(kind)(**kind.get_params())
    restored.load_state(noise.state())
    other = random_head(300)
    other.load_state(head.state())
    restored.attach(other.vectors)
    for seed in range(10, 20):
        stream = Stream.of(seed, rows=np.arange(len(context)))
        for a, b in zip(
            noise.sample(context, 5, stream), restored.sample(context, 5, stream), strict=True
        ):
            assert torch.equal(a, b)
        step(head, noise, seed)
        step(other, restored, seed)


@every_kernel
def test_what_changes_before_the_first_draw_needs_no_refresh(kind: KernelNoise) -> None:
    head = random_head(100)
    noise = attached(kind, head)
    head.weight.mul_(2.0)
    assert_as_the_formula(noise, head, rows_for(head))


@every_kernel
def test_another_head_is_followed_from_scratch(kind: KernelNoise) -> None:
    head = random_head(100)
    noise = attached(kind, head)
    noise.log_prob_all(noise.context(rows_for(head)))
    other = random_head(100, size=0.2)
    noise.attach(other.vectors)
    assert_as_the_formula(noise, other, rows_for(other))


@every_kernel
@pytest.mark.parametrize("n_classes", [1, 7, 100, 257])
def test_zero_weights_are_uniform(kind: KernelNoise, n_classes: int) -> None:
    head = LinearHead(n_classes, 5, 1.0)
    noise = attached(kind, head)
    log_q = noise.log_prob_all(noise.context(rows_for(head)))
    uniform = torch.full_like(log_q, -np.log(n_classes))
    torch.testing.assert_close(log_q, uniform, rtol=0, atol=1e-6)


@every_kernel
@pytest.mark.parametrize("size", [1e5, 1e15, 1e30])
def test_huge_weights_have_finite_log_q(kind: KernelNoise, size: float) -> None:
    head = random_head(300, size=size)
    noise = attached(kind, head)
    features = rows_for(head)
    log_q = noise.log_prob_all(noise.context(features))
    assert log_q.isfinite().all()
    ones = torch.ones(len(features), dtype=torch.float64)
    torch.testing.assert_close(log_q.double().exp().sum(1), ones, rtol=0, atol=1e-5)
    draw = noise.sample(noise.context(features), 9, Stream.of(0, rows=np.arange(len(features))))
    torch.testing.assert_close(draw.log_q, log_q.gather(1, draw.labels), **close)


@pytest.mark.parametrize("kind", [QuadraticNoise(), QuarticWalkNoise()])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e12])
def test_one_huge_row_does_not_blur_the_others(kind: KernelNoise, size: float) -> None:
    head = random_head(300)
    head.weight[123] *= size
    noise, features = attached(kind, head), rows_for(head)
    found = noise.log_prob_all(noise.context(features)).double()
    torch.testing.assert_close(found, torch.from_numpy(formula(noise, head, features)), **close)


@every_kernel
def test_late_classes_count_as_zero_until_the_head_has_them(kind: KernelNoise) -> None:
    head = random_head(100)
    noise = attached(kind, head)
    context = noise.context(rows_for(head))
    before = noise.log_prob_all(context)
    noise.extend(120)
    late = noise.log_prob_all(context)
    torch.testing.assert_close(
        late[:, :100].log_softmax(1), before.log_softmax(1), rtol=1e-5, atol=1e-5
    )
    head.grow(120)
    noise.attach(head.vectors)
    assert torch.equal(noise.log_prob_all(context), late)
    drawn = noise.sample(context, 2000, Stream.of(0, rows=np.arange(len(context)))).labels
    assert (drawn >= 100).any()
    assert torch.equal(late[:, 100:], late[:, 100:101].expand(-1, 20))
    head.weight[110] += 1.0
    noise.refresh(torch.tensor([110]))
    anew = type(kind)(**kind.get_params())
    anew.load_state(noise.state())
    anew.attach(head.vectors)
    assert torch.equal(anew.log_prob_all(context), noise.log_prob_all(context))


def test_contexts_are_the_rows_themselves() -> None:
    head = random_head(10)
    noise, features = attached(QuadraticNoise(), head), rows_for(head)
    assert noise.context(features).data_ptr() == features.ctypes.data
    features.flags.writeable = False
    assert torch.equal(noise.context(features), noise.context(features.astype(np.float64)))


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (QuadraticNoise(0.0), "alpha"),
        (QuadraticNoise(float("nan")), "alpha"),
        (QuadraticNoise("a"), "alpha"),
        (FourierNoise(n_features=0), "n_features"),
        (FourierNoise(n_features="a"), "n_features"),
        (FourierNoise(n_features=2.5), "n_features"),
        (FourierNoise(nu="a"), "nu"),
        (FourierNoise(clip=None), "clip"),
        (FourierNoise(seed=-1), "seed"),
        (FourierNoise(nu=0.0), "nu"),
        (FourierNoise(nu=1000.0), "nu"),
        (FourierNoise(clip=0.0), "clip"),
    ],
)
def test_bad_parameters_are_refused(noise: KernelNoise, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message} must"):
        noise.fit(np.zeros((2, 3), np.float32), np.zeros(2, np.int64), 4)


def test_a_head_or_rows_of_the_wrong_size_are_refused() -> None:
    noise = attached(QuadraticNoise(), random_head(20))
    with pytest.raises(ValueError, match="21 classes, not 20"):
        noise.attach(random_head(21).vectors)
    with pytest.raises(ValueError, match="4 features but the head 6"):
        noise.log_prob_all(torch.zeros((2, 4)))
