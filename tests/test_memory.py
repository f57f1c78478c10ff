"""Want of memory is a MemoryError, whichever library finds out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.memory import memory_errors


def too_much(*args: Any, **options: Any) -> torch.Tensor:
    return torch.empty(2**58)


def test_only_want_of_memory_becomes_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="tried to allocate"), memory_errors():
        too_much()
    with pytest.raises(RuntimeError, match="bug"), memory_errors():
        raise RuntimeError("bug")


def test_calls_of_the_classifier_raise_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = clustered(60, 5, 6, seed=0)
    model = ExtremeClassifier(noise="uniform", epochs=1, random_state=0).fit(X, y)
    model.save(tmp_path / "m")
    head = type(model.model_.head)
    for name in ("scores_all", "restore"):
        monkeypatch.setattr(head, name, too_much)
    for call in (lambda: model.predict_proba(X), lambda: ExtremeClassifier.load(tmp_path / "m")):
        with pytest.raises(MemoryError, match="tried to allocate"):
            call()
