"""What the C library does with freed memory. Of those that are not glibc nothing is asked."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_MMAP_THRESHOLD = -3
_LARGE = 1 << 19


def return_large_arrays() -> None:
    """From now on, freed arrays of half a MB and more go back to the system at once.

    glibc would come to keep those of up to 32 MB, and 64 MB a thread, in case they are wanted
    again.
    """
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)


def return_the_rest() -> None:
    """Smaller arrays as well, as far as they have been freed by now."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
