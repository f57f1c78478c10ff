"""Paths that are not what a command expects: files for folders, pipes, loops, empty names."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np

from extremax import ExtremeClassifier
from tests.campaign.crash_checks import Wrong
from tests.campaign.crash_children import USER_ERROR, Child, run_in_child
from tests.campaign.crash_scenarios import Fixtures, command
from tests.campaign.trial import Result

_MINE = b"these bytes are mine\n"
_ROWS = b"1 1:0.5 2:0.25\n2 1:0.1 3:1\n" * 40


def _paths(place: Path) -> dict[str, Callable[[], object]]:
    """Ways to make something at a path; each returns the path as somebody would type it."""

    def made(name: str, make: Callable[[Path], object]) -> str:
        make(place / name)
        return str(place / name)

    def folder_with_a_file(path: Path) -> None:
        path.mkdir()
        (path / "mine.txt").write_bytes(_MINE)

    def model_with(path: Path, make: Callable[[Path], object]) -> None:
        path.mkdir()
        make(path / "manifest.json")

    def device(minor: int) -> Callable[[Path], object]:
        # Devices of our own: a mistake must not replace those of the system.
        return lambda path: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, minor))

    return {
        "empty name": lambda: "",
        "this folder": lambda: ".",
        "through a file": lambda: made("file", lambda p: p.write_bytes(_MINE)) + "/x",
        "a file": lambda: made("file", lambda p: p.write_bytes(_MINE)),
        "an empty file": lambda: made("file", Path.touch),
        "a folder": lambda: made("folder", folder_with_a_file),
        "an empty folder": lambda: made("folder", Path.mkdir),
        "no such folder": lambda: str(place / "no" / "such" / "x"),
        "dangling link": lambda: made("link", lambda p: p.symlink_to(place / "nowhere")),
        "link to a file": lambda: made("link", lambda p: p.symlink_to(_file(place))),
        "link to itself": lambda: made("link", lambda p: p.symlink_to(p)),
        "long name": lambda: str(place / ("x" * 300)),
        "line break": lambda: str(place / "two\nlines"),
        "not UTF-8": lambda: str(place / "\udcff\udcfe"),
        "markup": lambda: str(place / "[bold]x[/bold]"),
        "only a suffix": lambda: str(place / ".png"),
        "pipe": lambda: made("pipe", os.mkfifo),
        "null device": lambda: made("device", device(3)),
        "full device": lambda: made("device", device(7)),
        "socket": lambda: made("socket", _socket),
        "manifest is a folder": lambda: made("model", lambda p: model_with(p, Path.mkdir)),
        "manifest is a pipe": lambda: made("model", lambda p: model_with(p, os.mkfifo)),
        "manifest is empty": lambda: made("model", lambda p: model_with(p, Path.touch)),
        "manifest of others": lambda: made(
            "model", lambda p: model_with(p, lambda m: m.write_text('{"name": "my extension"}'))
        ),
        "manifest loops": lambda: made("model", lambda p: model_with(p, lambda m: m.symlink_to(m))),
    }


def _file(place: Path) -> Path:
    (place / "target").write_bytes(_MINE)
    return place / "target"


def _socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


def _uses(fixtures: Fixtures, path: str) -> dict[str, Callable[[], object]]:
    """Everything that takes a path; what reads it begins with "read"."""
    rows, model = fixtures.data, fixtures.model
    short = ("--epochs", 1, "--threads", 1, "--quiet")
    output = Path("o")
    return {
        "predict -o": lambda: command("predict", model, fixtures.rows, "-q", "-o", path),
        "train -o": lambda: command("train", *rows, *short, "-o", path),
        "train -o --force": lambda: command("train", *rows, *short, "--force", "-o", path),
        "train --checkpoint": lambda: command(
            "train", *rows, *short, "-o", output, "--checkpoint", path
        ),
        "train --picture": lambda: command("train", *rows, *short, "-o", output, "--picture", path),
        "diagnose --picture": lambda: command(
            "diagnose", model, *rows, "--rows", 40, "--json", "--picture", path
        ),
        "compare -o": lambda: command(
            "compare", *rows, "-o", path, "--budget", 0.01, "--cells", "nce:uniform", "--quiet",
            "--test-fraction", 0.25, "--validation-fraction", 0.2, "--learning-rates", 0.1,
            "--regularizations", 0, "--threads", 1,
        ),
        "save": lambda: fixtures.new.save(path),
        "fit(checkpoint)": lambda: ExtremeClassifier(epochs=1, n_jobs=1).fit(
            fixtures.X, fixtures.y, checkpoint=path
        ),
        "read: load": lambda: ExtremeClassifier.load(path),
        "read: info": lambda: command("info", path),
        "read: predict MODEL": lambda: command("predict", path, fixtures.rows, "-q"),
        "read: predict FILE": lambda: command("predict", model, path, "-q"),
        "read: evaluate FILE": lambda: command("evaluate", model, path, "-q"),
        "read: train FILE": lambda: command("train", path, *short, "-o", output),
        "read: train --labels": lambda: command(
            "train", fixtures.rows, "--labels", path, *short, "-o", output
        ),
        "read: plan FILE": lambda: command("plan", path, "-q"),
    }  # fmt: skip


def run_path(rng: np.random.Generator, fixtures: Fixtures, place: Path) -> Result:
    """One use of one path, both at random, from a folder of its own."""
    place = place / "paths"
    place.mkdir()
    paths = _paths(place)
    kind = str(rng.choice(list(paths)))
    try:
        path = paths[kind]()
    except PermissionError:
        return Result("accepted", "devices are root's")
    use = str(rng.choice(list(_uses(fixtures, path))))
    before = _listing(place)
    other_end = _other_end(kind, path, use, place)

    def task() -> None:
        os.chdir(place)
        _uses(fixtures, path)[use]()

    ended = run_in_child(task, place.with_name("output"), seconds=20.0)
    if other_end is not None:
        other_end.send(signal.SIGKILL)
        other_end.wait()
    where = f"{use} with {kind} ({path!r}): {ended}"
    if ended.status is None:
        return Result("hang", where)
    if ended.status not in (0, USER_ERROR):
        return Result("traceback", where)
    try:
        _check_mine(place, kind, use, ended.status)
        if ended.status:
            _check_refused(place, before, ended.err, use)
    except Wrong as error:
        return Result(error.outcome, f"{error.detail}; {where}")
    return Result("refused" if ended.status else "accepted")


def _listing(place: Path) -> dict[str, str]:
    """Digests of plain files, and the kinds of others, by name."""
    found = {}
    for path in sorted(place.rglob("*")):
        kind = stat.S_IFMT(path.lstat().st_mode)
        content = path.read_bytes().hex() if stat.S_ISREG(path.lstat().st_mode) else ""
        found[str(path.relative_to(place))] = f"{kind:o} {content}"
    return found


def _other_end(kind: str, path: str, use: str, place: Path) -> Child | None:
    """Who reads from a pipe or writes to it, so that nobody waits forever."""
    if kind not in ("pipe", "manifest is a pipe"):
        return None
    pipe = path if kind == "pipe" else f"{path}/manifest.json"

    def feed() -> None:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        while True:
            try:
                with open(pipe, "wb") as stream:
                    stream.write(_ROWS)
            except BrokenPipeError:
                continue

    def drain() -> None:
        while True:
            with open(pipe, "rb") as stream:
                stream.read()

    # What is read as a manifest never gets anything: nobody can say that it is one.
    if kind == "manifest is a pipe":
        return None
    return Child(feed if use.startswith("read") else drain, place.with_name("other"))


def _check_mine(place: Path, kind: str, use: str, status: int) -> None:
    """Files that are somebody else's, and links, are what they were."""
    mine = place / "folder" / "mine.txt"
    if kind == "a folder" and (not mine.exists() or mine.read_bytes() != _MINE):
        raise Wrong("lost", "a file in the folder was changed")
    if kind in ("link to a file", "dangling link", "link to itself"):
        link = place / "link"
        if not link.is_symlink():
            raise Wrong("lost", "the link was replaced")
    if kind == "manifest of others" and status == 0 and not use.startswith("read"):
        text = (place / "model" / "manifest.json").read_text()
        if "my extension" not in text:
            raise Wrong("lost", "somebody else's manifest.json was replaced")


def _check_refused(place: Path, before: dict[str, str], err: str, use: str) -> None:
    """A refusal is one line, after the usage where an option itself is wrong, and leaves everything
    as it was, but for new empty folders."""
    lines = err.splitlines()
    if lines[:1] and lines[0].startswith("Usage: "):
        lines = lines[3:]
    if len(lines) != 1 or not lines[0].strip():
        raise Wrong("traceback", "the refusal is not one line")
    after = _listing(place)
    changed = [name for name in before if before[name] != after.get(name)]
    if changed:
        raise Wrong("lost", f"refused, but {changed} changed")
    folder = f"{stat.S_IFDIR:o} "
    more = [name for name in after.keys() - before.keys() if after[name] != folder]
    # Training that fails at its picture has saved its model.
    if more and not use.endswith("--picture"):
        raise Wrong("lost", f"refused, but {more} appeared")
