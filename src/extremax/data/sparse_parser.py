"""Parse lines ``label[,label..] index:value ...`` in compiled code (numba).

The input must end in a newline. Loops within a line stop there and need no bounds check.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremax.kernels.cpu.jit import kernel

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
# Below this, one more decimal digit fits in int64.
_LIMIT = 10**17
_POWERS = np.array([float(f"1e{power}") for power in range(309)])


class Rules(NamedTuple):
    """What differs between files.

    xc:          every line is a row, and a line that starts with a blank has no label. Otherwise
                 blank lines and ``#`` comments are skipped.
    base:        the smallest feature index, 0 or 1, and the smallest label if they are bounded.
    n_features:  number of features.
    n_labels:    number of classes; negative: labels are not bounded.
    """

    xc: bool
    base: int
    n_features: int
    n_labels: int


class Parsed(NamedTuple):
    """Arrays to parse into.

    values, indices, indptr:  CSR rows, with room for as many rows as there are newlines and as
                 many entries as there are colons.
    labels, label_indptr:  the labels of row i are labels[label_indptr[i]:label_indptr[i + 1]];
                 room for as many labels as there are newlines and commas.
    """

    values: NDArray[np.float32]
    indices: NDArray[np.int32]
    indptr: NDArray[np.int64]
    labels: NDArray[np.int64]
    label_indptr: NDArray[np.int64]


@kernel
def _is_blank(byte: int) -> bool:
    return byte == 32 or (9 <= byte <= 13 and byte != _NEWLINE)


@kernel
def _ends_token(byte: int) -> bool:
    return byte == 32 or 9 <= byte <= 13 or byte == _HASH


@kernel
def _is_digit(byte: int) -> bool:
    return 48 <= byte <= 57


@kernel
def _integer(text: NDArray[np.uint8], start: int) -> tuple[int, int]:
    """Parse an integer; return it and the position after it, or ``start`` if there is none."""
    i = start
    negative = text[i] == _MINUS
    if negative or text[i] == _PLUS:
        i += 1
    if not _is_digit(text[i]):
        return 0, start
    value = 0
    while _is_digit(text[i]):
        if value >= _LIMIT:
            return 0, start
        value = value * 10 + (text[i] - _ZERO)
        i += 1
    return -value if negative else value, i


@kernel
def _number(text: NDArray[np.uint8], start: int) -> tuple[float, int]:
    """Parse a number; return it and the position after it, or ``start`` if there is none.

    Up to 18 digits are read exactly and scaled once in double precision, which leaves two
    rounding errors of 2^-53, far below the precision of float32. Numbers beyond the range of
    float32 become infinite when converted.
    """
    i = start
    negative = text[i] == _MINUS
    if negative or text[i] == _PLUS:
        i += 1
    mantissa = 0
    exponent = 0
    digits = 0
    while _is_digit(text[i]):
        if mantissa < _LIMIT:
            mantissa = mantissa * 10 + (text[i] - _ZERO)
        else:
            exponent += 1
        digits += 1
        i += 1
    if text[i] == _POINT:
        i += 1
        while _is_digit(text[i]):
            if mantissa < _LIMIT:
                mantissa = mantissa * 10 + (text[i] - _ZERO)
                exponent -= 1
            digits += 1
            i += 1
    if digits == 0:
        return 0.0, start
    if text[i] == 101 or text[i] == 69:  # e, E
        power, end = _integer(text, i + 1)
        if end == i + 1:
            return 0.0, start
        exponent += power
        i = end
    value = float(mantissa)
    if mantissa != 0 and exponent > 0:
        value = value * _POWERS[exponent] if exponent <= 308 else np.inf
    elif exponent < 0:
        value = value / _POWERS[-exponent] if exponent >= -308 else 0.0
    return -value if negative else value, i


@kernel
def _sort_row(indices: NDArray[np.int32], values: NDArray[np.float32]) -> int:
    """Sort a row in place; return the number of the first entry with a repeated index, or -1."""
    order = np.argsort(indices, kind="mergesort")
    repeated = len(order)
    for i in range(1, len(order)):
        if indices[order[i]] == indices[order[i - 1]]:
            repeated = min(repeated, order[i])
    indices[:] = indices[order]
    values[:] = values[order]
    return repeated if repeated < len(order) else -1


@kernel
def _entry_start(text: NDArray[np.uint8], start: int, number: int) -> int:
    """Return the position of entry ``number`` (``index:value``) of a row, counted from 0."""
    i = start
    while number >= 0:
        number -= text[i] == _COLON
        i += 1
    i -= 1
    while _is_digit(text[i - 1]):
        i -= 1
    return i


@kernel
def parse(
    text: NDArray[np.uint8], max_rows: int, rules: Rules, out: Parsed
) -> tuple[int, int, int, int, int]:
    """Parse up to ``max_rows`` rows.

    Returns the error code, the position reached, the start of its line, and the numbers of lines
    and rows before that line.
    """
    xc, base, n_features, n_labels = rules
    values, indices, indptr, labels, label_indptr = out
    position = 0
    line = 0
    row = 0
    n_entries = 0
    n_parsed_labels = 0
    indptr[0] = label_indptr[0] = 0
    while position < len(text) and row < max_rows:
        line_start = position
        while _is_blank(text[position]):
            position += 1
        if not xc and (text[position] == _NEWLINE or text[position] == _HASH):
            while text[position] != _NEWLINE:
                position += 1
            position += 1
            line += 1
            continue

        more_labels = text[position] != _NEWLINE and not (xc and position > line_start)
        while more_labels:
            label, end = _integer(text, position)
            first = n_parsed_labels == label_indptr[row]
            if first and end > position and text[end] == _COLON:
                break  # The line starts with a feature: it has no label.
            if end == position or not (_ends_token(text[end]) or text[end] == _COMMA):
                return BAD_LABEL, position, line_start, line, row
            if n_labels >= 0 and not base <= label < base + n_labels:
                return LABEL_RANGE, position, line_start, line, row
            labels[n_parsed_labels] = label
            n_parsed_labels += 1
            more_labels = text[end] == _COMMA
            position = end + 1 if more_labels else end

        features_start = position
        row_start = n_entries
        increasing = True
        while True:
            while _is_blank(text[position]):
                position += 1
            if text[position] == _NEWLINE or (text[position] == _HASH and not xc):
                break
            index, end = _integer(text, position)
            if end == position or not _is_digit(text[position]):
                return BAD_INDEX, position, line_start, line, row
            if text[end] != _COLON:
                code = NO_COLON if _ends_token(text[end]) else BAD_INDEX
                return code, position, line_start, line, row
            if index < base:
                return ZERO_INDEX, position, line_start, line, row
            index -= base
            if index >= n_features:
                return INDEX_RANGE, position, line_start, line, row
            position = end + 1
            value, end = _number(text, position)
            if end == position or not _ends_token(text[end]) or not np.isfinite(np.float32(value)):
                return BAD_VALUE, position, line_start, line, row
            increasing &= n_entries == row_start or indices[n_entries - 1] < index
            indices[n_entries] = index
            values[n_entries] = value
            n_entries += 1
            position = end
        if not increasing:
            repeated = _sort_row(indices[row_start:n_entries], values[row_start:n_entries])
            if repeated >= 0:
                position = _entry_start(text, features_start, repeated)
                return REPEATED_INDEX, position, line_start, line, row

        while text[position] != _NEWLINE:
            position += 1
        position += 1
        line += 1
        row += 1
        indptr[row] = n_entries
        label_indptr[row] = n_parsed_labels
    return OK, position, position, line, row
