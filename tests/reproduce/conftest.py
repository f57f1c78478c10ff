"""The scripts of the folder, as modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "reproduce"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`importlib.import_module` for the scripts, whose ``_common`` is not that of benchmarks."""
    others = sys.modules.pop("_common", None)
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    sys.modules.pop("_common", None)
    if others is not None:
        sys.modules["_common"] = others
