"""How sure a model is of a row, made right.

One temperature for all rows can leave a model too sure of some rows and not sure enough of others.
Here every row has two numbers of its own, β for its probable classes and δ for the best of them:

    log p'_y = log p_y + (β − 1) max(0, log p_y − log t) − δ [y is the best class] − log N,

t = 1/128, and N such that p' sums to one: all classes below t keep their proportions, so that N
takes nothing but the classes above it. They are among the 14 best, or else t is the probability of
the 14th. A search that misses one of them hardly changes p' of the others, since a class counts by
its probability. Classes keep their order, because δ is less than what makes the best class as
probable as the second. Both depend on how probable the best class is, how far ahead of the second,
and how frequent in training:

    log β = w · f,  δ = v · f,   f = (1, log p₁, log 1/(1 − p₁), log p₁/p₂, log n₁).

This is temperature scaling (Guo et al., "On calibration of modern neural networks", 2017) with a
temperature that the row decides (Tomani et al., "Parameterized temperature scaling for boosting the
expressive power in post-hoc uncertainty calibration", 2022), on probabilities rather than logits.
`extremax.training.confidence` fits w and v.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from extremax.errors import ArgumentError
from extremax.tensors import LARGEST

#: The best classes of a row that may be above t: as many as a search for fewer finds, too.
N_BEST = 14
_LOG_T = -math.log(128.0)
#: Numbers about a row that β depends on.
N_NUMBERS = 4
#: Of log β and δ, up and down.
MOST = 2.0
# Least log p of the best class, least 1 − p, and largest log p₁/p₂.
_LEAST, _LEAST_LEFT, _FARTHEST = -10.0, 1e-4, 10.0
#: The share of its lead that δ may take from the best class.
LARGEST_SHARE = 0.98


class RowMap(NamedTuple):
    """The map of n rows: β, log t, δ, the log p above which a class is the best, and log N, each
    (n, 1), in float64."""

    exponent: torch.Tensor
    log_t: torch.Tensor
    lowered: torch.Tensor
    log_best: torch.Tensor
    log_n: torch.Tensor

    def __call__(self, log_p: torch.Tensor) -> torch.Tensor:
        """log p' of classes with these log p, (n, j)."""
        exponent, log_t, lowered, log_best, log_n = (number.to(log_p.dtype) for number in self)
        out = (log_p - log_t).clamp_(min=0.0).mul_(exponent - 1.0).add_(log_p).sub_(log_n)
        out.sub_(lowered * (log_p > log_best))
        # Rounding must not make a probability larger than one.
        return out.clamp_(max=0.0)


@dataclass(frozen=True)
class Confidence:
    """w and v, and the least and largest of each number that they were fitted to, which others are
    taken for."""

    exponent: tuple[float, ...]
    lowered: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def settings(self) -> dict[str, Any]:
        """For a manifest."""
        return asdict(self)

    @classmethod
    def restore(
        cls,
        exponent: Sequence[float],
        lowered: Sequence[float],
        low: Sequence[float],
        high: Sequence[float],
    ) -> Confidence:
        """From a manifest, checked."""
        numbers = np.array([*exponent, *lowered, *low, *high], float)
        sizes = [len(part) for part in (exponent, lowered, low, high)]
        fine = sizes == [1 + N_NUMBERS, 1 + N_NUMBERS, N_NUMBERS, N_NUMBERS]
        if not (fine and (np.abs(numbers) <= LARGEST).all() and np.less_equal(low, high).all()):
            raise ArgumentError("its map of confidence is damaged")
        return cls(tuple(exponent), tuple(lowered), tuple(low), tuple(high))

    def of_best(self, best: torch.Tensor, log_count: torch.Tensor) -> RowMap:
        """The map of rows whose best `N_BEST` classes have these log p, (n, j), in falling order,
        −∞ after the last one.

        log_count:  log of the training examples of the best class of each row plus one, (n,).
        """
        numbers = row_numbers(best, log_count)
        low, high = (torch.tensor(bound, dtype=torch.float64) for bound in (self.low, self.high))
        inside = torch.minimum(torch.maximum(numbers, low), high)
        weights = torch.tensor([self.exponent, self.lowered], dtype=torch.float64)
        # einsum and not BLAS, which adds in an order that depends on the number of rows.
        sums = torch.einsum("nf,wf->nw", inside, weights[:, 1:]) + weights[:, 0]
        return row_map(best, *sums.unbind(1))

    def of_all(self, log_p: torch.Tensor, log_counts: torch.Tensor) -> RowMap:
        """The map of rows from log p of every class, (n, C), and log of the training examples of
        each plus one, (C,) or (n, C)."""
        best, columns = log_p.topk(min(N_BEST, log_p.shape[1]), dim=1)
        every = log_counts.expand(log_p.shape)
        return self.of_best(best, every.gather(1, columns[:, :1])[:, 0])


def row_numbers(best: torch.Tensor, log_count: torch.Tensor) -> torch.Tensor:
    """log p₁, log 1/(1 − p₁), log p₁/p₂ and log n₁ of each row, (n, 4), in float64; see
    `Confidence.of_best`."""
    first = best[:, 0].double().clamp(_LEAST, 0.0)
    left = (-torch.expm1(first)).clamp(min=_LEAST_LEFT)
    ahead = best.double()[:, 0] - (best.double()[:, 1] if best.shape[1] > 1 else -torch.inf)
    # A row without a class has log p = −∞ twice.
    ahead = ahead.nan_to_num(nan=0.0, posinf=_FARTHEST).clamp(max=_FARTHEST)
    return torch.stack([first, -left.log(), ahead, log_count.double()], 1)


def row_map(best: torch.Tensor, log_exponent: torch.Tensor, lowered: torch.Tensor) -> RowMap:
    """The map with this log β and δ, (n,) each and within bounds, for rows whose best classes have
    these log p."""
    best = best[:, :N_BEST].double()
    used = ~best.isneginf()
    exponent = log_exponent.double().clamp(-MOST, MOST).exp()[:, None]
    log_t = least_log_p(best)
    above = (best - log_t).clamp(min=0.0)
    ahead = torch.zeros_like(log_t)
    if best.shape[1] > 1:
        ahead = (best[:, :1] - best[:, 1:2]).where(used[:, 1:2], ahead)
    raised = best + (exponent - 1.0) * above
    # By less than what the best class is ahead of the second then, so that it stays the best.
    lead = (raised[:, :1] - raised[:, 1:2]) if best.shape[1] > 1 else ahead
    most = (LARGEST_SHARE * lead).clamp(max=MOST)
    lowered = torch.minimum(lowered.double().clamp(min=-MOST)[:, None], most)
    # Between the first and the second, so that rounding cannot take one for the other. Where there
    # is no second, p is 1 and stays so.
    log_best = best[:, :1] - ahead / 2.0
    lowered = lowered.where(ahead > 0.0, 0.0)
    raised = (raised - lowered * (best > log_best)).masked_fill(~used, -torch.inf)
    left = (1.0 - best.exp().sum(1, keepdim=True)).clamp(min=0.0)
    log_n = torch.logaddexp(raised.logsumexp(1, keepdim=True), left.log())
    return RowMap(exponent, log_t, lowered, log_best, log_n)


def least_log_p(best: torch.Tensor) -> torch.Tensor:
    """log t of rows whose best classes have these log p, (n, 1)."""
    if best.shape[1] < N_BEST:
        return torch.full_like(best[:, :1], _LOG_T)
    return best[:, N_BEST - 1 : N_BEST].clamp(min=_LOG_T)
