"""What the C library does with freed memory."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_MMAP_THRESHOLD = -3
_LARGE = 1 << 20


def return_large_arrays() -> None:
    """From now on, freed arrays of 1 MB and more go back to the system at once.

    glibc would come to keep those of up to 32 MB, and 64 MB a thread, in case they are wanted
    again. Other C libraries are left as they are.
    """
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)
