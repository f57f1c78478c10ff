"""The report of a comparison: one page that needs nothing else, CSV files and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.report import charts, tables
from extremax.report.page_tables import final_table, left_out, matrix, tuning
from extremax.report.style import CSS
from extremax.report.words import duration, number, percent, size, words

if TYPE_CHECKING:
    from extremax.comparison import Comparison

#: Beside it: pictures, and these tables.
CSV = {"final": tables.final_rows, "curves": tables.curve_rows, "tuning": tables.tuning_rows}


def write_report(result: Comparison, folder: str | Path) -> Path:
    """Write everything about a comparison into a folder; returns the page."""
    from extremax.files import whole

    folder = Path(folder)
    if not result.final:
        raise ValueError("no cell of the comparison came to its end: there is nothing to report")
    for name, rows in CSV.items():
        tables.write_csv(folder / f"{name}.csv", rows(result))
    drawn = {name: charts.draw(*chart) for name, chart in pictures(result).items()}
    for name, figure in drawn.items():
        with whole(folder / f"{name}.png") as aside:
            aside.write_bytes(charts.png(figure))
    page = folder / "report.html"
    with whole(page) as aside:
        vectors = {name: charts.svg(figure, name) for name, figure in drawn.items()}
        aside.write_text(html(result, vectors), encoding="utf-8")
    return page


def pictures(result: Comparison) -> dict[str, tuple[list[charts.Line], charts.Chart]]:
    """What is drawn, by the name of its file."""
    found = {
        "log-likelihood": _curves(result, "log_likelihood", "Log-likelihood (nats)"),
        "accuracy": _curves(result, "accuracy", "Accuracy"),
    }
    reliable = {cell: r["calibration"] for cell, r in result.final.items()}
    lines = _lines(result, {c: (r["confidence"], r["accuracy"]) for c, r in reliable.items()})
    found["reliability"] = lines, charts.Chart(
        "mean confidence in the best class", "Accuracy", log_x=False, percent=True,
        diagonal=True, markers=True,
    )  # fmt: skip
    biased = {cell: r["bias"] for cell, r in result.final.items() if r["bias"]}
    if biased:
        lines = _lines(result, {c: (r["m"], r["relative"]) for c, r in biased.items()})
        found["bias"] = (
            lines,
            charts.Chart(
                "classes drawn, m", "Bias over length of the gradient", log_y=True, markers=True
            ),
        )
    return found


def _curves(result: Comparison, key: str, title: str) -> tuple[list[charts.Line], charts.Chart]:
    """Validation figures against time, the view limited to where lines can be told apart."""
    data = {
        cell: ([p["seconds"] for p in r["curve"]], [p[key] for p in r["curve"]])
        for cell, r in result.final.items()
    }
    prior, best = result.prior[key], max(max(y) for _, y in data.values())
    low = min(min(y) for _, y in data.values())
    if best > prior:
        # A cell that fails by far must not flatten the others.
        low = max(low, prior - 0.25 * (best - prior))
    margin = 0.04 * max(best - low, 1e-6)
    shown = low - margin <= prior <= best + margin
    chart = charts.Chart(
        "seconds of training", title, percent=key == "accuracy",
        reference=("class prior", prior) if shown else None, limits=(low - margin, best + margin),
    )  # fmt: skip
    return _lines(result, data), chart


def _lines(
    result: Comparison, data: Mapping[Any, tuple[Sequence[float], Sequence[float]]]
) -> list[charts.Line]:
    noises = list(dict.fromkeys(cell.noise for cell in result.final if cell.noise))
    return [
        charts.Line(
            name, i, words(cell.objective), words(cell.noise or ""),
            noises.index(cell.noise) if cell.noise else 0, *data[cell],
        )
        for i, (cell, name) in enumerate(result.names.items())
        if cell in data
    ]  # fmt: skip


def html(result: Comparison, vectors: Mapping[str, str]) -> str:
    """The page; ``vectors`` are its drawings, as SVG."""
    rows = tables.final_rows(result)
    title = escape(f"{result.name or 'Data'}: {len(rows)} cells compared")
    parts = [
        _header(result, rows),
        final_table(result, rows),
        *(_figure(i, name, vectors[name], result) for i, name in enumerate(vectors, 1)),
        matrix(result, rows),
        tuning(result),
        left_out(result),
        _method(result),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{_variables()}{CSS}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _variables() -> str:
    """The colours of drawings, for light pages and dark ones."""
    light = "; ".join(f"--{name}: {pair[0]}" for name, pair in charts.COLOURS.items())
    dark = "; ".join(f"--{name}: {pair[1]}" for name, pair in charts.COLOURS.items())
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def _header(result: Comparison, rows: list[dict[str, Any]]) -> str:
    about, options = result.problem, result.options
    best = rows[0]
    lead = (
        f"<b>{escape(best['cell'])}</b> has the best log-likelihood on the test rows, "
        f"{number(best['log_likelihood'], 3)} nats, and {percent(best['accuracy'])} accuracy."
    )
    exact = next((row for row in rows[1:] if row["objective"] == "exact"), None)
    if exact is not None and exact["log_likelihood"] is not None:
        gap = best["log_likelihood"] - exact["log_likelihood"]
        lead += (
            f" Exact softmax, trained for as long, is {number(gap, 3)} nats behind and has "
            f"{percent(exact['accuracy'])}."
        )
    sizes = (
        f"{about['rows']:,} rows, {about['classes']:,} classes, {about['features']:,} features; "
        f"{duration(options.budget)} of training a cell on {result.machine['threads']} threads"
    )
    name = escape(result.name or "Comparison")
    return (
        f'<header>\n<h1>{name}: objectives and noises at equal time</h1>\n<p class="sizes">{sizes}'
        f"</p>\n<p>{lead}</p>\n</header>"
    )


_CAPTIONS = {
    "log-likelihood": "Exact log-likelihood on {validation_rows:,} validation rows against "
    "seconds of training, the fit of the noise included. A line begins where its cell was first "
    "looked at, after an epoch.",
    "accuracy": "Accuracy on the same rows.",
    "reliability": "Reliability on the test rows: accuracy among rows of about the same "
    "confidence. On the dotted diagonal, confidence is what it says.",
    "bias": "Bias of the sampled-softmax gradient on the scores, relative to the exact gradient, "
    "at the trained head, against the number of classes drawn. Computed, not sampled.",
}


def _figure(i: int, name: str, vector: str, result: Comparison) -> str:
    caption = _CAPTIONS[name].format(**result.problem)
    return (
        f'<figure id="{name}">\n<div class="scroll">{vector}</div>\n'
        f"<figcaption><b>Figure {i}.</b> {caption}</figcaption>\n</figure>"
    )


def _method(result: Comparison) -> str:
    options, computer = result.options, result.machine
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return (
        "<section>\n<h2>How it was measured</h2>\n<p>Test rows were held out before anything else "
        "and looked at once, after the final run of each cell. All cells have the same rows, the "
        f"same seed ({options.seed}) and the same {duration(options.budget)} of training, in which "
        "fitting the noise counts and looking at held-out rows does not; the head kept is the one "
        "with the best validation log-likelihood. Log-likelihood and accuracy are over all "
        "classes. Examples a second are those of the final run; memory is the peak of the process "
        "in it, data included.</p>\n"
        f'<p class="sizes">{escape(computer["cpu"])}, {computer["threads"]} threads, '
        f"{size(computer['memory'])}, {escape(computer['system'])}. {escape(versions)}.</p>\n"
        "</section>"
    )
