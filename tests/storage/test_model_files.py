"""A model folder is whole or refused, and a failed write changes nothing."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from extremax.errors import ModelFileError
from extremax.storage.files import read_metadata, read_tensors, write_tensors
from extremax.labels import label_array, object_array
from extremax.model_files import pack_labels, read_model, read_settings, unpack_labels, write_model

TENSORS = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.tensor(7)}
OTHERS = {"a": torch.ones(50, 4), "b": torch.tensor(8)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "model", {"color": "blue"}, TENSORS)
    return tmp_path / "model"


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_model_is_two_files_that_come_back(folder: Path) -> None:
    assert sorted(content(folder)) == ["model.json", "tensors.safetensors"]
    settings, tensors = read_model(folder)
    assert settings["color"] == "blue"
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[k], TENSORS[k]) for k in TENSORS)


def test_views_and_transposes_are_written_as_they_look(tmp_path: Path) -> None:
    write_model(tmp_path, {}, {"t": TENSORS["a"].T, "part": TENSORS["a"][:, 1]})
    tensors = read_model(tmp_path)[1]
    assert torch.equal(tensors["t"], TENSORS["a"].T)
    assert torch.equal(tensors["part"], TENSORS["a"][:, 1])


def test_settings_may_hold_the_numbers_of_numpy(tmp_path: Path) -> None:
    write_model(tmp_path, {"n": np.int64(3), "x": np.float32(0.5), "b": np.bool_(True)}, {})
    settings = read_settings(tmp_path)
    assert (settings["n"], settings["x"], settings["b"]) == (3, 0.5, True)


def test_a_model_is_replaced_whole(folder: Path) -> None:
    write_model(folder, {"color": "red"}, OTHERS)
    settings, tensors = read_model(folder)
    assert settings["color"] == "red"
    assert torch.equal(tensors["a"], OTHERS["a"])
    assert len(content(folder)) == 2


def test_settings_that_cannot_be_written_leave_the_old_model(folder: Path) -> None:
    before = content(folder)
    with pytest.raises(TypeError, match=r"object .* cannot be written as JSON"):
        write_model(folder, {"color": object()}, OTHERS)
    assert content(folder) == before


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (SafetensorError("I/O error: No space left on device"), "No space left on device"),
    ],
)
def test_a_full_disk_leaves_the_old_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, reason: str
) -> None:
    def half_a_file(tensors: Any, path: Path, meta: Any) -> None:
        Path(path).write_bytes(b"half")
        raise fault

    before = content(folder)
    monkeypatch.setattr("safetensors.torch.save_file", half_a_file)
    with pytest.raises(ModelFileError, match=f"could not write .*{reason}; nothing was changed"):
        write_model(folder, {"color": "red"}, OTHERS)
    assert content(folder) == before


def test_a_disk_that_fills_at_the_json_leaves_the_old_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = content(folder)
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ModelFileError, match="No space left"):
        write_model(folder, {"color": "red"}, OTHERS)
    assert content(folder) == before


def test_death_between_the_two_files_is_never_a_mixed_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    replace = os.replace

    def die_at_the_second(source: Path, target: Path) -> None:
        if Path(target).name == "model.json":
            raise Killed
        replace(source, target)

    monkeypatch.setattr(os, "replace", die_at_the_second)
    # The same shapes, so that only the checksum can tell.
    with pytest.raises(Killed):
        write_model(folder, {"color": "red"}, {k: v + 1 for k, v in TENSORS.items()})
    with pytest.raises(ModelFileError, match="checksum differs"):
        read_model(folder)


def test_what_a_killed_process_left_is_cleared_away(folder: Path) -> None:
    for name in (".tensors.safetensors.123", ".model.json.123", ".notes"):
        (folder / name).write_text("half")
    write_model(folder, {"color": "red"}, OTHERS)
    assert sorted(content(folder)) == [".notes", "model.json", "tensors.safetensors"]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("a diary")
    with pytest.raises(ModelFileError, match="is a file; a model is saved as a folder"):
        write_model(tmp_path / "model", {}, TENSORS)
    with pytest.raises(ModelFileError, match="could not write"):
        write_tensors(tmp_path / "model" / "x.safetensors", TENSORS, {})
    assert (tmp_path / "model").read_text() == "a diary"


def test_every_flipped_byte_of_the_tensors_is_noticed(folder: Path) -> None:
    path = folder / "tensors.safetensors"
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ModelFileError, match="damaged"):
            read_model(folder)


@pytest.mark.parametrize("length", [0, 5, 100])
def test_truncated_tensors_are_refused_with_their_size(folder: Path, length: int) -> None:
    path = folder / "tensors.safetensors"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ModelFileError, match=f"has {length} bytes, expected {size}: truncated"):
        read_model(folder)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"format": "extremax mod', "damaged"),
        ('{"format": "extremax model 2"}', "expected 'extremax model 1'"),
        ('{"name": "something else"}', "is not an extremax model"),
        ("[1, 2, 3]", "is not an extremax model"),
        ('{"format": "extremax model 1"}', "does not name the size"),
        ('{"format": "extremax model 1", "tensors": {"bytes": 3}}', "does not name the size"),
    ],
)
def test_a_foreign_or_damaged_json_is_refused(folder: Path, text: str, reason: str) -> None:
    (folder / "model.json").write_text(text)
    with pytest.raises(ModelFileError, match=reason):
        read_model(folder)


def test_bytes_that_are_no_text_are_refused(folder: Path) -> None:
    (folder / "model.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelFileError, match="damaged"):
        read_settings(folder)


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="holds no model"):
        read_model(tmp_path / "nowhere")
    with pytest.raises(ModelFileError, match="holds no model"):
        read_model(tmp_path)
    (folder / "tensors.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"tensors\.safetensors is missing"):
        read_model(folder)


def test_tensor_files_have_metadata_and_say_why_they_are_no_good(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "x.safetensors"
    write_tensors(path, TENSORS, {"format": "mine"})
    assert read_metadata(path) == {"format": "mine"}
    assert read_tensors(path)[1] == {"format": "mine"}
    path.write_bytes(path.read_bytes()[:-1])
    for read in (read_tensors, read_metadata):
        with pytest.raises(ModelFileError, match="cannot be read, it is damaged or foreign"):
            read(path)


LABELS: dict[str, np.ndarray] = {
    "int64": np.array([3, -1, 2**62]),
    "uint64": np.array([2**63 + 1, 5], np.uint64),
    "int8": np.array([1, 2], np.int8),
    "float32": np.array([0.5, 1.5], np.float32),
    "booleans": np.array([False, True]),
    "strings": np.array(["", "straße", "数", "tab\tnewline\n", 'quote"']),
    "half a surrogate": np.array(["\ud800", "a"], dtype=object),
    "objects": object_array(["a", 1, None, True, 2.5, (1, ("x", None))]),
    "numbers of numpy": object_array([np.int64(4), "a", (np.float32(0.5), "b")]),
}


@pytest.mark.parametrize("classes", LABELS.values(), ids=LABELS.keys())
def test_labels_come_back_with_their_type(classes: np.ndarray) -> None:
    dtype, tensors = pack_labels(classes)
    back = unpack_labels(json.loads(json.dumps(dtype)), tensors)
    assert back.dtype == classes.dtype
    assert back.tolist() == classes.tolist()


@pytest.mark.parametrize("label", [frozenset({1}), (1, frozenset()), b"bytes", 1j, np.complex64(1)])
def test_labels_that_need_pickle_are_refused(label: Any) -> None:
    with pytest.raises(ModelFileError, match="cannot be saved without pickle"):
        pack_labels(label_array(["a", label]))


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o027])
def test_files_may_be_read_by_whom_the_umask_lets(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_tensors(tmp_path / "a", {"x": torch.zeros(2)}, {})
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666 & ~umask
