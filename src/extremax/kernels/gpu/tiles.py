"""Scores of every class, one tile at a time, in Triton: ξ_ic = x_i·w_c + b_c.

A program computes tiles of scores, of the same rows and a span of classes, in registers. It reduces
them to log Σ exp ξ of the span, or stores their slopes. See `extremax.kernels.gpu.exact`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # Triton 3.3 and older
    TensorDescriptor = None


class Tiles(NamedTuple):
    """What a program computes at once, and with what.

    rows, classes:  the tile of scores.
    features:       products are added up over this many features at a time.
    waves:          programs per multiprocessor, about.
    """

    rows: int
    classes: int
    features: int
    n_warps: int
    n_stages: int
    waves: int


# By the kind of product (`kind_of`), for log Z and for slopes.
SUM_TILES = {
    "half": Tiles(128, 128, 64, 4, 3, 16),
    "tf32": Tiles(128, 256, 32, 8, 4, 16),
    "ieee": Tiles(64, 128, 16, 8, 2, 16),
}
# Slopes on their way out need shared memory, too; those of float16 are float32.
SLOPE_TILES = {
    "half": Tiles(128, 256, 64, 8, 3, 1),
    "float16": Tiles(128, 128, 64, 8, 3, 1),
    "tf32": Tiles(128, 128, 32, 8, 3, 1),
    "ieee": Tiles(64, 128, 16, 8, 2, 1),
}


# What one program of `column_sums` adds at a time, and among how many the rows are shared out.
_BLOCK_ROWS, _BLOCK_COLUMNS, _PARTS = 32, 128, 16


class Scores(NamedTuple):
    """What is scored: ξ = X Wᵀ + b.

    x:       (n, K) in float32, bfloat16 or float16; products are in this type.
    weight:  (C, K).
    bias:    (C,), or None.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None


class Totals(NamedTuple):
    """What losses need to know of all scores of a row, or their slopes on it; (n,) in float32 each.

    log_z:    log Σ_c exp ξ_c.
    true:     ξ_y.
    squares:  Σ_c ξ_c²; None if not asked for.
    shared:   Σ_c v_c ξ_c, for one vector v of shares; None without it.
    """

    log_z: Tensor
    true: Tensor
    squares: Tensor | None
    shared: Tensor | None


def kind_of(x: Tensor) -> str:
    """The kind of products of x."""
    if x.dtype != torch.float32:
        return "half"
    flags = torch.backends.cuda.matmul
    # Torch 2.9 has new flags, and refuses to read the old ones where the new ones were set.
    precision = getattr(flags, "fp32_precision", None)
    return "tf32" if (flags.allow_tf32 if precision is None else precision == "tf32") else "ieee"


def _slope_tiles(x: Tensor) -> Tiles:
    return SLOPE_TILES["float16" if x.dtype == torch.float16 else kind_of(x)]


def span_sums(
    scores: Scores, target: Tensor, first: int, true: Tensor, squares: bool
) -> tuple[Tensor, Tensor]:
    """log Σ exp ξ and Σ ξ² of each span of classes, (spans, n); the latter only if asked for.

    scores:  weight and bias are those of the classes from ``first`` on.
    target:  the true class of each row, of all classes.
    true:    (n,) in float32; gets the scores of the true classes among these.
    """
    x, weight, _ = scores
    tiles = SUM_TILES[kind_of(x)]
    n_row_tiles, n_spans, per_span = _spans(x, len(weight), tiles)
    log_sums = torch.empty((n_spans, len(x)), device=x.device)
    square_sums = torch.empty_like(log_sums) if squares else log_sums
    _log_sums[(n_row_tiles * n_spans,)](
        *_operands(scores, tiles), target.contiguous(), log_sums, true, square_sums, len(x),
        len(weight), first, n_row_tiles, per_span, SQUARES=squares, **_constants(scores, tiles),
    )  # fmt: skip
    return log_sums, square_sums


def room_for_slopes(x: Tensor, n_classes: int, n_bytes: int) -> Tensor:
    """Room for the slopes of as many of the classes as fit into ``n_bytes``, whole tiles and at
    least one, (n, width)."""
    tiles = _slope_tiles(x)
    # Slopes of a mean over many rows are too small for float16.
    dtype = torch.float32 if x.dtype == torch.float16 else x.dtype
    n_tiles = min(
        n_bytes // (len(x) * tiles.classes * dtype.itemsize), triton.cdiv(n_classes, tiles.classes)
    )
    return torch.empty((len(x), max(1, n_tiles) * tiles.classes), dtype=dtype, device=x.device)


class SlopeStore:
    """Computes ∂loss/∂ξ of some classes after others, given the slopes of the loss on the totals.

    What all calls share is made once: a call takes a kernel of a tenth of a millisecond, and must
    not take the host longer than that.

    scores:  weights have the type of x.
    target:  the true class of each row, of all classes.
    first:   the class that the first weight belongs to.
    shares:  v of the classes of the weights.
    room:    what `room_for_slopes` gives.
    """

    def __init__(
        self, scores: Scores, target: Tensor, first: int, shares: Tensor | None, log_z: Tensor,
        slopes: Totals, room: Tensor,
    ) -> None:  # fmt: skip
        self.scores, self.first, self.room = scores, first, room
        self.tiles = _slope_tiles(scores.x)
        given = (log_z, slopes.log_z, slopes.true, slopes.squares, slopes.shared)
        out: Any = room
        if _described(scores):
            out = TensorDescriptor.from_tensor(room, [self.tiles.rows, self.tiles.classes])
        self._arguments = (
            *_operands(scores, self.tiles), target.contiguous(),
            *(log_z if vector is None else vector.contiguous() for vector in given),
            log_z if shares is None else shares, out, len(scores.x),
        )  # fmt: skip
        self._flags = {
            "SQUARES": slopes.squares is not None,
            "SHARES": shares is not None,
            **_constants(scores, self.tiles),
        }

    def __call__(self, offset: int, n_classes: int) -> Tensor:
        """Slopes of the classes of the weights from ``offset`` on, (n, n_classes), a view of the
        room, to be used before the next call."""
        n_row_tiles, n_spans, per_span = _spans(self.scores.x, n_classes, self.tiles)
        _slopes[(n_row_tiles * n_spans,)](
            *self._arguments, offset, n_classes, self.first + offset, self.room.shape[1],
            n_row_tiles, per_span, **self._flags,
        )  # fmt: skip
        return self.room[:, :n_classes]


def column_sums(table: Tensor) -> Tensor:
    """Σ_i of a table (n, c), whose rows may go on after c, in float32.

    Not in the kernel that stores the table: sums over the rows of a tile would cost as much as its
    products.
    """
    n, n_columns = table.shape
    parts = torch.empty((min(_PARTS, triton.cdiv(n, _BLOCK_ROWS)), n_columns), device=table.device)
    _column_sums[(triton.cdiv(n_columns, _BLOCK_COLUMNS), len(parts))](
        table, parts, n, n_columns, table.stride(0), triton.cdiv(n, len(parts)),
        ROWS=_BLOCK_ROWS, COLUMNS=_BLOCK_COLUMNS, num_warps=4,
    )  # fmt: skip
    return parts.sum(0)


def _spans(x: Tensor, n_classes: int, tiles: Tiles) -> tuple[int, int, int]:
    """Tiles of rows, spans of classes, and tiles of classes per span.

    There is one program per tile of rows and span. Programs that run together share all of x and
    the weights of a few spans by the L2 cache.
    """
    n_row_tiles, n_tiles = triton.cdiv(len(x), tiles.rows), triton.cdiv(n_classes, tiles.classes)
    n_spans = max(1, min(n_tiles, tiles.waves * _n_processors(x.device) // n_row_tiles))
    per_span = triton.cdiv(n_tiles, n_spans)
    return n_row_tiles, triton.cdiv(n_tiles, per_span), per_span


@cache
def _n_processors(device: torch.device) -> int:
    # The interpreter has one; with a few, its tests see several spans.
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


def _described(scores: Scores) -> bool:
    """Whether the tensor memory accelerator can load tiles: on Hopper or newer, rows that begin at
    multiples of 16 bytes."""
    x, weight, _ = scores
    if TensorDescriptor is None:
        return False
    if x.is_cuda and torch.cuda.get_device_capability(x.device)[0] < 9:
        return False
    starts = (x.data_ptr(), weight.data_ptr(), x.shape[1] * x.dtype.itemsize)
    return not any(number % 16 for number in starts)


def _operands(scores: Scores, tiles: Tiles) -> tuple[Any, ...]:
    x, weight, bias = scores
    given: tuple[Any, ...] = (x, weight)
    if _described(scores):
        given = (
            TensorDescriptor.from_tensor(x, [tiles.rows, tiles.features]),
            TensorDescriptor.from_tensor(weight, [tiles.classes, tiles.features]),
        )
    return *given, x if bias is None else bias


def _constants(scores: Scores, tiles: Tiles) -> dict[str, Any]:
    x = scores.x
    return {
        "HAS_BIAS": scores.bias is not None,
        "DESCRIBED": _described(scores),
        # The interpreter would multiply the bits of bfloat16 as integers.
        "WIDENS": x.dtype == torch.bfloat16 and not x.is_cuda,
        "PRECISION": "ieee" if kind_of(x) == "ieee" else "tf32",
        "WIDTH": x.shape[1],
        "ROWS": tiles.rows,
        "CLASSES": tiles.classes,
        "FEATURES": tiles.features,
        "num_warps": tiles.n_warps,
        "num_stages": tiles.n_stages,
    }


# Sizes for which there is no kernel of their own: the last chunk of classes would need another one.
_SIZES = ["n_rows", "n_classes", "first_class", "n_row_tiles", "per_span"]
_LOG2_E = tl.constexpr(1.4426950408889634)
_LOG_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _tile(
    table, row, column, n_rows, DESCRIBED: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of a table of WIDTH columns, zeros outside."""
    if DESCRIBED:
        tile = table.load([row, column])
    else:
        r, k = (row + tl.arange(0, ROWS)).to(tl.int64), column + tl.arange(0, COLUMNS)
        inside = (r < n_rows)[:, None] & (k < WIDTH)[None, :]
        tile = tl.load(table + r[:, None] * WIDTH + k[None, :], mask=inside, other=0.0)
    return tile


@triton.jit
def _scores(
    x, weight, bias, row, first, n_rows, n_classes, HAS_BIAS: tl.constexpr,
    DESCRIBED: tl.constexpr, WIDENS: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Scores of a tile, −∞ after the last class."""
    c = first + tl.arange(0, CLASSES)
    # Before the loop: the products hide how long these loads take.
    shift = tl.where(c < n_classes, 0.0, float("-inf"))
    if HAS_BIAS:
        shift = tl.load(bias + c, mask=c < n_classes, other=float("-inf")).to(tl.float32)
    total = tl.zeros([ROWS, CLASSES], tl.float32)
    for k in range(0, WIDTH, FEATURES):
        left = _tile(x, row, k, n_rows, DESCRIBED, WIDTH, ROWS, FEATURES)
        right = _tile(weight, first, k, n_classes, DESCRIBED, WIDTH, CLASSES, FEATURES)
        if WIDENS:
            left, right = left.to(tl.float32), right.to(tl.float32)
        total = tl.dot(left, tl.trans(right), total, input_precision=PRECISION)
    return total + shift[None, :]


@triton.jit(do_not_specialize=_SIZES)
def _log_sums(
    x, weight, bias, target, log_sums, true, square_sums, n_rows, n_classes, first_class,
    n_row_tiles, per_span, SQUARES: tl.constexpr, HAS_BIAS: tl.constexpr, DESCRIBED: tl.constexpr,
    WIDENS: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    CLASSES: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """log Σ exp ξ = log 2 · (top + log₂ Σ 2^(ξ log₂ e − top)), where top is the highest so far.

    True scores are those of the same products: a loss log Z − ξ_y is never below 0 by more than
    sums are rounded.
    """
    span, row = tl.program_id(0) // n_row_tiles, tl.program_id(0) % n_row_tiles * ROWS
    r = row + tl.arange(0, ROWS)
    inside = r < n_rows
    true_column = (tl.load(target + r, mask=inside, other=-1) - first_class).to(tl.int32)
    # Not −∞, from which nothing can be subtracted.
    top, total = tl.full([ROWS], -1e30, tl.float32), tl.zeros([ROWS], tl.float32)
    true_score, squares = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    begin = span * per_span
    end = tl.minimum(begin + per_span, tl.cdiv(n_classes, CLASSES))
    for tile in range(begin, end):
        scores = _scores(
            x, weight, bias, row, tile * CLASSES, n_rows, n_classes, HAS_BIAS, DESCRIBED,
            WIDENS, PRECISION, WIDTH, ROWS, CLASSES, FEATURES,
        )  # fmt: skip
        c = tile * CLASSES + tl.arange(0, CLASSES)
        # Most tiles have none of the true classes.
        if tl.max((true_column // CLASSES == tile).to(tl.int32), 0) > 0:
            is_true = c[None, :] == true_column[:, None]
            true_score += tl.sum(tl.where(is_true, scores, 0.0), 1)
        if SQUARES:
            known = tl.where((c < n_classes)[None, :], scores, 0.0)
            squares += tl.sum(known * known, 1)
        higher = tl.maximum(top, tl.max(scores, 1) * _LOG2_E)
        total *= tl.exp2(top - higher)
        total += tl.sum(tl.exp2(scores * _LOG2_E - higher[:, None]), 1)
        top = higher
    at = span.to(tl.int64) * n_rows + r
    tl.store(log_sums + at, (top + tl.log2(total)) * _LOG_2, mask=inside)
    here = (true_column >= begin * CLASSES) & (true_column < tl.minimum(end * CLASSES, n_classes))
    tl.store(true + r, true_score, mask=inside & here)
    if SQUARES:
        tl.store(square_sums + at, squares, mask=inside)


@triton.jit(do_not_specialize=[*_SIZES, "offset"])
def _slopes(
    x, weight, bias, target, log_z, on_log_z, on_true, on_squares, on_shared, shares, out,
    n_rows, offset, n_classes, first_class, stride, n_row_tiles, per_span, SQUARES: tl.constexpr,
    SHARES: tl.constexpr, HAS_BIAS: tl.constexpr, DESCRIBED: tl.constexpr,
    WIDENS: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    CLASSES: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """∂loss/∂ξ_c = g_Z p_c + g_y [c = y] + 2 g_squares ξ_c + g_shared v_c.

    Classes are those of the weights from ``offset`` on. Columns of ``out`` are whole tiles: those
    after the last class are written, too, and mean nothing.
    """
    span, row = tl.program_id(0) // n_row_tiles, tl.program_id(0) % n_row_tiles * ROWS
    r = row + tl.arange(0, ROWS)
    inside = r < n_rows
    true_column = (tl.load(target + r, mask=inside, other=-1) - first_class).to(tl.int32)
    # Rows after the last have p = 0.
    z = tl.load(log_z + r, mask=inside, other=float("inf")) * _LOG2_E
    share = tl.load(on_log_z + r, mask=inside, other=0.0)
    true_slope = tl.load(on_true + r, mask=inside, other=0.0)
    if SQUARES:
        twice = 2.0 * tl.load(on_squares + r, mask=inside, other=0.0)
    if SHARES:
        shared_slope = tl.load(on_shared + r, mask=inside, other=0.0)
    end = tl.minimum((span + 1) * per_span, tl.cdiv(n_classes, CLASSES))
    for tile in range(span * per_span, end):
        scores = _scores(
            x, weight, bias, row, offset + tile * CLASSES, n_rows, offset + n_classes, HAS_BIAS,
            DESCRIBED, WIDENS, PRECISION, WIDTH, ROWS, CLASSES, FEATURES,
        )  # fmt: skip
        c = tile * CLASSES + tl.arange(0, CLASSES)
        slopes = share[:, None] * tl.exp2(scores * _LOG2_E - z[:, None])
        # Most tiles have none of the true classes.
        if tl.max((true_column // CLASSES == tile).to(tl.int32), 0) > 0:
            slopes += tl.where(c[None, :] == true_column[:, None], true_slope[:, None], 0.0)
        if SQUARES:
            slopes += twice[:, None] * scores
        if SHARES:
            v = tl.load(shares + offset + c, mask=c < n_classes, other=0.0)
            slopes += shared_slope[:, None] * v[None, :]
        if DESCRIBED:
            out.store([row, tile * CLASSES], slopes.to(out.dtype))
        else:
            at = r.to(tl.int64)[:, None] * stride + c[None, :]
            tl.store(out + at, slopes.to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _column_sums(
    table, parts, n_rows, n_columns, stride, rows_per_part, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums over a part of the rows, of some columns."""
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.program_id(1).to(tl.int64)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    end = tl.minimum((part + 1) * rows_per_part, n_rows)
    for first in range(part * rows_per_part, end, ROWS):
        r = first + tl.arange(0, ROWS).to(tl.int64)
        inside = (r < end)[:, None] & (c < n_columns)[None, :]
        at = r[:, None] * stride + c[None, :]
        total += tl.load(table + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(parts + part * n_columns + c, tl.sum(total, 0), mask=c < n_columns)
