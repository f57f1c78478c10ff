"""Bytes and lines of plain and compressed text files."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from extremax.errors import DataError

CHUNK = 4 << 20
COMPRESSED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
_BOM = b"\xef\xbb\xbf"


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """Open a file and decompress it while reading; damaged data raise a DataError."""
    opener: Callable[..., BinaryIO] = COMPRESSED.get(path.suffix.lower(), open)
    try:
        with opener(path, "rb") as stream:
            yield stream
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"the compressed data are damaged or truncated ({error})", path) from error


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
    """Yield (line number from 1, line without its line ending) of a UTF-8 file."""
    with open_bytes(path) as stream:
        for number, raw in enumerate(stream, start=1):
            yield number, decode(raw, path, number)


def decode(raw: bytes, path: Path, number: int) -> str:
    """Decode one line, without its line ending and without a byte-order mark."""
    if number == 1:
        raw = raw.removeprefix(_BOM)
    try:
        # Not splitlines, which would also split at U+2028 and similar characters.
        return raw.rstrip(b"\r\n").decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8; convert the file to UTF-8"
        raise DataError(message, path, number, error.start + 1) from error
