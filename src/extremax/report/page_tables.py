"""The tables of the report: final results, objectives by noises, tuning, cells left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from extremax.report import charts
from extremax.report.formatting import duration, number, percent, plus_minus, power, readable, size

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


def _objective(row: dict[str, Any]) -> str:
    return readable(row["objective"]) + (" <small>start kept</small>" if row["start_kept"] else "")


_COLUMNS = (
    _Column("Objective", _objective, ""),
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
    _Column("Decay", lambda r: power(r["weight_decay"])),
    _Column("Examples/s", lambda r: number(r["examples_per_s"], 0), key="examples_per_s"),
    _Column("Memory", lambda r: size(r["peak_memory"])),
)


def final_table(result: Comparison, rows: list[dict[str, Any]]) -> str:
    """Return the test results of every cell and of the class prior."""
    lines: list[list[str]] = [[] for _ in rows]
    trained = [row for row in rows if not row["start_kept"]]
    columns = [column for column in _COLUMNS if column.title != "Decay" or _decays(result)]
    for column in columns:
        values = [row[column.key] for row in trained if column.key and row[column.key] is not None]
        best = column.pick(values) if len(values) > 1 else None
        for line, row in zip(lines, rows, strict=True):
            is_best = best is not None and row in trained and row[column.key] == best
            line.append(_td(column.text(row), column.kind, "best" * is_best))
    prior = [
        '<td colspan="2">class prior, no features</td>',
        _td(""),
        _td(number(result.prior["log_likelihood"], 3), "n"),
        _td(percent(result.prior["accuracy"]), "n"),
        *[_td("")] * (len(columns) - 5),
    ]
    head = [(column.title, column.kind) for column in columns]
    table = _table(head, [*lines, prior], 'class="final" aria-labelledby="table1"')
    caption = f"<b>Table 1.</b> {_table_caption(result, rows)}"
    return f'<section>\n<p class="caption" id="table1">{caption}</p>\n{table}\n</section>'


def _decays(result: Comparison) -> bool:
    """Whether any setting decays the weights."""
    return any(result.options.weight_decays)


def _td(text: str, *kinds: str) -> str:
    return f'<td class="{" ".join(filter(None, kinds))}">{text}</td>'


def _table(
    head: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], attributes: str = ""
) -> str:
    """Return a table of ``<td>`` elements.

    head:  title and CSS class per column.
    """
    titles = "".join(f'<th class="{kind}">{title}</th>' for title, kind in head)
    lines = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table {attributes}>\n<thead><tr>{titles}</tr></thead>\n'
        f"<tbody>\n{lines}\n</tbody>\n</table></div>"
    )


def _table_caption(result: Comparison, rows: list[dict[str, Any]]) -> str:
    about = result.problem
    text = (
        f"Exact results on {about['test_rows']:,} test rows, with standard errors. m is the number "
        "of classes drawn per example; Rate and λ are the learning rate and the penalty selected "
        "by tuning. The best value of each column is bold."
    )
    if _decays(result):
        text += " Decay is the penalty on the weights, also selected by tuning."
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
    if any(row["start_kept"] for row in rows):
        text += (
            " Start kept: no epoch improved on the initial head, or fitting the noise used up the "
            "budget before the first step. These are the results of the initial head, so they come "
            "last and are never the best."
        )
    return text


def matrix(result: Comparison, rows: list[dict[str, Any]]) -> str:
    """Return the table of log-likelihood by objective and noise, if there are many cells."""
    by_cell = {(row["objective"], row["noise"]): row for row in rows}
    objectives = list(dict.fromkeys(c.objective for c in result.final if c.noise))
    noises = list(dict.fromkeys(c.noise for c in result.final if c.noise))
    if (
        len(rows) <= charts.MAX_LABELED_LINES
        or len(by_cell) < len(rows)
        or min(len(objectives), len(noises)) < 2
    ):
        return ""
    lines = []
    for noise in noises:
        line = [f"<td>{readable(noise)}</td>"]
        for objective in objectives:
            row = by_cell.get((objective, noise))
            text = "·"
            if row is not None:
                text = number(row["log_likelihood"], 3) + "*" * row["start_kept"]
            is_best = row is rows[0] and not row["start_kept"]
            line.append(_td(text, "n", "best" * is_best))
        lines.append(line)
    head = [("Noise", ""), *((readable(objective), "n") for objective in objectives)]
    caption = (
        "<b>Table 2.</b> Log-likelihood on the test rows by noise and objective. A dot marks a "
        "cell that was left out, an asterisk one whose start was kept."
    )
    table = _table(head, lines, 'aria-labelledby="table2"')
    return f'<section>\n<p class="caption" id="table2">{caption}</p>\n{table}\n</section>'


def tuning(result: Comparison) -> str:
    """Return the rounds of tuning, and the results of the last round per cell."""
    options = result.options
    if not options.rounds:
        return ""
    rates, penalties, decays = (
        ", ".join(power(value) for value in values)
        for values in (options.learning_rates, options.regularizations, options.weight_decays)
    )
    also, more = (f", weight decay among {decays}", ", decay") if _decays(result) else ("", "")
    schedule = ", then ".join(
        f"{r.settings} settings for {duration(r.seconds)} each" for r in options.rounds
    )
    lines = []
    for cell, name in result.names.items():
        finished = [r for r in result.tuning[cell] if "diverged" not in r]
        last = [r for r in finished if r["round"] == len(options.rounds)]
        settings = "; ".join(
            f"{r['learning_rate']:g}, {power(r['regularization'])}"
            f"{', ' + power(r['weight_decay']) if more else ''}: "
            f"{number(r['log_likelihood'], 3)}"
            for r in sorted(last, key=lambda r: -r["log_likelihood"])
        )
        n_diverged = len(result.tuning[cell]) - len(finished)
        lines.append([_td(escape(name)), _td(settings), _td(f"{n_diverged or ''}", "n")])
    head = [("Cell", ""), (f"Last round: rate, λ{more}: log-likelihood", ""), ("Diverged", "n")]
    return (
        "<details>\n<summary>Tuning</summary>\n"
        f"<p>Learning rate among {rates}, λ among {penalties}{also}, by successive halving on "
        f"{result.problem['validation_rows']:,} validation rows: {schedule}. The better half was "
        "kept each time. The noise was fitted once for all of these runs, and its fit is not part "
        f"of their time. <code>tuning.csv</code> lists every run.</p>\n{_table(head, lines)}\n"
        "</details>"
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
