"""Lock-free counters shared by threads, for kernels that must wait for each other.

A kernel that runs many short steps cannot return to Python between them: handing a millisecond of
work to a thread costs a tenth of that time. A waiting thread yields its core to other processes.
"""

from __future__ import annotations

import os

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from extremax.kernels.cpu.jit import kernel

# Counters that different threads write lie on different cache lines.
STRIDE = 8


@intrinsic
def add_one(typing_context, counters, at):
    """Atomically add 1 to counters[at]; returns the value before."""

    def generate(context, builder, signature, arguments):
        one = ir.Constant(ir.IntType(64), 1)
        return builder.atomic_rmw(
            "add", _address(context, builder, signature, arguments), one, "seq_cst"
        )

    return types.int64(counters, types.intp), generate


@intrinsic
def read(typing_context, counters, at):
    """The current value of counters[at]."""

    def generate(context, builder, signature, arguments):
        place = _address(context, builder, signature, arguments)
        return builder.load_atomic(place, "seq_cst", align=8)

    return types.int64(counters, types.intp), generate


@intrinsic
def give_way(typing_context):
    """Yield the core to another thread, if one is waiting."""

    def generate(context, builder, signature, arguments):
        name = "SwitchToThread" if os.name == "nt" else "sched_yield"
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), generate


def _address(context, builder, signature, arguments):
    view = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(view.data, [arguments[1]])


@kernel(inline="always")
def take(counters, turn, n_chunks):
    """The next chunk of a turn for this thread, −1 if all are taken.

    A turn has two counters: chunks taken, and chunks done.
    """
    chunk = add_one(counters, 2 * turn * STRIDE)
    return chunk if chunk < n_chunks else -1


@kernel(inline="always")
def done(counters, turn):
    """This thread has finished a chunk of a turn."""
    add_one(counters, (2 * turn + 1) * STRIDE)


@kernel(inline="always")
def wait_for_all(counters, turn, n_chunks):
    """Wait until every chunk of a turn is done."""
    while read(counters, (2 * turn + 1) * STRIDE) < n_chunks:
        give_way()
