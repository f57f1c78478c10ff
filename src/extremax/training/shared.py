"""Draws that a batch shares.

A class drawn for all rows of a batch is a column of one matrix product, so that a thousand of them
cost little. Two ways:

- a noise that does not read rows draws for all of them (`from_noise`);
- a mixture of a noise that reads rows and one that does not (`from_mixture`): each row has a set A
  of own classes, those that the first part draws for it, and shares the draws of the second part,
  which stand for all classes not in A. With counts n_c of m draws from q, the sum

      e^{ξ_y} + Σ_{c ∈ A} e^{ξ_c} + Σ_{c ∉ A} n_c/(m q_c) e^{ξ_c}

  has the normalizer of exact softmax as its mean for any A, because A does not depend on the shared
  draws. No log q of the part that reads rows is needed, and a class that it wrongly deems
  impossible does no harm.
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

    own:        the true class and those that only its row has, (n, 1 + j).
    shared:     classes of all rows, (m,).
    own_log_q:  of own classes, (n, 1 + j).
    log_q:      of shared classes, (m,).
    own_hits:   own classes that a row has already, (n, 1 + j); None where draws are from all of q,
                and what is dropped must be made up for (`extremax.objectives.shared_draw_weights`).
    """

    own: torch.Tensor
    shared: torch.Tensor
    own_log_q: torch.Tensor
    log_q: torch.Tensor
    own_hits: torch.Tensor | None = None

    def of_rows(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """log q (k, 1 + j + m) of some rows, and which columns (k, j + m) do not count."""
        own, log_q = self.own[rows], with_shared(self.own_log_q[rows], self.log_q)
        if self.own_hits is None:
            return log_q, self.shared == own
        shared_hits = torch.zeros((len(own), len(self.shared)), dtype=torch.bool)
        # Shared classes are distinct and sorted: a class of a row is at most one of them.
        place = torch.searchsorted(self.shared, own).clamp(max=len(self.shared) - 1)
        row, column = torch.nonzero(self.shared[place] == own, as_tuple=True)
        shared_hits[row, place[row, column]] = True
        hits = torch.cat([self.own_hits[rows, 1:], shared_hits], 1)
        n_counted = (~hits).sum(1, keepdim=True).clamp(min=1)
        return log_q - torch.log(n_counted.float()), hits


def from_noise(
    noise: Noise, context: Context, truth: torch.Tensor, m: int, stream: Stream
) -> SharedDraws:
    """m draws of a noise that does not read rows."""
    draw = noise.sample(context[:1], m, Stream(stream.key, stream.rows[:1]))
    return SharedDraws(truth, draw.labels[0], noise.log_prob(context, truth), draw.log_q[0])


def from_mixture(
    own: tuple[Noise, Context],
    shared: tuple[Noise, Context],
    truth: torch.Tensor,
    n_own: int,
    m: int,
    stream: Stream,
) -> SharedDraws:
    """``n_own`` draws of one part for each row, and m draws of the other for all; see above."""
    drawn = own[0].sample(own[1], n_own, stream.child(0)).labels
    first = Stream(stream.child(1).key, stream.rows[:1])
    draw = shared[0].sample(shared[1][:1], m, first)
    classes, place, counts = torch.unique(draw.labels[0], return_inverse=True, return_counts=True)
    log_q = torch.empty(len(classes)).scatter_(0, place, draw.log_q[0])
    correction = log_q + math.log(m) - counts.float().log()
    mine = torch.cat([truth, drawn], 1)
    repeated = (mine[:, :, None] == mine[:, None, :]).tril(-1).any(2)
    return SharedDraws(mine, classes, torch.zeros(mine.shape), correction, repeated)
