"""What every noise promises. A new one is tested by its line in ``NOISES``.

A noise that follows a head gets a small random one and is treated as the classifier treats it:
attached after the fit, and again after head and noise have grown.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from scipy import sparse, stats
from sklearn.base import clone

from extremax.data.synthetic import clustered
from extremax.errors import ModelFileError
from extremax.heads import LinearHead
from extremax.kernels.cpu.threads import limit
from extremax.noise import (
    NOISES,
    MixtureNoise,
    Noise,
    SoftmaxNoise,
    SparseTreeNoise,
    describe_noise,
    make_noise,
    sparse_tree_shape,
)
from extremax.random import Stream
from extremax.rows import Sizes, SparseRows, as_rows
from extremax.tensors import Tensors

N_CLASSES, N_EMPTY = 40, 5
# Noises whose defaults leave something untested.
VARIANTS: dict[str, Noise] = {
    "softmax by gumbel": SoftmaxNoise(method="gumbel"),
    "mixture of five": MixtureNoise(
        ("uniform", "log_uniform", "bigram", {"noise": "tree", "n_components": 3}, "frequency"),
        (1, 2, 3, 4, 5),
    ),
    "mixture with softmax": MixtureNoise(("softmax", "bigram"), (0.3, 0.7)),
    "mixture with sparse tree": MixtureNoise(("sparse_tree", "frequency"), (0.4, 0.6)),
}
close = {"rtol": 1e-5, "atol": 2e-5}
wide = {"rtol": 1e-4, "atol": 1e-4}

Problem = tuple[np.ndarray, np.ndarray]


@pytest.fixture(autouse=True)
def _deep_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sparse trees of two levels."""
    monkeypatch.setattr(sparse_tree_shape, "HALVINGS", 3)


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Clustered rows; the last classes have no example."""
    return clustered(1500, N_CLASSES - N_EMPTY, 8, seed=6, noise=0.3)


def random_head(n_classes: int, n_features: int) -> LinearHead:
    head = LinearHead(n_classes, n_features, 1.0, scale=0.7)
    generator = torch.Generator().manual_seed(n_features)
    head.weight.copy_(torch.randn(head.weight.shape, generator=generator))
    head.bias.copy_(0.5 * torch.randn(head.bias.shape, generator=generator))
    return head


@pytest.fixture
def head(problem: Problem) -> LinearHead:
    return random_head(N_CLASSES, problem[0].shape[1])


def fitted(
    noise: Noise,
    features: Any,
    labels: np.ndarray,
    head: LinearHead,
    rows: np.ndarray | None = None,
) -> Noise:
    """Fitted to as many classes as the head has, and attached to it."""
    noise = noise.fit(features, labels, head.n_classes, rows=rows)
    noise.attach(head.vectors)
    return noise


def extend(noise: Noise, head: LinearHead, n_classes: int) -> None:
    """Room for more classes, as `ExtremeClassifier.partial_fit` makes it."""
    head.grow(n_classes)
    noise.extend(n_classes)
    noise.attach(head.vectors)


@pytest.fixture(params=[*sorted(NOISES), *VARIANTS])
def noise(request: pytest.FixtureRequest, problem: Problem, head: LinearHead) -> Noise:
    return fitted(make_noise(VARIANTS.get(request.param, request.param)), *problem, head)


@pytest.fixture
def context(noise: Noise, problem: Problem) -> Any:
    return noise.context(problem[0][:60])


def repeated(context: Any, row: int, n: int) -> Any:
    """The context of one row, n times."""
    return context[np.full(n, row)]


def every_class(n: int, noise: Noise) -> torch.Tensor:
    return torch.arange(noise.n_classes_).repeat(n, 1)


def all_rows(noise: Noise, context: Any) -> torch.Tensor:
    """log q of every class, one row per example even where q does not depend on it."""
    return noise.log_prob_all(context).expand(len(context), -1)


def same_context(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, SparseRows):
        return all(map(np.array_equal, one.arrays, other.arrays))
    return all(map(same_context, one.contexts, other.contexts))


def chi_square(labels: torch.Tensor, probabilities: torch.Tensor) -> float:
    """p-value of the draws under the probabilities; classes expected under 10 times are one."""
    observed = np.bincount(labels.ravel(), minlength=len(probabilities))
    expected = probabilities.double().numpy() * labels.numel()
    rare = expected < 10
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


def assert_consistent(noise: Noise, context: Any) -> None:
    """q sums to one and is above zero; sample, log_prob and log_prob_all agree."""
    log_q = all_rows(noise, context)
    assert log_q.shape == (len(context), noise.n_classes_)
    assert log_q.dtype == torch.float32
    assert log_q.isfinite().all()
    ones = torch.ones(len(context), dtype=torch.float64)
    torch.testing.assert_close(log_q.double().exp().sum(1), ones, rtol=0, atol=5e-5)
    log_prob = noise.log_prob(context, every_class(len(context), noise))
    torch.testing.assert_close(log_prob, log_q, **close)
    draw = noise.sample(context, 7, Stream.of(0, rows=np.arange(len(context))))
    # A step takes no gradient through the noise.
    assert not any(array.requires_grad for array in (log_q, log_prob, *draw))
    assert draw.labels.shape == draw.log_q.shape == (len(context), 7)
    assert draw.labels.dtype == torch.int64
    torch.testing.assert_close(draw.log_q, log_q.gather(1, draw.labels), **close)


def assert_same(one: Noise, other: Noise, features: np.ndarray) -> None:
    context = one.context(features)
    assert same_context(context, other.context(features))
    assert one.n_classes_ == other.n_classes_
    assert torch.equal(one.log_prob_all(context), other.log_prob_all(context))
    stream = Stream.of(1, rows=np.arange(len(features)))
    for a, b in zip(one.sample(context, 5, stream), other.sample(context, 5, stream), strict=True):
        assert torch.equal(a, b)


# The distribution -------------------------------------------------------------------------------


def test_it_is_a_distribution_over_all_classes(noise: Noise, context: Any) -> None:
    assert noise.n_classes_ == N_CLASSES
    assert len(context) == 60
    assert_consistent(noise, context)


@pytest.mark.parametrize("extended", [False, True])
def test_draws_follow_log_prob(
    noise: Noise, head: LinearHead, context: Any, extended: bool
) -> None:
    if extended:
        extend(noise, head, N_CLASSES + 8)
    log_q = all_rows(noise, context)
    for row in (0, 31):
        same = repeated(context, row, 4000)
        drawn = noise.sample(same, 4, Stream.of(row, 2, rows=np.arange(4000))).labels
        assert chi_square(drawn, log_q[row].exp()) > 1e-4


def test_the_draws_of_a_row_are_independent(noise: Noise, context: Any) -> None:
    drawn = noise.sample(repeated(context, 3, 8000), 3, Stream.of(5, rows=np.arange(8000))).labels
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


# Draws among the other classes ------------------------------------------------------------------


def others_of(noise: Noise, context: Any, label: int) -> torch.Tensor:
    """q over the other classes from `log_prob_all`: q/(1 − q_y) in float64, (n, C). The parts of a
    mixture leave out the label one by one."""
    if isinstance(noise, MixtureNoise):
        pairs = zip(np.exp(noise.log_weights_), noise.parts_, context.contexts, strict=True)
        return sum(w * others_of(part, own, label) for w, part, own in pairs)
    q = all_rows(noise, context).double().exp()
    q[:, label] = 0.0
    return q / q.sum(1, keepdim=True)


@pytest.mark.parametrize("extended", [False, True])
def test_draws_of_others_follow_q_without_the_label(
    noise: Noise, head: LinearHead, context: Any, extended: bool
) -> None:
    if extended:
        extend(noise, head, N_CLASSES + 8)
    n = 3000
    best = int(all_rows(noise, context)[31].argmax())
    for row, label in ((0, 3), (31, best), (31, N_CLASSES - 1), (0, noise.n_classes_ - 1)):
        same, labels = repeated(context, row, n), torch.full((n, 1), label)
        draw = noise.sample_others(same, labels, 4, Stream.of(row, label, 2, rows=np.arange(n)))
        expected = others_of(noise, context[row : row + 1], label)[0]
        assert not (draw.labels == label).any()
        assert draw.labels.dtype == torch.int64
        assert draw.log_q.dtype == torch.float32
        torch.testing.assert_close(draw.log_q.double(), expected[draw.labels].log(), **wide)
        # Classes after the label move up, so that every class has a chance.
        moved = draw.labels - (draw.labels > label).long()
        assert chi_square(moved, torch.cat([expected[:label], expected[label + 1 :]])) > 1e-4
        log_prob = noise.log_prob_others(same, labels, draw.labels)
        torch.testing.assert_close(log_prob, draw.log_q, **wide)


def test_draws_of_others_depend_on_the_row_alone(noise: Noise, context: Any) -> None:
    rows, labels = np.arange(60) * 17, all_rows(noise, context).argmax(1, keepdim=True)
    whole = noise.sample_others(context, labels, 3, Stream.of(8, rows=rows))
    part = np.random.default_rng(0).permutation(60)[:13]
    alone = noise.sample_others(context[part], labels[part], 3, Stream.of(8, rows=rows[part]))
    assert torch.equal(alone.labels, whole.labels[part])
    assert torch.equal(alone.log_q, whole.log_q[part])
    other = noise.sample_others(context, labels, 3, Stream.of(9, rows=rows))
    assert not torch.equal(other.labels, whole.labels)


def test_a_single_class_has_no_others(noise: Noise) -> None:
    features = np.random.default_rng(0).standard_normal((9, 4), dtype=np.float32)
    one = fitted(clone(noise), features, np.zeros(9, np.int64), random_head(1, 4))
    stream, labels = Stream.of(0, rows=np.arange(9)), torch.zeros((9, 1), dtype=torch.int64)
    draw = one.sample_others(one.context(features), labels, 3, stream)
    assert draw.labels.shape == (9, 3)
    assert not draw.labels.any()
    assert not draw.log_q.any()


def test_draws_of_a_row_do_not_depend_on_other_rows(noise: Noise, context: Any) -> None:
    rows = np.arange(60) * 17
    whole = noise.sample(context, 3, Stream.of(8, rows=rows))
    part = np.random.default_rng(0).permutation(60)[:13]
    alone = noise.sample(context[part], 3, Stream.of(8, rows=rows[part]))
    assert torch.equal(alone.labels, whole.labels[part])
    assert torch.equal(alone.log_q, whole.log_q[part])
    other = noise.sample(context, 3, Stream.of(9, rows=rows))
    assert not torch.equal(other.labels, whole.labels)


def test_the_context_of_a_row_does_not_depend_on_other_rows(noise: Noise, problem: Problem) -> None:
    features = problem[0]
    whole = noise.context(features)
    assert same_context(noise.context(features[100:117]), whole[100:117])
    assert same_context(noise.context(as_rows(features)[5:6]), whole[5:6])
    assert same_context(noise.context(features[5:6].astype(np.float64)), whole[5:6])
    assert noise.reads_rows == (not same_context(whole[:500], whole[500:1000]))


def test_the_context_needs_no_head(noise: Noise, problem: Problem, context: Any) -> None:
    free = clone(noise).fit(*problem, N_CLASSES)
    assert same_context(free.context(problem[0][:60]), context)


def test_sparse_rows_are_used_or_refused_with_advice(noise: Noise, problem: Problem) -> None:
    features, other = sparse.csr_matrix(problem[0]), clone(noise)
    readers = [leaf for leaf in noise.leaves() if leaf.reads_rows]
    if all(isinstance(leaf, SparseTreeNoise) for leaf in readers):
        other.fit(features, problem[1], N_CLASSES)
        assert_consistent(other, other.context(features[:20]))
        return
    with pytest.raises(ValueError, match="project them"):
        other.fit(features, problem[1], N_CLASSES).context(features[:20])


def test_bits_do_not_depend_on_threads(noise: Noise, problem: Problem, head: LinearHead) -> None:
    # More rows than a thread takes at a time.
    rows = np.arange(10_000)
    context = noise.context(problem[0])[torch.from_numpy(rows % 1500)]
    draws = []
    for n_threads in (1, 2, 3):
        with limit(n_threads):
            assert_same(noise, fitted(clone(noise), *problem, head), problem[0])
            draw = noise.sample(context, 2, Stream.of(4, rows=rows))
            others = noise.sample_others(context, draw.labels[:, :1], 2, Stream.of(5, rows=rows))
            draws.append((*draw, *others, noise.log_prob(context, draw.labels)))
    for other in draws[1:]:
        assert all(torch.equal(a, b) for a, b in zip(draws[0], other, strict=True))


@pytest.mark.parametrize("extended", [False, True])
def test_levels_sum_to_log_q(noise: Noise, head: LinearHead, context: Any, extended: bool) -> None:
    if extended:
        extend(noise, head, N_CLASSES + 3)
    labels, n = every_class(len(context), noise), noise.n_levels
    assert noise.planned_levels(N_CLASSES) == n
    levels = noise.level_log_probs(context, labels)
    assert levels.shape == (*labels.shape, n)
    torch.testing.assert_close(levels.sum(2), noise.log_prob(context, labels), **close)
    ones = noise.weighted_log_probs(context, np.ones(n)).expand(len(context), -1)
    torch.testing.assert_close(ones, all_rows(noise, context), **close)
    weights = np.linspace(0.4, 1.7, n)
    weighted = noise.weighted_log_probs(context, weights).expand(len(context), -1)
    expected = (levels.double() @ torch.from_numpy(weights)).float()
    torch.testing.assert_close(weighted, expected, **wide)


# Searching --------------------------------------------------------------------------------------


@pytest.mark.parametrize("adds_log_q", [False, True])
@pytest.mark.parametrize("extended", [False, True])
def test_a_wide_search_finds_the_best_classes_with_their_sums(
    noise: Noise, head: LinearHead, problem: Problem, extended: bool, adds_log_q: bool
) -> None:
    if extended:
        extend(noise, head, N_CLASSES + 3)
        head.bias[N_CLASSES:] = torch.tensor([0.3, 0.6, 0.9])
    searcher, rows = noise.searcher(head), as_rows(problem[0][:60])
    weights = np.ones(noise.n_levels if adds_log_q else 0)
    if searcher is None or not searcher.fits(weights, lambda scores: scores):
        return
    assert searcher.normalization
    every = head.scores_all(rows)
    if adds_log_q:
        every = every + noise.log_prob_all(noise.context(rows))
    covered = []
    for block in searcher.candidates(rows, 5, 1000, weights, lambda scores: scores):
        columns = torch.arange(block.sums.shape[1]).repeat(len(block.sums), 1)
        classes, used = block.classes(columns), ~block.sums.isneginf()
        assert all(len(c[u].unique()) == u.sum() >= 5 for c, u in zip(classes, used, strict=True))
        expected = every[block.rows].gather(1, classes.clamp(min=0))
        torch.testing.assert_close(block.sums[used], expected[used], rtol=1e-4, atol=1e-4)
        best = block.classes(block.sums.topk(5, dim=1).indices)
        assert torch.equal(best, every[block.rows].topk(5, dim=1).indices)
        assert (torch.as_tensor(block.log_mass) <= 0).all()
        covered += range(len(rows))[block.rows]
    assert covered == list(range(len(rows)))


def test_a_narrow_search_has_as_many_candidates_as_asked_for(
    noise: Noise, head: LinearHead, problem: Problem
) -> None:
    searcher = noise.searcher(head)
    for k in (1, 17, N_CLASSES) if searcher else ():
        rows, weights = as_rows(problem[0][:20]), np.ones(noise.n_levels)
        for block in searcher.candidates(rows, k, 1, weights, lambda scores: scores):
            assert ((~block.sums.isneginf()).sum(1) >= k).all()


# Fitting and following --------------------------------------------------------------------------


def test_late_classes_are_added_beside_what_it_knows(
    noise: Noise, head: LinearHead, context: Any
) -> None:
    before = all_rows(noise, context)
    extend(noise, head, N_CLASSES + 10)
    assert_consistent(noise, context)
    after = all_rows(noise, context)
    if not (noise.follows_head and isinstance(noise, MixtureNoise)):
        # Among the old classes the proportions are as they were.
        again = after[:, :N_CLASSES].log_softmax(1)
        torch.testing.assert_close(again, before.log_softmax(1), **close)
    many = repeated(context, 0, 4000)
    drawn = noise.sample(many, 5, Stream.of(3, rows=np.arange(4000))).labels
    # Classes expected this often are drawn: the chance that one is not is e^−20.
    often = torch.arange(N_CLASSES + 10)[20_000 * after[0].exp() > 20]
    assert set(often.tolist()) <= set(drawn.unique().tolist())


def test_fewer_classes_are_refused(noise: Noise, context: Any) -> None:
    before = all_rows(noise, context).clone()
    with pytest.raises(ValueError, match=rf"{N_CLASSES} classes .*{N_CLASSES - 1}"):
        noise.extend(N_CLASSES - 1)
    # Nothing has changed, and extending to the same number changes nothing either.
    noise.extend(N_CLASSES)
    assert torch.equal(all_rows(noise, context), before)


def test_it_follows_its_head_step_by_step(
    noise: Noise, head: LinearHead, problem: Problem, context: Any
) -> None:
    before = all_rows(noise, context).clone()
    generator = torch.Generator().manual_seed(2)
    for step in range(3):
        touched = torch.randint(N_CLASSES, (4, 3), generator=generator)
        change = torch.randn((12, head.weight.shape[1]), generator=generator)
        # As training kernels do, unseen by torch.
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
    noise: Noise, problem: Problem, context: Any
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


def test_a_noise_that_needs_no_data_can_do_without(noise: Noise, head: LinearHead) -> None:
    if noise.needs_no_data:
        nothing = np.empty((0, 8), np.float32), np.empty(0, np.int64)
        other = fitted(clone(noise), *nothing, head)
        assert_same(noise, other, np.ones((3, 8), np.float32))


def test_only_the_rows_given_count(noise: Noise, problem: Problem, head: LinearHead) -> None:
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


def test_labels_that_are_not_integers_are_refused(noise: Noise) -> None:
    with pytest.raises(ValueError, match="integers"):
        clone(noise).fit(np.zeros((2, 2), np.float32), np.array([0.0, 1.5]), N_CLASSES)


@pytest.mark.parametrize("n_rows", [3, 5])
def test_features_and_labels_must_have_the_same_rows(noise: Noise, n_rows: int) -> None:
    labels = np.array([3, 1, 2, 0])
    with pytest.raises(ValueError, match=f"features have {n_rows} rows but labels 4"):
        clone(noise).fit(np.zeros((n_rows, 2), np.float32), labels, N_CLASSES)
    with pytest.raises(ValueError, match=r"features must have two dimensions.* \(4,\)"):
        clone(noise).fit(np.zeros(4, np.float32), labels, N_CLASSES)


def test_no_classes_are_refused(noise: Noise) -> None:
    with pytest.raises(ValueError, match="n_classes"):
        clone(noise).fit(np.zeros((0, 2), np.float32), np.zeros(0, np.int64), 0)


def test_one_class_is_certain(noise: Noise) -> None:
    features = np.random.default_rng(0).standard_normal((9, 4), dtype=np.float32)
    one = fitted(clone(noise), features, np.zeros(9, np.int64), random_head(1, 4))
    context = one.context(features)
    assert_consistent(one, context)
    assert math.isclose(float(one.log_prob_all(context).abs().max()), 0.0, abs_tol=1e-6)


def test_sharpness_can_be_chosen(noise: Noise, context: Any) -> None:
    offered = noise.sharpnesses()
    if not offered:
        with pytest.raises(ValueError, match="no sharpness"):
            noise.temper(0.5)
        return
    assert offered[0] == 1.0
    before = all_rows(noise, context).clone()
    for adds_log_q in (False, True):
        assert noise.default_sharpness(adds_log_q) in offered
    noise.temper(offered[-1])
    assert_consistent(noise, context)
    assert not torch.allclose(all_rows(noise, context), before)
    noise.temper(1.0)
    assert torch.equal(all_rows(noise, context), before)


# Saving and planning ----------------------------------------------------------------------------


def test_parameters_follow_scikit_learn(noise: Noise) -> None:
    copy = clone(noise)
    assert copy.get_params() == noise.get_params()
    assert not hasattr(copy, "n_classes_")
    assert noise.settings() == noise.get_params(deep=False)
    described = json.loads(json.dumps(describe_noise(noise)))
    again = make_noise(described)
    assert type(again) is type(noise)
    assert json.loads(json.dumps(again.settings())) == json.loads(json.dumps(noise.settings()))


@pytest.mark.parametrize("extended", [False, True])
def test_state_and_settings_restore_it(
    noise: Noise, problem: Problem, head: LinearHead, extended: bool
) -> None:
    if extended:
        extend(noise, head, N_CLASSES + 3)
    tensors = load(save({name: tensor.contiguous() for name, tensor in noise.state().items()}))
    restored = make_noise(json.loads(json.dumps(describe_noise(noise))))
    restored.validate(Tensors(tensors, type(noise).__name__), noise.n_classes_, 8)
    restored.load_state(tensors)
    assert restored.n_features_read == (None if noise.follows_head else noise.n_features_read)
    restored.attach(head.vectors)
    assert restored.n_features_read == noise.n_features_read
    assert noise.n_features_read in (None, 8)
    assert_same(noise, restored, problem[0][:200])
    extend(restored, head, N_CLASSES + 9)
    assert_consistent(restored, restored.context(problem[0][:20]))


def test_a_state_of_another_problem_is_refused(noise: Noise) -> None:
    tensors = Tensors(noise.state(), "noise")
    for n_classes in (N_CLASSES - 1, N_CLASSES + 1):
        with pytest.raises(ModelFileError):
            clone(noise).validate(tensors, n_classes, 8)
    if noise.n_features_read is not None and not noise.follows_head:
        with pytest.raises(ModelFileError):
            clone(noise).validate(tensors, N_CLASSES, 9)


def test_needs_cover_what_it_takes(noise: Noise, problem: Problem) -> None:
    features, labels = clustered(6000, 2000, 8, seed=0)
    other = clone(noise).fit(features, labels, 2000)
    sizes = Sizes(6000, 8, 2000, 8.0)
    needs = other.needs(sizes, 2)
    size = sum(tensor.numel() * tensor.element_size() for tensor in other.state().values())
    assert size - 1000 <= needs.saved <= 8 * size + 1000
    assert needs.kept >= size - 1000
    context = other.context(features) if other.keeps_context else torch.empty(0)
    parts = getattr(context, "contexts", [context])
    size = sum(part.numel() * part.element_size() for part in parts)
    assert other.context_bytes(sizes) == (
        size if other.keeps_context else pytest.approx(size, abs=1e5)
    )
    larger = clone(noise).needs(Sizes(60_000, 8, 20_000, 8.0), 2)
    assert all(a >= b >= 0.0 for a, b in zip(larger, needs, strict=True))
    assert noise.fit_work(Sizes(60_000, 8, 20_000, 8.0), 2) > noise.fit_work(sizes, 2) > 0


def test_a_stand_in_draws_like_a_fitted_noise(noise: Noise, problem: Problem) -> None:
    sizes = Sizes(100_000, 8, 5_000, 8.0)
    other = clone(noise).stand_in(as_rows(problem[0]), problem[1], N_CLASSES, sizes)
    other.attach(random_head(N_CLASSES, 8).vectors)
    assert_consistent(other, other.context(problem[0][:60]))
