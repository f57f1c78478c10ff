"""The cells of a comparison: an objective, a noise, and the number of classes to draw."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Any

from extremax.errors import ArgumentError
from extremax.named import parse_named, write_named
from extremax.noise import (
    NOISES,
    Noise,
    incompatibility,
    make_noise,
    paired_objective,
    with_components,
)
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


@dataclass(frozen=True)
class Cell:
    """An objective with a noise, written ``objective×noise@m``.

    objective:    a name from ``OBJECTIVES``, with or without parameters.
    noise:        a name from ``NOISES``, with or without parameters; None if the objective draws no
                  classes.
    n_negatives:  m, the number of classes drawn per example.
    """

    objective: str
    noise: str | None
    n_negatives: int

    @property
    def name(self) -> str:
        """Name for display, such as ``negative sampling × tree``; `names` adds m if needed."""
        factors = [self.objective] if self.noise is None else [self.objective, self.noise]
        names = [(factor.partition("(")[0], factor) for factor in factors]
        return " × ".join(text.replace(name, name.replace("_", " "), 1) for name, text in names)

    @property
    def regularization(self) -> float | None:
        """The penalty λ, if the cell says it; it is not tuned then."""
        return parse_named(Objective, self.objective).get("regularization")

    @property
    def slug(self) -> str:
        """Name for files, valid on every operating system."""
        slug = f"{self.objective}-{self.noise}-{self.n_negatives}" if self.noise else self.objective
        if "(" not in slug:
            return slug
        # Other parameters make another file, also where only brackets differ.
        return f"{re.sub('[^A-Za-z0-9_.=]+', '-', slug)[:100]}-{zlib.crc32(slug.encode()):08x}"


@dataclass(frozen=True)
class LeftOut:
    """A cell that was not compared, and the reason."""

    name: str
    reason: str


def choose(cells: str, n_negatives: int) -> tuple[list[Cell], list[LeftOut]]:
    """Parse a list of cells; return those that can be compared, and those that are left out.

    Args:
        cells: ``default``, ``all``, or a list such as ``negative_sampling×tree,
            sampled_softmax:mixture@64, nce×frequency(power=0.75), exact``: objective and noise
            separated by × or :, with parameters in parentheses and the number of classes to draw
            per example after @.
        n_negatives: Number of classes to draw per example for cells without @.
    """
    requested = [text for text in _split(cells, ",") if text]
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
        try:
            cell = _parse(text, n_negatives)
            objective, noise = make(cell)
        except ArgumentError as error:
            raise ArgumentError(f"cells: {error}") from error
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


def _split(text: str, separators: str) -> list[str]:
    """Split at separators outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if depth == 0 and character in separators:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _parse(text: str, n_negatives: int) -> Cell:
    pair, *draws = _split(text, "@")
    written, *noises = _split(pair, "×:*")
    if len(draws) > 1 or len(noises) > 1 or not all((written, *noises)):
        raise ArgumentError(f"{text!r} is not of the form objective×noise or objective×noise@m")
    if draws and not (draws[0].isdecimal() and int(draws[0]) >= 1):
        raise ArgumentError(f"{text!r} must have a number of at least 1 after @")
    objective = _normalized(Objective, OBJECTIVES, written)
    name = parse_named(Objective, objective)["objective"]
    if not OBJECTIVES[name].samples:
        if noises or draws:
            raise ArgumentError(f"{name} draws no classes; write {objective!r} instead of {text!r}")
        return Cell(objective, None, n_negatives)
    if not noises:
        raise ArgumentError(f"{name} needs a noise, for example {name}×frequency")
    noise = _normalized(Noise, NOISES, noises[0])
    made = make_noise(noise)
    made.check_parameters()
    objective = paired_objective(objective, made)
    return Cell(objective, noise, int(draws[0]) if draws else n_negatives)


def _normalized(base: type, kinds: dict[str, type[Any]], text: str) -> str:
    """The text of an objective or a noise in one way of writing it, once its name is known."""
    name, bracket, parameters = text.partition("(")
    described = parse_named(base, name.strip().replace(" ", "_") + bracket + parameters)
    word = base.__name__.lower()
    if described[word] not in kinds:
        known = ", ".join(kinds)
        raise ArgumentError(f"unknown {word} {described[word]!r}; choose one of {known}")
    return write_named(base, described)


def make(
    cell: Cell, regularization: float | None = None, tree_components: int | None = None
) -> tuple[Objective, Noise]:
    """Create the objective and the unfitted noise of a cell; None is the default of each.

    What the cell says itself stays as it is.
    """
    objective = make_objective(cell.objective)
    if regularization is not None and cell.regularization is None:
        objective.set_params(regularization=regularization)
    name = cell.noise or "uniform"
    noise = make_noise(name) if tree_components is None else with_components(name, tree_components)
    return objective, noise
