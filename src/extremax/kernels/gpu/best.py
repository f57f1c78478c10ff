"""Running lists of the highest values of each row, in Triton.

A list holds 64-bit keys, the value first and then its number, the lowest before others. No two keys
are equal, so ties have one order, and NaN, which is above all numbers, is just another key.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# The most values of a list: a program holds it in registers.
MOST_BEST = 1024
# Values that a program looks at together.
_BLOCK = 1024
# Below the key of every value.
_LOWEST = tl.constexpr(-(1 << 63))


def keep_best(values: torch.Tensor, n_values: int, first: int, keys: torch.Tensor) -> None:
    """Update the keys of the best values of each row; the values are numbered from ``first``."""
    _keep[(len(values),)](
        values, n_values, values.stride(0), first, keys, SIZE=keys.shape[1], BLOCK=_BLOCK,
        num_warps=4,
    )  # fmt: skip


def no_keys(n: int, k: int, device: torch.device) -> torch.Tensor:
    """Lists of at least k keys below those of any score, all distinct."""
    empty = torch.arange(triton.next_power_of_2(max(1, k)), device=device) + _LOWEST.value
    return empty.repeat(n, 1)


def sorted_keys(keys: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers and values of the k best keys of each row, best first: `_key` undone."""
    keys = keys.sort(1, descending=True).values[:, :k]
    bits = (keys >> 32).int()
    bits = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return 0x7FFFFFFF - (keys & 0x7FFFFFFF), bits.view(torch.float32)


@triton.jit
def _key(value, number):
    """A 64-bit integer that is higher for higher values, NaN above all, and then for lower numbers.

    The bits of positive floats have the order of integers, those of negative ones the reverse.
    """
    value = tl.where(value == 0.0, 0.0, value)  # −0 equals 0.
    bits = value.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    bits = tl.where(value != value, 0x7FC00000, bits)
    return (bits.to(tl.int64) << 32) | (0x7FFFFFFF - number).to(tl.int64)


@triton.jit
def _keep(
    values, n_values, stride, first, keys, SIZE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Replace the lowest key of a row's list by a higher one while there is any. After a few blocks
    there rarely is."""
    row = tl.program_id(0).to(tl.int64)
    slots = keys + row * SIZE + tl.arange(0, SIZE)
    best = tl.load(slots)
    lowest = tl.min(best, 0)
    for start in range(0, n_values, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < n_values
        value = tl.load(values + row * stride + at, mask=inside, other=0.0)
        key = tl.where(inside, _key(value, first + at), _LOWEST)
        highest = tl.max(key, 0)
        while highest > lowest:
            best = tl.where(best == lowest, highest, best)
            key = tl.where(key == highest, _LOWEST, key)
            lowest = tl.min(best, 0)
            highest = tl.max(key, 0)
    tl.store(slots, best)
