"""The contract of every objective; adding one to ``OBJECTIVES`` is enough to test it."""

from __future__ import annotations

import inspect
import itertools
import json
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from torch import Tensor

from extremax.diagnostics import recovered
from extremax.objectives import (
    OBJECTIVES,
    Objective,
    Pairs,
    SampledSoftmax,
    describe_objective,
    make_objective,
)

ABSOLUTE = "sampled_softmax of absolute scores"
# Settings other than the defaults.
VARIANTS: dict[str, Objective] = {ABSOLUTE: SampledSoftmax(absolute=True)}
NAMES = [*sorted(OBJECTIVES), *VARIANTS]
every_objective = pytest.mark.parametrize("name", NAMES)

# Their scores are log-odds against the noise, or enter by absolute value, so a shift matters. The
# other objectives only compare scores with each other.
NOT_SHIFT_INVARIANT = {"negative_sampling", "nce", ABSOLUTE}


def make(name: str, regularization: float = 0.01) -> Objective:
    objective = clone(VARIANTS[name]) if name in VARIANTS else OBJECTIVES[name]()
    return objective.set_params(regularization=regularization)


def both(name: str) -> tuple[Objective, Objective]:
    """With and without a penalty."""
    return make(name), make(name, 0.0)


def batch(
    objective: Objective, n: int, m: int, seed: int, hits: float = 0.3, size: float = 3.0
) -> Pairs:
    """Random scores, noise and parameters; a fraction ``hits`` of the draws is the true class."""
    generator = torch.Generator().manual_seed(seed)
    scores = size * torch.randn((n, 1 + m), generator=generator, dtype=torch.float64)
    log_q = -0.1 - 8.0 * torch.rand((n, 1 + m), generator=generator, dtype=torch.float64)
    is_hit = torch.rand((n, m), generator=generator) < hits
    for array in (scores, log_q):
        array[:, 1:] = torch.where(is_hit, array[:, :1], array[:, 1:])
    size_per_example = (n, objective.per_example_size)
    per_example = torch.randn(size_per_example, generator=generator, dtype=torch.float64)
    return Pairs(scores, log_q, is_hit, per_example)


def autograd(objective: Objective, pairs: Pairs) -> Tensor:
    free = pairs.scores.clone().requires_grad_()
    return torch.autograd.grad(objective.loss(pairs._replace(scores=free)).sum(), free)[0]


def rows(pairs: Pairs, selected: slice) -> Pairs:
    return Pairs(*(array[selected] for array in pairs))


@every_objective
@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(1, 6),
    m=st.integers(1, 5),
    hits=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 10**6),
)
def test_gradient_equals_autograd(name: str, n: int, m: int, hits: float, seed: int) -> None:
    for objective in both(name):
        pairs = batch(objective, n, m, seed, hits)
        before = [array.clone() for array in pairs]
        gradient = objective.gradient(pairs)
        assert objective.loss(pairs).shape == (n,)
        assert gradient.shape == (n, 1 + m)
        # torch's softplus is linear above 20, an error of e^-20.
        torch.testing.assert_close(gradient, autograd(objective, pairs), rtol=1e-9, atol=1e-8)
        # The arguments are unchanged.
        assert all(torch.equal(*two) for two in zip(pairs, before, strict=True))


@every_objective
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_scores_stay_finite(name: str, dtype: torch.dtype) -> None:
    # At zero autograd takes the slope of |ξ| as 0, and the objective takes it as 1.
    middle = 1e-3 if name == ABSOLUTE else 0.0
    scores = torch.tensor(list(itertools.product([-1e4, middle, 1e4], repeat=3)), dtype=dtype)
    hits = torch.zeros((len(scores), 2), dtype=torch.bool)
    hits[:, 1] = scores[:, 2] == scores[:, 0]
    for objective in both(name):
        per_example = objective.per_example_start(len(scores)).to(dtype)
        pairs = Pairs(scores, torch.full_like(scores, -9.0), hits, per_example)
        for epoch in range(3):
            now = pairs._replace(per_example=objective.current_per_example(pairs))
            gradient = objective.gradient(now)
            assert objective.loss(now).isfinite().all()
            assert gradient.isfinite().all()
            exact = autograd(
                objective, Pairs(*(a.double() if a.is_floating_point() else a for a in now))
            )
            torch.testing.assert_close(gradient.double(), exact, rtol=1e-3, atol=1e-4)
            uniform = torch.full(per_example.shape, 0.3, dtype=torch.float64)
            updated = objective.update_per_example(pairs, epoch, uniform)
            pairs = pairs._replace(per_example=updated)
            assert pairs.per_example.isfinite().all()
            assert pairs.per_example.dtype == dtype


@every_objective
def test_examples_do_not_mix(name: str) -> None:
    objective = make(name)
    pairs = batch(objective, 8, 3, seed=1)
    uniform = torch.rand(8, objective.per_example_size, dtype=torch.float64)
    loss, gradient = objective.loss(pairs), objective.gradient(pairs)
    updated = objective.update_per_example(pairs, 2, uniform)
    for i in range(8):
        row = slice(i, i + 1)
        one = rows(pairs, row)
        torch.testing.assert_close(objective.loss(one), loss[row])
        torch.testing.assert_close(objective.gradient(one), gradient[row])
        torch.testing.assert_close(objective.update_per_example(one, 2, uniform[row]), updated[row])


@every_objective
def test_the_order_of_negatives_does_not_matter(name: str) -> None:
    objective = make(name)
    pairs = batch(objective, 8, 4, seed=2)
    order = torch.tensor([0, 3, 1, 4, 2])
    shuffled = pairs._replace(
        scores=pairs.scores[:, order],
        log_q=pairs.log_q[:, order],
        hits=pairs.hits[:, order[1:] - 1],
    )
    uniform = torch.rand(8, objective.per_example_size, dtype=torch.float64)
    torch.testing.assert_close(objective.loss(shuffled), objective.loss(pairs))
    torch.testing.assert_close(objective.gradient(shuffled), objective.gradient(pairs)[:, order])
    for epoch in (0, 3):
        updates = [objective.update_per_example(p, epoch, uniform) for p in (pairs, shuffled)]
        torch.testing.assert_close(*updates)


@every_objective
def test_a_shift_of_all_scores_matters_only_where_it_should(name: str) -> None:
    objective = make(name, 0.0)
    pairs = batch(objective, 8, 3, seed=3)
    shift = torch.linspace(-5.0, 5.0, 8, dtype=torch.float64)[:, None]
    shifted = pairs._replace(scores=pairs.scores + shift)
    uniform = torch.rand(8, objective.per_example_size, dtype=torch.float64)
    if name in NOT_SHIFT_INVARIANT:
        changed = (objective.loss(shifted) - objective.loss(pairs)).abs() > 1e-3
        # If all scores of a row keep their sign, their absolute values shift alike.
        assert changed.any() if name == ABSOLUTE else changed.all()
    else:
        torch.testing.assert_close(objective.loss(shifted), objective.loss(pairs))
        torch.testing.assert_close(objective.gradient(shifted), objective.gradient(pairs))
        # What is kept may shift with the scores; what the loss takes does not.
        later = []
        for visited in (pairs, shifted):
            for epoch in (0, 3):
                kept = objective.update_per_example(visited, epoch, uniform)
                visited = visited._replace(per_example=kept)
            later.append(objective.current_per_example(visited))
        torch.testing.assert_close(*later)


@every_objective
def test_draws_of_the_true_class_do_what_the_docstring_says(name: str) -> None:
    objective = make(name, 0.0)
    text = inspect.getdoc(type(objective)) or ""
    stays, dropped = "stays in" in text, "true class are dropped" in text
    assert stays != dropped, "say whether a draw of the true class stays in or is dropped, and why"
    pairs = batch(objective, 20, 4, seed=4)
    has_hit = pairs.hits.any(1)
    assert has_hit.any()
    if stays:
        # Nothing depends on whether a draw is the true class.
        unmarked = pairs._replace(hits=torch.zeros_like(pairs.hits))
        assert torch.equal(objective.loss(unmarked), objective.loss(pairs))
        assert torch.equal(objective.gradient(unmarked), objective.gradient(pairs))
        assert (objective.gradient(pairs)[:, 1:] != 0.0).all()
        return
    # Nothing depends on the score of a dropped draw.
    columns = torch.cat([torch.zeros(20, 1, dtype=torch.bool), pairs.hits], 1)
    other = pairs._replace(scores=pairs.scores.masked_fill(columns, 7.0))
    uniform = torch.rand(20, objective.per_example_size, dtype=torch.float64)
    assert torch.equal(objective.loss(other), objective.loss(pairs))
    assert torch.equal(objective.gradient(other), objective.gradient(pairs))
    for epoch in (0, 2):
        assert torch.equal(
            objective.update_per_example(other, epoch, uniform),
            objective.update_per_example(pairs, epoch, uniform),
        )
    assert (objective.gradient(pairs)[:, 1:][pairs.hits] == 0.0).all()
    unmarked = pairs._replace(hits=torch.zeros_like(pairs.hits))
    assert (objective.loss(unmarked) != objective.loss(pairs))[has_hit].all()


TRUE = torch.tensor([0.5, 0.3, 0.15, 0.04, 0.01], dtype=torch.float64)
NOISE = {
    "uniform": torch.full((5,), 0.2, dtype=torch.float64),
    "the data's own": TRUE,
    "far from the data": torch.tensor([0.05, 0.1, 0.15, 0.3, 0.4], dtype=torch.float64),
}


def total_variation(name: str, q: Tensor, m: int) -> float:
    """Distance between the distribution of the data and the one at the objective's optimum."""
    return float(0.5 * (recovered(make(name, 0.0), TRUE, q, m) - TRUE).abs().sum())


EXACT = [name for name in NAMES if make(name).probabilities in ("exact", "bias-corrected")]
# Augment & reduce with other utilities fits no softmax; its own tests check how close it comes.
IN_THE_LIMIT = [name for name in NAMES if name not in EXACT and not make(name).per_example_size]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("m", [1, 3])
def test_logits_recover_the_probabilities_of_the_data(name: str, noise: str, m: int) -> None:
    assert total_variation(name, NOISE[noise], m) < 1e-3


@pytest.mark.parametrize("name", IN_THE_LIMIT)
def test_objectives_that_are_exact_in_the_limit_come_close(name: str) -> None:
    # Draws from the softmax itself.
    assert total_variation(name, TRUE, 1) < 1e-3
    assert total_variation(name, NOISE["uniform"], 3) > 0.01


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), "a", None])
@every_objective
def test_an_invalid_penalty_is_refused(name: str, bad: object) -> None:
    objective = make(name)
    with pytest.raises(ValueError, match=r"regularization must be a number from 0 to 1e6, got"):
        type(objective)(regularization=bad)
    with pytest.raises(ValueError, match=r"regularization must be a number from 0 to 1e6, got"):
        objective.set_params(regularization=bad)
    assert objective.regularization == 0.01


@every_objective
def test_it_describes_its_probabilities(name: str) -> None:
    objective = make(name)
    kind, _, explanation = objective.probabilities.partition(": ")
    assert kind in ("exact", "bias-corrected", "approximate")
    assert bool(explanation) == (kind == "approximate")
    assert (kind == "bias-corrected") == objective.adds_log_q


@every_objective
def test_logits_are_linked_scores_with_log_q_added_where_declared(name: str) -> None:
    objective = make(name)
    pairs = batch(objective, 3, 6, seed=4)
    scores, log_q = pairs.scores, pairs.log_q[:1]
    linked = scores.abs() if name == ABSOLUTE else scores
    torch.testing.assert_close(objective.link(scores), linked)
    expected = linked + log_q if objective.adds_log_q else linked
    torch.testing.assert_close(objective.logits(scores, log_q), expected)


@every_objective
def test_it_declares_whether_probabilities_are_a_softmax_of_logits_and_of_scores(name: str) -> None:
    objective = make(name)
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(9))
    log_p = objective.log_normalize(logits.clone())
    assert torch.allclose(log_p, logits.log_softmax(1), atol=1e-5) == objective.is_softmax
    log_q = torch.linspace(-3.0, -1.0, 5)
    log_p = objective.log_normalize(objective.logits(logits, log_q).clone())
    assert torch.allclose(log_p, logits.log_softmax(1), atol=1e-5) == objective.scores_are_logits


@every_objective
@pytest.mark.parametrize("n_classes", [1, 2, 7, 300])
@pytest.mark.parametrize("size", [0.0, 1.0, 30.0, 1e4])
def test_probabilities_sum_to_one_in_the_order_of_the_logits(
    name: str, n_classes: int, size: float
) -> None:
    objective = make(name)
    logits = size * torch.randn(6, n_classes, generator=torch.Generator().manual_seed(5))
    logits[0] = 0.0  # All equal.
    log_p = objective.log_normalize(logits.clone())
    assert (log_p <= 1e-6).all()
    # The resolution of float32 at large logits.
    tolerance = 1e-5 + 2.0 * torch.finfo(torch.float32).eps * float(logits.abs().max())
    torch.testing.assert_close(
        log_p.double().exp().sum(1), torch.ones(6).double(), rtol=0, atol=tolerance
    )
    torch.testing.assert_close(log_p[0].exp(), torch.full((n_classes,), 1 / n_classes))
    ordered = log_p.gather(1, logits.argsort(1))
    assert (ordered.diff(dim=1) >= -1e-4).all()
    torch.testing.assert_close(
        objective.log_normalize(logits.double() + 3.0), log_p.double(), rtol=1e-3, atol=1e-3
    )


@every_objective
def test_logits_that_are_not_finite_give_nan_and_no_error(name: str) -> None:
    logits = torch.zeros(4, 3)
    logits[0, 1], logits[1, 2], logits[2] = torch.nan, torch.inf, -torch.inf
    log_p = make(name).log_normalize(logits)
    assert log_p[:3].isnan().any(1).all()
    torch.testing.assert_close(log_p[3].exp(), torch.full((3,), 1 / 3))


@every_objective
def test_updates_are_repeatable_and_leave_their_arguments_unchanged(name: str) -> None:
    objective = make(name)
    pairs = batch(objective, 50, 3, seed=6)
    assert objective.per_example_start(50).shape == (50, objective.per_example_size)
    uniform = torch.rand(50, objective.per_example_size, dtype=torch.float64)
    before = [array.clone() for array in (*pairs, uniform)]
    for epoch in (0, 1, 100):
        updated = objective.update_per_example(pairs, epoch, uniform)
        assert updated.shape == (50, objective.per_example_size)
        assert torch.equal(objective.update_per_example(pairs, epoch, uniform), updated)
    assert all(torch.equal(*two) for two in zip((*pairs, uniform), before, strict=True))


@every_objective
def test_the_start_is_scaled_by_a_plain_function_of_the_scores(name: str) -> None:
    objective = make(name)
    start = objective.start_objective()
    assert start.per_example_size == 0
    assert start.regularization == objective.regularization
    pairs = batch(start, 5, 3, seed=7)
    assert start.loss(pairs).isfinite().all()
    assert autograd(start, pairs).isfinite().all()
    log_frequency = torch.tensor([0.9, 0.09, 1e-2, 1e-5, 1e-9]).log()
    scores = objective.start_scores(log_frequency)
    assert scores.shape == log_frequency.shape
    assert scores.dtype == torch.float32
    steps = objective.logits(scores, torch.zeros(())).diff()
    assert (steps == 0.0).all() if objective.adds_log_q else (steps < 0.0).all()


@every_objective
def test_it_can_be_cloned_and_restored_from_json(name: str) -> None:
    objective = make(name)
    restored = make_objective(json.loads(json.dumps(describe_objective(objective))))
    pairs = batch(objective, 3, 2, seed=5)
    for copy in (make_objective(objective), pickle.loads(pickle.dumps(objective)), restored):
        assert copy is not objective
        assert type(copy) is type(objective)
        assert copy.get_params() == objective.get_params()
        assert torch.equal(copy.loss(pairs), objective.loss(pairs))
