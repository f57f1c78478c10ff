"""Shared by the reproduction scripts: runs that resume, processes, error bars, tables, pictures.

A script describes each of its runs by a dictionary of plain values, the cell, and has one function
from a cell to a dictionary of results. `run_cells` runs the cells in processes of one thread each
and appends each result to a file of JSON lines as soon as it is there. Started again, it runs only
the cells that are missing. The report is made from that file alone.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from extremax.report import drawing

Cell = dict[str, Any]
# Read by the libraries of a process when it starts.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the arguments of every reproduction script."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--output", type=Path, help="folder for results, and to resume from")
    made.add_argument("--report", type=Path, help="make tables and pictures of this folder")
    made.add_argument("--images", type=Path, default=Path("docs/images"), help="for --report")
    made.add_argument("--jobs", type=int, default=1, help="runs at the same time, one thread each")
    made.add_argument(
        "--stop-after", type=float, default=math.inf, help="start no run after this many seconds"
    )
    made.add_argument("--seeds", type=int, default=3, help="repetitions of each run")
    made.add_argument("--quick", action="store_true", help="a small synthetic problem")
    return made


# Running cells --------------------------------------------------------------------------------


def key_of(cell: Cell) -> str:
    """The cell as a line of text, the same for equal cells."""
    return json.dumps(cell, sort_keys=True)


def read_results(file: Path) -> dict[str, dict[str, Any]]:
    """Stored results by `key_of` their cells, each ``{"cell": ..., "result": ...}``.

    The last line may be incomplete, if the process was killed while it wrote.
    """
    stored = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        stored[key_of(record["cell"])] = record
    return stored


def run_cells(
    work: Callable[[Cell], dict[str, Any]],
    cells: Iterable[Cell],
    file: Path,
    jobs: int,
    deadline: float = math.inf,
) -> list[dict[str, Any]]:
    """Return ``{"cell": ..., "result": ...}`` of every cell, in their order.

    A cell that fails is not stored; the others still run, and the first error is raised at the end.

    work:      a function at the top level of its module, or a `functools.partial` of one, since
               other processes call it.
    file:      JSON lines with the results, in a folder that is created.
    deadline:  the `time.monotonic` from which on no cell is started. If cells are left, the
               script exits.
    """
    wanted = {key_of(cell): cell for cell in cells}
    stored = read_results(file)
    missing = [cell for key, cell in wanted.items() if key not in stored]
    print(f"{file}: {len(missing)} of {len(wanted)} runs to do", flush=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    failed: list[BaseException] = []
    start, done = time.monotonic(), 0
    for cell, answer in _answers(work, missing, jobs, deadline):
        done += 1
        clock = f"{time.monotonic() - start:.0f} s, {done}/{len(missing)}"
        if isinstance(answer, BaseException):
            failed.append(answer)
            print(f"{clock}: {key_of(cell)} failed: {answer!r}", flush=True)
            continue
        record = stored[key_of(cell)] = {"cell": cell, "result": answer}
        _append(file, json.dumps(record))
        print(f"{clock}: {key_of(cell)}", flush=True)
    if failed:
        raise failed[0]
    if done < len(missing):
        sys.exit(f"{len(missing) - done} runs are left: the same command goes on with them")
    return [stored[key] for key in wanted]


def _answers(
    work: Callable[[Cell], dict[str, Any]], cells: Sequence[Cell], jobs: int, deadline: float
) -> Iterator[tuple[Cell, Any]]:
    """Each cell with its result or its error, in the order in which they end."""
    if not cells:
        return
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    # Not fork, which would copy the threads of this process in an undefined state.
    context = multiprocessing.get_context("spawn")
    left, running = list(cells), dict[Future[dict[str, Any]], Cell]()
    with ProcessPoolExecutor(min(jobs, len(cells)), mp_context=context) as pool:
        while running or left:
            while left and len(running) < jobs and time.monotonic() < deadline:
                cell = left.pop(0)
                running[pool.submit(work, cell)] = cell
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.exception() or future.result()


def _append(file: Path, line: str) -> None:
    """Write a line, after a line break if a killed process left the last line incomplete."""
    torn = file.exists() and not file.read_bytes().endswith(b"\n") and file.stat().st_size
    with file.open("a", encoding="utf-8") as out:
        out.write(("\n" if torn else "") + line + "\n")


# Several seeds --------------------------------------------------------------------------------


class Spread(NamedTuple):
    """Mean over seeds and its standard error, which is nan for a single seed."""

    mean: float
    error: float

    def text(self, digits: int = 3, factor: float = 1.0) -> str:
        """The mean, ± the standard error where there are several seeds."""
        mean = f"{factor * self.mean:.{digits}f}".replace("-", "−")
        if math.isnan(self.error):
            return mean
        return f"{mean} ± {factor * self.error:.{digits}f}"


def spread(values: Iterable[float]) -> Spread:
    """Mean and standard error of the mean, s/√n with s² unbiased."""
    array = np.array(list(values), float)
    n = len(array)
    return Spread(float(array.mean()), float(array.std(ddof=1) / n**0.5) if n > 1 else math.nan)


def group(
    records: Iterable[dict[str, Any]], *keys: str
) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Results by the values of these keys of their cells, in the order in which they come."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        values = tuple(record["cell"].get(key) for key in keys)
        groups.setdefault(values, []).append(record["result"])
    return groups


def mean_curve(
    curves: Sequence[Sequence[tuple[float, float]]], points: int = 60
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x, mean, standard error) of curves of (x, y), whose x differ from seed to seed.

    They are interpolated at values of x that all of them cover, evenly spaced in log x.
    """
    arrays = [np.array(curve, float) for curve in curves]
    first = max(max(float(a[0, 0]), 1e-3) for a in arrays)
    last = max(first, min(float(a[-1, 0]) for a in arrays))
    x = np.geomspace(first, last, points)
    y = np.array([np.interp(x, a[:, 0], a[:, 1]) for a in arrays])
    error = y.std(axis=0, ddof=1) / len(y) ** 0.5 if len(y) > 1 else np.zeros(len(x))
    return x, y.mean(axis=0), error


# Tables and pictures --------------------------------------------------------------------------


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(value) for value in line) + " |" for line in lines)


def coverage(found: Iterable[str], wanted: Iterable[str]) -> str:
    """How many of the wanted runs there are, and which ones are missing.

    found, wanted:  a name for each run, the same for runs that differ only in the seed.
    """
    planned = Counter(wanted)
    missing = planned - Counter(found)
    counts = f"{planned.total() - missing.total()} of {planned.total()} runs"
    if not missing:
        return counts
    return f"{counts}; missing: " + "; ".join(f"{name} ({n})" for name, n in missing.items())


def picture(
    path: Path,
    panels: dict[str, dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]],
    x_title: str,
    y_title: str = "",
    log_x: bool = True,
    references: Sequence[str] = (),
    most: float | None = None,
) -> None:
    """One panel per title, one line with a band of ± one standard error per name in it.

    A name has the same color in every panel.

    references:  names drawn as dashed lines, in shades of gray.
    most:        where the y-axes end, if lines go beyond it.
    """
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    shades = cycle([light for light, _ in drawing.COLORS.values()])
    colors = {name: next(shades) for name in names if name not in references}
    colors |= dict(zip(references, (drawing.INK, drawing.REFERENCE_COLOR), strict=False))
    with drawing.load_matplotlib().rc_context(drawing.STYLE):
        figure = drawing.new_figure(3.6 * len(panels), 3.4, layout="constrained")
        handles = {}
        row = figure.subplots(1, len(panels), squeeze=False)[0]
        row[0].set_ylabel(y_title)
        for axes, (title, lines) in zip(row, panels.items(), strict=True):
            for name, (x, mean, error) in lines.items():
                handles[name] = drawing.plot_line(
                    axes, x, mean, colors[name], marker="o" if len(x) == 1 else "",
                    linestyle="--" if name in references else "-",
                )  # fmt: skip
                axes.fill_between(
                    x, mean - error, mean + error, color=colors[name], alpha=0.2, linewidth=0
                )
            drawing.frame(axes, title, x_title)
            if log_x:
                _log_axis(axes, [x for x, _, _ in lines.values()])
            if most is not None:
                axes.set_ylim(top=min(most, axes.get_ylim()[1]))
        figure.legend(
            [handles[name] for name in names],
            names,
            loc="outside upper left",
            ncols=min(4, len(names)),
            frameon=False,
        )
    drawing.save_figure(figure, path)
    print(path, flush=True)


def _log_axis(axes: Any, values: Sequence[np.ndarray]) -> None:
    """Plain numbers on a logarithmic x-axis: each value if there are few, else powers of ten."""
    axes.set_xscale("log")
    distinct = np.unique(np.concatenate(values))
    if len(distinct) <= 8:
        axes.set_xticks(distinct)
        axes.xaxis.minorticks_off()
    axes.xaxis.set_major_formatter("{x:g}")
