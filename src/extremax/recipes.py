"""The one place that decides: given the rows and the objective, which head, noises and defaults.

Nothing after `choose` asks again what kind of rows a model has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from extremax.heads import BagHead, Head, LinearHead, SupportHead
from extremax.noise import NOISES, Noise, UniformNoise, make_noise
from extremax.objectives import Objective, make_objective
from extremax.rows import DenseRows, Rows, Sizes, SparseRows
from extremax.training.start import (
    Start,
    start_at_class_means,
    start_at_frequencies,
    start_at_sparse_means,
)

# Single-precision matrix products per second on two cores. Not measured on the spot, and
# independent of the number of threads: the choice must not depend on how busy or large the machine
# is.
_OPERATIONS_PER_SECOND = 5e10
# How long a user waits who has not said: a minute of exact training.
_PATIENCE_SECONDS = 60.0


class Recipe(NamedTuple):
    """How to train on one kind of rows with one objective.

    noises:      names of the noises that such rows allow; the first is the default.
    safe_noise:  what noise="auto" takes for an objective that divides by q.
    start:       sets the weights of a new head before training.
    parameters:  parameters of the classifier that only this recipe uses.
    max_batch:   the largest default batch.
    """

    head: type[Head]
    noises: tuple[str, ...]
    safe_noise: str
    objective: str
    n_negatives: int
    epochs: int
    max_batch: int
    start: Callable[[Start], None]
    parameters: tuple[str, ...] = ()


_ALL_BUT_SPARSE = tuple(name for name in NOISES if name != "sparse_tree")
_DENSE = Recipe(
    head=LinearHead,
    noises=(*_ALL_BUT_SPARSE, "sparse_tree"),
    safe_noise="mixture",
    objective="negative_sampling",
    n_negatives=5,
    epochs=10,
    # Steps must be worth the way through Python, or over all of the head's rows.
    max_batch=4096,
    start=start_at_class_means,
)
# On sparse rows the tree is so good on the rows it was fitted to that a head which adds to its
# log q has nothing left to learn from them. So the head learns by itself, with the tree's hard
# negatives, and held-out rows weight the two (`extremax.prediction.blend`). Feature vectors overfit
# after a few epochs, and few epochs need small batches.
_SPARSE = Recipe(
    head=BagHead,
    noises=("sparse_tree", "uniform", "frequency", "log_uniform"),
    safe_noise="sparse_tree",
    objective="sampled_softmax",
    n_negatives=16,
    epochs=5,
    max_batch=1024,
    start=start_at_frequencies,
    parameters=("bag_size", "feature_dropout"),
)
_SPARSE_EXACT = _SPARSE._replace(head=SupportHead, start=start_at_sparse_means)
RECIPES: dict[type[Rows], Recipe] = {DenseRows: _DENSE, SparseRows: _SPARSE}
# Where many steps run in one kernel, small ones find their rows in the cache.
_FUSED_BATCH = 512


class Choice(NamedTuple):
    """A recipe with the objective and the noise made, both unfitted."""

    recipe: Recipe
    objective: Objective
    noise: Noise

    def batch_size(self, n_rows: int) -> int:
        """A hundredth of an epoch, between 32 and a step that is large enough."""
        fused = self.recipe.head.fuses_steps and self.objective.logistic(1) is not None
        most = _FUSED_BATCH if fused else self.recipe.max_batch
        return int(np.clip(n_rows // 100, 32, most))


def choose(
    rows: type[Rows],
    sizes: Sizes,
    objective: str | Objective | None,
    noise: str | Noise | None,
    epochs: int | None,
    max_seconds: float | None,
) -> Choice:
    """The recipe for this kind of rows and these wishes; None and "auto" leave a wish open.

    Exact softmax is the best objective wherever its cost is bearable: it has no noise to choose and
    nothing to correct. An epoch over every class costs 8 N C K operations (scores twice, the
    gradient once, Adagrad). Otherwise the recipe's own: docs/which-method.md shows what was
    measured.
    """
    recipe = RECIPES[rows]
    if objective == "auto":
        operations = 8.0 * sizes.rows * sizes.classes * sizes.nonzeros * (epochs or recipe.epochs)
        bearable = operations / _OPERATIONS_PER_SECOND <= (max_seconds or _PATIENCE_SECONDS)
        objective = "exact" if bearable and recipe is _DENSE else None
    made = make_objective(recipe.objective if objective is None else objective)
    if noise == "auto":
        # An objective that divides by q needs it bounded from below: a class that a tree deems
        # impossible would enter with a huge weight.
        noise = recipe.noises[0] if made.adds_log_q else recipe.safe_noise
    unfitted = make_noise(noise or recipe.noises[0])
    if not made.samples:
        return Choice(_SPARSE_EXACT if recipe is _SPARSE else recipe, made, UniformNoise())
    _check_noise(unfitted, made, recipe, rows)
    return Choice(recipe, made, unfitted)


def _check_noise(noise: Noise, objective: Objective, recipe: Recipe, rows: type[Rows]) -> None:
    if noise.follows_head and objective.adds_log_q:
        raise ValueError(
            f"{type(noise).__name__} changes as the head trains, and the logits of "
            f"{type(objective).__name__} add its log q: what was learned under an earlier q would "
            "be read with a later one. Use objective sampled_softmax or nce with it"
        )
    if type(noise) in NOISES.values() and type(noise) not in {NOISES[n] for n in recipe.noises}:
        raise ValueError(
            f"{type(noise).__name__} needs dense rows, and these are {rows.name}: use one of "
            f"{', '.join(recipe.noises)}, or project the rows with "
            "encoder=Encoder(n_components=256)"
        )
