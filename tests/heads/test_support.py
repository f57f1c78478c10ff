"""The support head against the dense formula in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.special import log_softmax

from extremax.evaluation import outcomes
from extremax.features import Encoder
from extremax.heads import HeadOptions, SupportHead, support
from extremax.kernels.cpu import threads
from extremax.labels import ClassLabels, LabelIndex, one_label_per_row
from extremax.model import Model
from extremax.noise import UniformNoise
from extremax.objectives import ExactSoftmax
from extremax.prediction import Blend
from extremax.rows import SparseRows
from extremax.training.data import Examples
from extremax.training.start import Start, start_at_sparse_means

LARGE = 1 << 30


def _problem(n: int, n_features: int, n_classes: int, seed: int) -> tuple[SparseRows, np.ndarray]:
    rows = SparseRows.of(sparse.random(n, n_features, 0.3, "csr", np.float32, seed))
    labels = np.random.default_rng(seed).integers(0, n_classes, n)
    return rows, labels


def _head(rows: SparseRows, labels: np.ndarray, n_classes: int, seed: int) -> SupportHead:
    options = HeadOptions(accumulator_start=0.3, scale=1.4)
    head = SupportHead.create(rows, labels, np.arange(len(labels)), n_classes, options)
    rng = np.random.default_rng(seed)
    head.weight[:] = rng.standard_normal(len(head.weight))
    head.bias.copy_(torch.from_numpy(rng.standard_normal(n_classes)))
    return head


def _model(head: SupportHead, temperature: float = 1.0) -> Model:
    labels = ClassLabels(LabelIndex(np.arange(head.n_classes)))
    blend = Blend(temperature)
    return Model(Encoder(), labels, head, UniformNoise(), ExactSoftmax(), blend)


def _dense(head: SupportHead, n_features: int) -> torch.Tensor:
    """W (C, F), zero outside of the support."""
    weight = np.zeros((head.n_classes, n_features))
    feature = np.repeat(np.arange(n_features), np.diff(head.first))
    weight[head.classes, feature] = head.weight
    return torch.from_numpy(weight)


def test_the_support_is_where_class_and_feature_met(monkeypatch: pytest.MonkeyPatch) -> None:
    # Feature 2 is common and has three classes; feature 3 is stored, but zero.
    matrix = sparse.csr_matrix(
        np.array([[1, 0, 1, 0], [0, 1, 1, 0], [2, 0, 1, 0], [0, 0, 1, 7], [1, 0, 0, 0]], np.float32)
    )
    matrix.data[matrix.indices == 3] = 0.0
    rows, labels = SparseRows(matrix), np.array([0, 1, 1, 2, 0])
    monkeypatch.setattr(support, "_MANY_CLASSES", 2)
    head = SupportHead.create(rows, labels, np.arange(5), 3, HeadOptions())
    met = [head.classes[head.first[f] : head.first[f + 1]].tolist() for f in range(4)]
    assert met == [[0, 1], [1], [], []]
    # Held-out rows do not count.
    head = SupportHead.create(rows, labels, np.array([0, 1]), 3, HeadOptions())
    assert head.classes[: head.first[1]].tolist() == [0]


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 12), st.integers(1, 12), st.integers(1, 9), st.integers(0, 10**6),
    st.sampled_from([1.0, 0.6, 2.5]),
)  # fmt: skip
def test_scores_and_best_classes_are_exact(
    n: int, n_features: int, c: int, seed: int, temperature: float
) -> None:
    rows, labels = _problem(n, n_features, c, seed)
    head = _head(rows, labels, c, seed)
    x = torch.from_numpy(rows.matrix.toarray()).double()
    xi = 1.4 * x @ _dense(head, n_features).T + head.bias.double()
    torch.testing.assert_close(head.scores_all(rows).double(), xi, atol=1e-4, rtol=1e-4)
    k = min(3, c)
    found, log_p = head.topk(rows, k, temperature, LARGE)
    expected = (xi / temperature).log_softmax(1)
    torch.testing.assert_close(log_p.double(), expected.topk(k).values, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        expected.gather(1, found), expected.topk(k).values, atol=1e-4, rtol=1e-4
    )
    wanted = np.random.default_rng(seed).integers(0, c, (n, 3))
    log_p = head.log_probs(rows, wanted, temperature, LARGE)
    truth = expected.gather(1, torch.from_numpy(wanted))
    torch.testing.assert_close(log_p.double(), truth, atol=1e-4, rtol=1e-4)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 12), st.integers(1, 12), st.integers(1, 9), st.integers(0, 10**6), st.booleans()
)
def test_a_step_is_adagrad_on_the_exact_gradient(
    n: int, n_features: int, c: int, seed: int, weighted: bool
) -> None:
    rows, labels = _problem(n, n_features, c, seed)
    head = _head(rows, labels, c, seed)
    rng = np.random.default_rng(seed)
    weights = torch.from_numpy(rng.random(n).astype(np.float32)) if weighted else None
    dense = _dense(head, n_features).requires_grad_()
    bias = head.bias.double().clone().requires_grad_()
    x = torch.from_numpy(rows.matrix.toarray()).double()
    log_p = (1.4 * x @ dense.T + bias).log_softmax(1)
    losses = -log_p[torch.arange(n), torch.from_numpy(labels)]
    loss = (losses * (1.0 if weights is None else weights.double())).sum()
    slopes = torch.autograd.grad(loss, [dense, bias])
    before = _dense(head, n_features), head.bias.double().clone()
    truth = torch.from_numpy(labels)
    total = head.exact_step(rows, truth, weights, 0.0, 0.1)
    assert total == pytest.approx(float(loss.detach()), rel=1e-4, abs=1e-4)
    inside = np.zeros((c, n_features), bool)
    inside[head.classes, np.repeat(np.arange(n_features), np.diff(head.first))] = True
    after = _dense(head, n_features), head.bias.double()
    for old, slope, new, where in zip(before, slopes, after, (inside, ...), strict=True):
        expected = old - 0.1 * slope / (0.3 + slope.square()).sqrt()
        torch.testing.assert_close(new[where], expected[where], atol=1e-4, rtol=1e-3)
    assert not _dense(head, n_features)[~torch.from_numpy(inside)].any()


def test_steps_do_not_depend_on_threads_nor_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = _problem(60, 20, 9, 1)
    heads, log_probs, best = [], [], []
    # Up to four chunks.
    for n_threads in (1, 2):
        head = _head(rows, labels, 9, 2)
        with threads.limit(n_threads):
            head.exact_step(rows, torch.from_numpy(labels), None, 0.0, 0.1)
            log_probs.append(head.log_probs(rows, labels[:, None], 1.0, LARGE))
            best.append(head.topk(rows, 3, 1.0, LARGE).log_probs)
        heads.append(head)
    np.testing.assert_array_equal(heads[0].weight, heads[1].weight)
    assert log_probs[0].equal(log_probs[1])
    assert best[0].equal(best[1])
    # Fewer active classes at a time are more steps, each finite and each a gain.
    monkeypatch.setattr(support, "_MOST_ACTIVE", 64)
    head = _head(rows, labels, 9, 2)
    losses = [head.exact_step(rows, torch.from_numpy(labels), None, 0.0, 0.1) for _ in range(30)]
    assert losses[-1] < 0.7 * losses[0]


def test_it_starts_at_the_class_means() -> None:
    """As in the definition: weights are damped sums of the rows of a class, of unit length, times
    one number that suits held-out rows, and biases log frequencies."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 12, 900)
    any_word = random.integers(0, 30, (900, 4))
    words = np.where(random.random((900, 4)) < 0.6, labels[:, None], any_word)
    dense = np.zeros((900, 30), np.float32)
    np.add.at(dense, (np.arange(900)[:, None], words), random.random((900, 4)))
    features = SparseRows.of(sparse.csr_matrix(dense))
    train, held_out = np.arange(700), np.arange(700, 900)
    head = SupportHead.create(features, labels, train, 12, HeadOptions(scale=0.5))
    examples = Examples(features, labels)
    start_at_sparse_means(Start(_model(head), examples, train, held_out, 1, 0))
    means = np.stack([dense[:700][labels[:700] == y].sum(0) for y in range(12)])
    means **= 0.7
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    frequency = np.log(np.bincount(labels[:700]) / 700)
    np.testing.assert_allclose(head.bias.numpy(), frequency, rtol=1e-5)
    plain = 0.5 * dense[700:] @ means.T

    def likelihood(tau: float) -> float:
        return float(log_softmax(tau * plain + frequency, 1)[np.arange(200), labels[700:]].sum())

    scores = head.scores_all(features[held_out]).numpy() - frequency
    tau = float((scores * plain).sum() / np.square(plain).sum())
    np.testing.assert_allclose(scores, tau * plain, rtol=1e-3, atol=1e-4)
    best = max(likelihood(t) for t in np.geomspace(tau / 20, tau * 20, 400))
    assert best - 0.5 < likelihood(tau) <= best + 0.01
    log_p = head.log_probs(features[held_out], labels[held_out][:, None], 1.0, LARGE)
    assert float(log_p.sum()) == pytest.approx(likelihood(tau), rel=1e-4)


def test_answers_of_a_model_are_those_of_its_dense_scores() -> None:
    """Unknown labels, several labels per row, logits divided by T, and the likelihood."""
    rows, labels = _problem(40, 15, 6, 3)
    head = _head(rows, labels, 6, 3)
    model = _model(head, temperature=1.7)
    expected = (head.scores_all(rows).double() / 1.7).log_softmax(1)
    wanted = np.random.default_rng(3).integers(-1, 6, (40, 3))
    log_p = model.log_probs(rows, wanted, 1)
    truth = expected.gather(1, torch.from_numpy(np.maximum(wanted, 0)))
    truth[torch.from_numpy(wanted < 0)] = -torch.inf
    torch.testing.assert_close(log_p.double(), truth, atol=1e-4, rtol=1e-4)
    labels[:5] = -1
    result = outcomes(model, rows, one_label_per_row(labels), 1)
    assert (result.log_prob[:5] == -np.inf).all()
    assert not result.correct[:5].any()
    likelihood = expected[np.arange(5, 40), labels[5:]].numpy()
    np.testing.assert_allclose(result.log_prob[5:], likelihood, atol=1e-4, rtol=1e-4)
    assert np.array_equal(result.correct[5:], expected[5:].argmax(1).numpy() == labels[5:])


def test_far_scores_leave_probabilities_finite() -> None:
    """Every class active, and every score far below the highest bias."""
    rows = SparseRows.of(sparse.csr_matrix(np.ones((1, 1), np.float32)))
    both = rows[np.array([0, 0])]
    head = SupportHead.create(both, np.array([0, 1]), np.arange(2), 2, HeadOptions())
    head.weight[:] = -3000.0, -3001.0
    head.bias.copy_(torch.tensor([0.0, -50.0]))
    expected = torch.tensor([[-3000.0, -3051.0]], dtype=torch.float64).log_softmax(1)
    found = head.log_probs(rows, np.array([[0, 1]]), 1.0, LARGE).double()
    torch.testing.assert_close(found, expected)


def test_new_classes_get_the_lowest_bias() -> None:
    rows, labels = _problem(30, 10, 5, 4)
    head = _head(rows, labels, 5, 4)
    head.grow(8)
    assert (head.bias[5:] == head.bias[:5].min()).all()
    assert (head.bias_acc[5:] == 0.3).all()
