"""Groups of equal numbers within each of many training steps, in numba: what a step touches more
than once is summed before it is written."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from extremax.kernels.cpu.head import group_by_class
from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.threads import parallel


class StepGroups(NamedTuple):
    """Group g of a step holds the places order[starts[step, g]:starts[step, g + 1]], all of one
    number. Places that are the only one of their number in a step are marked ``alone`` and belong
    to no group."""

    order: np.ndarray
    starts: np.ndarray
    n_groups: np.ndarray
    alone: np.ndarray


def grouped(numbers: np.ndarray, bounds: np.ndarray, n_numbers: int) -> StepGroups:
    """Groups of each step.

    numbers:  int64 below ``n_numbers``; those of step s are at bounds[s]..bounds[s + 1] − 1.
    """
    n_steps = len(bounds) - 1
    largest = int(np.diff(bounds).max(initial=0))
    groups = StepGroups(
        np.empty(len(numbers), np.int64),
        np.empty((n_steps, largest + 1), np.int64),
        np.empty(n_steps, np.int64),
        np.zeros(len(numbers), np.bool_),
    )
    parallel(_group_steps, n_steps, 1, numbers, bounds, n_numbers, groups)
    return groups


@kernel
def _group_steps(start, stop, numbers, bounds, n_numbers, groups):
    order, starts, alone = groups.order, groups.starts, groups.alone
    for step in range(start, stop):
        low, high = bounds[step], bounds[step + 1]
        ends = starts[step]
        n = group_by_class(numbers[low:high], n_numbers, order[low:high], ends[: high - low + 1])
        kept, n_kept = 0, low
        for group in range(n):
            first, last = ends[group], ends[group + 1]
            if last == first + 1:
                alone[low + order[low + first]] = True
                continue
            ends[kept] = n_kept
            for p in range(first, last):
                order[n_kept] = low + order[low + p]
                n_kept += 1
            kept += 1
        ends[kept] = n_kept
        groups.n_groups[step] = kept
