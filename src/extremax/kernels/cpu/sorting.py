"""Sorting and searching, in numba: small functions that compile in a fraction of the time that
numba's own take, which serve every kind of array."""

from __future__ import annotations

import numpy as np

from extremax.kernels.cpu.jit import kernel


@kernel
def rising(keys, n):
    """Numbers 0..n−1 in the order of their keys, float64; equal ones keep theirs (merge sort)."""
    order, other = np.empty(n, np.int64), np.empty(n, np.int64)
    for i in range(n):
        order[i] = i
    width = 1
    while width < n:
        for first in range(0, n, 2 * width):
            middle, end = min(first + width, n), min(first + 2 * width, n)
            left, right = first, middle
            for place in range(first, end):
                takes_left = right == end
                if left < middle and right < end:
                    takes_left = keys[order[left]] <= keys[order[right]]
                if takes_left:
                    other[place] = order[left]
                    left += 1
                else:
                    other[place] = order[right]
                    right += 1
        order, other = other, order
        width *= 2
    return order


@kernel
def last_up_to(values, begin, end, wanted):
    """The place of the last of the rising values[begin:end] that is at most ``wanted``, counted
    from ``begin``; the first one is."""
    low, high = begin, end
    while low + 1 < high:
        middle = (low + high) // 2
        if values[middle] <= wanted:
            low = middle
        else:
            high = middle
    return low - begin
