"""Return freed memory to the system (no-op on C libraries other than glibc), and say if there is
none left."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 1 << 19


def release_large_arrays() -> None:
    """Make arrays of 512 KiB or more go back to the system as soon as they are freed.

    By default glibc comes to keep freed arrays of up to 32 MB for reuse, up to 64 MB per thread.
    The setting lasts for the rest of the process.
    """
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def trim_heap() -> None:
    """Return the memory of all arrays freed so far, small ones too, to the system."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def memory_errors() -> Iterator[None]:
    """Raise a MemoryError, as numpy does, where torch raises a RuntimeError because it cannot
    allocate memory."""
    try:
        yield
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise MemoryError(str(error)) from error
