"""Prefetch instructions for numba.

Rows of classes are scattered over hundreds of megabytes, and the processor cannot predict the next
one. Requesting its first line while the current row is processed hides the wait for the page and
lets the hardware stream the rest. Results do not change, only the time at which memory arrives.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def prefetch(typing_context, array, row, column):
    """Start loading the cache line of array[row, column] of a two-dimensional array."""
    return types.void(array, types.intp, types.intp), _generate


@intrinsic
def prefetch_item(typing_context, array, position):
    """Start loading the cache line of array[position] of a one-dimensional array."""
    return types.void(array, types.intp), _generate


def _generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    view = context.make_array(signature.args[0])(context, builder, arguments[0])
    address = builder.ptrtoint(view.data, arguments[1].type)
    for index, stride in zip(
        arguments[1:], cgutils.unpack_tuple(builder, view.strides), strict=True
    ):
        address = builder.add(address, builder.mul(index, stride))
    emit_prefetch(builder, builder.inttoptr(address, ir.IntType(8).as_pointer()))
    return context.get_dummy_value()


def emit_prefetch(builder: Any, address: Any) -> None:
    """Emit the instruction, for other intrinsics: a read of data, to be kept in all caches."""
    flag = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), flag, flag, flag])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(function, [address, *(ir.Constant(flag, value) for value in (0, 3, 1))])
