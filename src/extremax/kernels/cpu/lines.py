"""Inner loops over rows of floats, one line of sixteen at a time, that prefetch the next rows.

Rows of classes are scattered over hundreds of megabytes, and the processor cannot predict the next
one. While one line of a row is processed, the same line of the next row is requested, so memory is
always busy. A compiler does not interleave the two by itself (a prefetch stops its vectorizer);
therefore the lines are written in LLVM's vector type, which it maps to the machine's vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.prefetch import emit_prefetch

_LANES = 16
_FLOAT, _INT32, _INT64, _BYTE = ir.FloatType(), ir.IntType(32), ir.IntType(64), ir.IntType(8)
_LINE = ir.VectorType(_FLOAT, _LANES)
_ZERO = ir.Constant(_LINE, [0.0] * _LANES)
#: Sums may be reordered; NaN and infinity keep their meaning.
FAST = {"reassoc", "contract", "nsz"}
_FLAGS = tuple(sorted(FAST))
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
def adagrad(table, c, x, row, coefficient, rate, next_c, features, next_row):
    """G = coefficient · x[row]; A += G²; w −= rate · G / √A, for the row [w, A] of a class."""
    width = x.shape[1]
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


def _every(builder: Any, stop: Any, step: int) -> Any:
    zero, size = ir.Constant(_INT64, 0), ir.Constant(_INT64, step)
    return cgutils.for_range_slice(builder, zero, stop, size, _INT64)


def _address(builder: Any, row: Any, at: Any, kind: Any) -> Any:
    return builder.bitcast(builder.gep(row, [at]), kind.as_pointer())


def _load(builder: Any, row: Any, at: Any) -> Any:
    return builder.load(_address(builder, row, at, _LINE), align=4)


def _store(builder: Any, line: Any, row: Any, at: Any) -> None:
    builder.store(line, _address(builder, row, at, _LINE), align=4)


def _spread(builder: Any, value: Any) -> Any:
    """A line filled with one value."""
    empty = ir.Constant(_LINE, ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(_INT32, 0))
    everywhere = ir.Constant(ir.VectorType(_INT32, _LANES), [0] * _LANES)
    return builder.shuffle_vector(first, empty, everywhere)


def _total(builder: Any, line: Any) -> Any:
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(_FLOAT, [_FLOAT, _LINE]),
        f"llvm.vector.reduce.fadd.v{_LANES}f32",
    )
    return builder.call(function, [ir.Constant(_FLOAT, 0.0), line], fastmath=_FLAGS)
