"""Draws that a batch shares: the same gradient as own draws, and the probabilities of softmax."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from extremax import ExtremeClassifier
from extremax.heads.base import with_shared
from extremax.kernels.cpu.threads import limit
from extremax.model import Model
from extremax.noise import Draw
from extremax.objectives import Pairs, SampledSoftmax, given_others
from extremax.preparation import Prepared
from extremax.random import Stream
from extremax.training import steps
from extremax.training.data import Examples
from extremax.training.shared import beside_truths
from extremax.training.steps import Steps

CONTEXTS, CLASSES = 6, 10
ONE_HOT = np.eye(CONTEXTS, dtype=np.float32)


def prepared(context: np.ndarray, y: np.ndarray, noise: str) -> tuple[Model, Examples]:
    """A linear head at zero, and a fitted noise."""
    parameters = ExtremeClassifier("sampled_softmax", noise, start="zeros")
    data = Prepared.of(parameters, ONE_HOT[context], y, None, None, 0)
    train = np.arange(len(y))
    data.choice.noise.fit(data.examples.rows, data.examples.labels, CLASSES, train)
    return data.model(parameters, data.choice.noise, train, 1.0, 0), data.examples


@pytest.fixture
def problem() -> tuple[np.ndarray, np.ndarray]:
    """Context and class of each row; some classes are frequent, so that draws hit the label."""
    rng = np.random.default_rng(0)
    truth = np.exp(1.5 * rng.standard_normal((CONTEXTS, CLASSES)))
    truth /= truth.sum(1, keepdims=True)
    context = rng.integers(CONTEXTS, size=6_000)
    y = (rng.random((len(context), 1)) < truth[context].cumsum(1)).argmax(1)
    y[:CLASSES] = np.arange(CLASSES)
    return context, y


def shared_step(
    model: Model, examples: Examples, numbers: np.ndarray, n_negatives: int
) -> dict[str, Any]:
    """Take a step with shared draws; return what the head was given."""
    given: dict[str, Any] = {}
    take = model.head.step_shared

    def watched(inputs: Any, own: Any, shared: Any, gradient: Any, rate: float) -> None:
        given.update(own=own, shared=shared, gradient=gradient.clone())
        take(inputs, own, shared, gradient, rate)

    model.head.step_shared = watched  # type: ignore[method-assign]
    key = Stream.of(0, rows=np.arange(0)).key
    trainer = Steps(model, examples, n_negatives, len(numbers), 0, shared=True)
    loss, _, done = trainer.take(numbers, key, np.array([0.3]), 0)
    assert done == 1
    return given | {"loss": loss}


@pytest.mark.parametrize("n_negatives", [1, 3, 40])
@pytest.mark.parametrize("cached", [1, 50, 2**16])
def test_the_gradient_is_that_of_own_draws(
    problem: tuple[np.ndarray, ...], n_negatives: int, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "_CACHED_SCORES", cached)
    model, examples = prepared(*problem, "frequency")
    other, _ = prepared(*problem, "frequency")
    for one in (model, other):
        one.head.bias.copy_(torch.linspace(-2, 2, CLASSES))
    numbers = np.arange(30)
    inputs = other.head.inputs(examples.rows, numbers)
    given = shared_step(model, examples, numbers, n_negatives)
    classes = with_shared(given["own"], given["shared"])
    # The loss by its definition, in float64: draws of the label are dropped, the others are draws
    # of q over the other classes; 1/(1 − q_y^m) makes up for rows that are left with no draw.
    log_q = other.noise.log_prob(other.noise.context(examples.rows[numbers]), classes).double()
    scores = other.head.scores(inputs, classes).double().requires_grad_()
    losses = []
    for row, label in enumerate(examples.labels[numbers]):
        kept = [j for j in range(1, 1 + n_negatives) if classes[row, j] != label]
        q_label = log_q[row, 0].exp()
        corrections = [(log_q[row, j].exp() / (1 - q_label) * len(kept)).log() for j in kept]
        logits = [scores[row, j] - c for j, c in zip(kept, corrections, strict=True)]
        loss = torch.stack([scores[row, 0], *logits]).logsumexp(0) - scores[row, 0]
        losses.append(loss / (1 - q_label**n_negatives) if kept else loss)
    torch.stack(losses).sum().backward()
    torch.testing.assert_close(given["gradient"].double(), scores.grad, rtol=1e-4, atol=1e-6)
    assert given["loss"] == pytest.approx(torch.stack(losses).sum().item(), rel=1e-4)
    # The step is the one that every row would take with the same draws of its own.
    other.head.step(inputs, classes, given["gradient"], 0.3)
    for name, tensor in model.head.state().items():
        torch.testing.assert_close(tensor, other.head.state()[name], rtol=1e-5, atol=1e-6)


def test_own_draws_have_the_same_gradient_where_none_hits(
    problem: tuple[np.ndarray, ...],
) -> None:
    """The objective sees no difference between draws of a row and draws of its batch, but for
    their distribution: q over the other classes, or all of q."""
    model, examples = prepared(*problem, "uniform")
    numbers = np.arange(30)
    given = shared_step(model, examples, numbers, 4)
    classes = with_shared(given["own"], given["shared"])
    clear = ~(classes[:, 1:] == classes[:, :1]).any(1)
    assert clear.any()
    other, _ = prepared(*problem, "uniform")
    scores = other.head.scores(other.head.inputs(examples.rows, numbers), classes)
    log_q = torch.full(classes.shape, -np.log(CLASSES), dtype=torch.float32)
    hits = torch.zeros((30, 4), dtype=torch.bool)
    own = other.objective.gradient(Pairs(scores, given_others(log_q), hits, torch.empty(30, 0)))
    weight = 1 / (1 - CLASSES**-4)
    torch.testing.assert_close(given["gradient"][clear], weight * own[clear])


class Fixed:
    """Draws given beforehand, the same for every row."""

    def __init__(self, labels: list[int], log_q: torch.Tensor) -> None:
        self.labels, self.log_q = torch.tensor([labels], dtype=torch.int64), log_q

    def sample(self, context: torch.Tensor, m: int, stream: Stream) -> Draw:
        labels = self.labels.expand(len(context), -1)
        return Draw(labels, self.log_q[labels])


@pytest.mark.parametrize("labels", [[0, 2, 2], [4, 1, 3], [1, 1, 1]])
@pytest.mark.parametrize("m", [1, 2, 3])
def test_draws_beside_true_classes_sum_to_the_normalizer_on_average(
    labels: list[int], m: int
) -> None:
    """Over all draws that a frequency noise can make, whatever the true classes are."""
    scores = torch.tensor(
        [[0.3, -1.0, 2.0, 0.5, -0.2], [1.0, 0.1, -2.0, 0.0, 0.7], [0.0, 3.0, -1.0, 0.2, 0.4]]
    ).double()
    log_q = torch.tensor([0.1, 0.4, 0.2, 0.25, 0.05]).log()
    truth, context = torch.tensor(labels)[:, None], torch.empty((3, 0))
    mean = torch.zeros(3, dtype=torch.float64)
    for drawn in itertools.product(range(5), repeat=m):
        noise, stream = Fixed(list(drawn), log_q), Stream.of(0, rows=np.arange(3))
        draws = beside_truths(noise, context, truth, m, stream)  # type: ignore[arg-type]
        found = draws.of_rows(scores[:, draws.shared], slice(None))
        assert torch.equal(found[0][:, :1], scores.gather(1, truth))
        log_sum = SampledSoftmax().loss(Pairs(*found, torch.empty(3, 0))) + found[0][:, 0]
        mean += log_q[list(drawn)].double().sum().exp() * log_sum.exp()
    torch.testing.assert_close(mean, scores.exp().sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cached", [50, 2**16])
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_the_step_beside_true_classes_is_that_of_every_row(
    problem: tuple[np.ndarray, ...], cached: int, n_jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the loss by its definition, in float64, and a step of pairs."""
    monkeypatch.setattr(steps, "_CACHED_SCORES", cached)
    model, examples = prepared(*problem, "mixture")
    other, _ = prepared(*problem, "mixture")
    for one in (model, other):
        one.head.bias.copy_(torch.linspace(-2, 2, CLASSES))
    # Few true classes, so that some draws are others.
    numbers, m = np.flatnonzero(examples.labels < 3)[:20], 12
    truth, key = torch.from_numpy(examples.labels[numbers]), Stream.of(0, rows=np.arange(0)).key
    frequency = other.noise.parts_[1]  # type: ignore[attr-defined]
    draw = frequency.sample(torch.empty((1, 0)), m, Stream(key, numbers[:1]))
    inside = set(truth.tolist())
    counted = [c for c in draw.labels[0].tolist() if c not in inside]
    assert counted
    inputs = other.head.inputs(examples.rows, numbers)
    classes = torch.tensor([*sorted(inside), *counted]).expand(len(numbers), -1)
    scores = other.head.scores(inputs, classes).double().requires_grad_()
    log_weight = -frequency.log_q_[classes[0]].double() - np.log(m)
    log_weight[: len(inside)] = 0.0
    true_scores = scores[:, : len(inside)][classes[:, : len(inside)] == truth[:, None]]
    loss = ((scores + log_weight).logsumexp(1) - true_scores).sum()
    loss.backward()
    with limit(n_jobs):
        trainer = Steps(model, examples, m, len(numbers), 0, shared=True, counts_truths=True)
        found, _, done = trainer.take(numbers, key, np.array([0.3]), 0)
    assert done == 1
    assert found == pytest.approx(loss.item(), rel=1e-5)
    other.head.step(inputs, classes, scores.grad.float(), 0.3)  # type: ignore[union-attr]
    for name, tensor in model.head.state().items():
        torch.testing.assert_close(tensor, other.head.state()[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("noise", "counts_truths"),
    [
        ("uniform", False), ("frequency", False), ("frequency(power=0.5)", False),
        ("mixture", True), ("uniform", True),
    ],
)  # fmt: skip
def test_many_shared_draws_find_the_probabilities_of_softmax(
    problem: tuple[np.ndarray, ...], noise: str, counts_truths: bool
) -> None:
    """The linear model is saturated: exact softmax finds the observed frequencies."""
    context, y = problem
    model, examples = prepared(context, y, noise)
    trainer = Steps(model, examples, 256, 250, 0, shared=True, counts_truths=counts_truths)
    n_epochs, size = 30, 250
    rng = np.random.default_rng(0)
    for epoch in range(n_epochs):
        order = rng.permutation(len(y))
        key = Stream.of(epoch, rows=np.arange(0)).key
        for start in range(0, len(y), size):
            trainer.take(
                order[start : start + size], key, np.array([2.0 * (1 - epoch / 30)]), epoch
            )
    observed = np.zeros((CONTEXTS, CLASSES))
    np.add.at(observed, (context, y), 1)
    share = observed.sum(1) / len(y)
    observed /= observed.sum(1, keepdims=True)
    found = model.log_probs_all(model.encoder.transform(ONE_HOT)).double().numpy()
    logs = np.log(np.where(observed > 0, observed, 1.0))
    divergence = share @ (observed * (logs - found)).sum(1)
    # The data tell the truth no better than that: CONTEXTS (CLASSES − 1)/2N nat (Wilks 1938).
    assert 0 <= divergence < CONTEXTS * (CLASSES - 1) / (2 * len(y))
