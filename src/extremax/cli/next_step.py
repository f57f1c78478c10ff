"""The command that trains the winner of a comparison on all rows."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from extremax.cli.options import LabeledInput, SingleLabelInput
from extremax.cli.training import Fitting

if TYPE_CHECKING:
    from extremax.comparison import Cell, Comparison

_READING = ("labels", "text_column", "label_column", "format", "keep_labels")
_FITTING = ("analyzer", "ngrams", "start", "validation_fraction", "seed", "threads")
# Where TRAIN is projected, and nobody said to how many dimensions.
_COMPONENTS = 256


def train_command(
    result: Comparison, given: Fitting, source: LabeledInput, dense: bool
) -> str | None:
    """`extremax train` with the objective, noise and settings of the best cell, for as many epochs
    as its final run had; None if no cell improved on its start.

    dense:  whether the rows were dense already, rather than projected.
    """
    trained = {cell: r for cell, r in result.final.items() if not r["start_kept"]}
    if not trained:
        return None
    best = max(trained, key=lambda cell: trained[cell]["test"]["log_likelihood"])
    record = trained[best]
    options = {
        **_changed(source, SingleLabelInput, _READING),
        "components": None if dense else given.components or _COMPONENTS,
        "objective": _objective(best, record["regularization"]),
        "noise": best.noise,
        "tree_components": _tree_components(best, given),
        "n_negatives": best.n_negatives if best.noise else None,
        "learning_rate": f"{record['learning_rate']:g}",
        "weight_decay": f"{record['weight_decay']:g}" if record["weight_decay"] else None,
        "epochs": max(1, record["epochs"]),
        **_changed(given, Fitting, _FITTING),
    }
    words = ["extremax", "train", *map(str, source.files), "-o", "model"]
    if source.zero_based is not None:
        words.append("--zero-based" if source.zero_based else "--one-based")
    for name, value in options.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _changed(given: Any, group: type, names: tuple[str, ...]) -> dict[str, Any]:
    """Options that are not at their default."""
    values = {name: getattr(given, name) for name in names}
    return {name: value for name, value in values.items() if value != getattr(group, name)}


def _objective(cell: Cell, regularization: float) -> str:
    from extremax.named import parse_named, write_named
    from extremax.objectives import Objective

    described = parse_named(Objective, cell.objective)
    if regularization:
        described["regularization"] = regularization
    return write_named(Objective, described)


def _tree_components(cell: Cell, given: Fitting) -> int | None:
    """The number of components, where the cell has a tree that it changes."""
    from extremax.noise import describe_noise, make_noise, with_components

    asked = given.tree_components
    if cell.noise is None or asked == Fitting.tree_components:
        return None
    resized = describe_noise(with_components(cell.noise, asked))
    return asked if resized != describe_noise(make_noise(cell.noise)) else None
