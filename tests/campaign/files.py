"""Files of every format, valid, damaged and hostile, read by the package and a second way.

A file must be refused with a message, or read as the second reading reads it. A valid file that is
refused counts as lost.
"""

from __future__ import annotations

import lzma
import resource
import shutil
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

from typer.testing import CliRunner

from extremax import ExtremeClassifier
from extremax.cli import app
from extremax.data import read, read_blocks, scan, streams
from extremax.errors import ExtremaxError
from tests.campaign import array_files, hostile_arrays, reference, table_files, text_files
from tests.campaign.array_files import UncheckedError
from tests.campaign.comparison import difference, reading_of, scan_difference
from tests.campaign.mutations import mutate
from tests.campaign.reference import InvalidFileError, Options, Reading
from tests.campaign.trial import Result

NAME = "files"
FULL = 60_000
TIMEOUT = 300.0

#: Memory that a worker may take on top of what it has after its imports.
_SPARE_BYTES = 2 << 30
_BINARY: dict[str, tuple[Callable, Callable, Callable]] = {
    "npy": (array_files.write_npy, hostile_arrays.hostile_npy, array_files.read_npy),
    "npz": (array_files.write_npz, hostile_arrays.hostile_npz, array_files.read_npz),
    "parquet": (table_files.write_parquet, table_files.hostile_parquet, table_files.read_parquet),
}
_FORMATS = (*reference.READERS, *_BINARY)
_FEW = (1, 3)
_NO_LABELS = "no row has a label"


class Case(NamedTuple):
    """Files, of which the first is read and a second one holds its labels; ``valid`` ones must be
    accepted."""

    format: str
    files: dict[str, bytes]
    options: Options
    valid: bool


def prepare(folder: Path) -> None:
    """Warm up the readers, then limit memory: a declared size must not become an allocation."""
    import pyarrow.parquet  # noqa: F401
    import scipy.sparse  # noqa: F401

    for seed in range(-100, 0):
        with suppress(Exception):
            run(seed, folder)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def run(seed: int, folder: Path) -> Result:
    """Write one file, read it by one of the functions of `extremax.data`, and compare; or train."""
    random = Random(f"files {seed}")
    case = _case(random)
    paths = [folder / name for name in case.files]
    for path, content in zip(paths, case.files.values(), strict=True):
        path.write_bytes(content)
    # Small pieces, so that small files have several.
    pieces = patch.object(streams, "CHUNK", random.choice((5, 64, 1 << 22)))
    try:
        with pieces:
            if random.random() < 0.02:
                return _train(case, paths, folder / "model")
            return _compare(case, random.choice((_read, _read, _blocks, _scan)), paths, random)
    finally:
        for path in paths:
            path.unlink()
        shutil.rmtree(folder / "model", ignore_errors=True)


def _case(random: Random) -> Case:
    format = random.choice(_FORMATS)
    options = Options(
        keep_labels=random.choice(("first", "first", "smallest", "all")),
        limit=random.choice((None, None, None, *_FEW, 10**6)),
        unlabeled=random.random() < 0.25,
        zero_based=random.choice((None, None, True, False))
        if format in ("svmlight", "xc")
        else None,
    )
    treatment = random.choice(("valid", "mutated", "mutated", "mutated", "hostile"))
    if format in _BINARY:
        write, write_hostile, _ = _BINARY[format]
        files = write_hostile(random) if treatment == "hostile" else write(random, options)
        if options.unlabeled:
            files = dict(list(files.items())[:1])
        if treatment == "mutated":
            name = random.choice(tuple(files))
            files[name] = mutate(random, files[name], textual=name.endswith(".txt"))
        return Case(format, files, options, treatment == "valid")
    name = text_files.name_of(random, format)
    if treatment == "hostile":
        content = text_files.compress(name, text_files.hostile_text(random, format))
        return Case(format, {name: content}, options, valid=False)
    content = text_files.write_text(random, format, options)
    damaged_inside = random.random() < 0.8
    if treatment == "mutated" and damaged_inside:
        content = mutate(random, content, textual=True)
    content = text_files.compress(name, content)
    if treatment == "mutated" and not damaged_inside:
        content = mutate(random, content, textual=False)
    return Case(format, {name: content}, options, treatment == "valid" and ".txt" not in name)


def _compare(case: Case, how: Callable, paths: list[Path], random: Random) -> Result:
    options = case.options._replace(limit=None) if how is _scan else case.options
    try:
        readings = _references(case, options)
        labeled = how is _blocks or any(reading.rows for reading in readings)
        reason = "" if labeled else _NO_LABELS
    except InvalidFileError as error:
        readings, reason = [], str(error)
    except UncheckedError:
        readings, reason = [], ""
    detail = f"{case.format} {how.__name__} {options} {list(case.files)}"
    arguments = options._asdict()
    arguments["format"] = case.format if random.random() < 0.3 else None
    arguments["labels"] = paths[1] if len(paths) > 1 else None
    try:
        found = how(paths[0], arguments, random)
    # A matrix may declare more rows than there is memory for, and a damaged parquet any size.
    except (ExtremaxError, OSError, MemoryError) as error:
        if str(paths[0]) not in str(error) and str(paths[-1]) not in str(error):
            return Result("traceback", f"{detail}: the message names no file: {error!r}")
        if case.valid and not reason:
            return Result("lost", f"{detail}: refused a valid file: {error}")
        return Result("refused")
    if how is _scan and ".txt" in paths[0].name:
        return Result("accepted")  # Its size is that of a header if it is taken for xc.
    if how is _scan and case.format == "xc":
        return _compare_header(case, found, detail)
    if reason:
        if how is _scan and (reason == _NO_LABELS or case.format == "parquet"):
            return Result("accepted")  # It counts labels, and reads no features of parquet.
        streamed = case.format not in _BINARY and not paths[0].name.endswith((".gz", ".xz"))
        if options.limit in _FEW and not streamed:
            return Result("accepted")  # What follows the last row asked for need not be read.
        return Result("silently_wrong", f"{detail}: accepted, but {reason}: {found!r:.500}")
    if not readings:
        return Result("accepted")
    compare = scan_difference if how is _scan else difference
    differences = [compare(found, reading) for reading in readings]
    if all(differences):
        return Result("silently_wrong", f"{detail}: {differences[0]}")
    return Result("accepted")


def _train(case: Case, paths: list[Path], output: Path) -> Result:
    """`extremax train`: a model, or exit status 2 with one line that names a file."""
    options = case.options
    arguments = ["--quiet", "--epochs", "1", "--threads", "1", "--keep-labels", options.keep_labels]
    arguments += ["--labels", str(paths[1])] if len(paths) > 1 else []
    arguments += ["--zero-based"] if options.zero_based else []
    command = ["train", str(paths[0]), "-o", str(output), *arguments]
    result = CliRunner().invoke(app, command, prog_name="extremax")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    message = result.stderr.strip()
    if result.exit_code == 0 and ExtremeClassifier.load(output):
        return Result("accepted")
    named = any(name in message for name in (*map(str, paths), str(output), "not enough memory"))
    if result.exit_code != 2 or message.count("\n") or not named or output.exists():
        return Result("traceback", f"train: {command}: status {result.exit_code}, {message}")
    return Result("refused")


def _references(case: Case, options: Options) -> list[Reading]:
    """What the file may be read as: of a ``.txt``, whose format is guessed, in several formats."""
    if case.format in _BINARY:
        return [reference.expected(_BINARY[case.format][2](case.files, options), options)]
    [(name, content)] = case.files.items()
    try:
        content = text_files.decompress(name, content)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InvalidFileError(repr(error)) from error
    guessed = ".txt" in name
    readings = []
    for format, reader in reference.READERS.items():
        if format == case.format or (guessed and format != "sessions"):
            try:
                readings.append(reference.expected(reader(content, options), options))
            except InvalidFileError:
                if not guessed:
                    raise
    if not readings:
        raise InvalidFileError("it has no format")
    return readings


def _read(path: Path, arguments: dict[str, Any], random: Random) -> Reading:
    return reading_of([read(path, **arguments)], arguments)


def _blocks(path: Path, arguments: dict[str, Any], random: Random) -> Reading:
    blocks = read_blocks(path, rows=random.choice((1, 2, 5, 1000)), **arguments)
    return reading_of(list(blocks), arguments)


def _scan(path: Path, arguments: dict[str, Any], random: Random) -> Any:
    return scan(path, **{name: value for name, value in arguments.items() if name != "limit"})


def _compare_header(case: Case, found: Any, detail: str) -> Result:
    """`scan` reads only the header of an xc file."""
    [(name, content)] = case.files.items()
    try:
        header = reference.xc_header(text_files.decompress(name, content))
    except InvalidFileError as error:
        return Result("silently_wrong", f"{detail}: accepted, but {error}: {found}")
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        return Result("accepted")
    if (found.rows, found.features) != header[:2]:
        return Result("silently_wrong", f"{detail}: {found}, expected {header}")
    return Result("accepted")
