"""numba's compiler, whose work is counted (`extremax.kernels.compilation`).

Compiled kernels are stored in ``__pycache__`` beside their source, or in the user's cache folder
where that cannot be written, or in ``NUMBA_CACHE_DIR``. A kernel is typed, lowered and optimized
for a tenth of a second to a second, most of it in Python and in proportion to what is written in
it. So kernels are plain loops: every expression on whole arrays, slice of an array and function of
numpy is compiled as a function of its own. A small function that few kernels call is inlined
(``inline="always"``): alone it takes a twentieth of a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core import event

from extremax.kernels import compilation


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function that threads run side by side. It is stored for later processes, and
    division by zero follows numpy: code that raises costs time to compile and to run. Nothing calls
    it from C, so no wrapper for that is compiled either.

    options:  further ones of `numba.njit`.
    """
    settings: dict[str, Any] = {
        "nogil": True, "cache": True, "error_model": "numpy", "no_cfunc_wrapper": True, **options
    }  # fmt: skip
    made = njit(**settings)
    return made if function is None else made(function)


class _Listener(event.Listener):
    def on_start(self, event: Any) -> None:
        compilation.begin()

    def on_end(self, event: Any) -> None:
        compilation.end()


event.register("numba:compile", _Listener())
