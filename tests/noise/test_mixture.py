"""Mixtures of noises: the sum of their probabilities, and everything their parts can do."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone

from extremax.errors import ArgumentError
from extremax.heads import LinearHead
from extremax.noise import (
    BigramNoise,
    FrequencyNoise,
    MixtureNoise,
    Noise,
    SoftmaxNoise,
    TreeNoise,
    UniformNoise,
)
from extremax.random import Stream
from extremax.rows import as_rows

Problem = tuple[np.ndarray, np.ndarray]
close = {"rtol": 1e-5, "atol": 2e-5}


@pytest.fixture(scope="module")
def small(problem: Problem) -> Problem:
    return problem[0][:1000], problem[1][:1000] % 30


def fit(noise: Noise, small: Problem) -> Any:
    return noise.fit(*small, 30)


def head_of(n_classes: int, n_features: int) -> LinearHead:
    head = LinearHead(n_classes, n_features, 1.0)
    head.weight.copy_(torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(0)))
    return head


def test_q_is_the_weighted_sum_of_its_parts(small: Problem) -> None:
    parts: list[Noise] = [TreeNoise(4), FrequencyNoise(0.5), BigramNoise(), UniformNoise()]
    weights = np.array([4.0, 3.0, 2.0, 1.0])
    mixture = fit(MixtureNoise(parts, weights), small)
    expected = torch.zeros(50, 30, dtype=torch.float64)
    for part, weight in zip(parts, weights / weights.sum(), strict=True):
        alone = fit(clone(part), small)
        expected += weight * alone.log_prob_all(alone.context(small[0][:50])).double().exp()
    context = mixture.context(small[0][:50])
    torch.testing.assert_close(mixture.log_prob_all(context).double(), expected.log(), **close)
    draw = mixture.sample(context, 6, Stream.of(0, rows=np.arange(50)))
    own = expected.log().float().gather(1, draw.labels)
    torch.testing.assert_close(draw.log_q, own, **close)


def test_importance_weights_are_bounded_by_the_safest_part(small: Problem) -> None:
    mixture = fit(MixtureNoise(("tree", "uniform"), (0.9, 0.1)), small)
    log_q = mixture.log_prob_all(mixture.context(small[0]))
    assert log_q.min() >= math.log(0.1 / 30) - 1e-5
    alone = fit(TreeNoise(), small)
    assert alone.log_prob_all(alone.context(small[0])).min() < math.log(0.01 / 30)


def test_each_part_makes_its_share_of_the_draws(small: Problem) -> None:
    # Two parts alike: were their numbers the same, both would draw the same class.
    twice = fit(MixtureNoise(("uniform", "uniform"), (1, 3)), small)
    context, stream = twice.context(small[0]), Stream.of(3, rows=np.arange(1000))
    first, second = (
        part.sample(own, n, stream.child(i)).labels
        for i, (part, own, n) in enumerate(zip(twice.parts_, context.contexts, (2, 6), strict=True))
    )
    drawn = twice.sample(context, 8, stream).labels
    assert torch.equal(drawn, torch.cat([first, second], 1))
    same = int((first == second[:, :2]).sum())
    assert stats.binomtest(same, 2000, 1 / 30).pvalue > 1e-4


@pytest.mark.parametrize(("m", "share"), [(1, 0.25), (2, 0.5), (3, 0.75)])
def test_remaining_draws_choose_their_part_at_random(m: int, share: float, small: Problem) -> None:
    """With weights 1 : 3 the first part has a quarter of m: less than one draw, so at times."""
    twice = fit(MixtureNoise(("uniform", "uniform"), (1, 3)), small)
    context, stream = twice.context(small[0]), Stream.of(3, rows=np.arange(1000))
    first, second = (
        part.sample(own, 1, stream.child(2 + i)).labels[:, 0]
        for i, (part, own) in enumerate(zip(twice.parts_, context.contexts, strict=True))
    )
    last = twice.sample(context, m, stream).labels[:, -1]
    differ = first != second
    assert torch.equal(last[~differ], first[~differ])
    from_first = (last == first)[differ]
    assert torch.equal(last[differ][~from_first], second[differ][~from_first])
    assert stats.binomtest(int(from_first.sum()), len(from_first), share).pvalue > 1e-4
    # Which part a draw comes from has nothing to do with what the parts would draw.
    half = (first < 15)[differ]
    table = [[int((from_first & (half == h)).sum()), int((~from_first & (half == h)).sum())]
             for h in (True, False)]  # fmt: skip
    assert stats.chi2_contingency(table).pvalue > 1e-4


NESTED = MixtureNoise((MixtureNoise(("frequency", "tree"), (1, 2)), "uniform"), (3, 2))


@pytest.mark.parametrize("m", [1, 2, 3, 5, 7, 12])
@pytest.mark.parametrize("noise", [MixtureNoise(), NESTED, MixtureNoise(("tree",) * 3, (1, 1, 5))])
def test_strata_are_what_is_drawn(noise: MixtureNoise, m: int, small: Problem) -> None:
    """Their numbers add up to m, their mean is q, and column by column draws follow them."""
    mixture = fit(noise, small)
    strata = mixture.strata(m)
    assert sum(n for n, _ in strata) == m
    leaves = mixture.leaves()
    row = small[0][:1]
    each = torch.stack([leaf.log_prob_all(leaf.context(row))[0].double().exp() for leaf in leaves])
    of_draws = np.repeat([w for _, w in strata], [n for n, _ in strata], axis=0)
    q = torch.from_numpy(of_draws) @ each
    whole = mixture.log_prob_all(mixture.context(row))[0].double().exp()
    torch.testing.assert_close(q.mean(0), whole, **close)
    n_rows = 3000
    context = mixture.context(np.repeat(row, n_rows, axis=0))
    drawn = mixture.sample(context, m, Stream.of(5, rows=np.arange(n_rows))).labels.numpy()
    for j in range(m):
        counts = np.bincount(drawn[:, j], minlength=30)
        common = q[j].numpy() * n_rows > 5
        observed = np.append(counts[common], counts[~common].sum())
        expected = np.append(q[j].numpy()[common], q[j].numpy()[~common].sum()) + 1e-9
        p = stats.chisquare(observed, expected / expected.sum() * n_rows).pvalue
        assert p > 1e-6, (j, p)


def test_one_part_is_that_part(small: Problem) -> None:
    mixture, alone = fit(MixtureNoise(("tree",), (7.0,)), small), fit(TreeNoise(), small)
    context = alone.context(small[0][:40])
    torch.testing.assert_close(
        mixture.log_prob_all(mixture.context(small[0][:40])), alone.log_prob_all(context), **close
    )


def test_a_context_holds_those_of_all_parts(small: Problem) -> None:
    parts = (UniformNoise(), TreeNoise(3), BigramNoise(), SoftmaxNoise(), BigramNoise(1))
    mixture = fit(MixtureNoise(parts, np.ones(5)), small)
    context = mixture.context(small[0][:17])
    for numbers in (slice(0), slice(3, 5), np.array([4, 4, 1])):
        taken = context[numbers]
        assert len(taken) == len(small[0][:17][numbers])
        for part, own in zip(mixture.parts_, taken.contexts, strict=True):
            assert torch.equal(own, part.context(small[0][:17][numbers]))


def nested() -> MixtureNoise:
    inner = MixtureNoise((TreeNoise(3, sharpness=0.5), "bigram"), (1, 2))
    return MixtureNoise(
        (inner, FrequencyNoise(0.75), {"noise": "tree", "n_components": 5}), [1] * 3
    )


def test_noises_as_parts_are_cloned_not_fitted(small: Problem) -> None:
    mixture = nested()
    copy = fit(clone(mixture), small)
    assert not hasattr(mixture.parts[0], "n_classes_")
    assert not hasattr(copy.parts[1], "n_classes_")
    assert copy.parts[1] is not mixture.parts[1]
    assert copy.parts_[0].parts_[0].n_components == 3
    assert copy.parts_[2].n_components == 5


@pytest.mark.parametrize("late", [0, 4])
def test_settings_and_state_of_nested_parts_restore_them(small: Problem, late: int) -> None:
    mixture = fit(nested(), small)
    mixture.extend(30 + late)
    restored = MixtureNoise(**json.loads(json.dumps(mixture.settings())))
    restored.load_state(mixture.state())
    context = mixture.context(small[0][:30])
    assert torch.equal(
        restored.log_prob_all(restored.context(small[0][:30])), mixture.log_prob_all(context)
    )
    stream = Stream.of(3, rows=np.arange(30))
    for a, b in zip(restored.sample(context, 5, stream), mixture.sample(context, 5, stream),
                    strict=True):  # fmt: skip
        assert torch.equal(a, b)
    # What was restored is described as what it was made from.
    assert restored.settings() == json.loads(json.dumps(mixture.settings()))


def test_a_part_that_is_not_registered_cannot_be_described() -> None:
    class Mine(UniformNoise):
        pass

    with pytest.raises(ValueError, match=r"Mine is not in .*NOISES"):
        MixtureNoise((Mine(), "tree")).settings()


def test_it_follows_a_head_if_a_part_does() -> None:
    assert not MixtureNoise().follows_head
    assert MixtureNoise().keeps_context
    follower = MixtureNoise(("softmax", "tree"))
    assert follower.follows_head
    assert not follower.keeps_context
    assert MixtureNoise((follower, "uniform")).follows_head


def test_the_head_reaches_the_parts_that_follow_it(small: Problem) -> None:
    mixture, head = fit(MixtureNoise(("softmax", "uniform")), small), head_of(30, 12)
    mixture.attach(head.vectors)
    context = mixture.context(small[0][:20])
    for change in (0.0, 1.0):
        head.weight.numpy()[3] += change
        mixture.refresh(torch.tensor([[3]]))
        softmax = head.scores_all(as_rows(small[0][:20])).double().softmax(1)
        expected = (0.5 * softmax + 0.5 / 30).log().float()
        torch.testing.assert_close(mixture.log_prob_all(context), expected, **close)
        draw = mixture.sample(context, 3, Stream.of(1, rows=np.arange(20)))
        torch.testing.assert_close(draw.log_q, expected.gather(1, draw.labels), **close)


def test_parts_that_can_be_tempered_are_tempered_together(small: Problem) -> None:
    parts = ("frequency", "tree", TreeNoise(4), TreeNoise(4, sharpness=0.9))
    mixture = MixtureNoise(parts, np.ones(4))
    assert mixture.sharpnesses() == TreeNoise().sharpnesses()
    fit(mixture, small)
    assert mixture.sharpnesses() == TreeNoise().sharpnesses()
    mixture.temper(0.35)
    assert [part.sharpness_ for part in mixture.parts_[1:]] == [0.35, 0.35, 0.9]
    restored = MixtureNoise(**mixture.get_params(deep=False))
    restored.load_state(mixture.state())
    assert [part.sharpness_ for part in restored.parts_[1:]] == [0.35, 0.35, 0.9]


@pytest.mark.parametrize("parts", [("uniform", "frequency"), (TreeNoise(sharpness=0.5), "uniform")])
def test_without_such_a_part_it_has_no_sharpness(small: Problem, parts: tuple) -> None:
    mixture = fit(MixtureNoise(parts), small)
    assert mixture.sharpnesses() == ()
    with pytest.raises(ValueError, match="MixtureNoise has no sharpness"):
        mixture.temper(0.5)


def test_weights_shift_so_that_old_proportions_stay(small: Problem) -> None:
    # Uniform gives 10 late classes a quarter; frequency 10 rows among those there were.
    mixture = fit(MixtureNoise(("uniform", "frequency"), (0.5, 0.5)), small)
    rows = float(mixture.parts_[1].counts_.clamp(min=1).sum())
    before = mixture.log_prob_all(mixture.context(small[0][:1]))
    mixture.extend(40)
    weights = np.array([0.5 / 0.75, 0.5 / (rows / (rows + 10))])
    weights /= weights.sum()
    after = mixture.log_prob_all(mixture.context(small[0][:1])).double().exp()[0]
    late = weights @ [1 / 40, 1 / (rows + 10)]
    torch.testing.assert_close(after[30:], torch.full((10,), late, dtype=torch.float64), **close)
    torch.testing.assert_close(after[:30].log().log_softmax(0).float(), before[0], **close)
    # One by one comes to the same as all at once.
    again = fit(MixtureNoise(("uniform", "frequency"), (0.5, 0.5)), small)
    for n in range(31, 41):
        again.extend(n)
    torch.testing.assert_close(again.log_prob_all(again.context(small[0][:1]))[0].exp().double(),
                               after, **close)  # fmt: skip


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"weights": (1.0,)}, "weights must be one number for each of the 2 parts"),
        ({"weights": (1.0, 0.0)}, "weights must be > 0"),
        ({"weights": (1.0, -1.0)}, "weights must be > 0"),
        ({"weights": (1.0, math.nan)}, "weights must be > 0 and finite"),
        ({"parts": ()}, "parts must be a sequence"),
        ({"parts": "tree"}, "parts must be a sequence"),
        ({"parts": ("tree", "forest")}, "one of 'tree', .* got 'forest'"),
        ({"parts": ("tree", {"n_components": 3})}, "one of 'tree', "),
        ({"parts": ("tree", 3)}, "one of 'tree', .* got 3"),
    ],
)
def test_bad_parameters_are_refused(
    small: Problem, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fit(MixtureNoise(**parameters), small)


def test_weights_that_are_no_numbers_are_refused():
    with pytest.raises(ArgumentError, match="weights cannot be used"):
        MixtureNoise(("uniform", "frequency"), ("a", 1)).check_parameters()


@pytest.mark.parametrize("parts", [1.5, "tree", (), {"tree": 1}])
def test_parts_that_are_no_sequence_are_refused(parts):
    with pytest.raises(ArgumentError, match="parts must be a sequence of noises"):
        MixtureNoise(parts, (1.0,)).check_parameters()
