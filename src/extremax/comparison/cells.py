"""The cells of a comparison: an objective, a noise, and the number of classes to draw."""

from __future__ import annotations

import re
from dataclasses import dataclass

from extremax.errors import ArgumentError
from extremax.noise import NOISES, Noise, incompatibility, make_noise, with_components
from extremax.objectives import OBJECTIVES, Objective, make_objective
from extremax.recipes import RECIPES
from extremax.rows import SparseRows

#: The adversarial tree against the usual noises, and the other objectives with a suitable noise.
DEFAULT = (
    "negative_sampling×tree",
    "negative_sampling×uniform",
    "negative_sampling×frequency",
    "nce×frequency",
    "sampled_softmax×frequency",
    "sampled_softmax×mixture",
    "exact",
)
_CELL = re.compile(r"([\w ]+?)\s*(?:[×:*]\s*([\w ]+?)\s*)?(?:@\s*(\w+))?")


@dataclass(frozen=True)
class Cell:
    """An objective with a noise, written ``objective×noise@m``.

    objective:    a name from ``OBJECTIVES``.
    noise:        a name from ``NOISES``; None if the objective draws no classes.
    n_negatives:  m, the number of classes drawn per example.
    """

    objective: str
    noise: str | None
    n_negatives: int

    @property
    def name(self) -> str:
        """Name for display, such as ``negative sampling × tree``; `names` adds m if needed."""
        factors = [self.objective] if self.noise is None else [self.objective, self.noise]
        return " × ".join(factor.replace("_", " ") for factor in factors)

    @property
    def slug(self) -> str:
        """Name for files, valid on every operating system."""
        return f"{self.objective}-{self.noise}-{self.n_negatives}" if self.noise else self.objective


@dataclass(frozen=True)
class LeftOut:
    """A cell that was not compared, and the reason."""

    name: str
    reason: str


def choose(cells: str, n_negatives: int) -> tuple[list[Cell], list[LeftOut]]:
    """Parse a list of cells; return those that can be compared, and those that are left out.

    Args:
        cells: ``default``, ``all``, or a list such as ``negative_sampling×tree,
            sampled_softmax:mixture@64, exact``: objective and noise separated by × or :, with
            the number of classes to draw per example after @.
        n_negatives: Number of classes to draw per example for cells without @.
    """
    requested = [text.strip() for text in cells.split(",") if text.strip()]
    if cells.strip() == "default":
        requested = list(DEFAULT)
    elif cells.strip() == "all":
        # Comparisons run on dense rows. The noise for sparse rows works on them too, but has a
        # dense counterpart; a list can still name it.
        noises = [noise for noise in NOISES if noise != RECIPES[SparseRows].noise]
        requested = [
            f"{name}×{noise}" if objective.samples else name
            for name, objective in OBJECTIVES.items()
            for noise in (noises if objective.samples else [""])
        ]
    # A dictionary, because a cell may be named twice.
    chosen: dict[Cell, None] = {}
    left_out = []
    for text in requested:
        cell = _parse(text, n_negatives)
        objective, noise = make(cell)
        reason = incompatibility(noise, objective)
        if reason is None:
            chosen[cell] = None
        else:
            left_out.append(LeftOut(cell.name, reason))
    if not chosen:
        reasons = "; ".join(f"{cell.name}: {cell.reason}" for cell in left_out)
        raise ArgumentError(f"cells: nothing to compare{'; ' + reasons if reasons else ''}")
    return list(chosen), left_out


def names(cells: list[Cell]) -> dict[Cell, str]:
    """Return a unique name per cell, with m for cells that differ only in it."""
    short = [cell.name for cell in cells]
    return {
        cell: f"{cell.name}, m = {cell.n_negatives}" if short.count(cell.name) > 1 else cell.name
        for cell in cells
    }


def _parse(text: str, n_negatives: int) -> Cell:
    match = _CELL.fullmatch(text)
    if match is None:
        raise ArgumentError(
            f"cells: {text!r} is not of the form objective×noise or objective×noise@m"
        )
    objective, noise, draws = match[1].replace(" ", "_"), match[2], match[3]
    noise = noise.replace(" ", "_") if noise else None
    if objective not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise ArgumentError(f"cells: unknown objective {objective!r}; choose one of {known}")
    if draws is not None and not (draws.isdecimal() and int(draws) >= 1):
        raise ArgumentError(f"cells: {text!r} must have a number of at least 1 after @")
    if not OBJECTIVES[objective].samples:
        if noise is not None or draws is not None:
            raise ArgumentError(
                f"cells: {objective} draws no classes; write {objective!r} instead of {text!r}"
            )
        return Cell(objective, None, n_negatives)
    if noise is None:
        raise ArgumentError(f"cells: {objective} needs a noise, for example {objective}×frequency")
    if noise not in NOISES:
        raise ArgumentError(f"cells: unknown noise {noise!r}; choose one of {', '.join(NOISES)}")
    return Cell(objective, noise, int(draws) if draws else n_negatives)


def make(
    cell: Cell, regularization: float | None = None, tree_components: int | None = None
) -> tuple[Objective, Noise]:
    """Create the objective and the unfitted noise of a cell; None is the default of each."""
    objective = make_objective(cell.objective)
    if regularization is not None:
        objective.set_params(regularization=regularization)
    name = cell.noise or "uniform"
    noise = make_noise(name) if tree_components is None else with_components(name, tree_components)
    return objective, noise
