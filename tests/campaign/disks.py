"""Disks and paths that fail: full, read-only, vanishing, or not what they should be.

Whatever fails, the old result must survive or the new one be whole, errors must be one clear line,
nothing half-written may stay, and once the disk is well the same work must succeed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from tests.campaign.crash_checks import Wrong, is_temporary, listing
from tests.campaign.crash_children import USER_ERROR, Ended, run_in_child
from tests.campaign.crash_scenarios import copy_folder
from tests.campaign.crash_stages import Stage, outcome_of, prepare_stages
from tests.campaign.disk_paths import run_path
from tests.campaign.disk_streams import run_stream
from tests.campaign.trial import Result

NAME, FULL, TIMEOUT = "disks", 1200, 300.0

_STAGES: list[Stage] = []
_ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES)
# What a full disk refuses; it still renames and removes.
_NEEDS_SPACE = ("open", "create", "write", "save", "mkdir", "fsync")
_REMOVES = ("unlink", "remove", "rmdir")
# How a repetition may be refused whose folder was deleted: a model that is gone cannot learn more,
# and a comparison that lost all but its report cannot be told from files of somebody else.
_TOLERATED_IF_GONE = {
    "partial_fit": "does not exist",
    "compare": "is not empty and holds no comparison",
}
# Error messages go to a file as well, and must fit.
_SMALLEST_LIMIT = 600


def prepare(folder: Path) -> None:
    _STAGES[:] = prepare_stages(folder)


def run(seed: int, folder: Path) -> Result:
    kinds = (
        _failing, _failing, _failing, _limited, _vanishing, _read_only, _path, _path, _path, _stream
    )  # fmt: skip
    round_, kind = divmod(seed, len(kinds))
    place = folder / "trial"
    place.mkdir()
    try:
        return kinds[kind](np.random.default_rng(seed), round_, place)
    finally:
        shutil.rmtree(place)


def _path(rng: np.random.Generator, _: int, place: Path) -> Result:
    return run_path(rng, _STAGES[0].fixtures, place)


def _stream(_: np.random.Generator, round_: int, place: Path) -> Result:
    return run_stream(round_, _STAGES[0].fixtures, place)


def _failing(rng: np.random.Generator, _: int, place: Path) -> Result:
    """One operation fails, alone or (on a full disk) with all that need space after it."""
    chosen = _STAGES[rng.integers(len(_STAGES))]
    failing = chosen.operations[rng.integers(len(chosen.operations))].name
    code, full = int(rng.choice(_ERRORS)), False
    stays_full = code == errno.ENOSPC and rng.random() < 0.7

    def hook(name: str, perform: Callable[[], Any], half: Callable[[], Any] | None) -> Any:
        nonlocal full
        kind = name.split()[0]
        if name == failing or (full and kind in _NEEDS_SPACE):
            full = stays_full
            if half is not None:
                half()
            reason = os.strerror(code)
            if kind == "save":
                raise SafetensorError(f"I/O error: {reason} (os error {code})")
            raise OSError(code, reason)
        return perform()

    where = f"{chosen.scenario.name}: {failing} fails ({errno.errorcode[code]})"
    return _after_failure(
        chosen, place, where, lambda work: chosen.act(work, hook), failing.startswith(_REMOVES)
    )


def _limited(rng: np.random.Generator, round_: int, place: Path) -> Result:
    """No file may grow beyond a size."""
    chosen = _STAGES[round_ % len(_STAGES)]
    largest = max(p.stat().st_size for p in chosen.before.with_name("after").rglob("*"))
    limit = int(np.exp(rng.uniform(np.log(_SMALLEST_LIMIT), np.log(max(largest, 4096)))))

    def act(work: Path) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        chosen.act(work)

    return _after_failure(chosen, place, f"{chosen.scenario.name}: files of {limit} bytes", act)


def _after_failure(
    chosen: Stage, place: Path, where: str, act: Callable[[Path], object], removing: bool = False
) -> Result:
    """Act on a failing disk, then check what is there, and repeat it on a good one.

    removing:  whether it was a removal that failed, so that something may be left.
    """
    work = place / "work"
    copy_folder(chosen.before, work)
    ended = run_in_child(lambda: act(work), place / "output")
    try:
        check_refusal(ended, chosen.scenario.by_command)
        state = chosen.expected.check_crashed(work)
        if ended.status == 0 and state == "old" and chosen.expected.models[0] is not None:
            raise Wrong("lost", "it said nothing, but the new model is not there")
        if not removing:
            _check_tidy(chosen, work)
    except Wrong as error:
        return Result(error.outcome, f"{where}: {error.detail}; {ended}")
    result = chosen.judged(work, place / "output", where)
    if result.outcome == "accepted" and ended.status:
        return Result("refused")
    return result


def check_refusal(ended: Ended, by_command: bool) -> None:
    """A process may succeed or refuse; a command refuses with one line."""
    if ended.status not in (0, USER_ERROR):
        raise Wrong(outcome_of(ended), "neither done nor refused")
    if ended.status and by_command:
        lines = ended.err.splitlines()
        if len(lines) != 1 or not lines[0].startswith("extremax: "):
            raise Wrong("traceback", "the refusal is not one line")


def _check_tidy(chosen: Stage, work: Path) -> None:
    """Nothing half-written is left by a process that was not killed."""
    known = chosen.expected.before.keys() | chosen.expected.after.keys()
    target = chosen.scenario.target
    for name in listing(work).keys() - known:
        hidden = any(part.startswith(".") for part in Path(name).parts)
        if is_temporary(name) and (hidden or Path(name).parts[0] == target):
            raise Wrong("lost", f"{name} is left behind")


def _vanishing(rng: np.random.Generator, round_: int, place: Path) -> Result:
    """The folder that is written to disappears in the middle."""
    chosen = _STAGES[round_ % len(_STAGES)]
    failing = chosen.operations[rng.integers(len(chosen.operations))].name
    scenario, work, gone = chosen.scenario, place / "work", False
    copy_folder(chosen.before, work)
    folder = work if scenario.kind == "file" else work / scenario.target

    def hook(name: str, perform: Callable[[], Any], _: Any) -> Any:
        nonlocal gone
        if name == failing and not gone:
            gone = True
            shutil.rmtree(folder, ignore_errors=True)
        return perform()

    ended = run_in_child(lambda: chosen.act(work, hook), place / "output")
    where = f"{scenario.name}: {folder.name} vanishes at {failing}"
    try:
        check_refusal(ended, scenario.by_command)
        work.mkdir(exist_ok=True)
        again = run_in_child(
            lambda: (scenario.insist or scenario.act)(chosen.fixtures, work), place / "output"
        )
        tolerated = _TOLERATED_IF_GONE.get(scenario.name, "")
        lost_all = not (folder / "runs").exists()
        if again.status and not (tolerated and tolerated in again.err and lost_all):
            raise Wrong(outcome_of(again), f"repeated: {again}")
        check_refusal(again, scenario.by_command)
    except Wrong as error:
        return Result(error.outcome, f"{where}: {error.detail}; {ended}")
    return Result("refused" if ended.status else "accepted")


def _read_only(rng: np.random.Generator, round_: int, place: Path) -> Result:
    """A folder in which nothing may be written."""
    chosen = _STAGES[round_ % len(_STAGES)]
    before = [p for p in (chosen.before, *chosen.before.iterdir()) if p.is_dir()]
    frozen = str(before[rng.integers(len(before))].relative_to(chosen.before))
    where = f"{chosen.scenario.name}: {frozen} is read-only"

    def act(work: Path) -> None:
        (work / frozen).chmod(0o555)
        give_up_privileges()
        try:
            chosen.act(work)
        finally:
            (work / frozen).chmod(0o755)

    return _after_failure(chosen, place, where, act)


def give_up_privileges() -> None:
    """Let permissions apply to this process, even if it is root's. For a child only."""
    if os.geteuid():
        return
    # capset(2) with its header of version 3: all but the capabilities to override permissions.
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    kept = 0xFFFFFFFF & ~0b110
    data = (ctypes.c_uint32 * 6)(kept, kept, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    current = (ctypes.c_uint32 * 6)()
    libc.capget(header, current)
    for i in (0, 1, 3, 4):
        data[i] &= current[i]
    if libc.capset(header, data):
        raise RuntimeError(f"capset: {os.strerror(ctypes.get_errno())}")
