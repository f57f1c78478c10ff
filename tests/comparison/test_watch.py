"""The time that a comparison will take, from the runs that are done."""

from __future__ import annotations

import pytest

from extremax.comparison import watch as module
from extremax.comparison.watch import FINAL, Runs, Watch

RUNS = {"round 1": Runs(4, 1.0), "round 2": Runs(2, 2.0), FINAL: Runs(1, 10.0)}


class Clock:
    """Stands for `time`: it goes on only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def run(watch: Watch, clock: Clock, kind: str, wall: float) -> None:
    with watch.running("a run", kind, RUNS[kind].seconds):
        clock.now += wall


def test_only_training_time_is_known_at_first(clock: Clock) -> None:
    watch = Watch()
    watch.start(3, RUNS)
    assert watch.total == watch.left == 3 * (4 + 2 * 2 + 10)
    assert not watch.is_sure


def test_finished_runs_tell_how_long_the_others_take(clock: Clock) -> None:
    watch = Watch()
    watch.start(3, RUNS)
    with watch.cell():
        with watch.preparing("compiling"):
            clock.now += 7.0
        # Three seconds of evaluation each, whatever the time of training.
        for _ in range(4):
            run(watch, clock, "round 1", 4.0)
        assert watch.left == pytest.approx(2 * 5.0 + 13.0 + 2 * (4 * 4.0 + 2 * 5.0 + 13.0))
        for _ in range(2):
            run(watch, clock, "round 2", 7.0)
        # Three more for each second: 7 + 3 · (10 − 2) for the final run.
        assert watch.left == pytest.approx(31.0 + 2 * (4 * 4.0 + 2 * 7.0 + 31.0))
        assert not watch.is_sure
        run(watch, clock, FINAL, 50.0)
    assert watch.is_sure
    assert watch.done == pytest.approx(18.0)
    # Two cells like the first, which took so long in all.
    assert watch.left == pytest.approx(2 * clock.now)


def test_runs_of_an_earlier_process_are_done(clock: Clock) -> None:
    watch = Watch()
    watch.start(2, RUNS)
    with watch.cell():
        for kind, (n, seconds) in RUNS.items():
            for _ in range(n):
                watch.skipped(kind, seconds)
    assert (watch.done, watch.left, watch.is_sure) == (18.0, 18.0, False)


def test_a_cell_that_is_left_out_counts_as_done(clock: Clock) -> None:
    watch = Watch()
    watch.start(2, RUNS)
    with watch.cell():
        run(watch, clock, "round 1", 1.0)
    assert watch.done == 18.0
    assert watch.left == pytest.approx(18.0)
