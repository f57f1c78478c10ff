"""Sizes of launches. Triton's own functions for them take as long as a launch."""

from __future__ import annotations


def blocks(n: int, size: int) -> int:
    """The number of blocks of a size that hold n."""
    return -(-n // size)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n >= 1."""
    return 1 << (n - 1).bit_length()


def warps(block: int, most: int = 16) -> int:
    """Warps of a program for a block of numbers: eight numbers per thread.

    With four, a step of 512 features took 1.1 to 1.4 times as long.
    """
    return min(most, max(1, block // 256))
