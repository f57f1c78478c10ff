"""The best classes and exact log-probabilities on a GPU, against the plain computation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from extremax.errors import ArgumentError
from extremax.nn import ExtremeSoftmax, probabilities

pytest.importorskip("triton")
kernels = pytest.importorskip("extremax.kernels.gpu.topk")
lists = pytest.importorskip("extremax.kernels.gpu.best")

pytestmark = pytest.mark.extras

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of rows, chunks of classes, columns and values in small problems."""
    monkeypatch.setattr(kernels, "_ROWS", 16)
    monkeypatch.setattr(kernels, "_CHUNK", 128)
    monkeypatch.setattr(kernels, "_GROUP", 16)
    monkeypatch.setattr(kernels, "_COLUMNS", 3)
    monkeypatch.setattr(lists, "_BLOCK", 32)
    tiles = dict.fromkeys(kernels._TILES, kernels.Tiles(64, 64, 32, 4, 2))
    monkeypatch.setattr(kernels, "_TILES", tiles)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(DEVICE, dtype)


def labels_of(n: int, n_classes: int, j: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(n_classes, (n, j), generator=generator).to(DEVICE)


def plain_scores(
    weight: torch.Tensor, bias: torch.Tensor | None, features: torch.Tensor, scale: float
) -> torch.Tensor:
    scores = scale * (features.double() @ weight.double().T)
    return scores if bias is None else scores + bias.double()


def check(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    features: torch.Tensor,
    k: int,
    labels: torch.Tensor,
    scale: float = 0.7,
    temperature: float = 1.3,
) -> None:
    """Ranked as by a stable sort, with the log-probabilities of float64."""
    found = kernels.rank_and_score(weight, bias, features, scale, labels, k, temperature)
    classes, log_p, log_p_of_labels = found
    scores = plain_scores(weight, bias, features, scale)
    expected = (scores / temperature).log_softmax(1)
    k = min(k, len(weight))
    best = expected.sort(dim=1, descending=True, stable=True).values[:, :k]
    assert classes.shape == log_p.shape == (len(features), k)
    assert classes.dtype == torch.int64
    assert log_p.dtype == log_p_of_labels.dtype == torch.float32
    # Scores closer than rounding may change places: compare what they are, not who they are.
    torch.testing.assert_close(log_p.double(), best, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(expected.gather(1, classes), best, rtol=1e-4, atol=1e-4)
    assert all(len(row.unique()) == k for row in classes)
    torch.testing.assert_close(
        log_p_of_labels.double(), expected.gather(1, labels), rtol=1e-4, atol=1e-4
    )


@settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    n=st.integers(1, 20),
    n_classes=st.integers(1, 300),
    width=st.integers(1, 70),
    k=st.integers(0, 9),
    has_bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_random_problems(
    n: int, n_classes: int, width: int, k: int, has_bias: bool, seed: int
) -> None:
    weight = random(n_classes, width, seed=seed)
    bias = random(n_classes, seed=seed + 1) if has_bias else None
    check(weight, bias, random(n, width, seed=seed + 2), k, labels_of(n, n_classes, 2))


@pytest.mark.parametrize("k", [1, 40, 41])
def test_as_many_as_there_are_classes(k: int) -> None:
    check(random(40, 9), random(40, seed=1), random(3, 9, seed=2), k, labels_of(3, 40, 0))


@pytest.mark.parametrize(
    ("of_weight", "of_features"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.bfloat16),
    ],
)
def test_short_numbers(of_weight: torch.dtype, of_features: torch.dtype) -> None:
    weight, features = random(150, 40, dtype=of_weight), random(7, 40, seed=2, dtype=of_features)
    check(weight, random(150, seed=1, dtype=of_weight), features, 6, labels_of(7, 150, 5))


def test_the_sizes_that_a_gpu_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    check(random(1500, 96), random(1500, seed=1), random(2, 96, seed=2), 20, labels_of(2, 1500, 3))


def test_ties_are_in_the_order_of_classes() -> None:
    """Products of small integers are exact, and many classes have the same."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-1, 2, (150, 3), generator=generator).float().to(DEVICE)
    features = torch.randint(-1, 2, (6, 3), generator=generator).float().to(DEVICE)
    none = labels_of(6, 150, 0)
    for k in (1, 7, 30):
        classes, _, _ = kernels.rank_and_score(weight, None, features, 1.0, none, k, 1.0)
        scores = plain_scores(weight, None, features, 1.0)
        expected = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
        assert torch.equal(classes, expected)


def test_large_scores_and_those_of_impossible_classes() -> None:
    bias = 1e4 * random(200, seed=1)
    bias[:150] = -torch.inf
    bias[170:] = -torch.inf
    weight, features = random(200, 8), random(4, 8, seed=2)
    labels = torch.full((4, 1), 160, device=DEVICE)
    classes, log_p, of_labels = kernels.rank_and_score(weight, bias, features, 1.0, labels, 25, 1.0)
    expected = plain_scores(weight, bias, features, 1.0).log_softmax(1)
    torch.testing.assert_close(
        log_p.double(), expected.gather(1, classes), rtol=1e-5, atol=1e-2, equal_nan=True
    )
    torch.testing.assert_close(of_labels.double(), expected[:, 160:161], rtol=1e-5, atol=1e-2)
    assert bool((classes[:, :20] >= 150).all())
    assert bool((classes[:, :20] < 170).all())
    # Of equals, as impossible classes are, the first come first.
    assert torch.equal(classes[:, 20:], torch.arange(5, device=DEVICE).expand(4, 5))
    assert bool((log_p <= 0).all())


@pytest.mark.parametrize("bad", [torch.nan, -torch.nan, torch.inf])
def test_a_row_with_a_bad_score_has_no_probabilities(bad: float) -> None:
    weight, features = random(200, 8), random(5, 8, seed=2)
    bias = random(200, seed=1)
    features[2, 3] = bad
    classes, log_p, of_labels = kernels.rank_and_score(
        weight, bias, features, 1.0, labels_of(5, 200, 2), 6, 1.0
    )
    assert bool(log_p[2].isnan().all() & of_labels[2].isnan().all())
    assert bool((classes >= 0).all() & (classes < 200).all())
    others = [0, 1, 3, 4]
    expected = plain_scores(weight, bias, features, 1.0)[others].log_softmax(1).topk(6)
    assert torch.equal(classes[others], expected.indices)
    torch.testing.assert_close(log_p[others].double(), expected.values, rtol=1e-4, atol=1e-4)


def test_one_bad_class_spoils_every_row() -> None:
    bias = random(200, seed=1)
    bias[77] = torch.nan
    classes, log_p, _ = kernels.rank_and_score(
        random(200, 8), bias, random(5, 8, seed=2), 1.0, labels_of(5, 200, 0), 6, 1.0
    )
    assert bool(log_p.isnan().all())
    assert all(len(row.unique()) == 6 for row in classes)


def test_too_many_are_refused() -> None:
    with pytest.raises(ArgumentError, match="up to 1024 classes, got k=1025"):
        kernels.rank_and_score(
            random(1100, 4), None, random(1, 4), 1.0, labels_of(1, 1100, 0), 1025, 1.0
        )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_ranks_by_it(
    bias: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = ExtremeSoftmax(8, 90, objective="exact", bias=bias, device=DEVICE, dtype=dtype)
    hidden = random(2, 3, 8, dtype=dtype)
    expected = layer.log_prob(hidden).detach().topk(4)
    monkeypatch.setattr(probabilities, "has_kernels", lambda *_: True)
    labels, log_p = layer.topk(hidden, 4)
    torch.testing.assert_close(log_p, expected.values, rtol=1e-4, atol=1e-4)
    assert torch.equal(labels, expected.indices)
    assert layer.topk(hidden[:0], 4).labels.shape == (0, 3, 4)
