"""Beam search against a score of every class, on heads and trees made by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from extremax.data.synthetic import clustered
from extremax.head import LinearHead
from extremax.noise import FrequencyNoise, TreeNoise, UniformNoise
from extremax.objectives import NegativeSampling
from extremax.prediction import beam, blocks
from extremax.prediction.blocks import Scorer

LARGE = 1 << 30


class Plain(NegativeSampling):
    """An objective whose scores are logits already."""

    adds_log_q = False


def problem(n_classes: int, n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    return clustered(n, n_classes, 6, seed=1)


def scorer_of(n_classes: int, spread: float = 0.0, late: int = 0) -> tuple[Scorer, np.ndarray]:
    """A fitted tree beneath random scores of this size; 0 leaves the tree as it is."""
    features, labels = problem(n_classes)
    noise = TreeNoise(n_components=4).fit(features, labels, n_classes)
    noise.extend(n_classes + late)
    head = LinearHead(n_classes + late, 6, 1.0, scale=1.3)
    generator = torch.Generator().manual_seed(0)
    head.weight.normal_(std=max(spread, 1e-12), generator=generator)
    head.bias.normal_(std=max(spread, 1e-12), generator=generator)
    return Scorer(head, noise, NegativeSampling()), features


@pytest.mark.parametrize("n_classes", [2, 3, 7, 64, 101])
@pytest.mark.parametrize("late", [0, 5])
@pytest.mark.parametrize("k", [1, 6, 500])
def test_a_beam_of_all_classes_is_the_exact_ranking(n_classes: int, late: int, k: int) -> None:
    scorer, features = scorer_of(n_classes, spread=1.0, late=late)
    exact = blocks.topk(scorer, features, k, LARGE)
    found = beam.topk(scorer, features, k, width=n_classes + late)
    assert found.labels.shape == (len(features), min(k, n_classes + late))
    # With every class a candidate nothing is estimated: normalisation is exact, too.
    torch.testing.assert_close(found.log_probs, exact.log_probs, atol=1e-4, rtol=1e-4)
    gaps = torch.diff(exact.log_probs, dim=1).abs()
    apart = (gaps > 1e-3).all(1) if gaps.shape[1] else torch.ones(len(features), dtype=torch.bool)
    assert torch.equal(found.labels[apart], exact.labels[apart])


def test_candidates_are_scored_like_any_class() -> None:
    scorer, features = scorer_of(101, spread=1.0)
    labels, log_probs = beam.topk(scorer, features, 3, width=8)
    logits = scorer.logits(torch.from_numpy(features), scorer.noise.context(features))
    own = logits.gather(1, labels)
    # Differences of log-probabilities are differences of logits, whatever the normalisation.
    torch.testing.assert_close(log_probs - log_probs[:, :1], own - own[:, :1], atol=1e-4, rtol=1e-4)
    assert (torch.diff(log_probs, dim=1) <= 0).all()


def test_labels_are_the_best_of_the_candidates() -> None:
    scorer, features = scorer_of(101, spread=1.0)
    context = scorer.noise.context(features)
    candidates = scorer.noise.likeliest(context, 8).labels
    logits = scorer.logits(torch.from_numpy(features), context).gather(1, candidates)
    expected = candidates.gather(1, logits.argmax(1, keepdim=True))
    assert torch.equal(beam.topk(scorer, features, 1, width=8).labels, expected)


def test_log_probs_are_normalised_over_the_candidates() -> None:
    scorer, features = scorer_of(101, spread=0.5)
    context = scorer.noise.context(features)
    candidates = scorer.noise.likeliest(context, 4)
    logits = scorer.logits(torch.from_numpy(features), context).double()
    inside = logits.gather(1, candidates.labels)
    expected = inside.max(1).values - inside.logsumexp(1)
    found = beam.topk(scorer, features, 1, width=4).log_probs[:, 0].double()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    # Upper bounds: what was not looked at has some probability.
    exact = inside.max(1).values - logits.logsumexp(1)
    assert (found > exact).all()


def test_a_wider_beam_never_finds_worse() -> None:
    scorer, features = scorer_of(101, spread=1.0)
    exact = blocks.topk(scorer, features, 1, LARGE).labels
    shares = [
        float((beam.topk(scorer, features, 1, width).labels == exact).double().mean())
        for width in (1, 8, 40, 101)
    ]
    assert shares == sorted(shares)
    assert shares[0] < shares[-1] == 1.0


def test_the_beam_is_at_least_as_wide_as_what_is_asked_for() -> None:
    scorer, features = scorer_of(101, spread=1.0)
    narrow = beam.topk(scorer, features, 12, width=1)
    assert narrow.labels.shape == (len(features), 12)
    assert (narrow.labels >= 0).all()
    assert torch.equal(narrow.labels, beam.topk(scorer, features, 12, width=12).labels)


def test_classes_beside_the_tree_are_always_candidates() -> None:
    scorer, features = scorer_of(64, late=3)
    scorer.head.bias[65] = 50.0
    assert (beam.topk(scorer, features, 1, width=2).labels == 65).all()


def test_blocks_of_rows_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer, features = scorer_of(64, spread=1.0)
    whole = beam.topk(scorer, features, 3, width=9)
    monkeypatch.setattr(beam, "_ROWS", 37)
    parts = beam.topk(scorer, features.astype(np.float64), 3, width=9)
    assert torch.equal(whole.labels, parts.labels)
    assert torch.equal(whole.log_probs, parts.log_probs)


@pytest.mark.parametrize("noise", [UniformNoise(), FrequencyNoise()])
def test_other_noises_are_refused(noise: UniformNoise | FrequencyNoise) -> None:
    features, labels = problem(20)
    noise.fit(features, labels, 20)
    scorer = Scorer(LinearHead(20, 6, 1.0), noise, NegativeSampling())
    with pytest.raises(ValueError, match="beam search needs the tree noise"):
        beam.topk(scorer, features, 1, width=8)


def test_objectives_without_the_noise_in_their_logits_are_refused() -> None:
    scorer, features = scorer_of(20)
    scorer.objective = Plain()
    with pytest.raises(ValueError, match="an objective whose logits are ξ \\+ log q"):
        beam.topk(scorer, features, 1, width=8)
