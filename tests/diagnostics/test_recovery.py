"""The optimum of each objective over free scores."""

from __future__ import annotations

import pytest
import torch

from extremax.diagnostics import recovered
from extremax.objectives import (
    NCE,
    AugmentReduce,
    AugmentReduceProbit,
    ExactSoftmax,
    NegativeSampling,
    Objective,
    OneVsEach,
    SampledSoftmax,
)

P = torch.tensor([0.45, 0.3, 0.15, 0.07, 0.03], dtype=torch.float64)
Q = torch.tensor([0.1, 0.15, 0.2, 0.25, 0.3], dtype=torch.float64)


@pytest.mark.parametrize(
    "objective",
    [NegativeSampling(regularization=0.0), NCE(), OneVsEach(), AugmentReduce(), ExactSoftmax()],
    ids=lambda objective: type(objective).__name__,
)
@pytest.mark.parametrize("m", [1, 3])
def test_the_data_distribution_is_recovered(objective: Objective, m: int) -> None:
    torch.testing.assert_close(recovered(objective, P, Q, m), P, rtol=0, atol=1e-6)


def test_a_penalty_prevents_exact_recovery() -> None:
    assert float((recovered(NegativeSampling(regularization=0.1), P, Q) - P).abs().max()) > 0.01


def test_sampled_softmax_approaches_the_data_with_more_samples() -> None:
    errors = [float((recovered(SampledSoftmax(), P, Q, m) - P).norm()) for m in (1, 4, 16)]
    assert errors[0] > errors[1] > errors[2] > 1e-4
    assert errors[2] < 0.25 * errors[0]


def test_absolute_scores_have_the_same_optimum() -> None:
    plain, absolute = (recovered(SampledSoftmax(kind), P, Q, 3) for kind in (False, True))
    torch.testing.assert_close(absolute, plain, rtol=0, atol=1e-6)


def test_objectives_that_keep_a_draw_are_refused() -> None:
    with pytest.raises(ValueError, match="AugmentReduceProbit keeps a random draw"):
        recovered(AugmentReduceProbit(), P, Q)


def test_a_class_without_data_is_refused() -> None:
    with pytest.raises(ValueError, match="every class"):
        recovered(NCE(), torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]))
