"""Damage to bytes: flipped bits, lost and repeated pieces, numbers replaced by extreme ones."""

from __future__ import annotations

import re
from random import Random

_NUMBER = re.compile(rb"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_EXTREME_NUMBERS = (
    *b"0 -0 -1 1 007 +5 1. .5 1e5 0x10 1_000 1,5 nan NaN inf -Infinity 1e38".split(),
    *b"3.4028236e38 1e39 -1e308 1e309 1e-46 1e-400 4.9e-324 1e99999999999999999999 127".split(),
    *b"128 255 256 32768 65536 2147483646 2147483647 2147483648 4294967296".split(),
    *b"9223372036854775807 9223372036854775808 18446744073709551616 999999999999999999".split(),
    *(b"9" * 19, b"9" * 400, b"1" * 5000, b"0" * 30 + b"7", b"0." + b"0" * 400 + b"1e400"),
)
_SPECIAL = (
    *(b"\n", b"\r\n", b"\r", b"\n\n", b" ", b"\t", b"\v", b"\f", b",", b":", b"#", b"\x00"),
    *(b"\xff", b"\xef\xbb\xbf", b"\xc0\x80", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\xc2\xa0"),
    *(b"\xf0\x9f\x98\x80", b"e\xcc\x81", b"__label__", b"__label__ ", b"qid:3 ", b"\x1a", b"\x1c"),
)


def mutate(random: Random, data: bytes, textual: bool) -> bytes:
    """Damage the bytes in one to four places; ``textual`` prefers what matters to text."""
    edits = _TEXT_EDITS if textual and random.random() < 0.8 else _BYTE_EDITS
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        data = random.choice(edits)(random, data)
    return data


def _span(random: Random, data: bytes) -> slice:
    start = random.randint(0, len(data))
    length = random.choice((1, 2, 8, random.randint(0, len(data))))
    return slice(start, min(len(data), start + length))


def _flip_bit(random: Random, data: bytes) -> bytes:
    if not data:
        return data
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << random.randrange(8))]) + data[place + 1 :]


def _set_bytes(random: Random, data: bytes) -> bytes:
    span = _span(random, data)
    fill = random.choice((b"\x00", b"\xff", b"\x7f", None))
    n = span.stop - span.start
    return data[: span.start] + (fill * n if fill else random.randbytes(n)) + data[span.stop :]


def _truncate(random: Random, data: bytes) -> bytes:
    return data[: random.randint(0, len(data))]


def _delete(random: Random, data: bytes) -> bytes:
    span = _span(random, data)
    return data[: span.start] + data[span.stop :]


def _repeat(random: Random, data: bytes) -> bytes:
    span = _span(random, data)
    return data[: span.stop] + data[span.start :]


def _insert(random: Random, data: bytes) -> bytes:
    place = random.randint(0, len(data))
    return data[:place] + random.randbytes(random.choice((1, 4, 40))) + data[place:]


def _swap(random: Random, data: bytes) -> bytes:
    a, b, c = sorted(random.randint(0, len(data)) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def _append(random: Random, data: bytes) -> bytes:
    return data + random.choice((b"\x00" * 8, random.randbytes(9), data))


def _extreme_number(random: Random, data: bytes) -> bytes:
    numbers = list(_NUMBER.finditer(data))
    if not numbers:
        return data
    number = random.choice(numbers)
    return data[: number.start()] + random.choice(_EXTREME_NUMBERS) + data[number.end() :]


def _special(random: Random, data: bytes) -> bytes:
    place = random.randint(0, len(data))
    return data[:place] + random.choice(_SPECIAL) + data[place:]


def _lines(random: Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    place = random.randrange(len(lines))
    other = random.randrange(len(lines))
    edit = random.choice(("drop", "repeat", "swap"))
    if edit == "drop":
        del lines[place]
    elif edit == "repeat":
        lines.insert(other, lines[place])
    else:
        lines[place], lines[other] = lines[other], lines[place]
    return b"\n".join(lines)


_BYTE_EDITS = (
    *(_flip_bit, _flip_bit, _set_bytes, _truncate, _delete, _repeat, _insert, _swap, _append),
    _extreme_number,
)
_TEXT_EDITS = (
    *(_extreme_number, _extreme_number, _special, _special, _lines, _delete, _repeat, _truncate),
    *(_flip_bit, _swap),
)
