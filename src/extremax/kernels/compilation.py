"""When kernels are compiled, and how long that takes.

numba compiles a kernel when it is first called and stores it for later processes
(`extremax.kernels.cpu.jit`). Seconds of compilation are no seconds of training, and whoever waits
for them is told. Python's garbage collector rests meanwhile: numba makes objects by the hundred
thousand that live on, and looking through them again and again was a fifth of the time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MESSAGE = "compiling kernels (once per machine)"

_tellers: list[Callable[[str], None]] = []
# Seconds of what has been compiled; when the compilation began that is under way, and how many
# functions it is in. numba compiles one function at a time, and others that it calls within it.
_done, _began, _depth = 0.0, 0.0, 0
# Whether garbage was collected before, and is to be again.
_collects = True


def seconds() -> float:
    """Seconds, by the clock, for which this process has compiled kernels so far."""
    return _done + (time.perf_counter() - _began if _depth else 0.0)


def begin() -> None:
    """A function begins to be compiled."""
    global _began, _depth, _collects
    if not _depth:
        _began = time.perf_counter()
        _collects = gc.isenabled()
        gc.disable()
        while _tellers:
            _tellers.pop()(MESSAGE)
    _depth += 1


def end() -> None:
    """It is compiled."""
    global _done, _depth
    _depth -= 1
    if not _depth:
        _done += time.perf_counter() - _began
        if _collects:
            gc.enable()


@contextmanager
def announced(tell: Callable[[str], None]) -> Iterator[None]:
    """Within the block, tell once if anything is compiled."""
    _tellers.append(tell)
    try:
        yield
    finally:
        if tell in _tellers:
            _tellers.remove(tell)
