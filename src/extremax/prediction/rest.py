"""What the classes that are no candidates of a search add to the normalizer.

    log Z ≈ log(Σ_S exp(logit) + exp(r(f))),

S the candidates of a row, f a few numbers about the row (`Rest.summary`), r a polynomial of degree
two in them. `extremax.training.rest` fits r on held-out rows, whose Z it computes over every class:
probabilities of a search are then right on average, at next to no cost. Draws from the noise below
the branches that the search left would need no fit, but many draws: a third of the probability of
titles is outside S, and one draw misses log Z by about 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from extremax.errors import ArgumentError
from extremax.experts import Expert
from extremax.kernels.cpu.threads import parallel
from extremax.rows import Rows
from extremax.tensors import LARGEST

#: Numbers about a row, and the terms of a polynomial of degree two in them.
N_NUMBERS = 8
N_TERMS = 1 + N_NUMBERS + N_NUMBERS * (N_NUMBERS + 1) // 2
#: Where the rest has a smaller share of Z, the error of log Z is taken to be no smaller.
LEAST_SHARE = 0.1
# log of the least probability that the noise is taken to leave to other classes.
_LEAST = -20.0
_LEAST_NUMBER = -1e4
# Numbers that one thread sums at a time.
_CACHED = 1 << 15


@dataclass(frozen=True)
class Rest:
    """r, as weights of the terms in (f − center)/scale.

    classes:  some classes, from frequent to rare, that the head scores on every row; none where
              the searcher knows what stands for the rest.
    error:    standard error of r(f), for rows of which the rest is a part that counts.
    """

    classes: tuple[int, ...]
    center: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    error: float

    def settings(self) -> dict[str, Any]:
        """For a manifest."""
        return asdict(self)

    @classmethod
    def restore(cls, settings: dict[str, Any], n_classes: int) -> Rest:
        """From a manifest, checked."""
        lists = {k: tuple(v) for k, v in settings.items() if k != "error"}
        rest = cls(**lists, error=settings["error"])
        sizes = len(rest.center), len(rest.scale), len(rest.weights)
        classes = np.array(rest.classes, float)
        whole = (classes == np.floor(classes)) & (classes >= 0) & (classes < n_classes)
        numbers = np.array([*rest.center, *rest.scale, *rest.weights, rest.error], float)
        fine = sizes == (N_NUMBERS, N_NUMBERS, N_TERMS) and whole.all()
        if not (fine and (np.abs(numbers) <= LARGEST).all() and min(rest.scale) >= 1 / LARGEST):
            raise ArgumentError("its estimate of the classes that a search leaves out is damaged")
        return rest

    def grown(self, factor: float) -> Rest:
        """For so many times as many classes, which leave so many times as much."""
        first, *others = self.weights
        return replace(self, weights=(first + math.log(factor), *others))

    def log_rest(self, numbers: torch.Tensor) -> torch.Tensor:
        """r(f), (n,), from f (n, N_NUMBERS)."""
        weights = torch.tensor(self.weights, dtype=torch.float64)
        center, scale = torch.tensor(self.center), torch.tensor(self.scale)
        # Not by BLAS, which adds in an order that depends on the number of rows.
        return (terms((numbers - center.double()) / scale.double()) * weights).sum(1)

    def standard_error(self, log_share: torch.Tensor) -> torch.Tensor:
        """Of log Z, (n,), where the rest has this share of it."""
        return self.error * log_share.exp().clamp(min=LEAST_SHARE)


def terms(numbers: torch.Tensor) -> torch.Tensor:
    """1, the numbers, and the products of any two, (n, N_TERMS)."""
    first, second = torch.triu_indices(N_NUMBERS, N_NUMBERS)
    products = numbers[:, first] * numbers[:, second]
    return torch.cat([torch.ones_like(numbers[:, :1]), numbers, products], 1)


def summary(
    means: torch.Tensor,
    totals: torch.Tensor,
    log_mass: torch.Tensor | float,
    scores: torch.Tensor,
    experts: Sequence[Expert],
    rows: Rows,
) -> torch.Tensor:
    """f, (n, N_NUMBERS), in float64: log of what the noise gives to other classes; 2 log Σ √exp of
    the candidates' logits, and their mean; the mean of their sums before experts; what experts can
    know of the row; and log Σ exp, 2 log Σ √exp and mean of the scores.

    means:   of the candidates' sums before experts, (n,); of their logits where there are none.
    totals:  `log_sums` of their logits.
    scores:  of other classes, or what stands for them, with the temperature of logits; −∞ in unused
             places.
    """
    outside = torch.zeros(len(totals))
    if isinstance(log_mass, torch.Tensor):
        outside = torch.log1p(-log_mass[:, 0].double().exp()).clamp(min=_LEAST).float()
    known = torch.zeros(len(totals))
    for expert in experts:
        known += expert.reach(rows)
    half_and_mean, others = totals[:, 1:].unbind(1), log_sums(scores).unbind(1)
    numbers = [outside, *half_and_mean, means, known, *others]
    # Where nothing is left, log Σ exp is −∞.
    return torch.stack(numbers, 1).double().clamp(min=_LEAST_NUMBER)


def log_sums(values: torch.Tensor) -> torch.Tensor:
    """log Σ exp, 2 log Σ √exp and mean of each row, (n, 3), without what is −∞."""
    from extremax.kernels.cpu import exponential

    out = torch.empty((len(values), 3))
    values = values.contiguous()
    chunk = max(1, _CACHED // max(1, values.shape[1]))
    parallel(exponential.log_sums, len(values), chunk, values.numpy(), out.numpy())
    return out
