"""Inner loops over rows of floats, one line of sixteen at a time, that prefetch the next rows.

Rows of classes are scattered over hundreds of megabytes, and the processor cannot predict the next
one. While one line of a row is processed, the same line of the next row is requested, so memory is
always busy. A compiler does not interleave the two by itself (a prefetch stops its vectorizer);
therefore the lines are written in LLVM's vector type, which it maps to the machine's vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.prefetch import emit_prefetch, prefetch_item

_LANES = 16
_FLOAT, _INT32, _INT64, _BYTE = ir.FloatType(), ir.IntType(32), ir.IntType(64), ir.IntType(8)
_LINE = ir.VectorType(_FLOAT, _LANES)
# Four at once where squares are added up: an addition need not wait for the previous one.
_FOUR_LINES = ir.VectorType(_FLOAT, 4 * _LANES)
_ZERO = ir.Constant(_LINE, [0.0] * _LANES)
#: Sums may be reordered; NaN and infinity keep their meaning.
FAST = {"reassoc", "contract", "nsz"}
_FLAGS = tuple(sorted(FAST))
# A product may be rounded together with the sum it enters; nothing is reordered.
_EXACT = ("contract",)
# 1/√a by the machine's estimate and one Newton step: a relative error of about 1e-7.
_ESTIMATE = (*_FLAGS, "arcp", "afn", "ninf")


@kernel(fastmath=FAST, inline="always")
def dots(table, one, two, features, row, next_one, next_two, next_row):
    """w·x for two classes and one example, while the next rows are prefetched.

    Rows are passed by number: a view of a row would change the reference count of the array, a
    counter that threads would contend for.
    """
    n = features.shape[1] - features.shape[1] % (2 * _LANES)
    first, second = _dots(table, one, two, features, row, next_one, next_two, next_row, n)
    for f in range(n, features.shape[1]):
        first += table[one, f] * features[row, f]
        second += table[two, f] * features[row, f]
    return first, second


@kernel(fastmath=FAST, inline="always")
def adagrad(table, acc, c, x, row, coefficient, rate, next_c, features, next_row):
    """G = coefficient · x[row]; A += G²; w −= rate · G / √A, for the row [w, A] of a class.

    With one accumulator per row, acc[c], A += mean of G² instead, and the row is [w].
    """
    width = x.shape[1]
    if acc.size:
        prefetch_item(acc, next_c)
        total = acc[c] + _squares(x, row, coefficient) / np.float32(width)
        acc[c] = total
        rate_now = rate / np.sqrt(total)
        _descend(table, c, x, row, next_c, features, next_row, coefficient, rate_now)
    else:
        n = width - width % _LANES
        _adagrad(table, c, x, row, next_c, features, next_row, n, width, coefficient, rate)
        for f in range(n, width):
            step = coefficient * x[row, f]
            table[c, width + f] += step * step
            table[c, f] -= rate * step / np.sqrt(table[c, width + f])


@intrinsic
def _dots(typing_context, table, one, two, features, row, next_one, next_two, next_row, n):
    def generate(context, builder, signature, arguments):
        array = _arrays(context, builder, signature, arguments)
        pairs = [(0, 1), (0, 2), (3, 4), (0, 5), (0, 6), (3, 7)]
        rows = [_row(builder, array[a], arguments[i]) for a, i in pairs]
        sums = [cgutils.alloca_once(builder, _LINE) for _ in range(4)]
        for place in sums:
            builder.store(_ZERO, place)
        # Two lines at once with separate sums: an addition need not wait for the previous one.
        with _every(builder, arguments[8], 2 * _LANES) as (first, _):
            for half in range(2):
                at = builder.add(first, ir.Constant(_INT64, half * _LANES))
                for row in rows[3:]:
                    emit_prefetch(builder, _address(builder, row, at, _BYTE))
                x_line = _load(builder, rows[2], at)
                for row, place in zip(rows[:2], sums[2 * half :], strict=False):
                    product = builder.fmul(_load(builder, row, at), x_line, flags=_FLAGS)
                    builder.store(builder.fadd(builder.load(place), product, flags=_FLAGS), place)
        totals = [
            _total(builder, builder.fadd(builder.load(a), builder.load(b), flags=_FLAGS))
            for a, b in zip(sums[:2], sums[2:], strict=True)
        ]
        return context.make_tuple(builder, signature.return_type, totals)

    _check(table, features)
    index, result = types.intp, types.UniTuple(types.float32, 2)
    kinds = (table, index, index, features, *[index] * 5)
    return result(*kinds), generate


@intrinsic
def _adagrad(
    typing_context, table, c, x, row, next_c, features, next_row, n, width, coefficient, rate
):  # fmt: skip
    def generate(context, builder, signature, arguments):
        array = _arrays(context, builder, signature, arguments)
        pairs = [(0, 1), (2, 3), (0, 4), (5, 6)]
        w, x, next_w, next_x = (_row(builder, array[a], arguments[i]) for a, i in pairs)
        acc, next_acc = (builder.gep(row, [arguments[8]]) for row in (w, next_w))
        coefficient, rate = (_spread(builder, value) for value in arguments[9:])
        root = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_LINE, [_LINE]), f"llvm.sqrt.v{_LANES}f32"
        )
        with _every(builder, arguments[7], _LANES) as (at, _):
            for row in (next_w, next_acc, next_x):
                emit_prefetch(builder, _address(builder, row, at, _BYTE))
            step = builder.fmul(coefficient, _load(builder, x, at), flags=_FLAGS)
            square = builder.fmul(step, step, flags=_FLAGS)
            total = builder.fadd(_load(builder, acc, at), square, flags=_FLAGS)
            _store(builder, total, acc, at)
            change = builder.fdiv(
                builder.fmul(rate, step, flags=_FLAGS),
                builder.call(root, [total], fastmath=_ESTIMATE),
                flags=_ESTIMATE,
            )
            old = _load(builder, w, at)
            _store(builder, builder.fsub(old, change, flags=_FLAGS), w, at)
        return context.get_dummy_value()

    _check(table, x, features)
    index, number = types.intp, types.float32
    kinds = (table, index, x, index, index, features, *[index] * 3, number, number)
    return types.void(*kinds), generate


@intrinsic
def _squares(typing_context, x, row, coefficient):
    """Σ (coefficient · x[row])²."""

    def generate(context, builder, signature, arguments):
        array = _arrays(context, builder, signature, arguments)[0]
        row, kinds = _row(builder, array, arguments[1]), (_FOUR_LINES, _LINE, _FLOAT)
        places = {kind: cgutils.alloca_once(builder, kind) for kind in kinds}
        for kind, place in places.items():
            builder.store(ir.Constant(kind, None), place)

        def add(kind: Any, at: Any) -> None:
            step = builder.fmul(_spread(builder, arguments[2], kind), _load(builder, row, at, kind))
            square = builder.fmul(step, step, flags=_EXACT)
            total = builder.fadd(builder.load(places[kind]), square, flags=_EXACT)
            builder.store(total, places[kind])

        _all(builder, array, kinds, add)
        sums = [builder.load(place) for place in places.values()]
        four, one = (_total(builder, line) for line in sums[:2])
        return builder.fadd(builder.fadd(four, one), sums[2])

    _check(x)
    return types.float32(x, types.intp, types.float32), generate


@intrinsic
def _descend(typing_context, table, c, x, row, next_c, features, next_row, coefficient, rate):
    """w −= rate · (coefficient · x[row])."""

    def generate(context, builder, signature, arguments):
        array = _arrays(context, builder, signature, arguments)
        pairs = [(0, 1), (2, 3), (0, 4), (5, 6)]
        w, x, next_w, next_x = (_row(builder, array[a], arguments[i]) for a, i in pairs)

        def update(kind: Any, at: Any) -> None:
            if kind is _LINE:
                for row in (next_w, next_x):
                    emit_prefetch(builder, _address(builder, row, at, _BYTE))
            coefficient, rate = (_spread(builder, value, kind) for value in arguments[7:])
            # Rounded before it is multiplied by the rate, as where it comes from several pairs.
            step = builder.fmul(coefficient, _load(builder, x, at, kind))
            change = builder.fmul(rate, step, flags=_EXACT)
            old = _load(builder, w, at, kind)
            _store(builder, builder.fsub(old, change, flags=_EXACT), w, at)

        _all(builder, array[2], (_LINE, _FLOAT), update)
        return context.get_dummy_value()

    _check(table, x, features)
    index, number = types.intp, types.float32
    return types.void(table, index, x, index, index, features, index, number, number), generate


def _check(*arrays: Any) -> None:
    for array in arrays:
        if array.dtype != types.float32 or array.ndim != 2 or array.layout != "C":
            raise TypeError(f"arrays must be contiguous rows of float32, got {array}")


def _arrays(context: Any, builder: Any, signature: Any, arguments: Any) -> dict[int, Any]:
    """The arguments that are arrays, by position."""
    return {
        place: context.make_array(kind)(context, builder, value)
        for place, (kind, value) in enumerate(zip(signature.args, arguments, strict=True))
        if isinstance(kind, types.Array)
    }


def _row(builder: Any, array: Any, number: Any) -> Any:
    """The address of a row."""
    width = cgutils.unpack_tuple(builder, array.shape)[1]
    return builder.gep(array.data, [builder.mul(number, width)])


def _all(builder: Any, array: Any, kinds: Any, body: Callable[[Any, Any], None]) -> None:
    """Call ``body`` for a row of the array in pieces: as many as fit of the first kind, then of the
    next, at last single floats."""
    width = cgutils.unpack_tuple(builder, array.shape)[1]
    start = ir.Constant(_INT64, 0)
    for kind in kinds:
        size = getattr(kind, "count", 1)
        stop = builder.and_(width, ir.Constant(_INT64, -size))
        step = ir.Constant(_INT64, size)
        with cgutils.for_range_slice(builder, start, stop, step, _INT64) as (at, _):
            body(kind, at)
        start = stop


def _every(builder: Any, stop: Any, step: int) -> Any:
    zero, size = ir.Constant(_INT64, 0), ir.Constant(_INT64, step)
    return cgutils.for_range_slice(builder, zero, stop, size, _INT64)


def _address(builder: Any, row: Any, at: Any, kind: Any) -> Any:
    return builder.bitcast(builder.gep(row, [at]), kind.as_pointer())


def _load(builder: Any, row: Any, at: Any, kind: Any = _LINE) -> Any:
    return builder.load(_address(builder, row, at, kind), align=4)


def _store(builder: Any, line: Any, row: Any, at: Any) -> None:
    builder.store(line, _address(builder, row, at, line.type), align=4)


def _spread(builder: Any, value: Any, kind: Any = _LINE) -> Any:
    """A line filled with one value."""
    if kind is _FLOAT:
        return value
    empty = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(_INT32, 0))
    everywhere = ir.Constant(ir.VectorType(_INT32, kind.count), [0] * kind.count)
    return builder.shuffle_vector(first, empty, everywhere)


def _total(builder: Any, line: Any) -> Any:
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(_FLOAT, [_FLOAT, line.type]),
        f"llvm.vector.reduce.fadd.v{line.type.count}f32",
    )
    return builder.call(function, [ir.Constant(_FLOAT, 0.0), line], fastmath=_FLAGS)
