"""Threads for kernels: chunks of work taken dynamically by plain threads.

Kernels are numba functions ``kernel(start, stop, *args)`` that release the GIL. The calling
thread works too, so a region finishes even when no other thread gets a core: with chunks handed
out one at a time, a core taken by another process costs its share and no more. (OpenMP's static
shares, with a spinning barrier at the end, ran twelve times slower in that case.)

A kernel writes only what belongs to its own items, so results do not depend on the number of
threads or on who takes which chunk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any

_threads: ContextVar[int | None] = ContextVar("extremax_threads", default=None)
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def available() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def active() -> int:
    """Threads that kernels use here."""
    return _threads.get() or available()


def resolve(n_jobs: int | None) -> int:
    """scikit-learn's ``n_jobs``, except that None means every core: -1 all, -2 all but one."""
    if n_jobs is None:
        return available()
    if n_jobs == 0:
        raise ValueError("n_jobs must not be 0; use None for every core")
    return n_jobs if n_jobs > 0 else max(1, available() + 1 + n_jobs)


@contextmanager
def limit(n_jobs: int | None) -> Iterator[None]:
    """Within the block, kernels and torch use ``n_jobs`` threads."""
    import torch

    n = resolve(n_jobs)
    before = torch.get_num_threads()
    token = _threads.set(n)
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _threads.reset(token)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Within the block torch works alone; kernels have their threads still.

    For many small operations: torch's threads wait for each other by spinning, and take the cores
    from ours. On a busy machine a softmax of 300 numbers took 16 ms.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
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
    ticket = count()

    def work() -> None:
        while (i := next(ticket)) < n_chunks:
            kernel(i * chunk, min((i + 1) * chunk, n), *args)

    helpers = [_pool(n_threads - 1).submit(work) for _ in range(n_threads - 1)]
    try:
        work()
    finally:
        # Whatever happened, nobody writes to the arrays after this call.
        wait(helpers)
    for helper in helpers:
        helper.result()


def _pool(n: int) -> ThreadPoolExecutor:
    # Threads do not survive a fork, so a pool belongs to the process that made it.
    key = (os.getpid(), n)
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(n, thread_name_prefix="extremax")
    return _pools[key]
