"""A folder holds one version of something, whole, or is refused; a failed write changes nothing."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from extremax.disk import locked
from extremax.errors import ModelFileError
from extremax.storage import files
from extremax.storage import folder as folder_module
from extremax.storage.folder import Folder

FORMAT = "extremax test 1"
TENSORS = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.tensor(7)}
OTHERS = {"a": torch.ones(50, 4), "b": torch.tensor(8)}
PARTS = {"head": TENSORS, "noise": {"q": torch.ones(3)}}
NEW_PARTS = {"head": OTHERS, "noise": {"q": torch.zeros(3)}}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path / "model", FORMAT)
    folder.write({"color": "blue"}, PARTS)
    return folder


def content(folder: Folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.path.iterdir()}


def file_of(folder: Folder, part: str) -> Path:
    (path,) = folder.path.glob(f"{part}.*.safetensors")
    return path


def assert_holds(folder: Folder, color: str, parts: dict[str, dict[str, torch.Tensor]]) -> None:
    settings, found = folder.read()
    assert settings["color"] == color
    assert found.keys() == parts.keys()
    for part, tensors in parts.items():
        assert found[part].keys() == tensors.keys()
        assert all(torch.equal(found[part][name], tensors[name]) for name in tensors)


def edit(folder: Folder, **changes: Any) -> None:
    """Change a manifest and make its checksum right again."""
    card = json.loads(folder.manifest.read_text()) | changes
    card = {key: value for key, value in card.items() if value is not None and key != "checksum"}
    text = json.dumps(card, sort_keys=True, ensure_ascii=False)
    card["checksum"] = hashlib.sha256(text.encode()).hexdigest()
    folder.manifest.write_text(json.dumps(card))


# Writing and reading


def test_what_was_written_comes_back(folder: Folder) -> None:
    assert folder.exists()
    assert_holds(folder, "blue", PARTS)
    settings, parts = folder.read()
    assert parts.keys() == PARTS.keys()
    assert settings == folder.read_settings()
    assert folder.nbytes() == sum(map(len, content(folder).values()))


def test_files_are_named_by_their_content(folder: Folder) -> None:
    names = sorted(content(folder))
    assert [re.sub("[0-9a-f]{16}", "#", name) for name in names] == [
        "head.#.safetensors", "manifest.json", "noise.#.safetensors",
    ]  # fmt: skip
    for part in PARTS:
        path = file_of(folder, part)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert path.name == f"{part}.{digest[:16]}.safetensors"
        assert folder.read_settings()["files"][part]["sha256"] == digest


def test_saving_twice_gives_the_same_bytes(folder: Folder, tmp_path: Path) -> None:
    before = content(folder)
    folder.write({"color": "blue"}, PARTS)
    assert content(folder) == before
    elsewhere = Folder(tmp_path / "deep" / "down", FORMAT)
    elsewhere.write({"color": "blue"}, {part: dict(PARTS[part]) for part in ("noise", "head")})
    assert content(elsewhere).keys() == before.keys()


def test_a_version_is_replaced_whole(folder: Folder) -> None:
    folder.write({"color": "red"}, NEW_PARTS)
    assert_holds(folder, "red", NEW_PARTS)
    assert len(content(folder)) == 3


def test_parts_may_be_kept_from_the_version_before(folder: Folder) -> None:
    before = file_of(folder, "noise").stat().st_ino
    folder.write({"color": "red"}, {"head": OTHERS}, keep=("noise", "labels"))
    assert_holds(folder, "red", {"head": OTHERS, "noise": PARTS["noise"]})
    assert file_of(folder, "noise").stat().st_ino == before


def test_views_and_transposes_are_written_as_they_look(tmp_path: Path) -> None:
    part = {"t": TENSORS["a"].T, "part": TENSORS["a"][:, 1]}
    folder = Folder(tmp_path, FORMAT)
    folder.write({"color": "blue"}, {"part": part})
    assert_holds(folder, "blue", {"part": part})


def test_settings_may_hold_the_numbers_of_numpy(tmp_path: Path) -> None:
    folder = Folder(tmp_path, FORMAT)
    folder.write({"n": np.int64(3), "x": np.float32(0.1), "b": np.bool_(True), "i": -np.inf}, {})
    settings = folder.read_settings()
    assert (settings["n"], settings["x"], settings["b"]) == (3, np.float32(0.1).item(), True)
    assert settings["i"] == -np.inf


def test_a_part_can_be_copied_into_tensors_that_are_there(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "_COPY_ROWS", 2)
    target = {"a": torch.zeros(3, 4)}
    folder.copy_into("head", target)
    assert torch.equal(target["a"], TENSORS["a"])
    file_of(folder, "head").unlink()
    with pytest.raises(ModelFileError, match="is missing"):
        folder.copy_into("head", target)
    with pytest.raises(ModelFileError, match="nowhere does not exist"):
        Folder(folder.path / "nowhere", FORMAT).copy_into("head", target)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o027])
def test_files_may_be_read_by_whom_the_umask_lets(tmp_path: Path, umask: int) -> None:
    folder = Folder(tmp_path / "model", FORMAT)
    before = os.umask(umask)
    try:
        folder.write({}, PARTS)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    for path in folder.path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o666 & ~umask


# Damage


def test_every_flipped_byte_is_noticed(folder: Folder) -> None:
    for path in folder.path.iterdir():
        whole = path.read_bytes()
        for place in range(0, len(whole), 11):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(ModelFileError, match=re.escape(str(path))):
                folder.read()
        path.write_bytes(whole)
    assert_holds(folder, "blue", PARTS)


@pytest.mark.parametrize("length", [0, 5, 100])
def test_a_truncated_file_is_refused_with_its_size(folder: Folder, length: int) -> None:
    path = file_of(folder, "head")
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:length])
    reason = f"{path} has {length} bytes, expected {size}: truncated"
    with pytest.raises(ModelFileError, match=re.escape(reason)):
        folder.read()


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_a_truncated_manifest_is_refused(folder: Folder, length: int) -> None:
    folder.manifest.write_bytes(folder.manifest.read_bytes()[:length])
    for read in (folder.read, folder.read_settings, folder.nbytes):
        with pytest.raises(ModelFileError, match=r"manifest\.json is damaged"):
            read()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"format": "extremax tes', "is damaged"),
        (b"\xff\xfe\x00", "is damaged"),
        (b"[" * 100_000, "is damaged"),
        (b'{"format": "extremax test 2"}', r"is not an extremax test 1 \(it says .*test 2"),
        (b'{"name": "something else"}', "is not an extremax test 1"),
        (b"[1, 2, 3]", "is not an extremax test 1"),
        (b'{"format": "extremax test 1"}', r"is damaged \(checksum differs\)"),
    ],
)
def test_a_foreign_or_damaged_manifest_is_refused(folder: Folder, text: bytes, reason: str) -> None:
    folder.manifest.write_bytes(text)
    with pytest.raises(ModelFileError, match=rf"manifest\.json {reason}"):
        folder.read()


def test_a_manifest_without_files_is_refused(folder: Folder) -> None:
    edit(folder, files=None)
    with pytest.raises(ModelFileError, match=r"manifest\.json .*files"):
        folder.read()


@pytest.mark.parametrize("name", ["../{}", "/etc/{}", "diary.txt", "..", "", 3, ["{}"]])
def test_a_name_that_is_not_ours_is_refused(folder: Folder, tmp_path: Path, name: Any) -> None:
    described = folder.read_settings()["files"]
    path = file_of(folder, "head")
    path.rename(tmp_path / path.name)
    described["head"]["name"] = name.format(path.name) if isinstance(name, str) else name
    edit(folder, files=described)
    (folder.path / "diary.txt").write_text("mine")
    with pytest.raises(ModelFileError, match=r"manifest\.json .* for files\.head\.name"):
        folder.read()
    folder.remove()
    folder.write({"color": "red"}, NEW_PARTS)
    assert (folder.path / "diary.txt").read_text() == "mine"
    assert (tmp_path / path.name).exists()


def test_missing_files_are_named(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "_WAIT_SECONDS", 0.001)
    for place, what in (
        (tmp_path / "nowhere", "does not exist"),
        (tmp_path, r"has no manifest\.json: it is not an"),
    ):
        with pytest.raises(ModelFileError, match=f"{place} {what}"):
            Folder(place, FORMAT).read()
    path = file_of(folder, "head")
    path.unlink()
    with pytest.raises(ModelFileError, match=re.escape(f"{path} is missing")):
        folder.read()


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("a diary")
    folder = Folder(tmp_path / "model", FORMAT)
    for call in (folder.read, lambda: folder.write({}, PARTS)):
        with pytest.raises(ModelFileError, match="model is a file; expected a folder"):
            call()
    folder.remove()
    assert (tmp_path / "model").read_text() == "a diary"


def test_a_tensor_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a diary")
    with pytest.raises(ModelFileError, match=r"x cannot be read, it is damaged or foreign"):
        files.read_tensors(tmp_path / "x")
    with pytest.raises(ModelFileError, match=r"y is missing"):
        files.read_tensors(tmp_path / "y")


# A version that is replaced while it is being read


@pytest.mark.parametrize("moment", ["size", "checksum", "open", "tensor"])
def test_a_version_that_is_replaced_while_it_is_read_is_read_again(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def replace() -> None:
        monkeypatch.undo()
        folder.write({"color": "red"}, NEW_PARTS)

    def replace_before(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def late(*args: Any, **kwargs: Any) -> Any:
            replace()
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, late)

    if moment == "size":
        replace_before(Folder, "_checked")
    elif moment == "tensor":
        # The file is open, and torch opens it once more to map it.
        replace_before(torch.UntypedStorage, "from_file")
    else:
        replace_before(folder_module, {"checksum": "checksum", "open": "read_tensors"}[moment])
    assert_holds(folder, "red", NEW_PARTS)


# Writes that fail


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fail_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, n: int, fault: Any) -> None:
    """The n-th call from now raises ``fault``."""
    function, left = getattr(owner, name), [n]

    def failing(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise fault
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, failing)


# Two tensor files and the manifest are written, synced and renamed in turn.
FAILURES = [
    *((os, name, n) for name in ("fsync", "replace") for n in (1, 2, 3)),
    *((folder_module, "write_tensors", n) for n in (1, 2)),
    (folder_module, "checksum", 2),
    (Path, "write_text", 1),
]


@pytest.mark.parametrize(("owner", "name", "n"), FAILURES)
def test_a_full_disk_leaves_the_old_version_and_nothing_else(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, n: int
) -> None:
    before = content(folder)
    fail_at(monkeypatch, owner, name, n, FULL)
    with pytest.raises(ModelFileError, match=r"could not write .*No space left"):
        folder.write({"color": "red"}, NEW_PARTS)
    assert content(folder) == before
    monkeypatch.undo()
    folder.write({"color": "red"}, NEW_PARTS)
    assert_holds(folder, "red", NEW_PARTS)


def test_half_a_tensor_file_is_removed(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def half_a_file(tensors: Any, path: Path) -> None:
        Path(path).write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device")

    before = content(folder)
    monkeypatch.setattr("safetensors.torch.save_file", half_a_file)
    with pytest.raises(ModelFileError, match=r"could not write .*No space left on device"):
        folder.write({"color": "red"}, NEW_PARTS)
    assert content(folder) == before


def test_settings_that_cannot_be_written_leave_the_old_version(folder: Folder) -> None:
    before = content(folder)
    with pytest.raises(TypeError, match=r"object .* cannot be written as JSON"):
        folder.write({"color": object()}, NEW_PARTS)
    assert content(folder) == before


@pytest.mark.parametrize("n", [1, 2, 3])
def test_an_interrupted_write_leaves_one_version_whole(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    fail_at(monkeypatch, os, "replace", n, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        folder.write({"color": "red"}, NEW_PARTS)
    assert_holds(folder, "blue", PARTS)
    assert len(content(folder)) == 3


def test_an_interrupt_after_the_switch_leaves_the_new_version(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def replace_and_stop(source: Any, target: Any) -> None:
        replace(source, target)
        if Path(target).name == "manifest.json":
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", replace_and_stop)
    with pytest.raises(KeyboardInterrupt):
        folder.write({"color": "red"}, NEW_PARTS)
    assert_holds(folder, "red", NEW_PARTS)
    assert len(content(folder)) == 3


# What is ours, and what is not

# Names that look like ours, or like those of other programs, and are neither.
OTHERS_NAMES = [
    ".notes", ".model.json.bak", ".tensors.safetensors.old", "README.md", "best.safetensors",
    "head.safetensors", "weights.0123.safetensors", f"head.{'1' * 16}.safetensors",
]  # fmt: skip


def litter(folder: Folder) -> list[str]:
    """What killed writers leave behind, and what is none of our business."""
    folder.path.mkdir(exist_ok=True)
    left = f"head.{'0' * 16}.safetensors"
    (folder.path / left).write_text("half")
    (folder.path / ".extremax-write-lock").touch()
    (folder.path / ".extremax-writing").mkdir()
    for name in ("noise", ".tmpAbCdEf"):
        (folder.path / ".extremax-writing" / name).write_text("half")
    # Others' files are safe even from a list that names them.
    names = [left, "README.md", "../README.md", 3, None]
    (folder.path / ".extremax-writing" / "files.json").write_text(json.dumps(names))
    for name in OTHERS_NAMES:
        (folder.path / name).write_text("mine")
    (folder.path / "best").mkdir()
    (folder.path / "best" / "notes.txt").write_text("mine")
    return sorted([*OTHERS_NAMES, "best"])


def assert_others_are_whole(folder: Folder) -> None:
    for name in (*OTHERS_NAMES, "best/notes.txt"):
        assert (folder.path / name).read_text() == "mine"


def test_leftovers_of_killed_writers_go_and_files_of_others_stay(folder: Folder) -> None:
    others = litter(folder)
    assert_holds(folder, "blue", PARTS)
    folder.write({"color": "red"}, NEW_PARTS)
    settings, _ = folder.read()
    assert_holds(folder, "red", NEW_PARTS)
    names = {path.name for path in folder.path.iterdir()}
    ours = {"manifest.json", *(file["name"] for file in settings["files"].values())}
    assert sorted(names - ours) == others
    assert_others_are_whole(folder)


def test_leftovers_go_before_anything_is_written(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    litter(folder)
    fail_at(monkeypatch, folder_module, "write_tensors", 1, FULL)
    with pytest.raises(ModelFileError, match="No space left"):
        folder.write({"color": "red"}, NEW_PARTS)
    assert not list(folder.path.glob(".extremax*"))
    assert_holds(folder, "blue", PARTS)


@pytest.mark.parametrize("text", ["{}", '{"name": "my web application"}', "[", "", "a diary"])
def test_a_manifest_of_something_else_is_neither_replaced_nor_removed(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "manifest.json").write_text(text)
    folder = Folder(tmp_path, FORMAT)
    with pytest.raises(ModelFileError, match="was not written by extremax"):
        folder.write({"color": "red"}, PARTS)
    folder.remove()
    assert content(folder) == {"manifest.json": text.encode()}


def test_a_file_in_the_place_of_one_of_ours_is_not_replaced(folder: Folder, tmp_path: Path) -> None:
    other = Folder(tmp_path / "other", FORMAT)
    other.write({"color": "red"}, NEW_PARTS)
    in_the_way = folder.path / file_of(other, "noise").name
    in_the_way.write_text("mine")
    before = content(folder)
    with pytest.raises(ModelFileError, match=rf"{in_the_way} is in the way"):
        folder.write({"color": "red"}, NEW_PARTS)
    assert content(folder) == before


def test_files_of_another_format_go_when_it_is_replaced(folder: Folder) -> None:
    other = Folder(folder.path, "extremax other 1")
    other.write({"color": "red"}, {"head": OTHERS})
    assert_holds(other, "red", {"head": OTHERS})
    assert len(content(folder)) == 2


def test_everything_is_on_disk_before_the_switch_and_the_switch_before_the_old_version_goes(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {path.name for path in folder.path.glob("*.safetensors")}
    calls: list[tuple[str, str]] = []
    replace, fsync, unlink = os.replace, os.fsync, Path.unlink

    def record(kind: str, path: Any) -> None:
        calls.append((kind, Path(path).name.split(".")[0] or Path(path).name))

    def replacing(source: Any, target: Any) -> None:
        record("rename", target)
        replace(source, target)

    def syncing(handle: int) -> None:
        record("sync", os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def unlinking(self: Path, missing_ok: bool = False) -> None:
        if self.name in old:
            record("remove", self)
        unlink(self, missing_ok)

    monkeypatch.setattr(os, "replace", replacing)
    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(Path, "unlink", unlinking)
    folder.write({"color": "red"}, NEW_PARTS)
    assert calls == [
        *(("sync", name) for name in ("head", "noise", "manifest", "files")),
        ("sync", ".extremax-writing"), ("sync", "model"),
        ("rename", "head"), ("rename", "noise"), ("sync", "model"),
        ("rename", "manifest"), ("sync", "model"),
        ("remove", "head"), ("remove", "noise"),
    ]  # fmt: skip


def test_writers_wait_for_each_other(folder: Folder) -> None:
    with locked(folder.path / ".extremax-write-lock"):
        writer = threading.Thread(target=lambda: folder.write({"color": "red"}, NEW_PARTS))
        writer.start()
        writer.join(0.2)
        assert writer.is_alive()
        assert_holds(folder, "blue", PARTS)
    writer.join()
    assert_holds(folder, "red", NEW_PARTS)
    assert len(content(folder)) == 3


def test_a_failed_write_over_a_damaged_manifest_destroys_nothing(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = folder.manifest.read_bytes()
    folder.manifest.write_bytes(good[:-9])
    fail_at(monkeypatch, os, "replace", 2, FULL)
    with pytest.raises(ModelFileError, match="No space left"):
        folder.write({"color": "red"}, NEW_PARTS)
    folder.manifest.write_bytes(good)
    assert_holds(folder, "blue", PARTS)


def test_removing_takes_the_folder_too_unless_others_have_files_there(folder: Folder) -> None:
    others = litter(folder)
    folder.remove()
    assert not folder.exists()
    assert sorted(path.name for path in folder.path.iterdir()) == others
    empty = Folder(folder.path / "empty", FORMAT)
    empty.write({}, PARTS)
    empty.remove()
    assert not empty.path.exists()
    empty.remove()


def test_removing_leaves_what_has_another_format(folder: Folder) -> None:
    before = content(folder)
    Folder(folder.path, "extremax checkpoint 3").remove()
    assert content(folder) == before


@pytest.mark.parametrize("n_done", range(4))
def test_a_removal_that_was_interrupted_is_no_obstacle(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, n_done: int
) -> None:
    (folder.path / "notes.txt").write_text("mine")
    unlink = Path.unlink
    calls: list[Path] = []

    def stop_after_some(path: Path, missing_ok: bool = False) -> None:
        if path.name != ".extremax-write-lock":
            calls.append(path)
            if len(calls) > n_done:
                raise KeyboardInterrupt
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", stop_after_some)
    with pytest.raises(KeyboardInterrupt) if n_done < 3 else contextlib.nullcontext():
        folder.remove()
    monkeypatch.undo()
    folder.write({"color": "red"}, PARTS)
    assert_holds(folder, "red", PARTS)
    assert len(content(folder)) == 4  # the manifest, two parts, the notes


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    for call in (Folder.read, Folder.read_settings, lambda f: f.write({}, PARTS)):
        with pytest.raises(ModelFileError, match=r"manifest\.json is not a file"):
            call(Folder(tmp_path, FORMAT))


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ModelFileError, match="is no path"):
        Folder(path, FORMAT)


def test_a_removal_that_a_disk_refuses_leaves_the_version_and_nothing_else(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(folder)

    def refuse(path: Path, *args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(ModelFileError, match=r"could not remove what is in .*Read-only"):
        folder.remove()
    monkeypatch.undo()
    assert content(folder) == before
