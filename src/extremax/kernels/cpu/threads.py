"""Threads for kernels: chunks of work taken dynamically by plain threads.

Kernels are numba functions ``kernel(start, stop, *args)`` that release the GIL. The calling
thread works too and waits only for helpers that have begun, so a region finishes even when no other
thread gets a core: with chunks handed out one at a time, a core taken by another process costs its
share and no more. (OpenMP's static shares, with a spinning barrier at the end, ran twelve times
slower in that case.)

A kernel writes only what belongs to its own items, so results do not depend on the number of
threads or on who takes which chunk.

A forked process has none of its parent's threads. Kernels start new ones there; torch works alone,
because the OpenMP of a forked process waits forever for threads that only its parent has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from itertools import count
from numbers import Integral
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from extremax.errors import ArgumentError

_threads: ContextVar[int | None] = ContextVar("extremax_threads", default=None)
_pools: dict[int, SimpleQueue[_Region]] = {}
# The process that loaded this module, of which all others that have it are forks.
_first_process = os.getpid()
# More threads than this per core gain nothing.
_MOST_PER_CORE = 4
# Threads that a thread wakes before it begins. To wake fifteen takes longer than some regions.
_WAKES = 2

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)


def available() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def active() -> int:
    """Threads that kernels use here."""
    return _threads.get() or available()


def resolve(n_jobs: int | None) -> int:
    """scikit-learn's ``n_jobs``, except that None means every core: -1 all, -2 all but one.

    Far more threads than cores are cut to a few per core.
    """
    if n_jobs is None:
        return available()
    if not isinstance(n_jobs, Integral) or isinstance(n_jobs, bool) or n_jobs == 0:
        raise ArgumentError(
            f"n_jobs must be an integer other than 0, or None for every core, got {n_jobs!r}"
        )
    if n_jobs < 0:
        return max(1, available() + 1 + int(n_jobs))
    return min(int(n_jobs), _MOST_PER_CORE * available())


@contextmanager
def limit(n_jobs: int | None) -> Iterator[None]:
    """Within the block, kernels and torch use ``n_jobs`` threads."""
    n = resolve(n_jobs)
    token = _threads.set(n)
    try:
        with _torch_threads(n):
            yield
    finally:
        _threads.reset(token)


def one_torch_thread() -> AbstractContextManager[None]:
    """Within the block torch works alone; kernels have their threads still.

    For many small operations: torch's threads wait for each other by spinning, and take the cores
    from ours. On a busy machine a softmax of 300 numbers took 16 ms.
    """
    return _torch_threads(1)


@contextmanager
def _torch_threads(n: int) -> Iterator[None]:
    import torch

    forked = os.getpid() != _first_process
    before, inside = (1, 1) if forked else (torch.get_num_threads(), n)
    torch.set_num_threads(inside)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def parallel(kernel: Callable[..., None], n: int, chunk: int, *args: Any) -> None:
    """Run ``kernel(start, stop, *args)`` over ``range(n)`` in chunks."""
    chunk = max(chunk, 1)
    n_chunks = -(-n // chunk)
    n_threads = min(active(), n_chunks)
    if n_threads <= 1:
        if n:
            kernel(0, n, *args)
        return
    region = _Region(kernel, n, chunk, args, n_threads - 1, _pool(n_threads - 1))
    try:
        region.begin()
    finally:
        # Whatever happened, nobody writes to the arrays after this call.
        region.end()
    if region.errors:
        raise region.errors[0]


def each(work: Callable[[int], None], n: int, most: int | None = None) -> None:
    """Call ``work(i)`` for i in range(n) on several threads, each of which works alone: kernels
    and torch have one thread inside.

    For blocks of rows that go through many small operations: threads meet once, and not after every
    operation. A single block has the kernels' threads.

    most:  threads at most, where blocks take much memory.
    """
    import torch

    def alone(start: int, stop: int) -> None:
        torch.set_num_threads(1)
        token = _threads.set(1)
        try:
            for i in range(start, stop):
                work(i)
        finally:
            _threads.reset(token)

    with one_torch_thread():
        if n == 1:
            work(0)
            return
        token = _threads.set(min(active(), most or n))
        try:
            parallel(alone, n, 1)
        finally:
            _threads.reset(token)


class _Region:
    """Chunks of work, and the threads that take them."""

    def __init__(
        self, kernel: Callable[..., None], n: int, chunk: int, args: tuple[Any, ...],
        n_helpers: int, pool: SimpleQueue[_Region],
    ) -> None:  # fmt: skip
        self._work: tuple[Any, ...] = kernel, n, chunk, args
        self._ticket, self._call = count(), count()
        self._n_helpers, self._pool = n_helpers, pool
        self._lock, self._left = Lock(), Lock()
        self._left.acquire()
        self._n_at_work, self._ended = 0, False
        self.errors: list[BaseException] = []

    def begin(self) -> None:
        """Wake others and work until no chunk is left."""
        for _ in range(_WAKES):
            if next(self._call) < self._n_helpers:
                self._pool.put(self)
        kernel, n, chunk, args = self._work
        while (start := next(self._ticket) * chunk) < n:
            kernel(start, min(start + chunk, n), *args)

    def help(self) -> None:
        """What a helper does; nothing after the end."""
        with self._lock:
            if self._ended:
                return
            self._n_at_work += 1
        try:
            self.begin()
        except BaseException as error:
            self.errors.append(error)
        finally:
            with self._lock:
                self._n_at_work -= 1
                if self._ended and not self._n_at_work:
                    self._left.release()

    def end(self) -> None:
        """Wait for helpers that are at work."""
        with self._lock:
            self._ended = True
            waits = self._n_at_work > 0
        if waits:
            self._left.acquire()
        # Helpers that come late must not keep the arrays.
        self._work = ()


def _pool(n: int) -> SimpleQueue[_Region]:
    """The queue that n helpers wait at."""
    if n not in _pools:
        pool: SimpleQueue[_Region] = SimpleQueue()
        _pools[n] = pool
        for number in range(n):
            Thread(target=_serve, args=(pool,), name=f"extremax_{number}", daemon=True).start()
    return _pools[n]


def _serve(pool: SimpleQueue[_Region]) -> None:
    while True:
        pool.get().help()
