"""Classes that come later, with rows of their own and few of the classes that were there first.

Steps on rows in which a class has the share π' of the examples estimate

    p'(y|x) ∝ p(y|x) π'_y/π_y,

π its share of all examples so far (Saerens et al., "Adjusting the outputs of a classifier to new a
priori probabilities", 2002): the first classes, with few rows or none, would be pushed down.
With log(π'_y/π_y) added to the logits while training, the head itself estimates p (Menon et al.,
"Long-tail learning via logit adjustment", 2021). What tells rows of late classes from others is in
the others: where the model keeps its examples, as many of the first classes are rehearsed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from extremax.model import Model
from extremax.rows import Rows
from extremax.training.data import Examples
from extremax.training.state import Settings

# The share of rows of fresh classes that calls for more than one pass.
_MANY = 0.05
# Passes over such rows, or as many as a fit has, if those are fewer. On a tenth of the classes of
# 80,000 titles, 1.5 passes at the full rate brought 86% of the accuracy of a fit to everything, and
# 5 that fall 104%; on sessions of diginetica, 10 brought less than 4.
_PASSES = 5
# Examples of the usual shares that are added to those of a pass: a few rows say little about π'.
_AS_USUAL = 100.0


class Known(NamedTuple):
    """Examples that a model keeps."""

    rows: Rows
    labels: np.ndarray

    @classmethod
    def of(cls, model: Model) -> Known | None:
        """None if it keeps none. Lengths of rows are not kept: all get the usual one."""
        for expert in model.experts:
            kept = expert.examples(1.0 / model.head.options.scale)
            if kept is not None:
                return cls(*kept)
        return None


def with_rehearsal(
    examples: Examples, known: Known, model: Model, random: np.random.Generator
) -> Examples:
    """These examples and some known ones of the first classes: as many in all as of late classes,
    but no larger a share than they have among all examples so far."""
    is_late, counts = model.labels.is_late, model.labels.counts
    n_late = int(is_late[examples.labels].sum())
    usual = counts[~is_late].sum() / counts[is_late].sum() if n_late else 0.0
    n_more = int(n_late * min(1.0, usual)) - (len(examples) - n_late)
    first = np.flatnonzero(~is_late[known.labels])
    if n_more <= 0 or not len(first):
        return examples
    chosen = np.sort(random.choice(first, min(n_more, len(first)), replace=False))
    weights = examples.weights
    if weights is not None:
        mean = weights[weights > 0].mean()
        weights = np.concatenate([weights, np.full(len(chosen), mean, np.float32)])
    labels = np.concatenate([examples.labels, known.labels[chosen]])
    return Examples(examples.rows.joined(known.rows[chosen]), labels, weights)


def learning_rates(
    model: Model, settings: Settings, examples: Examples, is_fresh: np.ndarray
) -> list[np.ndarray]:
    """The learning rate of every step, by pass: one pass at a constant rate; or where many examples
    have a fresh class, none of which was seen before, several passes, at rates that fall as those
    of a fit do.

    is_fresh:  of each class.
    """
    n_steps = -(-len(examples) // settings.batch_size)
    many = is_fresh[examples.labels].mean() >= _MANY and model.objective.scores_are_logits
    if not many:
        return [np.full(n_steps, settings.learning_rate)]
    n_passes = min(settings.epochs, _PASSES)
    done = np.arange(n_passes * n_steps) / (n_passes * n_steps)
    return np.split(settings.learning_rates(done), n_passes)


def count_late(model: Model, labels: np.ndarray, n_rows: int) -> None:
    """Count these examples, and raise the biases of late classes by what their log-odds against the
    first ones gain: steps do not see it (`prior_of`). Fresh classes have a start of their own."""
    is_late, before = model.labels.is_late, model.labels.counts
    seen = torch.from_numpy(np.flatnonzero(is_late & (before > 0)))
    model.labels.count(labels, n_rows)
    after = model.labels.counts
    if len(seen) and before[~is_late].any() and model.objective.scores_are_logits:
        gain = np.log(after[seen].sum() / before[seen].sum())
        gain -= np.log(after[~is_late].sum() / before[~is_late].sum())
        for member in model.members:
            member.head.bias[seen] += float(gain)


@contextmanager
def prior_of(model: Model, labels: np.ndarray) -> Iterator[None]:
    """While it lasts, biases of late classes have log(π'/π) more than others, where scores are
    logits. π' is that of the labels and of a few more examples as usual."""
    is_late, counts = model.labels.is_late, model.labels.counts
    usual = float(counts[is_late].sum() / counts.sum())
    shift = 0.0
    if 0.0 < usual < 1.0 and model.objective.scores_are_logits:
        n_late = is_late[labels].sum() + _AS_USUAL * usual
        n_first = len(labels) + _AS_USUAL - n_late
        shift = float(np.log(n_late / n_first * (1.0 - usual) / usual))
    late = torch.from_numpy(np.flatnonzero(is_late))
    model.head.bias[late] += shift
    try:
        yield
    finally:
        model.head.bias[late] -= shift
