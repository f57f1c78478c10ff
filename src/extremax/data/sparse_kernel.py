"""The parser of ``label[,label..] index:value ...`` lines, compiled by numba.

It works on bytes that end in a newline, so that no loop inside a line needs a bound.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

(
    OK,
    BAD_LABEL,
    LABEL_RANGE,
    BAD_INDEX,
    NO_COLON,
    ZERO_INDEX,
    INDEX_RANGE,
    BAD_VALUE,
    REPEATED_INDEX,
) = range(9)

_NEWLINE, _HASH, _PLUS, _COMMA, _MINUS, _POINT, _ZERO, _COLON = 10, 35, 43, 44, 45, 46, 48, 58
# One more digit still fits in int64.
_ROOM = 10**17
_POWERS = np.array([float(f"1e{power}") for power in range(309)])


@njit(nogil=True, cache=True)
def _is_blank(byte: int) -> bool:
    return byte == 32 or (9 <= byte <= 13 and byte != _NEWLINE)


@njit(nogil=True, cache=True)
def _ends_token(byte: int) -> bool:
    return byte == 32 or 9 <= byte <= 13 or byte == _HASH


@njit(nogil=True, cache=True)
def _is_digit(byte: int) -> bool:
    return 48 <= byte <= 57


@njit(nogil=True, cache=True)
def _integer(text: NDArray[np.uint8], at: int) -> tuple[int, int]:
    """The integer at ``at`` and the position after it, which is ``at`` if there is none."""
    begin = at
    negative = text[at] == _MINUS
    if negative or text[at] == _PLUS:
        at += 1
    if not _is_digit(text[at]):
        return 0, begin
    value = 0
    while _is_digit(text[at]):
        if value >= _ROOM:
            return 0, begin
        value = value * 10 + (text[at] - _ZERO)
        at += 1
    return -value if negative else value, at


@njit(nogil=True, cache=True)
def _number(text: NDArray[np.uint8], at: int) -> tuple[float, int]:
    """The number at ``at`` and the position after it, which is ``at`` if there is none.

    Eighteen digits and one scaling in double: two rounding errors of 2^-53, far below
    float32. What float32 cannot hold comes back infinite.
    """
    begin = at
    negative = text[at] == _MINUS
    if negative or text[at] == _PLUS:
        at += 1
    mantissa = 0
    exponent = 0
    digits = 0
    while _is_digit(text[at]):
        if mantissa < _ROOM:
            mantissa = mantissa * 10 + (text[at] - _ZERO)
        else:
            exponent += 1
        digits += 1
        at += 1
    if text[at] == _POINT:
        at += 1
        while _is_digit(text[at]):
            if mantissa < _ROOM:
                mantissa = mantissa * 10 + (text[at] - _ZERO)
                exponent -= 1
            digits += 1
            at += 1
    if digits == 0:
        return 0.0, begin
    if text[at] == 101 or text[at] == 69:  # e, E
        power, end = _integer(text, at + 1)
        if end == at + 1:
            return 0.0, begin
        exponent += power
        at = end
    value = float(mantissa)
    if mantissa != 0 and exponent > 0:
        value = value * _POWERS[exponent] if exponent <= 308 else np.inf
    elif exponent < 0:
        value = value / _POWERS[-exponent] if exponent >= -308 else 0.0
    return -value if negative else value, at


@njit(nogil=True, cache=True)
def _sort_row(indices: NDArray[np.int32], values: NDArray[np.float32]) -> int:
    """Sort one row in place; the number of the first entry that repeats an index, or -1."""
    order = np.argsort(indices, kind="mergesort")
    repeated = len(order)
    for i in range(1, len(order)):
        if indices[order[i]] == indices[order[i - 1]]:
            repeated = min(repeated, order[i])
    indices[:] = indices[order]
    values[:] = values[order]
    return repeated if repeated < len(order) else -1


@njit(nogil=True, cache=True)
def _entry(text: NDArray[np.uint8], at: int, number: int) -> int:
    """Where the ``number``-th ``index:value`` from ``at`` on begins."""
    while number >= 0:
        number -= text[at] == _COLON
        at += 1
    at -= 1
    while _is_digit(text[at - 1]):
        at -= 1
    return at


@njit(nogil=True, cache=True)
def parse(
    text: NDArray[np.uint8],
    max_rows: int,
    xc: bool,
    base: int,
    n_features: int,
    n_labels: int,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    values: NDArray[np.float32],
    labels: NDArray[np.int64],
    label_indptr: NDArray[np.int64],
) -> tuple[int, int, int, int, int]:
    """Parse up to ``max_rows`` rows into the arrays given.

    ``base`` is the smallest index; ``n_features`` and ``n_labels`` bound index and label
    (``n_labels`` < 0: any). ``xc``: each line is a row, and one that begins with a blank has
    no label; otherwise blank lines and ``#`` comments are skipped. The arrays must hold as
    many rows as there are newlines, as many entries as there are colons and as many labels as
    there are newlines and commas. ``label_indptr`` is to labels what ``indptr`` is to entries.
    Returns a code, the position and the start of the line reached, lines and rows before it.
    """
    at = 0
    line = 0
    row = 0
    entries = 0
    n_found = 0
    indptr[0] = label_indptr[0] = 0
    while at < len(text) and row < max_rows:
        line_start = at
        while _is_blank(text[at]):
            at += 1
        if not xc and (text[at] == _NEWLINE or text[at] == _HASH):
            while text[at] != _NEWLINE:
                at += 1
            at += 1
            line += 1
            continue

        more = text[at] != _NEWLINE and not (xc and at > line_start)
        while more:
            label, end = _integer(text, at)
            if n_found == label_indptr[row] and end > at and text[end] == _COLON:
                break  # The line begins with a feature: no label.
            if end == at or not (_ends_token(text[end]) or text[end] == _COMMA):
                return BAD_LABEL, at, line_start, line, row
            if n_labels >= 0 and not base <= label < base + n_labels:
                return LABEL_RANGE, at, line_start, line, row
            labels[n_found] = label
            n_found += 1
            more = text[end] == _COMMA
            at = end + 1 if more else end

        features_start = at
        row_start = entries
        increasing = True
        while True:
            while _is_blank(text[at]):
                at += 1
            if text[at] == _NEWLINE or (text[at] == _HASH and not xc):
                break
            index, end = _integer(text, at)
            if end == at or not _is_digit(text[at]):
                return BAD_INDEX, at, line_start, line, row
            if text[end] != _COLON:
                code = NO_COLON if _ends_token(text[end]) else BAD_INDEX
                return code, at, line_start, line, row
            if index < base:
                return ZERO_INDEX, at, line_start, line, row
            index -= base
            if index >= n_features:
                return INDEX_RANGE, at, line_start, line, row
            at = end + 1
            value, end = _number(text, at)
            if end == at or not _ends_token(text[end]) or not np.isfinite(np.float32(value)):
                return BAD_VALUE, at, line_start, line, row
            increasing &= entries == row_start or indices[entries - 1] < index
            indices[entries] = index
            values[entries] = value
            entries += 1
            at = end
        if not increasing:
            repeated = _sort_row(indices[row_start:entries], values[row_start:entries])
            if repeated >= 0:
                at = _entry(text, features_start, repeated)
                return REPEATED_INDEX, at, line_start, line, row

        while text[at] != _NEWLINE:
            at += 1
        at += 1
        line += 1
        row += 1
        indptr[row] = entries
        label_indptr[row] = n_found
    return OK, at, at, line, row
