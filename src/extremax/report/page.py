"""The report of a comparison: a self-contained page, CSV files and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.comparison.folder import write_file
from extremax.errors import ArgumentError
from extremax.report import charts, tables
from extremax.report.drawing import COLORS, render
from extremax.report.formatting import duration, number, percent, readable, size
from extremax.report.page_tables import final_table, left_out, matrix, tuning

if TYPE_CHECKING:
    from extremax.comparison import Comparison

#: The tables written next to the page.
CSV = {"final": tables.final_rows, "curves": tables.curve_rows, "tuning": tables.tuning_rows}


def write_report(result: Comparison, folder: str | Path, command: str | None = None) -> Path:
    """Write the report of a comparison to a folder, and return the path of the page.

    command:  what trains the best cell on all rows, for the shell.
    """
    folder = Path(folder)
    if not result.final:
        raise ArgumentError("nothing to report: no cell of the comparison was finished")
    files: dict[str, str | bytes] = {
        f"{name}.csv": tables.as_csv(rows(result)) for name, rows in CSV.items()
    }
    drawn = {name: charts.draw(*chart) for name, chart in pictures(result).items()}
    files |= {f"{name}.png": render(figure, ".png") for name, figure in drawn.items()}
    drawings = {name: charts.svg(figure, name) for name, figure in drawn.items()}
    files["report.html"] = html(result, drawings, command)
    for name, content in files.items():
        write_file(folder, name, content)
    return folder / "report.html"


def pictures(result: Comparison) -> dict[str, tuple[list[charts.Line], charts.Chart]]:
    """Return the lines and axes of each chart, by file name."""
    drawings = {
        "log-likelihood": _curves(result, "log_likelihood", "Log-likelihood (nats)"),
        "accuracy": _curves(result, "accuracy", "Accuracy"),
    }
    calibrations = {cell: r["calibration"] for cell, r in result.final.items()}
    lines = _lines(result, {c: (r["confidence"], r["accuracy"]) for c, r in calibrations.items()})
    drawings["reliability"] = lines, charts.Chart(
        "mean confidence in the best class", "Accuracy", log_x=False, percent=True,
        diagonal=True, markers=True,
    )  # fmt: skip
    biases = {cell: r["bias"] for cell, r in result.final.items() if r["bias"]}
    if biases:
        lines = _lines(result, {c: (r["m"], r["relative"]) for c, r in biases.items()})
        chart = charts.Chart(
            "classes drawn, m", "Relative bias of the gradient", log_y=True, markers=True
        )
        drawings["bias"] = lines, chart
    return drawings


def _curves(result: Comparison, key: str, title: str) -> tuple[list[charts.Line], charts.Chart]:
    """Validation results against time, with limits that keep the lines distinguishable."""
    data = {
        cell: ([p["seconds"] for p in r["curve"]], [p[key] for p in r["curve"]])
        for cell, r in result.final.items()
    }
    prior, best = result.prior[key], max(max(y) for _, y in data.values())
    low = min(min(y) for _, y in data.values())
    if best > prior:
        # A cell that is far worse than the others must not compress them into one line.
        low = max(low, prior - 0.25 * (best - prior))
    margin = 0.04 * max(best - low, 1e-6)
    is_visible = low - margin <= prior <= best + margin
    chart = charts.Chart(
        "seconds of training", title, percent=key == "accuracy",
        reference=("class prior", prior) if is_visible else None,
        limits=(low - margin, best + margin),
    )  # fmt: skip
    return _lines(result, data, from_start=True), chart


def _lines(
    result: Comparison,
    data: Mapping[Any, tuple[Sequence[float], Sequence[float]]],
    from_start: bool = False,
) -> list[charts.Line]:
    """Return the line of each cell in ``data``.

    from_start:  whether lines begin at the start of training, which is marked where it was kept.
    """
    noises = list(dict.fromkeys(cell.noise for cell in result.final if cell.noise))
    lines = []
    for i, (cell, name) in enumerate(result.names.items()):
        if cell in data:
            start_kept = result.final[cell]["start_kept"]
            label = f"{name}, start kept" if start_kept else name
            kind_number = noises.index(cell.noise) if cell.noise else 0
            panel, kind = readable(cell.objective), readable(cell.noise or "")
            has_ring = from_start and start_kept
            lines.append(charts.Line(label, i, panel, kind, kind_number, *data[cell], has_ring))
    return lines


def html(result: Comparison, drawings: Mapping[str, str], command: str | None = None) -> str:
    """Return the page; ``drawings`` are SVG elements by name."""
    rows = tables.final_rows(result)
    title = escape(f"{result.name or 'Data'}: {len(rows)} cells compared")
    sections = [
        _header(result, rows, command),
        final_table(result, rows),
        *(_figure(i, name, drawings[name], result) for i, name in enumerate(drawings, 1)),
        matrix(result, rows),
        tuning(result),
        left_out(result),
        _method(result),
    ]
    body = "\n".join(section for section in sections if section)
    css = _variables() + resources.files("extremax.report").joinpath("page.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{css}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _variables() -> str:
    """Define the colors of the drawings for light and dark pages."""
    light = "; ".join(f"--{name}: {pair[0]}" for name, pair in COLORS.items())
    dark = "; ".join(f"--{name}: {pair[1]}" for name, pair in COLORS.items())
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def _header(result: Comparison, rows: list[dict[str, Any]], command: str | None) -> str:
    about, options = result.problem, result.options
    trained = [row for row in rows if not row["start_kept"]]
    lead = "No cell improved on its start on the validation rows, so none is the best."
    if trained:
        best = trained[0]
        lead = (
            f"<b>{escape(best['cell'])}</b> has the best log-likelihood on the test rows, "
            f"{number(best['log_likelihood'], 3)} nats, and {percent(best['accuracy'])} accuracy."
        )
    for exact in (row for row in trained[1:] if row["objective"] == "exact"):
        gap = best["log_likelihood"] - exact["log_likelihood"]
        lead += (
            f" Exact softmax, trained for the same time, is {number(gap, 3)} nats worse and has "
            f"{percent(exact['accuracy'])} accuracy."
        )
    sizes = (
        f"{about['rows']:,} rows, {about['classes']:,} classes, {about['features']:,} features; "
        f"{duration(options.budget)} of training per cell on {result.machine['threads']} threads"
    )
    then = ""
    if command is not None:
        then = f"<p>To train the best one on all rows:</p>\n<pre>{escape(command)}</pre>\n"
    name = escape(result.name or "Comparison")
    return (
        f"<header>\n<h1>{name}: objectives and noises at equal time</h1>\n<p>{lead}</p>\n{then}"
        f'<p class="sizes">{sizes}</p>\n</header>'
    )


_CAPTIONS = {
    "log-likelihood": "Exact log-likelihood on {validation_rows:,} validation rows against "
    "seconds of training, including the fit of the noise. A line begins at the first evaluation of "
    "its cell. A ring marks a start that no epoch improved on.",
    "accuracy": "Accuracy on the same rows.",
    "reliability": "Reliability on the test rows: accuracy of rows with similar confidence. "
    "Calibrated probabilities lie on the dotted diagonal.",
    "bias": "Bias of the sampled softmax gradient with respect to the scores, relative to the "
    "exact gradient, at the trained head, against the number of classes drawn.",
}


def _figure(i: int, name: str, drawing: str, result: Comparison) -> str:
    caption = _CAPTIONS[name].format(**result.problem)
    return (
        f'<figure id="{name}">\n<div class="scroll">{drawing}</div>\n'
        f"<figcaption><b>Figure {i}.</b> {caption}</figcaption>\n</figure>"
    )


def _method(result: Comparison) -> str:
    options, computer = result.options, result.machine
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return (
        "<section>\n<h2>Method</h2>\n<p>Test rows were held out before any training and evaluated "
        "once per cell, after its final run. All cells have the same rows, the same seed "
        f"({options.seed}) and {duration(options.budget)} of training, which includes fitting the "
        "noise but not evaluating held-out rows. The head with the best validation log-likelihood "
        "is kept. Log-likelihood and accuracy are exact, over all classes. Throughput and peak "
        "memory, including the data, are those of the final run.</p>\n"
        f'<p class="sizes">{escape(computer["cpu"])}, {computer["threads"]} threads, '
        f"{size(computer['memory'])}, {escape(computer['system'])}. {escape(versions)}.</p>\n"
        "</section>"
    )
