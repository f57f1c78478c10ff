"""The cells of a comparison: an objective, a noise, and the number of classes to draw."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extremax.noise import Noise
    from extremax.objectives import Objective

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
# Comparisons run on dense rows. The sparse tree works on them, but it is made for sparse rows, and
# "tree" is its dense counterpart. So "all" leaves it out; a list can still name it.
_ONLY_IF_NAMED = ("sparse_tree",)
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


def choose(
    cells: str, n_negatives: int, tree_components: int | None = None
) -> tuple[list[Cell], list[LeftOut]]:
    """Parse a list of cells; return those that can be compared, and those that are left out.

    Args:
        cells: ``default``, ``all``, or a list such as ``negative_sampling×tree,
            sampled_softmax:mixture@64, exact``: objective and noise separated by × or :, with
            the number of classes to draw per example after @.
        n_negatives: Number of classes to draw per example for cells without @.
        tree_components: Dimensions of the dense tree; None for its default.
    """
    from extremax.noise import NOISES
    from extremax.objectives import OBJECTIVES

    requested = [text.strip() for text in cells.split(",") if text.strip()]
    if cells.strip() == "default":
        requested = list(DEFAULT)
    elif cells.strip() == "all":
        noises = [noise for noise in NOISES if noise not in _ONLY_IF_NAMED]
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
        reason = incompatibility(cell, tree_components)
        if reason is None:
            chosen[cell] = None
        else:
            left_out.append(LeftOut(cell.name, reason))
    if not chosen:
        reasons = "; ".join(f"{cell.name}: {cell.reason}" for cell in left_out)
        raise ValueError(f"cells: nothing to compare{'; ' + reasons if reasons else ''}")
    return list(chosen), left_out


def names(cells: list[Cell]) -> dict[Cell, str]:
    """Return a unique name per cell, with m for cells that differ only in it."""
    short = [cell.name for cell in cells]
    return {
        cell: f"{cell.name}, m = {cell.n_negatives}" if short.count(cell.name) > 1 else cell.name
        for cell in cells
    }


def _parse(text: str, n_negatives: int) -> Cell:
    from extremax.noise import NOISES
    from extremax.objectives import OBJECTIVES

    match = _CELL.fullmatch(text)
    if match is None:
        raise ValueError(f"cells: {text!r} is not of the form objective×noise or objective×noise@m")
    objective, noise, draws = match[1].replace(" ", "_"), match[2], match[3]
    noise = noise.replace(" ", "_") if noise else None
    if objective not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise ValueError(f"cells: unknown objective {objective!r}; choose one of {known}")
    if draws is not None and not (draws.isdecimal() and int(draws) >= 1):
        raise ValueError(f"cells: {text!r} must have a number of at least 1 after @")
    if not OBJECTIVES[objective].samples:
        if noise is not None or draws is not None:
            raise ValueError(
                f"cells: {objective} draws no classes; write {objective!r} instead of {text!r}"
            )
        return Cell(objective, None, n_negatives)
    if noise is None:
        raise ValueError(f"cells: {objective} needs a noise, for example {objective}×frequency")
    if noise not in NOISES:
        raise ValueError(f"cells: unknown noise {noise!r}; choose one of {', '.join(NOISES)}")
    return Cell(objective, noise, int(draws) if draws else n_negatives)


def make(
    cell: Cell, regularization: float | None = None, tree_components: int | None = None
) -> tuple[Objective, Noise]:
    """Create the objective and the unfitted noise of a cell."""
    from extremax.noise import make_noise
    from extremax.objectives import make_objective

    objective = make_objective(cell.objective)
    if regularization is not None:
        objective.set_params(regularization=regularization)
    noise: dict[str, Any] = {"noise": cell.noise or "uniform"}
    if tree_components is not None:
        tree = {"noise": "tree", "n_components": tree_components}
        if cell.noise == "tree":
            noise = tree
        elif cell.noise == "mixture":
            noise["parts"] = (tree, "frequency")
    return objective, make_noise(noise)


def incompatibility(cell: Cell, tree_components: int | None = None) -> str | None:
    """Return why objective and noise of a cell cannot be combined, or None if they can."""
    from extremax import noise as noises

    objective, noise = make(cell, tree_components=tree_components)
    return noises.incompatibility(noise, objective)
