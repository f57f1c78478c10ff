"""Ask for memory before it is needed.

Rows of classes lie anywhere in hundreds of megabytes, and the processor cannot guess the next
one. Asking for its first line while the current row is worked on hides the wait for the page
and lets the hardware stream the rest. It changes no result, only when memory arrives.
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
def prefetch_item(typing_context, array, place):
    """Start loading the cache line of array[place] of a one-dimensional array."""
    return types.void(array, types.intp), _generate


def _generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    view = context.make_array(signature.args[0])(context, builder, arguments[0])
    address = builder.ptrtoint(view.data, arguments[1].type)
    for index, stride in zip(
        arguments[1:], cgutils.unpack_tuple(builder, view.strides), strict=True
    ):
        address = builder.add(address, builder.mul(index, stride))
    ask(builder, builder.inttoptr(address, ir.IntType(8).as_pointer()))
    return context.get_dummy_value()


def ask(builder: Any, address: Any) -> None:
    """The instruction, for other intrinsics: for reading, to be kept in all caches, data."""
    flag = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), flag, flag, flag])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(function, [address, *(ir.Constant(flag, value) for value in (0, 3, 1))])
