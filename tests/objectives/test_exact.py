"""Exact softmax regression against scikit-learn, autograd and empirical frequencies."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from extremax.errors import DivergedError, MemoryBudgetError
from extremax.objectives.exact import MAX_SCORE_BYTES, fit_exact
from extremax.softmax import cross_entropy, softmax

N_CLASSES, L2 = 4, 0.05


@pytest.fixture
def problem() -> tuple[Tensor, Tensor]:
    """Eighty examples of three features whose labels come from a random linear softmax."""
    generator = torch.Generator().manual_seed(7)
    features = torch.randn(80, 3, generator=generator, dtype=torch.float64)
    truth = torch.randn(3, N_CLASSES, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(softmax(features @ truth), 1, generator=generator).squeeze(1)
    return features, labels


def objective(
    features: Tensor, labels: Tensor, weights: Tensor, biases: Tensor, l2: float = 0.0
) -> Tensor:
    loss = cross_entropy(features @ weights.T + biases, labels) / len(labels)
    return loss + l2 / 2 * weights.square().sum()


def test_full_batch_recovers_the_solution_of_scikit_learn(problem: tuple[Tensor, Tensor]) -> None:
    features, labels = problem
    weights, biases = fit_exact(
        features, labels, N_CLASSES, learning_rate=1.0, n_epochs=1000, l2=L2
    )
    # scikit-learn multiplies the summed loss by C, so C = 1 / (l2 N).
    theirs = LogisticRegression(C=1 / (L2 * len(labels)), solver="newton-cg", tol=1e-12)
    theirs.fit(features.numpy(), labels.numpy())
    torch.testing.assert_close(weights, torch.from_numpy(theirs.coef_), rtol=0, atol=1e-6)
    # Softmax determines the biases up to a constant.
    intercepts = torch.from_numpy(theirs.intercept_)
    torch.testing.assert_close(
        biases - biases.mean(), intercepts - intercepts.mean(), rtol=0, atol=1e-6
    )


def test_the_gradient_is_zero_at_the_solution(problem: tuple[Tensor, Tensor]) -> None:
    features, labels = problem
    fitted = fit_exact(features, labels, N_CLASSES, learning_rate=1.0, n_epochs=1000, l2=L2)
    weights, biases = (part.requires_grad_() for part in fitted)
    objective(features, labels, weights, biases, L2).backward()
    for part in (weights, biases):
        assert part.grad is not None
        assert part.grad.abs().max() < 1e-9


def test_one_step_is_autograd_descent(problem: tuple[Tensor, Tensor]) -> None:
    features, labels = problem
    weights = torch.zeros(N_CLASSES, 3, dtype=torch.float64, requires_grad=True)
    biases = torch.zeros(N_CLASSES, dtype=torch.float64, requires_grad=True)
    objective(features, labels, weights, biases, L2).backward()
    found = fit_exact(features, labels, N_CLASSES, learning_rate=0.3, n_epochs=1, l2=L2)
    assert weights.grad is not None
    assert biases.grad is not None
    torch.testing.assert_close(found, (-0.3 * weights.grad, -0.3 * biases.grad))


def test_free_scores_recover_the_empirical_distribution() -> None:
    # One context per one-hot x, so every p(y|x) can be fitted exactly; rows are counts of y.
    counts = torch.tensor([[10, 30, 60, 100], [97, 1, 1, 1], [25, 25, 25, 25]])
    context, label = counts.nonzero(as_tuple=True)
    repeats = counts[context, label]
    contexts, labels = context.repeat_interleave(repeats), label.repeat_interleave(repeats)
    features = torch.nn.functional.one_hot(contexts, 3).double()
    weights, biases = fit_exact(features, labels, 4, learning_rate=3.0, n_epochs=1500)
    fitted = softmax(weights.T + biases)
    empirical = counts / counts.sum(1, keepdim=True)
    total_variation = (fitted - empirical).abs().sum(1) / 2
    assert total_variation.max() < 1e-3


def test_loss_falls_at_every_small_full_batch_step(problem: tuple[Tensor, Tensor]) -> None:
    features, labels = problem
    losses = [
        objective(
            features,
            labels,
            *fit_exact(features, labels, N_CLASSES, learning_rate=0.1, n_epochs=n, l2=L2),
            L2,
        )
        for n in range(40)
    ]
    assert (torch.stack(losses).diff() < 0).all()


def test_minibatches_converge_near_the_full_batch_solution(problem: tuple[Tensor, Tensor]) -> None:
    features, labels = problem
    full = fit_exact(features, labels, N_CLASSES, learning_rate=1.0, n_epochs=1000, l2=L2)
    mini = fit_exact(
        features, labels, N_CLASSES, learning_rate=0.05, n_epochs=300, batch_size=16, l2=L2
    )
    gap = objective(features, labels, *mini, L2) - objective(features, labels, *full, L2)
    assert 0 <= gap < 1e-4
    for near, exact in zip(mini, full, strict=True):
        torch.testing.assert_close(near, exact, rtol=0, atol=0.01)


def test_a_batch_of_everything_is_the_full_batch(problem: tuple[Tensor, Tensor]) -> None:
    full = fit_exact(*problem, N_CLASSES, learning_rate=0.5, n_epochs=20)
    batched = fit_exact(*problem, N_CLASSES, learning_rate=0.5, n_epochs=20, batch_size=1000)
    torch.testing.assert_close(batched, full)


def test_the_seed_fixes_the_order_of_minibatches(problem: tuple[Tensor, Tensor]) -> None:
    def weights(seed: int) -> Tensor:
        return fit_exact(
            *problem, N_CLASSES, learning_rate=0.5, n_epochs=3, batch_size=30, seed=seed
        )[0]

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_the_result_has_the_dtype_and_shape_of_the_problem(problem: tuple[Tensor, Tensor]) -> None:
    features, labels = problem
    weights, biases = fit_exact(features.float(), labels, 9, learning_rate=0.5, n_epochs=2)
    assert weights.dtype == biases.dtype == torch.float32
    assert weights.shape == (9, 3)
    assert biases.shape == (9,)


def test_scores_over_the_memory_budget_are_refused() -> None:
    features, labels = torch.zeros(1000, 1), torch.zeros(1000, dtype=torch.int64)
    n_classes = MAX_SCORE_BYTES // (4 * 1000) + 1
    with pytest.raises(MemoryBudgetError, match=f"{4 * 1000 * n_classes} bytes"):
        fit_exact(features, labels, n_classes, learning_rate=1.0, n_epochs=1)
    fit_exact(features, labels, n_classes, learning_rate=1.0, n_epochs=0, batch_size=999)


def test_divergence_is_an_error_that_names_the_epoch(problem: tuple[Tensor, Tensor]) -> None:
    features, labels = problem
    with pytest.raises(DivergedError, match="after epoch 1;"):
        fit_exact(features * torch.nan, labels, N_CLASSES, learning_rate=1.0, n_epochs=5)
    with pytest.raises(DivergedError, match="learning_rate"):
        fit_exact(features, labels, N_CLASSES, learning_rate=1e3, n_epochs=200, l2=1.0)


@pytest.mark.parametrize(
    ("features", "labels", "batch_size", "message"),
    [
        (torch.zeros(0, 2), [], None, "shape"),
        (torch.zeros(2), [0, 1], None, "shape"),
        (torch.zeros(2, 2), [0], None, r"labels have shape \(1,\); expected \(2,\)"),
        (torch.zeros(2, 2), [0, 3], None, r"0\.\.3; expected 0\.\.2"),
        (torch.zeros(2, 2), [-1, 0], None, r"-1\.\.0"),
        (torch.zeros(2, 2), [0, 1], 0, "batch_size"),
    ],
)
def test_bad_arguments_say_what_is_wrong(
    features: Tensor, labels: list[int], batch_size: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fit_exact(
            features,
            torch.tensor(labels, dtype=torch.int64),
            3,
            learning_rate=1.0,
            n_epochs=1,
            batch_size=batch_size,
        )
