"""What the tests of training share."""

from __future__ import annotations

from typing import Any

import pytest

from extremax.heads import LinearHead


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Any:
    """at_step(n, action): do something before the n-th step from now."""

    def arrange(n: int, action: Any) -> None:
        take, left = LinearHead.logistic_steps, [n]

        def counted(self: LinearHead, *args: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                action()
            return take(self, *args)

        # One step at a time.
        monkeypatch.setattr("extremax.heads.linear._PAIRS_AT_ONCE", 1)
        monkeypatch.setattr(LinearHead, "logistic_steps", counted)

    return arrange
