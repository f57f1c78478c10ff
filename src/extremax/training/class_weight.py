"""Weights of classes: the weight of an example is multiplied by that of its class, as in
scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from extremax.errors import ArgumentError
from extremax.labels.index import LabelIndex, one_dimensional
from extremax.training.data import Examples


def weigh_classes(examples: Examples, class_weight: Any, partly: bool = False) -> None:
    """Multiply the weights of examples, before their labels are encoded, by those of their classes.

    class_weight:  None; "balanced", which gives every class the same weight in all, W/(C w_c) to
                   each example for W the weight of all examples and w_c of those of the class; or a
                   mapping from labels to weights, one for labels that it lacks.
    partly:        whether more examples may follow, of other classes.
    """
    if class_weight is None:
        return
    index = LabelIndex.of(examples.labels)
    classes = index.encode(examples.labels)
    if isinstance(class_weight, Mapping):
        weights = _of_labels(index, class_weight, partly)
    elif partly:
        raise ArgumentError(
            "class_weight='balanced' needs all rows at once, and partial_fit has some of them; "
            "pass a dictionary, which sklearn.utils.class_weight.compute_class_weight can make"
        )
    else:
        sums = np.bincount(classes, examples.weights, len(index))
        weights = sums.sum() / (np.count_nonzero(sums) * np.where(sums > 0, sums, 1.0))
    own = 1.0 if examples.weights is None else examples.weights
    with np.errstate(over="ignore"):
        product = (weights[classes] * own).astype(np.float32)
    if not np.isfinite(product).all() or not product.any():
        raise ArgumentError(
            "class_weight, times sample_weight where that is given, must be finite in float32 and "
            "above zero for some row"
        )
    examples.weights = product


def _of_labels(index: LabelIndex, given: Mapping[Any, float], partly: bool) -> np.ndarray:
    """The weight of each class."""
    weights = np.ones(len(index))
    if given:
        names = one_dimensional(list(given))
        classes = index.encode(names)
        known = classes >= 0
        weights[classes[known]] = np.array(list(given.values()), float)[known]
        # More labels than there are is fine where none is missing, as in scikit-learn: a part of
        # the rows may lack a rare class.
        if not partly and not known.all() and known.sum() < len(index):
            unknown = names[~known].tolist()[0]
            raise ArgumentError(
                f"class_weight has the label {unknown!r:.80}, which y does not have, and no weight "
                "for some that y has; remove it, or give a weight for every label"
            )
    return weights
