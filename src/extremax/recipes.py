"""The one place that decides: given the kind of rows and the objective, which head, noise, start
and defaults. Nothing after `choose` asks again what kind of rows a model has."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from extremax.errors import ArgumentError
from extremax.experts import Expert, NearestRows, SimilarRows, VisitedAfter, VisitedTogether
from extremax.heads import BagHead, Head, LinearHead, SupportHead, TiedHead
from extremax.noise import (
    NOISES,
    Noise,
    UniformNoise,
    incompatibility,
    make_noise,
    paired_objective,
)
from extremax.objectives import Objective, make_objective
from extremax.prediction.blend import is_product
from extremax.rows import DenseRows, Rows, SequenceRows, Sizes, SparseRows
from extremax.training import penalized
from extremax.training.start import STARTS, Start

# Single-precision operations per second in matrix products on two cores. Not measured on the spot,
# and independent of the number of threads: the choice must not depend on how busy or large the
# machine is.
_OPERATIONS_PER_SECOND = 5e10
#: Operations of a fit from which a GPU is worth the seconds that it takes to start.
WORTH_A_GPU = 1e12
# How long a user waits who has not said: a minute of exact training.
_PATIENCE_SECONDS = 60.0
# The largest default batch where many steps run in one kernel: small ones find their rows in the
# cache.
_FUSED_BATCH = 512


# Where nothing else was found to be better.
_LEARNING_RATE, _PATIENCE = 0.3, 2


class Shared(NamedTuple):
    """How to train where a batch shares its draws (`extremax.training.shared`).

    n_negatives:    classes drawn for a batch.
    noise:          what draws them, if the user does not say.
    counts_truths:  whether the true classes of a batch count for all of its rows, too.
    if_asked:       whether a number of draws that the user gives is shared, too, and with any
                    objective. Otherwise rows then draw their own, as papers do.
    """

    n_negatives: int
    noise: str
    epochs: int
    max_batch: int
    learning_rate: float = _LEARNING_RATE
    counts_truths: bool = False
    if_asked: bool = False


class Recipe(NamedTuple):
    """How to train on one kind of rows.

    head, start:              the head, and the name in ``STARTS`` of what sets its weights before
                              training.
    exact_head, exact_start:  the same for objective "exact".
    noise, added_noise:       the default noise, and that of an objective that adds log q.
    objective:                the default, where exact softmax is too slow.
    noise_objective:          the objective where the user gives only a noise or a number of draws.
    max_batch:                the largest default batch.
    exact_rate:               the learning rate of objective "exact"; that of others is 0.3.
    accumulators:             what Adagrad keeps a number for: each "weight" or each "row".
    dense:                    whether noises can read the rows as an array, and an objective left
                              open is exact softmax where that is fast enough.
    parameters:               parameters of the classifier that only this recipe uses.
    shared:                   how to train where a batch shares its draws; None if rows never do.
    experts:                  further experts beside head and noise.
    blended_experts:          the same where head and noise are a product of experts already, or
                              the objective was left open.
    solves:                   whether an objective left open is penalized softmax, solved for its
                              optimum, where the data is little.
    """

    head: type[Head]
    start: str
    exact_head: type[Head]
    exact_start: str
    noise: str
    added_noise: str
    objective: str
    noise_objective: str
    n_negatives: int
    epochs: int
    max_batch: int
    exact_rate: float = _LEARNING_RATE
    accumulators: str = "weight"
    dense: bool = False
    parameters: tuple[str, ...] = ()
    shared: Shared | None = None
    experts: tuple[type[Expert], ...] = ()
    blended_experts: tuple[type[Expert], ...] = ()
    solves: bool = False


RECIPES: dict[type[Rows], Recipe] = {
    DenseRows: Recipe(
        head=LinearHead,
        start="class_means",
        exact_head=LinearHead,
        exact_start="class_means",
        # A class that the tree deems impossible would enter with a huge weight if it were divided
        # by q; mixing in the frequencies bounds it.
        noise="mixture(parts=(tree, frequency(power=0.5)))",
        added_noise="tree",
        dense=True,
        objective="sampled_softmax",
        noise_objective="negative_sampling",
        n_negatives=5,
        epochs=10,
        # Large enough to amortize the Python overhead of a step.
        max_batch=4096,
        exact_rate=0.5,
        # Rows of a batch share the error of its draws, so batches are smaller than the draws. On
        # held-out titles and sessions (22,649 and 43,066 classes), six epochs of 2,048 draws were
        # as good as three of exact softmax at the same rate; 16 draws of the tree for each row
        # brought about as much as 1,024 more for the batch, and took longer.
        shared=Shared(
            n_negatives=2048,
            noise="frequency(power=0.5)",
            epochs=6,
            max_batch=512,
            learning_rate=0.5,
            counts_truths=True,
        ),
        parameters=("accumulators", "similar_rows"),
        blended_experts=(NearestRows,),
        solves=True,
    ),
    # On sparse rows the tree is so good on the rows it was fitted to that a head which adds to its
    # log q has nothing left to learn from them. So the head learns by itself, with the tree's hard
    # negatives, and held-out rows weight the two (`extremax.prediction.blend`). Feature vectors
    # overfit after a few epochs, and few epochs need small batches.
    SparseRows: Recipe(
        head=BagHead,
        start="frequencies",
        exact_head=SupportHead,
        exact_start="class_means",
        noise="sparse_tree",
        added_noise="sparse_tree",
        objective="sampled_softmax",
        noise_objective="sampled_softmax",
        n_negatives=16,
        epochs=5,
        max_batch=1024,
        parameters=("accumulators", "bag_size", "feature_dropout", "similar_rows"),
        # On held-out titles 0.04 nats better than one per weight, at half of the bytes. On dense
        # rows of unequal columns it was 0.03 to 0.07 worse.
        accumulators="row",
        blended_experts=(SimilarRows,),
        solves=True,
    ),
    # Draws shared by a batch are columns of one matrix product: 1,024 of them cost little, and four
    # times as many brought 0.001 of recall@20 on held-out sessions of diginetica.
    SequenceRows: Recipe(
        head=TiedHead,
        start="zeros",
        exact_head=TiedHead,
        exact_start="zeros",
        noise="frequency(power=0.5)",
        added_noise="frequency(power=0.5)",
        objective="sampled_softmax",
        noise_objective="sampled_softmax",
        n_negatives=16,
        epochs=10,
        max_batch=1024,
        parameters=("bag_size", "feature_dropout"),
        shared=Shared(1024, "frequency(power=0.5)", epochs=10, max_batch=1024, if_asked=True),
        experts=(VisitedTogether, VisitedAfter),
    ),
}


class Choice(NamedTuple):
    """A recipe with the objective and the noise made, both unfitted.

    head, start:  the head, and what sets the weights of a new one before training.
    shared:       how a batch shares its draws, None if it does not.
    is_open:      whether the user left objective and noise open.
    is_solved:    whether the head is the optimum of `extremax.training.penalized`.
    """

    recipe: Recipe
    objective: Objective
    noise: Noise
    head: type[Head]
    start: Callable[[Start], None]
    shared: Shared | None
    is_open: bool = False
    is_solved: bool = False

    def experts(self, sizes: Sizes, similar_rows: bool) -> tuple[type[Expert], ...]:
        """Further experts; one that keeps training rows only if the user lets it."""
        experts = self.recipe.experts
        if self.is_open or is_product(self.objective, self.noise):
            experts += self.recipe.blended_experts
        may_keep = (kind for kind in experts if similar_rows or not kind.keeps_rows)
        return tuple(kind for kind in may_keep if kind.suits(sizes))

    @property
    def n_negatives(self) -> int:
        """Classes to draw if the user does not say."""
        return self.shared.n_negatives if self.shared else self.recipe.n_negatives

    @property
    def epochs(self) -> int:
        """Epochs if the user does not say."""
        return self.shared.epochs if self.shared else self.recipe.epochs

    @property
    def patience(self) -> int:
        """Epochs without progress before training stops, if the user does not say. With shared
        draws held-out rows may say less for some epochs, and more again once the rate nears zero:
        all epochs are run."""
        return self.shared.epochs if self.shared else _PATIENCE

    @property
    def learning_rate(self) -> float:
        """The learning rate if the user does not say."""
        if not self.objective.samples:
            return self.recipe.exact_rate
        return self.shared.learning_rate if self.shared else _LEARNING_RATE

    def operations(self, sizes: Sizes) -> float:
        """Products and sums of a fit, about: scores, and gradients on weights."""
        columns = 1 + self.n_negatives if self.objective.samples else sizes.classes
        if self.shared:
            columns = self.shared.n_negatives
        return 8.0 * sizes.rows * columns * sizes.nonzeros * self.epochs

    def batch_size(self, n_rows: int) -> int:
        """1% of the rows, between 32 and the largest batch that makes sense."""
        fused = self.head.fuses_steps and self.objective.logistic(1) is not None
        most = _FUSED_BATCH if fused else (self.shared or self.recipe).max_batch
        return int(np.clip(n_rows // 100, 32, most))


def choose(
    rows: type[Rows],
    sizes: Sizes,
    objective: str | Objective | None,
    noise: str | Noise | None,
    epochs: int | None,
    max_seconds: float | None,
    start: str | None = None,
    weight_decay: float = 0.0,
    n_negatives: int | None = None,
    whole: bool = False,
    may_solve: bool = False,
) -> Choice:
    """The recipe for this kind of rows and these wishes; None and "auto" leave a wish open.

    whole:      whether all rows are at hand.
    may_solve:  whether they are, and nothing is wished of steps and epochs.

    "auto" may be exact softmax even if a noise or a number of draws is given. An objective that
    None leaves open beside them samples, and is one that the noise can serve: sampled softmax if
    the noise follows its head. Whether the logits of sampled softmax are |ξ| is left open by its
    name alone, see `extremax.noise.paired_objective`.

    Exact softmax is the best objective wherever its cost is bearable: it has no noise to choose and
    nothing to correct. An epoch over every class costs 8 N C K operations (scores twice, the
    gradient once, Adagrad). Otherwise the recipe's own: docs/which-method.md shows what was
    measured.
    """
    recipe = RECIPES[rows]
    given = None if noise is None or noise == "auto" else make_noise(noise)
    if given is not None:
        given.check_parameters()
    is_open = given is None and n_negatives is None
    is_left_open = is_open and objective in (None, "auto")
    is_solved = is_left_open and may_solve and recipe.solves and penalized.suits(sizes)
    if is_solved:
        objective = "exact"
    if objective == "auto" or (objective is None and is_open):
        operations = 8.0 * sizes.rows * sizes.classes * sizes.nonzeros * (epochs or recipe.epochs)
        fast = operations / _OPERATIONS_PER_SECOND <= (max_seconds or _PATIENCE_SECONDS)
        objective = "exact" if fast and recipe.dense else None
    if objective is None:
        objective = recipe.objective if is_open else recipe.noise_objective
        if given is not None and incompatibility(given, make_objective(objective)) is not None:
            objective = "sampled_softmax"
    if given is not None and isinstance(objective, str):
        objective = paired_objective(objective, given)
    made = make_objective(objective)
    usual = recipe.added_noise if made.adds_log_q else recipe.noise
    unfitted = make_noise(usual) if given is None else given
    if not made.samples:
        unfitted = UniformNoise()
    reason = incompatibility(unfitted, made)
    if reason is not None:
        raise ArgumentError(reason)
    if unfitted.needs_dense and not recipe.dense:
        others = ", ".join(name for name, kind in NOISES.items() if not kind().needs_dense)
        project = ", or project the rows with encoder=Encoder(n_components=256)"
        raise ArgumentError(
            f"{type(unfitted).__name__} needs dense rows, and these are {rows.name}: use one of "
            f"{others}{'' if rows.consists_of_classes else project}"
        )
    head = recipe.head if made.samples else recipe.exact_head
    if weight_decay and not head.decays:
        other = "use objective='exact', or project the rows with encoder=Encoder(n_components=256)"
        raise ArgumentError(
            f"weight_decay must be 0 with {type(made).__name__} on {rows.name}, whose "
            f"{head.__name__} is not linear in the features"
            + (f"; {other}" if recipe.exact_head.decays else "")
        )
    usual_start = recipe.start if made.samples else recipe.exact_start
    starts = STARTS[head]
    if start is not None and start not in starts:
        raise ArgumentError(
            f"start must be one of {', '.join(map(repr, starts))} with {type(made).__name__} on "
            f"{rows.name}, whose {head.__name__} has no other, got {start!r}"
        )
    shared = _shared(recipe, made, unfitted, n_negatives)
    if shared is not None and given is None:
        unfitted = make_noise(shared.noise)
    return Choice(
        recipe, made, unfitted, head, starts[start or usual_start], shared,
        is_left_open and whole, is_solved,
    )  # fmt: skip


def _shared(
    recipe: Recipe, objective: Objective, noise: Noise, n_negatives: int | None
) -> Shared | None:
    """How a batch shares draws, if it does."""
    shared = recipe.shared
    if shared is None or not objective.samples or noise.follows_head:
        return None
    if shared.if_asked:
        return None if noise.reads_rows else shared
    if n_negatives is not None or not objective.draws_others:
        return None
    return shared if noise.has_shared_part or not noise.reads_rows else None
