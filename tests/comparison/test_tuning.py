"""Successive halving: time per round and settings kept."""

from __future__ import annotations

from itertools import pairwise

import pytest

from extremax.comparison.tuning import Options, Setting, better_half, rounds


def test_the_grid_has_all_combinations():
    assert {setting.weight_decay for setting in Options().settings} == {0.0}
    options = Options(learning_rates=(0.1, 1.0), regularizations=(0.0, 0.5))
    assert options.settings == [
        Setting(0.1, 0.0), Setting(0.1, 0.5), Setting(1.0, 0.0), Setting(1.0, 0.5),
    ]  # fmt: skip
    options = Options(learning_rates=(0.1,), regularizations=(0.0, 0.5), weight_decays=(0.0, 2.0))
    assert options.settings == [
        Setting(0.1, 0.0, 0.0), Setting(0.1, 0.0, 2.0), Setting(0.1, 0.5, 0.0),
        Setting(0.1, 0.5, 2.0),
    ]  # fmt: skip


@pytest.mark.parametrize("n", [2, 3, 7, 12, 16])
def test_rounds_halve_settings_double_seconds_and_take_the_given_time(n):
    planned = rounds(n, 60.0)
    assert planned[0].settings == n
    assert sum(r.settings * r.seconds for r in planned) == pytest.approx(60.0)
    for previous, following in pairwise(planned):
        assert following.settings == -(-previous.settings // 2)
        assert following.seconds == pytest.approx(2 * previous.seconds)
    assert planned[-1].settings == 2


def test_one_setting_needs_no_tuning():
    assert rounds(1, 60.0) == []


def test_the_better_half_is_kept_best_first_and_ties_keep_their_order():
    a, b, c, d, e = (Setting(float(i), 0.0) for i in range(1, 6))
    kept = better_half([a, b, c, d, e], [-3.0, -1.0, -float("inf"), -1.0, -2.0])
    assert kept == [b, d, e]
