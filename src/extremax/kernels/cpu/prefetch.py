"""Ask for memory before it is needed.

Rows of classes lie anywhere in hundreds of megabytes, and the processor cannot guess the next
one. Asking for its first line while the current row is worked on hides the wait for the page
and lets the hardware stream the rest. It changes no result, only when memory arrives.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def prefetch(typing_context, array, row, column):
    """Start loading the cache line of array[row, column] of a two-dimensional array."""

    def generate(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        strides = cgutils.unpack_tuple(builder, view.strides)
        offset = builder.add(
            builder.mul(arguments[1], strides[0]), builder.mul(arguments[2], strides[1])
        )
        byte = ir.IntType(8).as_pointer()
        address = builder.inttoptr(
            builder.add(builder.ptrtoint(view.data, offset.type), offset), byte
        )
        flag = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # For reading, to be kept in all caches, data.
        builder.call(function, [address, *(ir.Constant(flag, v) for v in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate
