"""Counters that threads share without a lock, for kernels that must wait for each other.

A kernel that runs many short steps cannot go back to Python between them: handing a millisecond
of work to a thread costs a tenth of it. Waiting yields the core, so that a process that wants it
gets it.
"""

from __future__ import annotations

import os

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def add_one(typing_context, counters, at):
    """counters[at] += 1 at once for all threads; returns what it was before."""

    def generate(context, builder, signature, arguments):
        one = ir.Constant(ir.IntType(64), 1)
        return builder.atomic_rmw(
            "add", _address(context, builder, signature, arguments), one, "seq_cst"
        )

    return types.int64(counters, types.intp), generate


@intrinsic
def read(typing_context, counters, at):
    """counters[at] as it is now."""

    def generate(context, builder, signature, arguments):
        place = _address(context, builder, signature, arguments)
        return builder.load_atomic(place, "seq_cst", align=8)

    return types.int64(counters, types.intp), generate


@intrinsic
def give_way(typing_context):
    """Let another thread have the core, if one wants it."""

    def generate(context, builder, signature, arguments):
        name = "SwitchToThread" if os.name == "nt" else "sched_yield"
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), generate


def _address(context, builder, signature, arguments):
    view = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(view.data, [arguments[1]])
