"""Cells of a comparison: an objective, a noise, and how many classes are drawn."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from extremax.noise import Noise
    from extremax.objectives import Objective

#: What a person would want to see first: the adversarial tree against the usual noises, and the
#: other objectives with the noise that suits them.
DEFAULT = (
    "negative_sampling×tree",
    "negative_sampling×uniform",
    "negative_sampling×frequency",
    "nce×frequency",
    "sampled_softmax×frequency",
    "sampled_softmax×mixture",
    "exact",
)
_SPELLING = re.compile(r"([\w ]+?)\s*(?:[×:*]\s*([\w ]+?)\s*)?(?:@\s*(\w+))?")


@dataclass(frozen=True)
class Cell:
    """Reads as ``objective×noise@m``; ``noise`` is None where the objective draws nothing."""

    objective: str
    noise: str | None
    n_negatives: int

    @property
    def name(self) -> str:
        """``negative sampling × tree``; ``@m`` is said where cells differ in it only."""
        parts = [self.objective] if self.noise is None else [self.objective, self.noise]
        return " × ".join(part.replace("_", " ") for part in parts)

    @property
    def slug(self) -> str:
        """A file name that any system takes."""
        return f"{self.objective}-{self.noise}-{self.n_negatives}" if self.noise else self.objective


@dataclass(frozen=True)
class LeftOut:
    """A cell that cannot be, and why."""

    name: str
    reason: str


def choose(
    cells: str, n_negatives: int, tree_components: int | None = None
) -> tuple[list[Cell], list[LeftOut]]:
    """The cells that a list, ``default`` or ``all`` names, and those among them that cannot be.

    A list reads ``negative_sampling×tree, sampled_softmax:mixture@64, exact``: × or : between
    objective and noise, and after @ how many classes to draw for each example.
    """
    from extremax.noise import NOISES
    from extremax.objectives import OBJECTIVES

    asked = [part.strip() for part in cells.split(",") if part.strip()]
    if cells.strip() == "default":
        # Of a table that lost a name, the others still make a comparison.
        asked = [name for name in DEFAULT if set(name.split("×")) <= {*OBJECTIVES, *NOISES}]
    elif cells.strip() == "all":
        asked = [
            f"{objective}×{noise}" if made.samples else objective
            for objective, made in OBJECTIVES.items()
            for noise in (NOISES if made.samples else [""])
        ]
    found: dict[Cell, None] = {}
    left_out = []
    for text in asked:
        cell = _parse(text, n_negatives)
        reason = impossible(cell, tree_components)
        if reason is None:
            found[cell] = None
        else:
            left_out.append(LeftOut(cell.name, reason))
    if not found:
        why = "; ".join(f"{cell.name}: {cell.reason}" for cell in left_out)
        raise ValueError(f"--cells leaves nothing to compare{': ' + why if why else ''}")
    return list(found), left_out


def names(cells: list[Cell]) -> dict[Cell, str]:
    """How to call each: with its number of draws where another cell differs in that alone."""
    called = [cell.name for cell in cells]
    return {
        cell: f"{cell.name}, m = {cell.n_negatives}" if called.count(cell.name) > 1 else cell.name
        for cell in cells
    }


def _parse(text: str, n_negatives: int) -> Cell:
    from extremax.noise import NOISES
    from extremax.objectives import OBJECTIVES

    match = _SPELLING.fullmatch(text)
    if match is None:
        raise ValueError(f"--cells: {text!r} does not read as objective×noise or objective×noise@m")
    objective, noise, drawn = match[1].replace(" ", "_"), match[2], match[3]
    noise = noise.replace(" ", "_") if noise else None
    if objective not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise ValueError(f"--cells: an objective is one of {known}, not {objective!r}")
    if drawn is not None and not (drawn.isdecimal() and int(drawn) >= 1):
        raise ValueError(f"--cells: {text!r} should end in @ and a number of draws, at least 1")
    if not OBJECTIVES[objective].samples:
        if noise is not None or drawn is not None:
            raise ValueError(f"--cells: {objective} draws no classes; name it alone, not {text!r}")
        return Cell(objective, None, n_negatives)
    if noise is None:
        raise ValueError(f"--cells: {objective} needs a noise, as in {objective}×frequency")
    if noise not in NOISES:
        raise ValueError(f"--cells: a noise is one of {', '.join(NOISES)}, not {noise!r}")
    return Cell(objective, noise, int(drawn) if drawn else n_negatives)


def make(
    cell: Cell, regularization: float | None = None, tree_components: int | None = None
) -> tuple[Objective, Noise]:
    """The objective and the noise of a cell, unfitted."""
    from extremax.noise import NOISES
    from extremax.objectives import OBJECTIVES

    objective = OBJECTIVES[cell.objective]()
    if regularization is not None:
        objective.set_params(regularization=regularization)
    noise = NOISES[cell.noise or "uniform"]()
    if tree_components is not None and cell.noise == "tree":
        noise.set_params(n_components=tree_components)
    if tree_components is not None and cell.noise == "mixture":
        sharp = {"noise": "tree", "n_components": tree_components}
        parts = noise.get_params(deep=False)["parts"]
        noise.set_params(parts=tuple(sharp if part == "tree" else part for part in parts))
    return objective, noise


def impossible(cell: Cell, tree_components: int | None = None) -> str | None:
    """Why these two do not go together, or None."""
    objective, noise = make(cell, tree_components=tree_components)
    if noise.follows_head and objective.adds_log_q:
        return (
            "the noise changes as the head trains, and this objective's logits add its log q: "
            "what was learned under yesterday's q would be read with today's"
        )
    return None
