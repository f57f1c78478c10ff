"""The logits formula: what each number of a blend does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax.features import Encoder
from extremax.heads import BagHead, HeadOptions
from extremax.labels import ClassLabels, LabelIndex
from extremax.model import Model
from extremax.noise import FrequencyNoise, SparseTreeNoise, UniformNoise, sparse_tree_shape
from extremax.objectives import NCE, AugmentReduceProbit, NegativeSampling, SampledSoftmax
from extremax.prediction.blend import START, Blend, is_product, log_counts
from extremax.rows import SparseRows

N, C, WORDS = 50, 40, 25


@pytest.fixture
def rows() -> SparseRows:
    return SparseRows.of(sparse.random(N, WORDS, 0.2, "csr", np.float32, random_state=1))


@pytest.fixture
def model(rows: SparseRows, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A tree of two levels and a random head."""
    monkeypatch.setattr(sparse_tree_shape, "HALVINGS", 3)
    random = np.random.default_rng(0)
    noise = SparseTreeNoise(0.1).fit(rows, random.integers(0, C, N), C)
    head = BagHead(C, WORDS, HeadOptions(bag_size=8))
    head.classes.weight.copy_(torch.from_numpy(random.normal(size=(C, 8))))
    labels = ClassLabels(LabelIndex(np.arange(C)))
    labels.count(random.integers(0, C, 300), 300)
    return Model(Encoder(), labels, head, noise, SampledSoftmax(), Blend())


def test_logits_are_those_of_the_formula(model: Model, rows: SparseRows) -> None:
    model.blend = Blend(temperature=1.6, levels=(0.8, 0.3), prior=-0.4)
    every = torch.arange(C).repeat(N, 1)
    levels = model.noise.level_log_probs(model.noise.context(rows), every).double()
    expected = (
        model.head.scores_all(rows).double()
        + levels @ torch.tensor([0.8, 0.3], dtype=torch.float64)
        - 0.4 * torch.from_numpy(np.log1p(model.labels.counts))
    ) / 1.6
    torch.testing.assert_close(model.logits(rows).double(), expected, rtol=1e-4, atol=1e-4)
    log_p = model.log_probs_all(rows).double()
    torch.testing.assert_close(log_p, expected.log_softmax(1), rtol=1e-4, atol=1e-4)


def test_a_search_that_is_wide_enough_finds_the_exact_ranking(
    model: Model, rows: SparseRows
) -> None:
    model.blend = Blend(temperature=1.6, levels=(0.8, 0.3), prior=-0.4)
    (found, errors), exact = model.search(rows, 5, 10**6), model.topk(rows, 5, 2**30)
    # The search takes a few candidates for all there is, or says how probable they are.
    share = (found.labels == exact.labels).double().mean()
    assert share > 0.9
    assert (found.log_probs <= 1e-5).all()
    assert errors.isnan().all()
    assert model.search(rows, C + 3, None)[0].labels.shape == (N, C)


def test_a_noise_without_a_search_says_what_to_do(model: Model, rows: SparseRows) -> None:
    model.noise = UniformNoise()
    model.noise.extend(C)
    assert not model.prefers_search
    with pytest.raises(ValueError, match=r"UniformNoise offers no search; use search='exact'"):
        model.search(rows, 3, None)


def test_where_a_blend_starts() -> None:
    labels = np.arange(40)
    tree = SparseTreeNoise(0.1).fit(sparse.identity(40, np.float32, "csr"), labels, 40)
    uniform = UniformNoise().fit(np.zeros((40, 1)), labels, 40)
    # Scores that are log p/q need log q back.
    assert Blend.start(NegativeSampling(), uniform) == Blend(levels=(1.0,))
    # A tree beside a head that is a softmax by itself: two experts of equal weight.
    assert is_product(SampledSoftmax(), tree)
    assert Blend.start(SampledSoftmax(), tree) == Blend(1 / START, (1.0,) * tree.n_levels)
    # The others need no noise.
    for objective, noise in ((SampledSoftmax(), uniform), (AugmentReduceProbit(), tree)):
        assert not is_product(objective, noise)
        assert Blend.start(objective, noise) == Blend()
        assert Blend.start(objective, noise).is_scaling
    assert not Blend.start(NCE(), tree).is_scaling


@pytest.mark.parametrize(
    "blend",
    [
        Blend(temperature=0.0),
        Blend(temperature=-1.0),
        Blend(temperature=np.nan),
        Blend(levels=(np.inf,)),
        Blend(prior=np.nan),
        Blend(levels=(1e300,)),
        Blend(temperature=1e-300),
        Blend(levels=(1.0, 1.0)),
        Blend(levels=(1.0,), experts=(1.0,)),
    ],
)
def test_numbers_that_no_training_gives_are_refused(blend: Blend) -> None:
    noise = FrequencyNoise().fit(np.zeros((3, 1)), np.arange(3), 3)
    Blend(2.0, (0.5,), (), -0.1).check(NegativeSampling(), noise, 0)
    Blend(experts=(0.3,)).check(SampledSoftmax(), noise, 1)
    with pytest.raises(ValueError, match="Blend"):
        blend.check(NegativeSampling(), noise, 0)


def test_a_class_without_examples_has_the_log_count_zero() -> None:
    torch.testing.assert_close(log_counts(np.array([0, 1, 9])), torch.tensor([1.0, 2, 10]).log())
