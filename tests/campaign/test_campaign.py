"""A slice of the campaign with the other tests; `make campaign` runs all of it."""

from __future__ import annotations

import pytest

from tests.campaign.__main__ import failures, run_campaign
from tests.campaign.trial import PARTS

#: Shares of the full budget that take about half a minute each on one core.
_SCALES = {
    "files": 0.04,
    "folders": 0.04,
    "abuses": 0.03,
    "low_memory": 0.1,
}


@pytest.mark.parametrize("part", PARTS)
def test_nothing_escapes_hangs_crashes_lies_or_is_lost(part: str) -> None:
    counts = run_campaign([part], seed=0, scale=_SCALES.get(part, 0.01))
    assert not failures(counts), counts
