"""Draws from q over the classes other than a row's label, for noises without a way of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from extremax.random import Stream

if TYPE_CHECKING:
    from extremax.noise.base import Noise

# Candidates of a draw in each round. At q_y = 0.9, all 191 are the label once in 10⁹ draws.
_CANDIDATES = (1, 2, 4, 8, 16, 32, 32, 32, 32, 32)


def sample_by_rejection(
    noise: Noise, context: Any, labels: torch.Tensor, m: int, stream: Stream
) -> torch.Tensor:
    """Classes (n, m) from q given that they are not the row's label, labels (n, 1).

    A draw that is the label is replaced by the first of some candidates that is not, from random
    numbers of its own. After some rounds the few that remain are drawn from q of every class.
    """
    drawn = noise.sample(context, m, stream).labels
    for number, n_candidates in enumerate(_CANDIDATES):
        rows, columns = torch.nonzero(drawn == labels, as_tuple=True)
        if not len(rows):
            return drawn
        own = _stream_of_draws(stream.child(number), rows, columns, m)
        candidates = noise.sample(context[rows], n_candidates, own).labels
        first = (candidates != labels[rows]).int().argmax(1, keepdim=True)
        drawn[rows, columns] = candidates.gather(1, first)[:, 0]
    for row in torch.nonzero((drawn == labels).any(1))[:, 0].tolist():
        columns = torch.nonzero(drawn[row] == labels[row])[:, 0]
        rows = torch.full_like(columns, row)
        own = _stream_of_draws(stream.child(len(_CANDIDATES)), rows, columns, m)
        drawn[row, columns] = _invert(noise, context[rows[:1]], int(labels[row]), own)
    return drawn


def _stream_of_draws(stream: Stream, rows: torch.Tensor, columns: torch.Tensor, m: int) -> Stream:
    """Random numbers for each of these draws, in place of those of its row."""
    return Stream(stream.key, stream.rows[rows.numpy()] * m + columns.numpy())


def _invert(noise: Noise, context: Any, label: int, stream: Stream) -> torch.Tensor:
    """Draws for one row, by inverting the distribution function over the other classes."""
    log_q = noise.log_prob_all(context)[0].double().numpy()
    log_q[label] = -np.inf
    below = np.cumsum(np.exp(log_q - log_q.max()))
    # The last class of positive probability begins below this.
    target = np.minimum(stream.uniform(1)[:, 0], 1.0 - 1e-15) * below[-1]
    return torch.from_numpy(np.searchsorted(below, target, side="right"))
