"""Bytes and lines of text files, compressed or not."""

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
    """Open a file for reading, decompressed; damage found later becomes a DataError."""
    opener: Callable[..., BinaryIO] = COMPRESSED.get(path.suffix.lower(), open)
    try:
        with opener(path, "rb") as stream:
            yield stream
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"the compressed data are damaged or cut off ({error})", path) from error


def whole_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield pieces of some megabytes, each of whole lines; the last may lack its newline."""
    parts: list[bytes] = []
    while chunk := stream.read(CHUNK):
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield b"".join([*parts, chunk[:cut]])
            parts = [chunk[cut:]] if cut < len(chunk) else []
        else:
            parts.append(chunk)
    if parts:
        yield b"".join(parts)


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a UTF-8 file."""
    with open_bytes(path) as stream:
        for number, raw in enumerate(stream, start=1):
            yield number, decode(raw, path, number)


def decode(raw: bytes, path: Path, number: int) -> str:
    """One line as text, without its end or a byte-order mark."""
    if number == 1:
        raw = raw.removeprefix(_BOM)
    try:
        # Not splitlines: U+2028 and the like are part of a text, not its end.
        return raw.rstrip(b"\r\n").decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8; convert the file to UTF-8"
        raise DataError(message, path, number, error.start + 1) from error
