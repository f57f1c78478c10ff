"""The k best classes of each row and exact log-probabilities, in memory that C does not change.

Three steps, none of which stores the scores of every class:

1. Tiles of scores ξ = scale · w·x + b are computed, and only two things of a tile are kept per row:
   the best score of every group of `_GROUP` neighboring classes, and Σ exp((ξ − max)/T).
2. A running list holds the k best groups of each row. All of its k best classes are in them: a
   group that holds one and is not among the k best would leave k groups with a better class each.
3. The classes of these groups, a few hundred per row, are scored again and ranked.

Ties are in the order of classes. A row with a NaN score has no normalizer, and all of its
log-probabilities are NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from extremax.errors import ArgumentError
from extremax.kernels.gpu.best import MOST_BEST, keep_best, no_keys, sorted_keys

# Rows at a time, and classes whose maxima are held for them: 32 MB, which an L2 cache holds.
_ROWS, _CHUNK = 8192, 1 << 16
# Classes of a group. With fewer, step 1 stores more; with more, step 3 reads more.
_GROUP = 64
# Groups per row that are scored again at a time.
_COLUMNS = 16


class Tiles(NamedTuple):
    """Rows and classes of a tile of scores, features per step of its product, and how it runs."""

    rows: int
    classes: int
    depth: int
    warps: int
    stages: int


# By the precision of products, see `_precision`.
_TILES = {
    "half": Tiles(128, 256, 64, 8, 4),
    "tf32": Tiles(128, 128, 32, 8, 4),
    "tf32x3": Tiles(64, 128, 32, 4, 3),
}


class _Problem(NamedTuple):
    """ξ = scale · w·x + b of some rows x, (n, K); products and their sums as ``precision`` says."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    x: torch.Tensor
    scale: float
    precision: str

    def arguments(self) -> tuple[Any, ...]:
        bias = self.weight if self.bias is None else self.bias
        return self.weight, bias, self.x, self.scale, len(self.weight)

    def flags(self) -> dict[str, Any]:
        return {
            "HAS_BIAS": self.bias is not None,
            "WIDTH": self.x.shape[1],
            "DEPTH": _TILES[self.precision].depth,
            # Of float32; products of shorter numbers are exact.
            "PRECISION": "tf32" if self.precision == "half" else self.precision,
        }


class _Sums(NamedTuple):
    """The best score of each row, and Σ exp((ξ − best)/T), both (n,)."""

    best: torch.Tensor
    total: torch.Tensor

    def log_probs(self, scores: torch.Tensor, temperature: float) -> torch.Tensor:
        """log softmax(ξ/T) of scores (n, j)."""
        log_p = (scores - self.best[:, None]) / temperature - self.total.log()[:, None]
        # A score that is computed again may differ from the best one in its last bits.
        return log_p.clamp_(max=0.0)


def rank_and_score(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    features: torch.Tensor,
    scale: float,
    labels: torch.Tensor,
    k: int,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The k classes of highest ξ, best first and ties in the order of classes, (n, k) in int64,
    their log softmax(ξ/T), and that of labels (n, j), both in float32.

        ξ = scale · features · weightᵀ + bias

    Sums run in float32. Products of float32 are those of torch: TF32 where it is allowed, else
    three products of TF32, which are about as exact as one of float32.

    weight:    (C, K), contiguous; with features in the same type of 16 bits, products are of that
               type, too.
    labels:    classes 0..C−1; j may be zero.
    k:         at most C counts; may be zero.
    """
    n, k = len(features), min(k, len(weight))
    if k > MOST_BEST:
        raise ArgumentError(f"kernels on a GPU rank up to {MOST_BEST} classes, got k={k}")
    classes = torch.empty((n, k), dtype=torch.int64, device=weight.device)
    best = torch.empty((n, k), device=weight.device)
    out = torch.empty(labels.shape, device=weight.device)
    dtype = torch.promote_types(features.dtype, weight.dtype)
    if not weight.is_cuda:
        dtype = torch.float32  # Triton's interpreter has no products of bfloat16.
    for start in range(0, n, _ROWS):
        rows = slice(start, start + _ROWS)
        x = features[rows].to(dtype).contiguous()
        problem = _Problem(weight, bias, x, scale, _precision(dtype))
        sums, groups = _scan(problem, k, temperature)
        if k:
            classes[rows], scores = _rank(problem, groups, k)
            best[rows] = sums.log_probs(scores, temperature)
        out[rows] = sums.log_probs(_score(problem, labels[rows]), temperature)
    return classes, best, out


def _precision(dtype: torch.dtype) -> str:
    if dtype != torch.float32:
        return "half"
    settings = torch.backends.cuda.matmul
    # Where torch has the newer setting, reading the older one may be an error.
    chosen = getattr(settings, "fp32_precision", None)
    allowed = settings.allow_tf32 if chosen is None else chosen == "tf32"
    return "tf32" if allowed else "tf32x3"


def _scan(problem: _Problem, k: int, temperature: float) -> tuple[_Sums, torch.Tensor]:
    """Normalizers, and the numbers of the (at most) k best groups of each row, in rising order."""
    n, n_classes, device = len(problem.x), len(problem.weight), problem.x.device
    tiles = _TILES[problem.precision]
    n_groups = triton.cdiv(n_classes, _GROUP)
    keys = no_keys(n, min(k, n_groups), device)
    sums = _Sums(torch.full((n,), -torch.inf, device=device), torch.zeros(n, device=device))
    columns = triton.cdiv(min(_CHUNK, n_classes), tiles.classes)
    maxima = torch.empty((n, columns * tiles.classes // _GROUP), device=device)
    tops, totals = torch.empty((2, n, columns), device=device)
    row_tiles = triton.cdiv(n, tiles.rows)
    for first in range(0, n_classes, _CHUNK):
        n_columns = triton.cdiv(min(_CHUNK, n_classes - first), tiles.classes)
        _score_tiles[(row_tiles * n_columns,)](
            *problem.arguments(), n, first, temperature, maxima, tops, totals, columns,
            ROWS=tiles.rows, CLASSES=tiles.classes, GROUP=_GROUP, **problem.flags(),
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
        _add_up[(n,)](
            tops, totals, *sums, n_columns, columns, temperature,
            BLOCK=triton.next_power_of_2(columns), num_warps=1,
        )  # fmt: skip
        if k:
            keep_best(maxima, min(_CHUNK // _GROUP, n_groups - first // _GROUP), first // _GROUP,
                       keys)  # fmt: skip
    groups, _ = sorted_keys(keys, min(k, n_groups))
    return sums, groups.sort(1).values


def _rank(problem: _Problem, groups: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best classes of given groups (n, g), whose numbers rise, and their scores."""
    keys = no_keys(len(groups), k, groups.device)
    for columns, scores in _scores_of_groups(problem, groups):
        keep_best(scores.flatten(1), scores[0].numel(), columns.start * _GROUP, keys)
    # Groups rise, so that places have the order of classes.
    places, scores = sorted_keys(keys, k)
    return groups.gather(1, places // _GROUP) * _GROUP + places % _GROUP, scores


def _score(problem: _Problem, labels: torch.Tensor) -> torch.Tensor:
    """ξ of labels (n, j), by the same products as all others."""
    out = torch.empty(labels.shape, device=labels.device)
    for columns, scores in _scores_of_groups(problem, labels // _GROUP):
        out[:, columns] = scores.gather(2, labels[:, columns, None] % _GROUP)[:, :, 0]
    return out


def _scores_of_groups(
    problem: _Problem, groups: torch.Tensor
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Some columns of the groups (n, g), and ξ of their classes, (n, columns, `_GROUP`)."""
    n_columns = groups.shape[1]
    for start in range(0, n_columns, _COLUMNS):
        columns = slice(start, min(start + _COLUMNS, n_columns))
        chosen = groups[:, columns].contiguous()
        scores = torch.empty((*chosen.shape, _GROUP), device=groups.device)
        _score_groups[chosen.shape](
            *problem.arguments(), chosen, scores, chosen.shape[1], GROUP=_GROUP, **problem.flags(),
            num_warps=4,
        )  # fmt: skip
        yield columns, scores


@triton.jit
def _tile(pointers, features, WIDTH: tl.constexpr, DEPTH: tl.constexpr):
    """Some features of the rows that the pointers begin, zeros after their end."""
    if WIDTH % DEPTH == 0:
        return tl.load(pointers[:, None] + features[None, :])
    else:
        inside = features[None, :] < WIDTH
        return tl.load(pointers[:, None] + features[None, :], mask=inside, other=0.0)


@triton.jit
def _with_bias(
    products, bias, classes, scale, n_classes, HAS_BIAS: tl.constexpr
):  # fmt: skip
    """ξ from w·x, (n, c); −inf after the last class."""
    scores = products * scale
    inside = classes < n_classes
    if HAS_BIAS:
        b = tl.load(bias + classes, mask=inside, other=0.0).to(tl.float32)
        scores += b[None, :]
    return tl.where(inside[None, :], scores, float("-inf"))


@triton.jit
def _shift(top):
    """What is subtracted from scores of which ``top`` is the best: −inf − −inf would be NaN."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def _score_tiles(
    weight, bias, x, scale, n_classes, n, first, temperature, maxima, tops, totals, columns,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, GROUP: tl.constexpr, HAS_BIAS: tl.constexpr,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of scores per program. Those of the same classes follow one another: they read the
    weights at about the same time."""
    row_tiles = tl.cdiv(n, ROWS)
    column = tl.program_id(0) // row_tiles
    row = (tl.program_id(0) % row_tiles) * ROWS
    begin = first + column * CLASSES
    # Rows and classes after the last are read as the last, and not used.
    a_rows = tl.minimum(tl.arange(0, ROWS), n - 1 - row)
    b_rows = tl.minimum(tl.arange(0, CLASSES), n_classes - 1 - begin)
    a_pointers = x + row.to(tl.int64) * WIDTH + a_rows * WIDTH
    b_pointers = weight + begin.to(tl.int64) * WIDTH + b_rows * WIDTH
    products = tl.zeros([ROWS, CLASSES], tl.float32)
    for start in range(0, WIDTH, DEPTH):
        features = start + tl.arange(0, DEPTH)
        a = _tile(a_pointers, features, WIDTH, DEPTH)
        b = _tile(b_pointers, features, WIDTH, DEPTH).to(a.dtype)
        products = tl.dot(a, b.T, products, input_precision=PRECISION)
    classes = begin + tl.arange(0, CLASSES)
    scores = _with_bias(products, bias, classes, scale, n_classes, HAS_BIAS)

    N_GROUPS: tl.constexpr = CLASSES // GROUP
    best = tl.max(tl.reshape(scores, [ROWS, N_GROUPS, GROUP]), 2)
    top = tl.max(best, 1)
    to_base_2 = 1.4426950408889634 / temperature
    total = tl.sum(tl.exp2((scores - _shift(top)[:, None]) * to_base_2), 1)
    rows = row + tl.arange(0, ROWS)
    at = rows.to(tl.int64) * columns + column
    tl.store(tops + at, top, mask=rows < n)
    tl.store(totals + at, total, mask=rows < n)
    places = at[:, None] * N_GROUPS + tl.arange(0, N_GROUPS)[None, :]
    tl.store(maxima + places, best, mask=(rows < n)[:, None])


@triton.jit
def _add_up(
    tops, totals, best, total, n_columns, columns, temperature, BLOCK: tl.constexpr
):  # fmt: skip
    """Add the tiles of a row to its normalizer."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < n_columns
    top = tl.load(tops + row * columns + at, mask=inside, other=float("-inf"))
    sums = tl.load(totals + row * columns + at, mask=inside, other=0.0)
    before = tl.load(best + row)
    now = tl.maximum(before, tl.max(top, 0))
    shift = _shift(now)
    kept = tl.load(total + row) * tl.exp((before - shift) / temperature)
    # The sums of tiles without a finite score are relative to zero, and are zero.
    added = tl.sum(sums * tl.exp((top - shift) / temperature), 0)
    tl.store(best + row, now)
    tl.store(total + row, kept + added)


@triton.jit
def _score_groups(
    weight, bias, x, scale, n_classes, groups, out, n_columns, GROUP: tl.constexpr,
    HAS_BIAS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores of the classes of one group on one row, in a product as `_score_tiles` has it: plain
    sums of float32 would not match its TF32. A product needs 16 rows; here they are all the same.
    """
    row = tl.program_id(0).to(tl.int64)
    pair = row * n_columns + tl.program_id(1)
    begin = tl.load(groups + pair) * GROUP
    a_pointers = x + row * WIDTH + tl.zeros([16], tl.int32)
    b_rows = tl.minimum(tl.arange(0, GROUP), n_classes - 1 - begin)
    b_pointers = weight + (begin + b_rows) * WIDTH
    products = tl.zeros([GROUP, 16], tl.float32)
    for start in range(0, WIDTH, DEPTH):
        features = start + tl.arange(0, DEPTH)
        a = _tile(a_pointers, features, WIDTH, DEPTH)
        b = _tile(b_pointers, features, WIDTH, DEPTH).to(a.dtype)
        products = tl.dot(b, a.T, products, input_precision=PRECISION)
    classes = begin + tl.arange(0, GROUP)
    scores = _with_bias(tl.max(products, 1)[None, :], bias, classes, scale, n_classes, HAS_BIAS)
    tl.store(out + pair * GROUP + tl.arange(0, GROUP)[None, :], scores)
