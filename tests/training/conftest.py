"""A step of training in which something happens."""

from __future__ import annotations

from typing import Any

import pytest

from extremax.head import LinearHead
from extremax.training import loop


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Any:
    """at_step(n, action): do something before the n-th step from now."""

    def arrange(n: int, action: Any) -> None:
        steps, left = LinearHead.steps, [n]

        def counted(self: LinearHead, *args: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                action()
            return steps(self, *args)

        # One step at a time.
        monkeypatch.setattr(loop, "_PAIRS_AT_ONCE", 1)
        monkeypatch.setattr(LinearHead, "steps", counted)

    return arrange
