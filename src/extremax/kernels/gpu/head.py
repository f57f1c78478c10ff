"""Scores of (example, class) pairs, and one Adagrad step of every touched class, in Triton.

A step is that of `extremax.kernels.cpu.head`: all scores first, then every touched class is
written once. Pairs are sorted by class; the program of the first pair of a class sums the pairs of
the class in the order of the batch and writes its row. There are no atomic additions, so a seed
gives the same bits. The pairs of a frequent class are summed by several programs, `_SEGMENT` pairs
each, whose sums a second kernel adds in order: otherwise the most frequent class of a batch would
keep one program busy while all others have finished.

Per example with one negative, K features and an accumulator per weight, a step moves 13 rows of K
floats: x, w₊ and w₋ to score, x twice and w and A of both classes, in and out, to update.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from extremax.errors import ArgumentError
from extremax.kernels.gpu.sizes import blocks, power_of_two, warps

# The most pairs of a class that one program sums.
_SEGMENT = 32
# The most features: a program holds a whole row in registers.
_WIDEST = 8192


class Vectors(NamedTuple):
    """A vector and a bias per class, with the accumulators of Adagrad.

    weight:         (C, K) in float32 or bfloat16; the latter are rounded up or down by chance, in
                    proportion, so that small steps are not lost.
    acc:            (C, K) in float32, or (C,): one accumulator per class, of the mean square.
    bias, bias_acc: (C,) in float32.
    """

    weight: torch.Tensor
    acc: torch.Tensor
    bias: torch.Tensor
    bias_acc: torch.Tensor


class Inputs(NamedTuple):
    """What is scored: scale · features[rows[i]] is the input of example i; without ``rows``, row i
    is that of example i."""

    features: torch.Tensor
    rows: torch.Tensor | None
    scale: float


class Groups(NamedTuple):
    """Pairs by class and, within a class, in the order of the batch: the class of each place, and
    the pair there."""

    classes: torch.Tensor
    order: torch.Tensor


def score_pairs(
    weight: torch.Tensor, bias: torch.Tensor | None, inputs: Inputs, classes: torch.Tensor
) -> torch.Tensor:
    """scale · w·features[rows[i]] + bias of classes[i, j], (n, j) in float32; 0 of classes < 0."""
    n, n_columns = classes.shape
    out = torch.empty((n, n_columns), device=classes.device)
    if out.numel():
        _score_pairs[(n,)](
            weight, weight if bias is None else bias, inputs.features, _rows(inputs), classes, out,
            inputs.scale, n_columns, HAS_BIAS=bias is not None, HAS_ROWS=inputs.rows is not None,
            **_widths(inputs.features),
        )  # fmt: skip
    return out


def sum_rows(weight: torch.Tensor, classes: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Σ_j slopes[i, j] · w of classes[i, j], (n, K) in float32: the gradient on the input of each
    example, from that on its scores (n, j); classes < 0 add nothing."""
    n, n_columns = classes.shape
    out = torch.empty((n, weight.shape[1]), device=classes.device)
    if out.numel():
        _sum_rows[(n,)](weight, classes, slopes, out, n_columns, **_widths(weight))
    return out


def logistic_pairs(
    vectors: Vectors,
    inputs: Inputs,
    classes: torch.Tensor,
    log_q: torch.Tensor,
    weights: torch.Tensor | None,
    form: tuple[float, ...],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of each example (n,), and its slope on each score (n, 1 + m), for an objective of the
    logistic ``form`` (a, b, share, p, λ), see `extremax.kernels.cpu.steps`.

    weights:  of examples, (n,).
    """
    n, n_columns = classes.shape
    loss = torch.empty(n, device=classes.device)
    gradient = torch.empty((n, n_columns), device=classes.device)
    if n:
        _logistic_pairs[(n,)](
            vectors.weight, vectors.bias, inputs.features, inputs.rows, classes, log_q,
            loss if weights is None else weights, loss, gradient, inputs.scale, *form, n_columns,
            HAS_WEIGHTS=weights is not None, **_widths(inputs.features),
        )  # fmt: skip
    return loss, gradient


def group_by_class(classes: torch.Tensor) -> Groups:
    """Sort pairs by class; a stable sort keeps those of a class in the order of the batch."""
    return Groups(*torch.sort(classes.reshape(-1).int(), stable=True))


def update_rows(
    groups: Groups,
    vectors: Vectors,
    inputs: Inputs,
    gradient: torch.Tensor,
    learning_rate: float | torch.Tensor,
    seed: int = 0,
) -> None:
    """Adagrad on each touched class: A += G², θ −= lr G / √A, G = Σ of its pairs' gradients.

    gradient:  ∂loss/∂score of each pair, (n, j), with examples as in ``inputs``.
    learning_rate:  a number, or a tensor of one on the device, for a graph that is replayed.
    seed:      of the rounding of weights in bfloat16; another one in every step.
    """
    _by_class(groups, groups.classes, vectors, inputs, gradient, learning_rate, seed)


def update_summed(
    ids: torch.Tensor | None,
    vectors: Vectors,
    sums: torch.Tensor,
    bias_sums: torch.Tensor,
    learning_rate: float | torch.Tensor,
    seed: int = 0,
) -> None:
    """As `update_rows` for the classes ``ids`` (r,), given the gradients of their vectors (r, K)
    and biases (r,) in float32. Ids are distinct, except for those below 0, which are left out;
    without ids, all classes in their order."""
    if len(sums):
        _update_summed[(len(sums),)](
            sums if ids is None else ids, *vectors, sums, bias_sums, learning_rate, seed,
            HAS_IDS=ids is not None, LOADS_RATE=torch.is_tensor(learning_rate),
            ONE_PER_ROW=vectors.acc.ndim == 1,
            ROUNDS=vectors.weight.dtype == torch.bfloat16, **_widths(sums),
        )  # fmt: skip


def sum_pairs(
    groups: Groups, inputs: Inputs, gradient: torch.Tensor, n_classes: int, by_class: bool = False
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """Classes and the gradients of the vector and the bias of each, (r,), (r, K) and (r,): Σ of the
    gradients of the pairs of the class. Pairs of classes < 0 are left out.

    The host does not wait to know how many classes there are. There is a row per pair: a class has
    its sum in one of its rows and zeros in the others, and pairs that are left out have zeros for
    any class. Or, if that is less, there is a row per class, and None in place of the classes.

    by_class:  have a row per class in any case.
    """
    classes, n_pairs = groups.classes, gradient.numel()
    by_class = by_class or n_pairs >= n_classes
    size = n_classes if by_class else n_pairs
    sums = torch.zeros((size, inputs.features.shape[1]), device=classes.device)
    bias_sums = torch.zeros(size, device=classes.device)
    unused = Vectors(sums, sums, bias_sums, bias_sums)
    if by_class:
        _by_class(groups, classes, unused, inputs, gradient, 0.0, 0, sums=True)
        return None, sums, bias_sums
    places = torch.arange(n_pairs, device=classes.device)
    _by_class(groups, places, unused, inputs, gradient, 0.0, 0, sums=True)
    return torch.where(classes < 0, places, classes), sums, bias_sums


def _by_class(
    groups: Groups,
    numbers: torch.Tensor,
    vectors: Vectors,
    inputs: Inputs,
    gradient: torch.Tensor,
    learning_rate: float | torch.Tensor,
    seed: int,
    sums: bool = False,
) -> None:
    """Sum the gradients of each class, and apply or store the sum.

    numbers:  the row of ``vectors`` that belongs to the class of each sorted pair.
    """
    n_pairs, n_columns = gradient.numel(), gradient.shape[1]
    if not n_pairs:
        return
    n_blocks = blocks(n_pairs, _SEGMENT)
    width = inputs.features.shape[1]
    partial = torch.empty((2 * n_blocks, width + 1), device=gradient.device)
    given = (
        groups.classes, groups.order, numbers, *vectors, inputs.features, _rows(inputs), gradient,
        partial, inputs.scale, learning_rate, seed, n_pairs, n_columns,
    )  # fmt: skip
    flags: dict[str, Any] = {
        "SEGMENT": _SEGMENT,
        "SUMS": sums,
        "LOADS_RATE": torch.is_tensor(learning_rate),
        "ONE_PER_ROW": vectors.acc.ndim == 1,
        "ROUNDS": vectors.weight.dtype == torch.bfloat16,
        "HAS_ROWS": inputs.rows is not None,
        **_widths(inputs.features),
    }
    _update_rows[(n_pairs,)](*given, **flags)
    _update_frequent[(n_blocks,)](*given, **flags)


def _rows(inputs: Inputs) -> torch.Tensor:
    """What kernels get as rows; without rows, they do not read it."""
    return inputs.features if inputs.rows is None else inputs.rows


def _widths(features: torch.Tensor) -> dict[str, Any]:
    width = features.shape[1]
    if width > _WIDEST:
        raise ArgumentError(f"kernels on a GPU take up to {_WIDEST} features, got {width}")
    block = power_of_two(width)
    return {"WIDTH": width, "BLOCK": block, "num_warps": warps(block)}


@triton.jit
def _row(table, number, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """A row of a table as float32, zeros after its end and for numbers < 0."""
    f = tl.arange(0, BLOCK)
    mask = f < tl.where(number >= 0, WIDTH, 0)
    return tl.load(table + number * WIDTH + f, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _number(rows, i, HAS_ROWS: tl.constexpr):
    """The row of example i."""
    number = i
    if HAS_ROWS:
        number = tl.load(rows + i).to(tl.int64)
    return number


@triton.jit
def _score_pairs(
    weight, bias, features, rows, classes, out, scale, n_columns, HAS_BIAS: tl.constexpr,
    HAS_ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    x = scale * _row(features, _number(rows, i, HAS_ROWS), WIDTH, BLOCK)
    for j in range(n_columns):
        c = tl.load(classes + i * n_columns + j).to(tl.int64)
        score = tl.sum(x * _row(weight, c, WIDTH, BLOCK))
        if HAS_BIAS:
            score += tl.load(bias + c, mask=c >= 0, other=0.0).to(tl.float32)
        tl.store(out + i * n_columns + j, score)


@triton.jit
def _sum_rows(
    weight, classes, slopes, out, n_columns, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    for j in range(n_columns):
        c = tl.load(classes + i * n_columns + j).to(tl.int64)
        total += tl.load(slopes + i * n_columns + j) * _row(weight, c, WIDTH, BLOCK)
    f = tl.arange(0, BLOCK)
    tl.store(out + i * WIDTH + f, total, mask=f < WIDTH)


@triton.jit
def _logistic_pairs(
    weight, bias, features, rows, classes, log_q, weights, loss, gradient, scale, a, b, share, p,
    regularization, n_columns, HAS_WEIGHTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    x = scale * _row(features, tl.load(rows + i).to(tl.int64), WIDTH, BLOCK)
    example_weight = 1.0
    if HAS_WEIGHTS:
        example_weight = tl.load(weights + i)
    total = 0.0
    for j in range(n_columns):
        pair = i * n_columns + j
        c = tl.load(classes + pair).to(tl.int64)
        score = tl.sum(x * _row(weight, c, WIDTH, BLOCK)) + tl.load(bias + c)
        q = tl.load(log_q + pair)
        t = score + a * q + b
        small = tl.exp(-tl.abs(t))
        softplus = tl.maximum(t, 0.0) + tl.log(1.0 + small)
        sigmoid = tl.where(t >= 0.0, 1.0, small) / (1.0 + small)
        is_true = j == 0
        softplus = tl.where(is_true, softplus - t, softplus * share)
        slope = tl.where(is_true, sigmoid - 1.0, sigmoid * share)
        logit = score + p * q
        penalty = regularization * tl.where(is_true, 1.0, 1.0 / (n_columns - 1))
        total += softplus + penalty * logit * logit
        tl.store(gradient + pair, example_weight * (slope + 2.0 * penalty * logit))
    tl.store(loss + i, example_weight * total)


@triton.jit
def _class_at(classes, place, n_pairs):
    """The class at a place of the sorted pairs; −1 outside."""
    inside = (place >= 0) & (place < n_pairs)
    return tl.load(classes + place, mask=inside, other=-1)


@triton.jit
def _scrambled(number, seed):
    """32 bits that look random (the finalizer of MurmurHash3); Philox would take as long as the
    rest of the step."""
    h = (number + seed * 0x632BE5AB).to(tl.uint32) * 0x9E3779B1
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def _apply(
    vectors, acc, bias, bias_acc, c, total, bias_total, rate, seed, SUMS: tl.constexpr,
    LOADS_RATE: tl.constexpr, ONE_PER_ROW: tl.constexpr, ROUNDS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Adagrad on row c and its bias, given their gradients; or store these in their place."""
    f = tl.arange(0, BLOCK)
    mask = f < WIDTH
    at = c * WIDTH + f
    if SUMS:
        tl.store(vectors + at, total, mask=mask)
        tl.store(bias + c, bias_total)
        return
    if LOADS_RATE:
        rate = tl.load(rate)
    w = tl.load(vectors + at, mask=mask, other=0.0).to(tl.float32)
    if ONE_PER_ROW:
        a = tl.load(acc + c) + tl.sum(total * total) / WIDTH
        tl.store(acc + c, a)
        w -= rate * total / tl.sqrt(a)
    else:
        accumulators = tl.load(acc + at, mask=mask, other=1.0) + total * total
        tl.store(acc + at, accumulators, mask=mask)
        w -= rate * total / tl.sqrt(accumulators)
    if ROUNDS:
        # A float32 begins with the bits of its bfloat16. A random number below the last of these
        # bits is added, and the rest is cut off.
        bits = w.to(tl.uint32, bitcast=True) + (_scrambled(at, seed) >> 16)
        w = (bits & 0xFFFF0000).to(tl.float32, bitcast=True)
    tl.store(vectors + at, w.to(vectors.dtype.element_ty), mask=mask)
    b = tl.load(bias_acc + c) + bias_total * bias_total
    tl.store(bias_acc + c, b)
    tl.store(bias + c, tl.load(bias + c) - rate * bias_total / tl.sqrt(b))


@triton.jit
def _update_summed(
    ids, weight, acc, bias, bias_acc, sums, bias_sums, rate, seed, HAS_IDS: tl.constexpr,
    LOADS_RATE: tl.constexpr, ONE_PER_ROW: tl.constexpr, ROUNDS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    c = i
    if HAS_IDS:
        c = tl.load(ids + i).to(tl.int64)
    if c >= 0:
        _apply(
            weight, acc, bias, bias_acc, c, _row(sums, i, WIDTH, BLOCK), tl.load(bias_sums + i),
            rate, seed, False, LOADS_RATE, ONE_PER_ROW, ROUNDS, WIDTH, BLOCK,
        )  # fmt: skip


@triton.jit
def _update_rows(
    classes, order, numbers, weight, acc, bias, bias_acc, features, rows, gradient, partial, scale,
    rate, seed, n_pairs, n_columns, SEGMENT: tl.constexpr, SUMS: tl.constexpr,
    LOADS_RATE: tl.constexpr, ONE_PER_ROW: tl.constexpr, ROUNDS: tl.constexpr,
    HAS_ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per sorted pair. A segment is what of a class lies in one block of SEGMENT
    places; the program of its first place works, and the others end at once.

    The sum of a segment that is all of its class is applied. Others are stored: in partial[2b] if
    the class began before block b, else in partial[2b + 1].
    """
    place = tl.program_id(0)
    c = tl.load(classes + place)
    begins = _class_at(classes, place - 1, n_pairs) != c
    block = place // SEGMENT
    if (begins | (place == block * SEGMENT)) & (c >= 0):
        end = (block + 1) * SEGMENT
        total, bias_total, at = tl.zeros([BLOCK], tl.float32), 0.0, place
        belongs = True
        while belongs:
            pair = tl.load(order + at)
            g = tl.load(gradient + pair)
            row = _number(rows, pair // n_columns, HAS_ROWS)
            total += (g * scale) * _row(features, row, WIDTH, BLOCK)
            bias_total += g
            at += 1
            belongs = (at < end) & (_class_at(classes, at, n_pairs) == c)
        if begins & (_class_at(classes, at, n_pairs) != c):
            number = tl.load(numbers + place).to(tl.int64)
            _apply(
                weight, acc, bias, bias_acc, number, total, bias_total, rate, seed, SUMS,
                LOADS_RATE, ONE_PER_ROW, ROUNDS, WIDTH, BLOCK,
            )  # fmt: skip
        else:
            f = tl.arange(0, BLOCK)
            slot = partial + (2 * block + begins.to(tl.int32)).to(tl.int64) * (WIDTH + 1)
            tl.store(slot + f, total, mask=f < WIDTH)
            tl.store(slot + WIDTH, bias_total)


@triton.jit
def _update_frequent(
    classes, order, numbers, weight, acc, bias, bias_acc, features, rows, gradient, partial, scale,
    rate, seed, n_pairs, n_columns, SEGMENT: tl.constexpr, SUMS: tl.constexpr,
    LOADS_RATE: tl.constexpr, ONE_PER_ROW: tl.constexpr, ROUNDS: tl.constexpr,
    HAS_ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per block of places: if a class begins in it and goes on after it, apply the sum
    of its segments."""
    block = tl.program_id(0)
    first, end = block * SEGMENT, (block + 1) * SEGMENT
    c = _class_at(classes, end, n_pairs)
    in_block = (c >= 0) & (_class_at(classes, end - 1, n_pairs) == c)
    began = (_class_at(classes, first, n_pairs) == c) & (
        _class_at(classes, first - 1, n_pairs) == c
    )
    if in_block & (began == 0):
        f = tl.arange(0, BLOCK)
        slot = partial + (2 * block + 1).to(tl.int64) * (WIDTH + 1)
        total, bias_total = tl.load(slot + f, mask=f < WIDTH, other=0.0), tl.load(slot + WIDTH)
        belongs = True
        while belongs:
            block += 1
            slot = partial + (2 * block).to(tl.int64) * (WIDTH + 1)
            total += tl.load(slot + f, mask=f < WIDTH, other=0.0)
            bias_total += tl.load(slot + WIDTH)
            belongs = _class_at(classes, (block + 1) * SEGMENT, n_pairs) == c
        number = tl.load(numbers + end).to(tl.int64)
        _apply(
            weight, acc, bias, bias_acc, number, total, bias_total, rate, seed, SUMS, LOADS_RATE,
            ONE_PER_ROW, ROUNDS, WIDTH, BLOCK,
        )  # fmt: skip
