"""Bytes and lines of plain and compressed text files."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from extremax.errors import DataError, ExtremaxError

CHUNK = 4 << 20
COMPRESSED: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open,
}  # fmt: skip
# What decompressing raises; gzip and bz2 also raise an OSError.
_DAMAGE: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error, lzma.LZMAError)
with suppress(ImportError):  # Python 3.14 or newer
    _zstd = import_module("compression.zstd")
    COMPRESSED[".zst"] = _zstd.open
    _DAMAGE += (_zstd.ZstdError,)
STANDARD_INPUT = Path("-")
_BOM = b"\xef\xbb\xbf"


def is_stream(path: Path) -> bool:
    """Whether this is standard input, a pipe or a device, which can be read only once."""
    return path == STANDARD_INPUT or not path.is_file()


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """Open a file and decompress it while reading; damaged data raise a DataError."""
    opener: Callable[..., Any] = COMPRESSED.get(path.suffix.lower(), open)
    if path == STANDARD_INPUT and sys.stdin is None:
        raise DataError("standard input is closed", path)
    standard_input = nullcontext(sys.stdin.buffer) if path == STANDARD_INPUT else None
    with _decompressing(path), standard_input or opener(path, "rb") as stream:
        yield stream


def first_bytes(path: Path, n_bytes: int) -> tuple[bytes, float]:
    """The first bytes of a file, decompressed, and the share of the file that they are."""
    opener = COMPRESSED.get(path.suffix.lower(), nullcontext)
    with path.open("rb") as file, _decompressing(path), opener(file) as stream:
        text = stream.read(n_bytes)
        is_whole = len(text) < n_bytes
        return text, 1.0 if is_whole else file.tell() / path.stat().st_size


@contextmanager
def _decompressing(path: Path) -> Iterator[None]:
    """Turn what damaged data make decompression raise into a DataError."""
    try:
        yield
    except _DAMAGE as error:
        if getattr(error, "errno", None) is not None:
            raise  # an error of the system, which is not about the data
        raise DataError(f"the compressed data are damaged or truncated ({error})", path) from error


@contextmanager
def damage(path: Path, message: str) -> Iterator[None]:
    """Turn what a library raises about a damaged binary file into a DataError.

    Invalid headers, encrypted or oddly compressed parts make numpy, scipy, zipfile and pyarrow
    raise nearly anything: `tokenize.TokenError`, `NotImplementedError`, `zlib.error` and so on.
    It is for calls of theirs only: around code of this package it would hide mistakes in it.
    """
    try:
        yield
    except ExtremaxError:
        raise
    except MemoryError as error:
        raise MemoryError(f"{path}: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".removeprefix("ValueError: ")
        raise DataError(f"{message}: {reason}", path) from error


def whole_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield pieces of about ``CHUNK`` bytes that end at a newline, except possibly the last."""
    pieces: list[bytes] = []
    while chunk := stream.read(CHUNK):
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield b"".join([*pieces, chunk[:cut]])
            pieces = [chunk[cut:]] if cut < len(chunk) else []
        else:
            pieces.append(chunk)
    if pieces:
        yield b"".join(pieces)


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its ending) of a UTF-8 file; a BOM is left out."""
    with open_bytes(path) as stream:
        for number, raw in enumerate(stream, start=1):
            line = raw.removeprefix(_BOM) if number == 1 else raw
            try:
                # Not splitlines, which would also split at U+2028 and similar characters.
                yield number, line.rstrip(b"\r\n").decode("utf-8")
            except UnicodeDecodeError as error:
                message = f"byte 0x{line[error.start]:02x} is not UTF-8; convert the file to UTF-8"
                raise DataError(message, path, number, error.start + 1) from error
