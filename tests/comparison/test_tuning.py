"""Successive halving: what it costs and what it keeps."""

from __future__ import annotations

from itertools import pairwise

import pytest

from extremax.comparison.tuning import Setting, better_half, grid, rounds


def test_the_grid_is_every_pair():
    assert grid((0.1, 1.0), (0.0, 0.5)) == [
        Setting(0.1, 0.0), Setting(0.1, 0.5), Setting(1.0, 0.0), Setting(1.0, 0.5),
    ]  # fmt: skip


@pytest.mark.parametrize("n", [2, 3, 7, 12, 16])
def test_rounds_halve_settings_double_seconds_and_cost_what_was_asked(n):
    found = rounds(n, 60.0)
    assert found[0].settings == n
    assert sum(r.settings * r.seconds for r in found) == pytest.approx(60.0)
    for one, next_ in pairwise(found):
        assert next_.settings == -(-one.settings // 2)
        assert next_.seconds == pytest.approx(2 * one.seconds)
    assert found[-1].settings == 2


def test_one_setting_needs_no_tuning():
    assert rounds(1, 60.0) == []


def test_the_better_half_goes_on_best_first_and_ties_keep_their_order():
    a, b, c, d, e = (Setting(float(i), 0.0) for i in range(1, 6))
    kept = better_half([a, b, c, d, e], [-3.0, -1.0, -float("inf"), -1.0, -2.0])
    assert kept == [b, d, e]
