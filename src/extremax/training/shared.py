"""Draws that a batch shares.

A class drawn for all rows of a batch is a column of one matrix product, so that thousands of them
cost little. Two ways:

- a row's own class, and draws from all of q (`from_noise`);
- the true classes A of the whole batch, which are columns of all rows, and draws that stand for all
  classes not in A (`beside_truths`). With counts n_c of m draws from q, the sum

      Σ_{c ∈ A} e^{ξ_c} + Σ_{c ∉ A} n_c/(m q_c) e^{ξ_c}

  has the normalizer of exact softmax as its mean for any A, because A does not depend on the draws.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from extremax.heads.base import with_shared
from extremax.noise import Context, Noise
from extremax.random import Stream


class SharedDraws(NamedTuple):
    """Classes of a batch, with log q such that ξ − log(columns that count) − log q, as sampled
    softmax corrects it, is what enters the sum.

    own:        the true class of each row where it is no column, (n, 1), else (n, 0).
    shared:     classes of all rows, (m,).
    own_log_q:  of the true classes, (n, 1).
    log_q:      of shared classes, (m,).
    place:      where the true class of a row is among the shared ones, (n, 1); None where draws are
                from all of q, and what is dropped must be made up for
                (`extremax.objectives.shared_draw_weights`).
    """

    own: torch.Tensor
    shared: torch.Tensor
    own_log_q: torch.Tensor
    log_q: torch.Tensor
    place: torch.Tensor | None = None

    def of_rows(
        self, scores: torch.Tensor, rows: slice
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Scores (k, 1 + m) of some rows with the true class in front, their log q, and which of
        the m do not count.

        scores:  those of own and shared classes, of all rows.
        """
        log_q = with_shared(self.own_log_q[rows], self.log_q)
        if self.place is None:
            return scores[rows], log_q, self.shared == self.own[rows]
        place = self.place[rows]
        hits = torch.zeros((len(place), len(self.shared)), dtype=torch.bool)
        hits.scatter_(1, place, True)
        return torch.cat([scores[rows].gather(1, place), scores[rows]], 1), log_q, hits

    def on_classes(self, gradient: torch.Tensor, rows: slice) -> torch.Tensor:
        """The gradient on the scores of own and shared classes, from that on those of `of_rows`."""
        if self.place is None:
            return gradient
        return gradient[:, 1:].scatter_add_(1, self.place[rows], gradient[:, :1])


def from_noise(
    noise: Noise, context: Context, truth: torch.Tensor, m: int, stream: Stream
) -> SharedDraws:
    """m draws of a noise that does not read rows."""
    draw = noise.sample(context[:1], m, Stream(stream.key, stream.rows[:1]))
    return SharedDraws(truth, draw.labels[0], noise.log_prob(context, truth), draw.log_q[0])


def beside_truths(
    noise: Noise, context: Context, truth: torch.Tensor, m: int, stream: Stream
) -> SharedDraws:
    """The true classes of the batch, and m draws of a noise that does not read rows; see above."""
    draw = noise.sample(context[:1], m, Stream(stream.key, stream.rows[:1]))
    drawn, place, counts = torch.unique(draw.labels[0], return_inverse=True, return_counts=True)
    log_q = torch.empty(len(drawn)).scatter_(0, place, draw.log_q[0])
    log_weight = counts.float().log() - math.log(m) - log_q
    truths, place = torch.unique(truth, return_inverse=True)
    others = ~torch.isin(drawn, truths)
    classes = torch.cat([truths, drawn[others]])
    log_weight = torch.cat([torch.zeros(len(truths)), log_weight[others]])
    # One column of each row, its true class, does not count a second time.
    log_q = -log_weight - math.log(max(1, len(classes) - 1))
    return SharedDraws(truth[:, :0], classes, torch.zeros(truth.shape), log_q, place)
