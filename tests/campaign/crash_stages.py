"""A scenario made ready in a worker: how it is before, what must hold after, its operations."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.campaign.crash_checks import Expected, Wrong
from tests.campaign.crash_children import UNPLANNED, USER_ERROR, Ended, run_in_child
from tests.campaign.crash_operations import Operations
from tests.campaign.crash_scenarios import SCENARIOS, Fixtures, Scenario, copy_folder
from tests.campaign.trial import Result

# Of many equal operations, such as writing lines, the first ones are enough.
_LARGEST_NUMBER = 9


class Operation(NamedTuple):
    """An operation on a file; ``writes`` if it can be done by half."""

    name: str
    writes: bool


class Stage(NamedTuple):
    """A scenario, its folder as it is before, what must hold, and what it does to files."""

    scenario: Scenario
    fixtures: Fixtures
    before: Path
    expected: Expected
    operations: list[Operation]

    def act(self, work: Path, hook: Callable[..., Any] | None = None) -> None:
        """Do the work; ``hook`` sees every operation, see `Operations`. For a child only."""
        if hook is not None:
            Operations(work, hook).install()
        self.scenario.act(self.fixtures, work)

    def judged(self, work: Path, output: Path, where: str) -> Result:
        """Check what a disturbed run left, do the work again, and check the end."""
        scenario = self.scenario
        try:
            state = self.expected.check_crashed(work)
            ended = run_in_child(lambda: scenario.act(self.fixtures, work), output)
            refused = bool(scenario.tolerated) and scenario.tolerated in ended.err
            insist = scenario.insist
            if refused and state == "new" and insist is not None:
                ended = run_in_child(lambda: insist(self.fixtures, work), output)
            if ended.status:
                return Result(outcome_of(ended), f"{where}; repeated: {ended}")
            self.expected.check_done(work)
            return Result("refused" if refused else "accepted")
        except Wrong as error:
            return Result(error.outcome, f"{where}: {error.detail}")


def prepare_stages(folder: Path) -> list[Stage]:
    """All scenarios, each run once undisturbed."""
    fixtures = Fixtures(folder / "fixtures")
    return [_stage(scenario, fixtures, folder) for scenario in SCENARIOS]


def _stage(scenario: Scenario, fixtures: Fixtures, folder: Path) -> Stage:
    place = folder / scenario.name.replace(" ", "-")
    place.mkdir()
    before, after, log = place / "before", place / "after", place / "operations"
    scenario.set_up(fixtures, before)
    copy_folder(before, after)
    log.touch()
    notes = os.open(log, os.O_WRONLY | os.O_APPEND)

    def note(name: str, perform: Callable[[], Any], half: Any) -> Any:
        os.write(notes, f"{name}\t{half is not None:d}\n".encode())
        return perform()

    def undisturbed() -> None:
        Operations(after, note).install()
        scenario.act(fixtures, after)

    ended = run_in_child(undisturbed, folder / "output")
    os.close(notes)
    if ended.status:
        raise RuntimeError(f"{scenario.name} fails undisturbed: {ended}")
    lines = [line.split("\t") for line in log.read_text().splitlines()]
    operations = [Operation(name, bool(int(half))) for name, half in lines]
    operations = [o for o in operations if int(o.name.split(" #")[1]) <= _LARGEST_NUMBER]
    expected = Expected(scenario, fixtures, before, after)
    return Stage(scenario, fixtures, before, expected, operations)


def outcome_of(ended: Ended) -> str:
    """What it means that work which should succeed did not."""
    if ended.status is None:
        return "hang"
    if ended.status == USER_ERROR:
        return "lost"
    return "traceback" if ended.status in (1, UNPLANNED) else "crash"
