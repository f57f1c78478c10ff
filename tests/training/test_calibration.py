"""What held-out rows say: the weights of head and tree, and the temperature."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import log_softmax

from extremax.data import clustered
from extremax.features import Encoder
from extremax.heads import BagHead, HeadOptions, LinearHead
from extremax.labels import ClassLabels, LabelIndex
from extremax.model import Model
from extremax.noise import FrequencyNoise, sparse_tree_shape
from extremax.noise.sparse_tree import SparseTreeNoise
from extremax.objectives import AugmentReduceProbit, NegativeSampling, Objective, SampledSoftmax
from extremax.prediction.blend import START, Blend, log_counts
from extremax.rows import DenseRows, SparseRows
from extremax.training import calibration
from extremax.training.calibration import fit_blend, fit_temperature

N, CLASSES, WORDS = 3000, 60, 30


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    """A tree of two levels and a head, both random."""
    monkeypatch.setattr(sparse_tree_shape, "HALVINGS", 3)
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, N)
    noise = SparseTreeNoise(0.1).fit(random_rows(1), labels, CLASSES)
    assert noise.n_levels == 2
    head = BagHead(CLASSES, WORDS, HeadOptions(bag_size=16))
    head.classes.weight.copy_(torch.from_numpy(random.normal(size=(CLASSES, 16))))
    index = ClassLabels(LabelIndex(np.arange(CLASSES)))
    objective = SampledSoftmax()
    return Model(Encoder(), index, head, noise, objective, Blend.start(objective, noise))


def random_rows(seed: int) -> SparseRows:
    matrix = sparse.random(N, WORDS, 0.2, "csr", np.float32, random_state=seed)
    return SparseRows.of(matrix)


def evidence_of_all(model: Model, rows: SparseRows, counts: np.ndarray) -> torch.Tensor:
    """ξ, log q of both levels and log n, (n, C, 4), in float64."""
    context = model.noise.context(rows)
    levels = [model.noise.weighted_log_probs(context, w) for w in np.eye(2)]
    log_n = log_counts(counts).expand(levels[0].shape)
    return torch.stack([model.head.scores_all(rows), *levels, log_n], 2).double()


def weights_of(blend: Blend) -> np.ndarray:
    return np.array([1.0, *blend.levels, blend.prior]) / blend.temperature


def test_gradient_and_hessian_are_those_of_autograd(model: Model) -> None:
    random = np.random.default_rng(2)
    features, labels = random_rows(2), random.integers(0, CLASSES, N)
    counts = random.integers(0, 50, CLASSES)
    at, start = np.array([0.4, 0.9, 0.3, -0.2]), np.array([0.5, 0.5, 0.5, 0.0])
    numbers = np.arange(0, N, 3)
    evidence = calibration.gather_evidence(model, features, labels, numbers, log_counts(counts))
    value, gradient, curvature = calibration.log_likelihood(evidence, at, start)
    f, truth = evidence_of_all(model, features, counts)[numbers], torch.from_numpy(labels[numbers])

    def likelihood(w: torch.Tensor) -> torch.Tensor:
        pull = 5.0 * (w - torch.tensor(start)).square().sum()
        return (f @ w).log_softmax(1).gather(1, truth[:, None]).sum() - pull

    w = torch.tensor(at, requires_grad=True)
    expected = likelihood(w)
    np.testing.assert_allclose(value, float(expected.detach()), rtol=1e-5)
    (slope,) = torch.autograd.grad(expected, w)
    np.testing.assert_allclose(gradient, slope.numpy(), rtol=1e-4, atol=1e-2)
    hessian = torch.autograd.functional.hessian(likelihood, torch.tensor(at))
    np.testing.assert_allclose(curvature, -hessian.numpy(), rtol=1e-4, atol=1e-2)


def test_some_classes_stand_for_the_others(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over the classes of a row are those over all, in the mean over many draws."""
    monkeypatch.setattr(calibration, "_PROPOSED", 4)
    monkeypatch.setattr(calibration, "_DRAWN", 6)
    features = random_rows(5)[np.zeros(N, np.int64)]
    labels = np.full(N, 7)
    counts = np.arange(CLASSES)
    evidence = calibration.gather_evidence(
        model, features, labels, np.arange(N), log_counts(counts)
    )
    assert evidence.features.shape == (N, 11, 4)
    every = evidence_of_all(model, features[:1], counts)[0]
    torch.testing.assert_close(evidence.features[:, 0].double(), every[7].expand(N, -1))
    for w in torch.eye(4, dtype=torch.float64) / 2:
        sums = (evidence.features.double() @ w + evidence.log_weights).exp().sum(1)
        error = float(sums.std()) / N**0.5
        assert abs(float(sums.mean() - (every @ w).exp().sum())) < 5 * error + 1e-6
    # No class counts twice: each row stands for all of them.
    torch.testing.assert_close(evidence.log_weights.exp().sum(1), torch.full((N,), float(CLASSES)))


@pytest.mark.parametrize("sampled", [False, True])
def test_the_weights_that_generated_the_labels_are_found(
    model: Model, sampled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sampled:
        monkeypatch.setattr(calibration, "_PROPOSED", 25)
        monkeypatch.setattr(calibration, "_DRAWN", 30)
    random = np.random.default_rng(3)
    features, counts = random_rows(3), random.integers(1, 1000, CLASSES)
    truth = torch.tensor([0.8, 1.2, 0.6, -0.4], dtype=torch.float64)
    p = (evidence_of_all(model, features, counts) @ truth).softmax(1)
    labels = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(0))[:, 0].numpy()
    blend = fit_blend(model, features, labels, np.arange(N), counts)
    weights = weights_of(blend)
    np.testing.assert_allclose(weights, truth, atol=0.2)


@pytest.mark.parametrize(
    ("truth", "at", "bound"),
    [
        ([-0.3, 0.9, 0.5, 0.2], 0, 1e-3),
        ([0.5, 0.9, 0.5, -1.7], 3, -1.0),
        ([0.5, 0.9, 0.5, 1.7], 3, 1.0),
    ],
)
def test_no_expert_gets_a_negative_weight_and_frequency_a_bounded_one(
    model: Model, truth: list[float], at: int, bound: float
) -> None:
    """The maximum within the bounds, as another optimizer finds it."""
    random = np.random.default_rng(6)
    features, counts = random_rows(6), random.integers(1, 1000, CLASSES)
    p = (
        evidence_of_all(model, features, counts) @ torch.tensor(truth, dtype=torch.float64)
    ).softmax(1)
    labels = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(1))[:, 0].numpy()
    blend = fit_blend(model, features, labels, np.arange(N), counts)
    weights = weights_of(blend)
    evidence = calibration.gather_evidence(
        model, features, labels, np.arange(N), log_counts(counts)
    )
    start = np.array([START, START, START, 0.0])

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient, _ = calibration.log_likelihood(evidence, w, start)
        return -value, -gradient

    bounds = [(1e-3, None)] * 3 + [(-1.0, 1.0)]
    best = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    assert weights[at] == pytest.approx(bound)
    np.testing.assert_allclose(weights, best.x, atol=0.01)


def test_a_few_rows_move_the_weights_little(model: Model) -> None:
    # Scores like those of a head that was hardly trained.
    model.head.classes.weight.mul_(0.1)
    labels = np.random.default_rng(4).integers(0, CLASSES, N)
    counts = np.arange(CLASSES)
    blend = fit_blend(model, random_rows(4), labels, np.arange(2), counts)
    weights = weights_of(blend)
    np.testing.assert_allclose(weights, [START, START, START, 0.0], atol=0.3)


# Temperature


def dense_model(objective: Objective) -> tuple[Model, DenseRows, np.ndarray]:
    """A head that is twice too sure of itself, on labels drawn from its softmax."""
    x, labels = clustered(800, 25, 6, seed=1)
    random = np.random.default_rng(3)
    head = LinearHead(25, 6)
    head.weight.copy_(torch.from_numpy(random.normal(size=(25, 6))))
    noise = FrequencyNoise().fit(x, labels, 25)
    index = ClassLabels(LabelIndex(np.arange(25)))
    model = Model(Encoder(), index, head, noise, objective, Blend.start(objective, noise))
    logits = model.logits(DenseRows(x)).double()
    p = (logits / 2.0).softmax(1)
    drawn = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(0))[:, 0].numpy()
    return model, DenseRows(x), drawn


@pytest.mark.parametrize("objective", [SampledSoftmax(), NegativeSampling()])
def test_the_temperature_is_the_likeliest(objective: Objective) -> None:
    model, rows, labels = dense_model(objective)
    logits = model.logits(rows).double().numpy()

    def loss(log_t: float) -> float:
        return -log_softmax(logits / np.exp(log_t), axis=1)[np.arange(len(labels)), labels].mean()

    best = np.exp(minimize(lambda t: loss(t[0]), [0.0], method="Nelder-Mead").x[0])
    temperature = fit_temperature(model, rows, labels, 2**30)
    assert temperature == pytest.approx(best, rel=1e-3)
    assert temperature == pytest.approx(2.0, rel=0.15)
    # In blocks of forty rows.
    assert fit_temperature(model, rows, labels, 40 * 28 * 25) == pytest.approx(
        temperature, rel=1e-3
    )


def test_a_temperature_is_fitted_to_the_numbered_rows_of_known_classes() -> None:
    model, rows, labels = dense_model(SampledSoftmax())
    numbers = np.arange(0, 800, 2)
    expected = fit_temperature(model, rows[numbers], labels[numbers], 2**30)
    assert fit_temperature(model, rows, labels, 2**30, numbers) == expected
    unknown = np.where(np.arange(800) % 2 == 0, labels, -1)
    assert fit_temperature(model, rows, unknown, 2**30) == expected
    for none in (np.full(800, -1), unknown):
        with pytest.raises(ValueError, match="needs held-out rows of known classes"):
            fit_temperature(model, rows, none, 2**30, np.arange(1, 800, 2))


def test_a_temperature_does_not_need_a_softmax() -> None:
    model, rows, labels = dense_model(AugmentReduceProbit())
    temperature = fit_temperature(model, rows[:100], labels[:100], 2**30)
    blends = [Blend(t) for t in (temperature, temperature / 1.2, temperature * 1.2)]
    likelihoods = []
    for model.blend in blends:
        likelihoods.append(float(model.log_probs(rows[:100], labels[:100, None], 2**30).sum()))
    assert likelihoods[0] == max(likelihoods)
