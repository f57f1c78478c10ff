"""A folder holds one version of something, whole, or is refused; a failed write changes nothing."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from extremax.errors import ModelFileError
from extremax.storage import Folder, files
from extremax.storage import folder as folder_module

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
    with pytest.raises(ModelFileError, match=r"has no manifest\.json"):
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


def test_a_name_that_leads_out_of_the_folder_is_not_followed(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "_WAIT_SECONDS", 0.001)
    described = folder.read_settings()["files"]
    file_of(folder, "head").rename(tmp_path / "head.safetensors")
    described["head"]["name"] = "../head.safetensors"
    edit(folder, files=described)
    with pytest.raises(ModelFileError, match=re.escape(str(folder.path / "head.safetensors"))):
        folder.read()


def test_missing_files_are_named(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "_WAIT_SECONDS", 0.001)
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ModelFileError, match=rf"{place} has no manifest\.json"):
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
    switch = folder_module.switch

    def switch_and_stop(written: Path, path: Path) -> None:
        switch(written, path)
        if path.name == "manifest.json":
            raise KeyboardInterrupt

    monkeypatch.setattr(folder_module, "switch", switch_and_stop)
    with pytest.raises(KeyboardInterrupt):
        folder.write({"color": "red"}, NEW_PARTS)
    assert_holds(folder, "red", NEW_PARTS)
    assert len(content(folder)) == 3


# What is ours, and what is not


def litter(folder: Folder) -> list[str]:
    """What killed writers leave behind, and what is none of our business."""
    for name in (".extremax-head-123", f"head.{'0' * 16}.safetensors"):
        (folder.path / name).write_text("half")
    (folder.path / ".extremax-noise-9").mkdir()
    (folder.path / ".extremax-noise-9" / ".tmpAbCdEf").write_text("half")
    others = [".notes", "README.md", "head.safetensors", "weights.0123.safetensors", "picture"]
    for name in others:
        (folder.path / name).write_text("mine")
    (folder.path / "more").mkdir()
    return sorted([*others, "more"])


def test_leftovers_of_killed_writers_go_and_files_of_others_stay(folder: Folder) -> None:
    others = litter(folder)
    assert_holds(folder, "blue", PARTS)
    folder.write({"color": "red"}, NEW_PARTS)
    assert_holds(folder, "red", NEW_PARTS)
    names = {path.name for path in folder.path.iterdir()}
    assert sorted(names - {"manifest.json", *(file_of(folder, p).name for p in PARTS)}) == others


def test_leftovers_go_before_anything_is_written(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    litter(folder)
    fail_at(monkeypatch, folder_module, "write_tensors", 1, FULL)
    with pytest.raises(ModelFileError, match="No space left"):
        folder.write({"color": "red"}, NEW_PARTS)
    assert not list(folder.path.glob(".extremax*"))
    assert_holds(folder, "blue", PARTS)


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
