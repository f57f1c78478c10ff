"""Labels as tensors: back with their type, or refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from extremax.errors import ModelFileError
from extremax.labels import ClassLabels, LabelIndex, label_array, object_array
from extremax.labels.saving import pack_labels, unpack_labels

LABELS: dict[str, np.ndarray] = {
    "int64": np.array([3, -1, 2**62]),
    "uint64": np.array([2**63 + 1, 5], np.uint64),
    "int8": np.array([1, 2], np.int8),
    "float32": np.array([0.5, 1.5], np.float32),
    "floats": np.array([-np.inf, 1e300, 0.5]),
    "booleans": np.array([False, True]),
    "strings": np.array(["", "straße", "数", "tab\tnewline\n", 'quote"']),
    "half a surrogate": np.array(["\ud800", "a"], dtype=object),
    "objects": object_array(["a", 1, None, True, 2.5, (1, ("x", None))]),
    "numbers of numpy": object_array([np.int64(4), "a", (np.float32(0.5), "b")]),
}


@pytest.mark.parametrize("classes", LABELS.values(), ids=LABELS.keys())
def test_labels_come_back_with_their_type(classes: np.ndarray) -> None:
    back = unpack_labels(json.loads(json.dumps(classes.dtype.str)), pack_labels(classes))
    assert back.dtype == classes.dtype
    assert back.tolist() == classes.tolist()


@pytest.mark.parametrize("label", [frozenset({1}), (1, frozenset()), b"bytes", 1j, np.complex64(1)])
def test_labels_that_need_pickle_are_refused(label: Any) -> None:
    with pytest.raises(ModelFileError, match="cannot be saved without pickle"):
        pack_labels(label_array(["a", label]))


def saved(values: np.ndarray) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    labels = ClassLabels(LabelIndex(values), multilabel=True)
    labels.count(np.array([0, 0, 1]), 2)
    return labels.settings(), labels.state()


@pytest.mark.parametrize("name", ["int64", "floats", "strings", "objects"])
def test_the_classes_of_a_model_come_back(name: str) -> None:
    # True and 1 are one label to Python.
    values = LABELS[name][[0, 2]]
    settings, state = saved(values)
    labels = ClassLabels.restore(json.loads(json.dumps(settings)), state)
    assert labels.values.tolist() == values.tolist()
    assert labels.counts.tolist() == [2, 1]
    assert (labels.n_rows, labels.multilabel, len(labels)) == (2, True, 2)
    assert labels.encode(values[::-1]).tolist() == [1, 0]


INTEGERS, STRINGS = saved(np.array([4, 9])), saved(np.array(["a", "b"]))
FLOATS = saved(np.array([0.5, 1.5]))
DAMAGE: dict[str, tuple[Any, dict[str, Any], dict[str, torch.Tensor]]] = {
    "fewer labels": (INTEGERS, {}, {"labels": torch.tensor([4])}),
    "labels of another type": (INTEGERS, {}, {"labels": torch.tensor([4, 9], dtype=torch.int32)}),
    "floats for integers": (INTEGERS, {}, {"labels": torch.tensor([4.0, 9.0])}),
    "a label twice": (INTEGERS, {}, {"labels": torch.tensor([4, 4])}),
    "another number of classes": (INTEGERS, {"n_classes": 3}, {}),
    "NaN": (FLOATS, {}, {"labels": torch.tensor([0.5, np.nan], dtype=torch.float64)}),
    "negative counts": (INTEGERS, {}, {"counts": torch.tensor([-1, 2])}),
    "too many counts": (INTEGERS, {}, {"counts": torch.tensor([1, 2, 3])}),
    "counts in floats": (INTEGERS, {}, {"counts": torch.tensor([1.0, 2.0])}),
    "something else": (INTEGERS, {}, {"more": torch.tensor(1)}),
    "one text for two": (STRINGS, {}, {"labels": pack_labels(np.array(["a"]))}),
    "a text twice": (STRINGS, {}, {"labels": pack_labels(np.array(["a", "a"]))}),
    "no text": (STRINGS, {}, {"labels": torch.tensor([200, 3], dtype=torch.uint8)}),
    "half a text": (STRINGS, {}, {"labels": STRINGS[1]["labels"][:-1]}),
    "integers for texts": (STRINGS, {}, {"labels": torch.tensor([4, 9])}),
    "no type": (STRINGS, {"dtype": "no type"}, {}),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_labels_are_refused(damage: Any) -> None:
    (settings, state), other_settings, other_state = damage
    ClassLabels.restore(settings, state)
    # `load_model` turns the built-in errors into a ModelFileError.
    with pytest.raises((ModelFileError, ValueError, TypeError)):
        ClassLabels.restore(settings | other_settings, state | other_state)
