"""The tree of softmaxes on sparse rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse, stats
from scipy.optimize import minimize
from scipy.special import log_softmax

from extremax.kernels.cpu import sparse_node, sparse_table, threads
from extremax.noise import sparse_tree_fit, sparse_tree_shape
from extremax.noise.sparse_tree import SparseTreeNoise
from extremax.noise.sparse_tree_shape import tree_shape
from extremax.random import Stream
from extremax.rows import SparseRows

close = {"rtol": 1e-4, "atol": 1e-4}


def titles(n: int, n_classes: int, n_words: int = 60, seed: int = 0):
    """Rows of a few words, some of which their class likes."""
    generator = np.random.default_rng(seed)
    labels = (n_classes * generator.random(n) ** 1.5).astype(np.int64)
    own = generator.integers(n_words, size=(n_classes, 3))
    words = np.where(
        generator.random((n, 5)) < 0.5,
        own[labels][:, generator.integers(3, size=5)],
        generator.integers(n_words, size=(n, 5)),
    )
    rows = sparse.csr_matrix(
        (np.ones(words.size, np.float32), words.ravel(), np.arange(0, words.size + 1, 5)),
        shape=(n, n_words),
    )
    rows.sum_duplicates()
    return rows, labels


@pytest.fixture
def two_levels(monkeypatch):
    """At most three halvings per level, so that small trees are deep."""
    monkeypatch.setattr(sparse_tree_shape, "HALVINGS", 3)


@pytest.fixture
def tree(two_levels) -> SparseTreeNoise:
    return SparseTreeNoise(0.3, prune=0.0).fit(*titles(800, 37), 37)


def reference(tree: SparseTreeNoise, rows: sparse.csr_matrix) -> np.ndarray:
    """log q of every class by the definition, in float64, node by node."""
    t, x = tree.tree_, rows.toarray().astype(np.float64)
    saved = {name: tensor.numpy() for name, tensor in tree.state().items()}
    starts, entries = (np.cumsum([0, *saved[name]]) for name in ("features_of", "counts"))
    child = saved["weights"] & 255
    out = np.zeros((len(x), len(t.order)))

    def descend(n: int, above: np.ndarray) -> None:
        children = slice(t.first[n], t.first[n + 1])
        weight = np.zeros((t.first[n + 1] - t.first[n], x.shape[1]))
        for f in range(starts[n], starts[n + 1]):
            for e in range(entries[f], entries[f + 1]):
                weight[child[e], saved["features"][f]] = t.weight[e]
        log_p = above[:, None] + log_softmax(x @ weight.T + t.bias[children], 1)
        for c, (node, position) in enumerate(
            zip(t.node[children], t.position[children], strict=True)
        ):
            if node < 0:
                out[:, t.order[position]] = log_p[:, c]
            else:
                descend(node, log_p[:, c])

    descend(0, np.zeros(len(x)))
    return out


def primal(weight, x, child, penalty):
    """Objective and gradient of a node, in float64."""
    weight = weight.reshape(x.shape[1], -1)
    log_p = log_softmax(x @ weight, 1)
    loss = -log_p[np.arange(len(x)), child].sum() + penalty / 2 * (weight**2).sum()
    error = np.exp(log_p)
    error[np.arange(len(x)), child] -= 1
    return loss, (x.T @ error + penalty * weight).ravel()


@pytest.mark.parametrize("penalty", [0.03, 0.3, 3.0])
def test_a_node_is_fitted_to_the_optimum_of_its_objective(penalty):
    rows, child = titles(300, 5)
    data = SparseRows.of(rows)
    local = np.full(60, -1, np.int32)
    arrays = (*data.arrays, np.float32(1.0))
    features, weight = sparse_node.fit(
        np.arange(300), child, 5, arrays, local, penalty, 400, np.uint64(1)
    )
    assert np.all(local == -1)
    x = np.c_[rows.toarray()[:, features], np.ones(300)].astype(np.float64)
    best = minimize(primal, np.zeros(x.shape[1] * 5), (x, child, penalty), jac=True, tol=1e-10)
    # A change of α below its threshold is left undone, and counts 1/λ.
    np.testing.assert_allclose(weight, best.x.reshape(-1, 5), atol=5e-4 / penalty)


def test_more_passes_come_nearer_to_the_optimum():
    rows, child = titles(200, 6, seed=2)
    arrays, local = (*SparseRows.of(rows).arrays, np.float32(1.0)), np.full(60, -1, np.int32)
    gradients = []
    for passes in (4, 16, 64, 256):
        features, weight = sparse_node.fit(
            np.arange(200), child, 6, arrays, local, 0.1, passes, np.uint64(1)
        )
        x = np.c_[rows.toarray()[:, features], np.ones(200)].astype(np.float64)
        gradient = primal(weight.astype(np.float64).ravel(), x, child, 0.1)[1]
        gradients.append(np.linalg.norm(gradient))
    assert all(later < earlier for earlier, later in pairwise(gradients))


@given(st.integers(1, 5000), st.integers(1, 8))
@settings(deadline=None, max_examples=60)
def test_the_shape_has_every_class_once(n_classes, halvings):
    before = sparse_tree_shape.HALVINGS
    sparse_tree_shape.HALVINGS = halvings
    try:
        shape = tree_shape(n_classes)
    finally:
        sparse_tree_shape.HALVINGS = before
    assert sorted(shape.position[shape.node < 0]) == list(range(n_classes))
    inner = shape.node[shape.node >= 0]
    assert sorted(inner) == list(range(1, len(shape.level)))
    assert np.diff(shape.first).max() <= 2**halvings
    for n, (begin, end) in enumerate(zip(shape.first[:-1], shape.first[1:], strict=True)):
        assert np.all(np.diff(shape.position[begin:end]) > 0)
        if n:
            (parent,) = np.flatnonzero(shape.node == n)
            assert shape.position[parent] == shape.position[begin]


def test_log_prob_is_that_of_the_definition(tree):
    rows, _ = titles(20, 37, seed=5)
    expected = torch.from_numpy(reference(tree, rows)).float()
    context = tree.context(rows)
    every = torch.arange(37).expand(20, -1)
    torch.testing.assert_close(tree.log_prob_all(context), expected, **close)
    torch.testing.assert_close(tree.log_prob(context, every), expected, **close)
    torch.testing.assert_close(expected.double().exp().sum(1), torch.ones(20).double(), **close)
    assert len(tree.tree_.first) > 6


def test_levels_can_be_weighted(tree):
    tree.extend(40)
    context = tree.context(titles(20, 37, seed=5)[0])
    first, second, other = (
        tree.weighted_log_probs(context, np.array(w)) for w in ([1.0, 0.0], [0.0, 1.0], [0.5, 2.0])
    )
    torch.testing.assert_close(first + second, tree.log_prob_all(context), **close)
    some = torch.randint(40, (20, 9), generator=torch.Generator().manual_seed(0))
    levels = tree.level_log_probs(context, some)
    torch.testing.assert_close(levels[..., 0], first.gather(1, some), **close)
    torch.testing.assert_close(levels[..., 1], second.gather(1, some), **close)
    torch.testing.assert_close(0.5 * first + 2.0 * second, other, **close)
    # Classes of a node share what the first level has, and have the second for themselves.
    t = tree.tree_
    for n in range(1, len(t.first) - 1):
        classes = t.order[t.position[t.first[n] : t.first[n + 1]]]
        assert torch.equal(first[:, classes].max(1).values, first[:, classes].min(1).values)
        whole = second[:, classes].double().exp().sum(1)
        torch.testing.assert_close(whole, torch.ones(20).double(), **close)
    assert torch.all(second[:, 37:] == 0.0)


def test_a_weight_is_exact_to_its_last_eight_bits():
    weight = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    child = np.arange(1000) % 256
    bits = sparse_table.packed(weight, child)
    np.testing.assert_allclose(bits.view(np.float32), weight, rtol=2.0**-15)
    assert np.array_equal(bits & sparse_table.CHILD, child)


def test_the_table_holds_every_pair():
    # Nodes that share features, and features in any order.
    random = np.random.default_rng(1)
    node = np.sort(random.integers(0, 50, 3000))
    feature = random.integers(0, 2**31, 3000)
    count = random.integers(1, 257, 3000)
    slots = sparse_table.hashed(node, feature, count)
    for put_in, kept in zip((node, feature, count), sparse_table.pairs(slots), strict=True):
        assert np.array_equal(put_in, kept)
    spans, start = np.empty(1, np.int64), np.cumsum(count) - count
    weights = np.zeros(count.sum(), np.float32)
    for i in range(0, 3000, 7):
        sparse_table.find_spans(slots, weights, node[i], feature[i : i + 1], 0, 1, spans)
        assert (spans[0] >> 9, spans[0] & 511) == (start[i], count[i])
        # Nodes are below fifty.
        sparse_table.find_spans(slots, weights, 50 + node[i], feature[i : i + 1], 0, 1, spans)
        assert spans[0] == 0


def test_draws_follow_log_prob(tree):
    rows, _ = titles(1, 37, seed=6)
    same = tree.context(sparse.vstack([rows] * 5000).tocsr())
    draw = tree.sample(same, 4, Stream.of(1, rows=np.arange(5000)))
    every = tree.log_prob_all(same[:1])[0]
    torch.testing.assert_close(draw.log_q, every[draw.labels], **close)
    q = every.double().exp().numpy()
    counts = np.bincount(draw.labels.numpy().ravel(), minlength=37)
    assert q.min() * 20_000 > 5
    assert stats.chisquare(counts, q / q.sum() * counts.sum()).pvalue > 1e-4


@pytest.mark.parametrize(("width", "recall"), [(2, 0.6), (40, 1.0)])
def test_a_wide_search_finds_the_likeliest_classes(tree, width, recall):
    rows, _ = titles(50, 37, seed=7)
    context = tree.context(rows)
    weights = np.array([0.7, 1.9])
    found = tree.search(context, 5, width, weights)
    assert torch.all(found.log_q.diff(dim=1) <= 0)
    own = tree.log_prob(context, found.labels)
    torch.testing.assert_close(found.log_q, own, **close)
    weighted = tree.weighted_log_probs(context, weights)
    torch.testing.assert_close(found.weighted, weighted.gather(1, found.labels), **close)
    best = tree.log_prob_all(context).topk(5)
    assert float((found.labels[:, 0] == best.indices[:, 0]).double().mean()) >= recall
    if recall == 1.0:
        torch.testing.assert_close(found.log_q, best.values, **close)


def test_a_search_for_more_than_there_is(tree):
    rows, _ = titles(3, 37)
    found = tree.search(tree.context(rows), 40, 40, np.ones(2))
    assert torch.equal(found.labels.sort(1).values[:, :3], torch.full((3, 3), -1))
    assert torch.all(found.log_q[:, 37:] == -torch.inf)


def test_it_learns_and_small_weights_can_go(two_levels):
    rows, labels = titles(4000, 37)
    tree = SparseTreeNoise(prune=0.0).fit(rows[:3500], labels[:3500], 37)
    context, truth = tree.context(rows[3500:]), torch.from_numpy(labels[3500:])[:, None]
    shares = np.bincount(labels[:3500], minlength=37) / 3500
    learned = float(tree.log_prob(context, truth).mean())
    assert learned > float(np.log(shares[labels[3500:]]).mean()) + 0.5
    small = SparseTreeNoise(prune=0.15).fit(rows[:3500], labels[:3500], 37)
    assert len(small.tree_.weight) < 0.9 * len(tree.tree_.weight)
    assert float(small.log_prob(context, truth).mean()) > learned - 0.05


def test_auto_chooses_a_penalty_for_each_level_by_held_out_rows(two_levels):
    # Labels that have nothing to do with the words want the hardest penalty.
    rows, labels = titles(3000, 37)
    noise = np.random.default_rng(0).permutation(labels)
    assert SparseTreeNoise().fit(rows, noise, 37).penalties_[0] == sparse_tree_fit.PENALTIES[0]
    learned = SparseTreeNoise().fit(rows, labels, 37).penalties_
    assert len(learned) == 2
    assert learned[0] < sparse_tree_fit.PENALTIES[0]


def test_scores_that_a_penalty_made_small_are_made_larger(two_levels, monkeypatch):
    rows, labels = titles(4000, 37)
    truth = torch.from_numpy(labels[3500:])[:, None]
    likelihoods = {}
    for choices in ([1.0], [0.8, 1.0, 1.5, 2.5]):
        monkeypatch.setattr(sparse_tree_fit, "SHARPNESSES", np.array(choices, np.float32))
        tree = SparseTreeNoise(30.0).fit(rows[:3500], labels[:3500], 37)
        likelihoods[max(choices)] = float(tree.log_prob(tree.context(rows[3500:]), truth).mean())
    assert max(tree.sharpness_) > 1.0
    assert likelihoods[2.5] > likelihoods[1.0] + 0.01


def test_class_vectors_are_sums_of_rows_at_unit_length():
    rows, labels = titles(300, 20)
    rows.data[:] = np.random.default_rng(1).standard_normal(rows.nnz)
    chosen = np.flatnonzero(labels != 3)[::2]
    sums = np.eye(20)[labels[chosen]].T @ rows[chosen].toarray().astype(np.float64)
    expected = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-15)
    found = {}
    for n_threads in (1, 2, 5):
        with threads.limit(n_threads):
            found[n_threads] = sparse_tree_fit.class_vectors(
                SparseRows.of(rows), labels, chosen, 20
            )
    ends, features, values = found[1]
    vectors = sparse.csr_matrix((values, features, ends), shape=(20, rows.shape[1]))
    np.testing.assert_allclose(vectors.toarray(), expected, **close)
    for others in (found[2], found[5]):
        for one, other in zip(found[1], others, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("best", range(len(sparse_tree_fit.PENALTIES)))
def test_the_search_for_a_penalty_ends_at_the_best_one(best, monkeypatch):
    """Where the likelihood falls with the distance to the best, at every level."""
    data, labels = titles(400, 37)
    shape = tree_shape(37)
    rows = np.arange(400)
    fit = sparse_tree_fit.NodeFit(SparseRows.of(data), rows, labels, shape, 1.0, 1, 0)
    likelihoods = [-abs(i - best) for i in range(len(sparse_tree_fit.PENALTIES))]
    monkeypatch.setattr(fit, "_held_out", lambda _, wanted: [likelihoods[i] for _, i in wanted])
    assert fit.best_penalties() == [sparse_tree_fit.PENALTIES[best]] * shape.n_levels


def test_results_do_not_depend_on_threads(two_levels):
    rows, labels = titles(1500, 37)
    trees = []
    for n in (1, 3):
        with threads.limit(n):
            trees.append(SparseTreeNoise().fit(rows, labels, 37))
    for name, array in trees[0].state().items():
        assert torch.equal(array, trees[1].state()[name]), name


def test_a_row_does_not_depend_on_other_rows(tree):
    rows, _ = titles(30, 37, seed=8)
    context, stream = tree.context(rows), Stream.of(2, rows=np.arange(30))
    draw, every = tree.sample(context, 3, stream), tree.log_prob_all(context)
    for i in (0, 17):
        alone = context[i : i + 1]
        assert torch.equal(tree.log_prob_all(alone)[0], every[i])
        again = tree.sample(alone, 3, Stream.of(2, rows=np.array([i])))
        assert torch.equal(again.labels[0], draw.labels[i])


def test_state_restores_the_tree(tree):
    other = SparseTreeNoise(**tree.settings())
    other.load_state({name: tensor.clone() for name, tensor in tree.state().items()})
    rows, _ = titles(10, 37, seed=9)
    assert torch.equal(
        other.log_prob_all(other.context(rows)), tree.log_prob_all(tree.context(rows))
    )


def test_late_classes_have_probability_in_proportion_to_their_number(tree):
    tree.extend(50)
    rows, _ = titles(3000, 37, seed=9)
    log_q = tree.log_prob_all(tree.context(rows[:5])).double()
    torch.testing.assert_close(log_q.exp().sum(1), torch.ones(5).double(), **close)
    torch.testing.assert_close(log_q[:, 37:], torch.full((5, 13), -np.log(50.0)).double(), **close)
    draw = tree.sample(tree.context(rows), 3, Stream.of(0, rows=np.arange(3000)))
    assert stats.binomtest(int((draw.labels >= 37).sum()), 9000, 13 / 50).pvalue > 1e-4
    torch.testing.assert_close(tree.log_prob(tree.context(rows), draw.labels), draw.log_q, **close)


@pytest.mark.parametrize("n_classes", [1, 2, 3])
def test_few_classes(n_classes):
    rows, labels = titles(50, n_classes)
    tree = SparseTreeNoise().fit(rows, labels, n_classes)
    q = tree.log_prob_all(tree.context(rows)).double().exp()
    torch.testing.assert_close(q.sum(1), torch.ones(50).double(), **close)
    assert int(
        tree.sample(tree.context(rows), 2, Stream.of(0, rows=np.arange(50))).labels.max()
    ) < (n_classes)


def test_empty_rows_classes_without_rows_and_dense_rows():
    rows, labels = titles(200, 10)
    rows = sparse.vstack([rows, sparse.csr_matrix((5, 60), dtype=np.float32)]).tocsr()
    labels = np.append(labels, np.zeros(5, np.int64))
    tree = SparseTreeNoise().fit(rows, labels, 15)
    log_q = tree.log_prob_all(tree.context(rows))
    assert log_q.isfinite().all()
    assert torch.equal(tree.log_prob_all(tree.context(rows.toarray())), log_q)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"lambda_": 0.0}, "lambda_ must be"),
        ({"lambda_": "hard"}, "lambda_ must be"),
        ({"passes": 0}, "passes must be"),
        ({"prune": -1.0}, "prune must be"),
        ({"prune": float("nan")}, "prune must be"),
    ],
)
def test_bad_parameters_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        SparseTreeNoise(**parameters).fit(*titles(50, 5), 5)


def test_rows_of_another_width_are_refused(tree):
    with pytest.raises(ValueError, match="rows have 7 features, not 60"):
        tree.context(np.ones((2, 7)))
