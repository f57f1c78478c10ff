"""Processes killed while they write: at every operation on a file, and at arbitrary moments.

After a kill what is there must be the old result or the new one, bit for bit; repeating the work
must end like an undisturbed run; files of others must be untouched, and nothing may pile up. Of
twelve trials eight stop a process at one operation, three kill processes at random times, and one
reads beside writers.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.campaign.crash_checks import Wrong, answers
from tests.campaign.crash_children import Child, run_in_child
from tests.campaign.crash_operations import Operations
from tests.campaign.crash_scenarios import copy_folder
from tests.campaign.crash_stages import Stage, outcome_of, prepare_stages
from tests.campaign.trial import Result

NAME, FULL, TIMEOUT = "crash", 1200, 300.0

_CYCLE, _AT_OPERATIONS, _AT_RANDOM = 12, 8, 3
_KILLS, _READS = 4, 25
# A kill comes before an operation, after it, in the middle of a write, or with the power.
_MOMENTS = ("before", "after", "torn", "power")

_STAGES: list[Stage] = []


def prepare(folder: Path) -> None:
    _STAGES[:] = prepare_stages(folder)


def run(seed: int, folder: Path) -> Result:
    round_, kind = divmod(seed, _CYCLE)
    place = folder / "trial"
    place.mkdir()
    try:
        if kind < _AT_OPERATIONS:
            return _at_operation(round_ * _AT_OPERATIONS + kind, place)
        if kind < _AT_OPERATIONS + _AT_RANDOM:
            number = round_ * _AT_RANDOM + kind - _AT_OPERATIONS
            return _at_random(seed, _STAGES[number % len(_STAGES)], place)
        return _beside_writers(seed, place)
    finally:
        shutil.rmtree(place)


def _at_operation(number: int, place: Path) -> Result:
    """Kill a process at one operation. The number goes through scenarios, then operations."""
    turns = [stage for stage in _STAGES for _ in range(1 if stage.scenario.slow else 2)]
    turn, slot = divmod(number, len(turns))
    chosen = turns[slot]
    points = crash_points(chosen)
    # Of two turns of a scenario the first takes even points, the second odd ones.
    index = turn if chosen.scenario.slow else 2 * turn + slot % 2
    operation, moment = points[index % len(points)]
    point = frozenset({(f"{operation} {moment}", chosen.scenario.name)})
    work = place / "work"
    copy_folder(chosen.before, work)
    ended = run_in_child(lambda: _stopped_at(operation, moment, chosen, work), place / "output")
    where = f"{chosen.scenario.name}, killed at: {operation} {moment}"
    if ended.status != -signal.SIGKILL:
        return Result("traceback", f"{where}: not killed, {ended}", point)
    return chosen.judged(work, place / "output", where)._replace(crash_points=point)


def crash_points(stage: Stage) -> list[tuple[str, str]]:
    """All pairs of operation and moment of a scenario, in random order."""
    points = []
    for name, writes in stage.operations:
        points += [(name, moment) for moment in _MOMENTS if moment != "torn" or writes]
    order = np.random.default_rng(0).permutation(len(points))
    return [points[i] for i in order]


def _stopped_at(operation: str, moment: str, chosen: Stage, work: Path) -> None:
    def hook(name: str, perform: Callable[[], Any], half: Callable[[], Any] | None) -> Any:
        if name != operation:
            return perform()
        try:
            if moment == "torn" and half is not None:
                half()
            elif moment in ("after", "power"):
                perform()
        finally:
            # Also where the operation fails, as making a folder that is there does.
            if moment == "power":
                operations.lose_unsynced()
            os.kill(os.getpid(), signal.SIGKILL)

    operations = Operations(work, hook)
    operations.install()
    chosen.act(work)


def _at_random(seed: int, chosen: Stage, place: Path) -> Result:
    """Kill processes that do the work again and again, each after 5 to 300 ms."""
    rng = np.random.default_rng(seed)
    scenario, work = chosen.scenario, place / "work"
    copy_folder(chosen.before, work)
    act = scenario.insist or scenario.act

    def again_and_again() -> None:
        while True:
            act(chosen.fixtures, work)

    where, kills = f"{scenario.name}, killed after", 0
    for _ in range(_KILLS):
        delay = float(np.exp(rng.uniform(np.log(0.005), np.log(0.3))))
        # Some are asked to stop, which the commands obey.
        politely = scenario.by_command and rng.random() < 0.2
        child = Child(again_and_again, place / "output")
        time.sleep(delay)
        child.send(signal.SIGTERM if politely else signal.SIGKILL)
        ended = child.wait()
        kills += not politely
        where += f" {1000 * delay:.0f} ms{' (SIGTERM)' if politely else ''}"
        # Between two commands SIGTERM acts as usual.
        expected = (-15, 128 + 15) if politely else (-9,)
        if ended.status not in expected:
            return Result(outcome_of(ended), f"{where}: {ended}", kills=kills)
        try:
            chosen.expected.check_crashed(work)
        except Wrong as error:
            return Result(error.outcome, f"{where}: {error.detail}", kills=kills)
    return chosen.judged(work, place / "output", where)._replace(kills=kills)


def _beside_writers(seed: int, place: Path) -> Result:
    """Read a model and a file of predictions while one or two processes replace them."""
    rng = np.random.default_rng(seed)
    fixtures, work, models = _STAGES[0].fixtures, place / "m", {}
    for name, classifier in (("old", fixtures.old), ("new", fixtures.new)):
        classifier.save(work)
        models[answers(work, fixtures)] = name
    n_files = len(list(work.iterdir()))

    def write() -> None:
        while True:
            for classifier in (fixtures.old, fixtures.new):
                classifier.save(work)

    writers = [Child(write, place / f"output{i}") for i in range(rng.integers(1, 3))]
    try:
        found = {models.get(answers(work, fixtures)) for _ in range(_READS)}
    except Wrong as error:
        return Result(error.outcome, f"beside writers: {error.detail}")
    finally:
        for writer in writers:
            writer.send(signal.SIGKILL)
        ended = [writer.wait() for writer in writers]
    for end in ended:
        if end.status != -signal.SIGKILL:
            return Result("traceback", f"a writer beside another: {end}")
    if None in found:
        return Result("silently_wrong", "beside writers: a mixture of two models was read")
    fixtures.new.save(work)
    if len(list(work.iterdir())) != n_files:
        names = sorted(path.name for path in work.iterdir())
        return Result("lost", f"writers left behind: {names}")
    return Result("accepted", kills=len(writers))
