"""Class labels: hashable values of any type, one or several per row."""

from extremax.labels.classes import ClassLabels
from extremax.labels.index import (
    LabelIndex,
    concatenate_labels,
    label_array,
    label_matrix,
    object_array,
)
from extremax.labels.lists import (
    LabelLists,
    concatenate_lists,
    is_multilabel,
    label_lists,
    one_label_per_row,
    weighted_label_lists,
)
from extremax.labels.prior import Prior

__all__ = [
    "ClassLabels",
    "LabelIndex",
    "LabelLists",
    "Prior",
    "concatenate_labels",
    "concatenate_lists",
    "is_multilabel",
    "label_array",
    "label_lists",
    "label_matrix",
    "object_array",
    "one_label_per_row",
    "weighted_label_lists",
]
