"""Candidates of a search where classes have other frequencies than in training.

With p' ∝ p · π'/π (`extremax.labels.prior`), S the candidates of two searches, one for p and one
for p', and R what all other classes add to the normalizer Z of p,

    Z'  ≈  Σ_S exp(logit) π'/π  +  R · π'(not S)/π(not S).

The first sum is exact. R is what `extremax.prediction.rest` or the searcher estimates; outside S,
classes are taken to be as probable as they were frequent in training.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from extremax.labels import Prior


class Shifted(NamedTuple):
    """Logits (n, j) and classes of all candidates, −∞ in unused places, and log Z' (n,)."""

    logits: torch.Tensor
    classes: torch.Tensor
    log_z: torch.Tensor


def shifted(
    prior: Prior,
    found: tuple[torch.Tensor, torch.Tensor],
    more: tuple[torch.Tensor, torch.Tensor],
    log_z: torch.Tensor,
) -> Shifted:
    """Logits and normalizer after the shift.

    found, more:  logits and classes of two searches of the same rows, before the shift.
    log_z:        log Z (n,), before the shift.
    """
    logits = torch.cat([found[0], more[0]], 1)
    classes = torch.cat([found[1], more[1]], 1)
    classes = classes.masked_fill(logits.isneginf(), -1)
    # A class that both searches found counts once. A stable sort brings equal classes together.
    order = classes.argsort(dim=1, stable=True)
    ascending = classes.gather(1, order)
    again = torch.zeros_like(classes, dtype=torch.bool)
    again[:, 1:] = ascending[:, 1:] == ascending[:, :-1]
    again = torch.zeros_like(again).scatter_(1, order, again)
    logits = logits.masked_fill(again, -torch.inf)
    share = (logits.logsumexp(1) - log_z).double().exp()
    left = log_z + torch.log1p(-share.clamp(max=1.0)).float()
    unused = logits.isneginf()
    outside = [
        1.0 - torch.from_numpy(shares)[classes].masked_fill(unused, 0.0).sum(1)
        for shares in (prior.after, prior.before)
    ]
    # Rounding: where every class is a candidate, nothing is outside.
    ratio = outside[0].clamp(min=0.0) / outside[1].clamp(min=1e-12)
    logits = logits + torch.from_numpy(prior.log_ratio)[classes]
    log_z = torch.logaddexp(logits.logsumexp(1), left + ratio.log().float())
    # Where no class that occurs any more was found, all have log p = −∞.
    return Shifted(logits, classes, log_z.masked_fill(log_z.isneginf(), 0.0))
