"""The tables of the report: final results, objectives by noises, tuning, cells left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from extremax.report import charts
from extremax.report.formatting import (
    duration,
    number,
    percent,
    plus_minus,
    power,
    readable,
    size,
)

if TYPE_CHECKING:
    from extremax.comparison import Comparison


class _Column(NamedTuple):
    """A column of the final table.

    text:  formats the value of a row.
    kind:  CSS class; "n" for numbers.
    key:   the value whose best, as selected by ``pick``, is shown in bold.
    """

    title: str
    text: Callable[[dict[str, Any]], str]
    kind: str = "n"
    key: str = ""
    pick: Callable[[list[float]], float] = max


_COLUMNS = (
    _Column("Objective", lambda r: readable(r["objective"]) + ("" if r["trained"] else "*"), ""),
    _Column("Noise", lambda r: readable(r["noise"]) or "all classes", ""),
    _Column("m", lambda r: f"{r['n_negatives']}"),
    _Column(
        "Log-likelihood",
        lambda r: plus_minus(r["log_likelihood"], r["log_likelihood_error"], 3),
        key="log_likelihood",
    ),
    _Column(
        "Accuracy",
        lambda r: plus_minus(r["accuracy"], r["accuracy_error"], 2, as_percent=True),
        key="accuracy",
    ),
    _Column("Top 5", lambda r: percent(r["top5_accuracy"]), key="top5_accuracy"),
    _Column("ECE", lambda r: percent(r["calibration_error"]), "n", "calibration_error", min),
    _Column("Rate", lambda r: f"{r['learning_rate']:g}"),
    _Column("λ", lambda r: power(r["regularization"])),
    _Column("Examples/s", lambda r: number(r["examples_per_s"], 0), key="examples_per_s"),
    _Column("Memory", lambda r: size(r["peak_memory"])),
)


def final_table(result: Comparison, rows: list[dict[str, Any]]) -> str:
    """Return the test results of every cell and of the class prior."""
    best = {}
    for column in _COLUMNS:
        values = [row[column.key] for row in rows if column.key and row[column.key] is not None]
        best[column.title] = column.pick(values) if len(values) > 1 else None
    lines = [
        f"<tr>{''.join(_final_cell(column, row, best[column.title]) for column in _COLUMNS)}</tr>"
        for row in rows
    ]
    prior = result.prior
    lines.append(
        '<tr class="reference"><td colspan="2">class prior, no features</td><td></td>'
        f'<td class="n">{number(prior["log_likelihood"], 3)}</td>'
        f'<td class="n">{percent(prior["accuracy"])}</td>{"<td></td>" * (len(_COLUMNS) - 5)}</tr>'
    )
    head = "".join(f'<th class="{column.kind}">{column.title}</th>' for column in _COLUMNS)
    return (
        '<section>\n<p class="caption" id="table1"><b>Table 1.</b> '
        f"{_table_caption(result, rows)}</p>\n"
        '<div class="scroll"><table class="final" aria-labelledby="table1">\n'
        f"<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{chr(10).join(lines)}\n</tbody>\n</table></div>\n</section>"
    )


def _final_cell(column: _Column, row: dict[str, Any], best: float | None) -> str:
    is_best = best is not None and row[column.key] == best
    return f'<td class="{column.kind}{" best" if is_best else ""}">{column.text(row)}</td>'


def _table_caption(result: Comparison, rows: list[dict[str, Any]]) -> str:
    about = result.problem
    text = (
        f"Exact results on {about['test_rows']:,} test rows, with standard errors. m is the number "
        "of classes drawn per example; Rate and λ are the learning rate and the penalty selected "
        "by tuning. The best value of each column is bold."
    )
    chance = max(row["calibration_error_by_chance"] for row in rows)
    text += (
        " ECE is the expected calibration error of the confidence in the best class; on this "
        f"number of rows it would be up to {percent(chance)} by chance for a calibrated model."
    )
    unseen = about["test_rows_of_unseen_classes"]
    if unseen:
        text += (
            f" The {unseen:,} rows whose class does not occur in training count as wrong and are "
            "left out of the log-likelihood."
        )
    if not all(row["trained"] for row in rows):
        text += (
            " * Fitting the noise used up the budget before the first step: these are the results "
            "of the initial head."
        )
    return text


def matrix(result: Comparison, rows: list[dict[str, Any]]) -> str:
    """Return the table of log-likelihood by objective and noise, if there are many cells."""
    if len(rows) <= charts.MAX_LABELED_LINES:
        return ""
    likelihoods = {(row["objective"], row["noise"]): row["log_likelihood"] for row in rows}
    cells = list(result.final)
    objectives = list(dict.fromkeys(c.objective for c in cells if c.noise))
    noises = list(dict.fromkeys(c.noise for c in cells if c.noise))
    if len(likelihoods) < len(rows) or len(objectives) < 2 or len(noises) < 2:
        return ""
    head = "".join(f'<th class="n">{readable(o)}</th>' for o in objectives)
    best = rows[0]["log_likelihood"]
    lines = []
    for noise in noises:
        tds = []
        for objective in objectives:
            value = likelihoods.get((objective, noise))
            text = "·" if value is None else number(value, 3)
            tds.append(f'<td class="n{" best" if value == best else ""}">{text}</td>')
        lines.append(f"<tr><td>{readable(noise)}</td>{''.join(tds)}</tr>")
    return (
        '<section>\n<p class="caption" id="table2"><b>Table 2.</b> Log-likelihood on the test rows '
        "by noise and objective. A dot marks a cell that was left out.</p>\n"
        '<div class="scroll"><table aria-labelledby="table2">\n'
        f"<thead><tr><th>Noise</th>{head}</tr></thead>\n<tbody>\n{chr(10).join(lines)}\n</tbody>\n"
        "</table></div>\n</section>"
    )


def tuning(result: Comparison) -> str:
    """Return the rounds of tuning, and the results of the last round per cell."""
    options = result.options
    if not options.rounds:
        return ""
    grid = (
        f"Learning rate among {_listed(options.learning_rates)}, λ among "
        f"{_listed(options.regularizations)}"
    )
    schedule = ", then ".join(
        f"{r.settings} settings for {duration(r.seconds)} each" for r in options.rounds
    )
    lines = []
    for cell, name in result.names.items():
        records = [r for r in result.tuning[cell] if r["log_likelihood"] is not None]
        last = [r for r in records if r["round"] == len(options.rounds)]
        settings = "; ".join(
            f"{r['learning_rate']:g}, {power(r['regularization'])}: "
            f"{number(r['log_likelihood'], 3)}"
            for r in sorted(last, key=lambda r: -r["log_likelihood"])
        )
        diverged = sum("diverged" in r for r in result.tuning[cell])
        lines.append(
            f"<tr><td>{escape(name)}</td><td>{settings}</td>"
            f"<td class='n'>{diverged or ''}</td></tr>"
        )
    return (
        "<details>\n<summary>Tuning</summary>\n"
        f"<p>{grid}, by successive halving on {result.problem['validation_rows']:,} validation "
        f"rows: {schedule}. The better half was kept each time. The noise was fitted once for all "
        "of these runs, and its fit is not part of their time. <code>tuning.csv</code> lists every "
        "run.</p>\n"
        '<div class="scroll"><table>\n<thead><tr><th>Cell</th><th>Last round: rate, λ: '
        'log-likelihood</th><th class="n">Diverged</th></tr></thead>\n'
        f"<tbody>\n{chr(10).join(lines)}\n</tbody>\n</table></div>\n</details>"
    )


def left_out(result: Comparison) -> str:
    """Return the cells without results, grouped by reason."""
    sections = []
    for title, cells in (("Left out", result.left_out), ("Failed", result.failed)):
        reasons: dict[str, list[str]] = {}
        for cell in cells:
            reasons.setdefault(cell.reason, []).append(cell.name)
        items = "".join(
            f"<li>{escape(', '.join(names))}: {escape(reason)}.</li>"
            for reason, names in reasons.items()
        )
        if items:
            expanded = " open" if title == "Failed" else ""
            noun = "cell" if len(cells) == 1 else "cells"
            sections.append(
                f"<details{expanded}>\n<summary>{title}: {len(cells)} {noun}</summary>\n"
                f"<ul>{items}</ul>\n</details>"
            )
    return "\n".join(sections)


def _listed(values: Sequence[float]) -> str:
    return ", ".join(power(value) for value in values)
