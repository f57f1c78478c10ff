"""The report of a comparison: the page and the CSV files show the same results."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from extremax.comparison import Comparison, LeftOut, Options, Problem, choose, compare
from extremax.data import clustered
from extremax.report.charts import draw
from extremax.report.formatting import duration, number, plus_minus, power, size
from extremax.report.page import pictures, write_report

VOID = {"meta", "br", "img", "link", "hr", "input"}


class Page(HTMLParser):
    """Collects table rows, links and ids, and checks that every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.cell = False
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids += [given["id"]] if "id" in given else []
        self.loads += [given[k] for k in ("src", "href", "xlink:href") if k in given]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.cell = True

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.cell = False

    def handle_data(self, data):
        if self.cell:
            self.tables[-1][-1][-1] += data


def synthetic_result(cells: str, name: str = "a <file> & more.tsv") -> Comparison:
    options = Options(budget=60.0)
    sizes = {
        "rows": 5000, "classes": 300, "features": 20, "test_rows": 900,
        "test_rows_of_unseen_classes": 7, "validation_rows": 450,
    }  # fmt: skip
    prior = {"accuracy": 0.031, "log_likelihood": -5.25}
    computer = {"cpu": "A & B", "threads": 2, "memory": 24_000_000_000, "system": "Linux"}
    result = Comparison(name, options, sizes, prior, {"extremax": "0"}, computer)
    chosen, result.left_out = choose(cells, 5)
    for i, cell in enumerate(chosen):
        likelihood = -2.0 - 0.0375 * i
        curve = [
            {"seconds": s, "log_likelihood": likelihood - 1 / s, "accuracy": 0.5 - 0.1 / s}
            for s in (1.0, 7.0, 60.0)
        ]
        result.final[cell] = {
            "learning_rate": 0.3, "regularization": 1e-5, "weight_decay": 1e-3,
            "log_likelihood": likelihood,
            "seconds": 60.0, "wall_seconds": 71.0, "epochs": 3, "start_kept": i == 1,
            "examples_per_s": 12345.6 if i else None, "peak_memory": 1_234_000_000,
            "probabilities": "exact", "curve": curve,
            "test": {
                "accuracy": 0.5 - 0.01 * i, "accuracy_error": 0.0123, "top5_accuracy": 0.7,
                "log_likelihood": likelihood, "log_likelihood_error": 0.0456,
            },
            "calibration": {
                "error": 0.02, "by_chance": 0.011, "confidence": [0.1, 0.6],
                "accuracy": [0.12, 0.5],
            },
            "bias": {"m": [1, 10], "relative": [0.5, 0.1]} if i == 0 else None,
        }  # fmt: skip
        result.tuning[cell] = [
            {
                "round": 1 + r, "asked_seconds": 1.0, "learning_rate": 0.3,
                "regularization": 1e-5 * r, "weight_decay": 1e-3, "log_likelihood": -3.0,
                "accuracy": 0.2,
            }
            for r in range(4)
        ]  # fmt: skip
        diverged = {"round": 1, "asked_seconds": 1.0, "learning_rate": 3.0, "regularization": 0.0}
        diverged |= {"weight_decay": 0.0, "log_likelihood": None, "diverged": "NaN"}
        result.tuning[cell].append(diverged)
    return result


def read_csv(path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_page_is_self_contained_and_shows_the_results(tmp_path):
    result = synthetic_result("nce×uniform, nce×tree, exact, negative_sampling×softmax")
    page = write_report(result, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "accuracy.png", "bias.png", "curves.csv", "final.csv", "log-likelihood.png",
        "reliability.png", "report.html", "tuning.csv",
    ]  # fmt: skip
    text = page.read_text(encoding="utf-8")
    read = Page(text)
    assert all(link.startswith("#") for link in read.loads)
    assert "@import" not in text
    assert "<script" not in text
    assert len(read.ids) == len(set(read.ids))
    assert text.count("<svg") == 4
    final = read.tables[0]
    assert final[0] == [
        "Objective", "Noise", "m", "Log-likelihood", "Accuracy", "Top 5", "ECE", "Rate", "λ",
        "Examples/s", "Memory",
    ]  # fmt: skip
    assert final[1] == [
        "nce", "uniform", "5", "−2.000 ± 0.046", "50.00% ± 1.23", "70.00%", "2.00%", "0.3",
        "10⁻⁵", "–", "1.23 GB",
    ]  # fmt: skip
    assert final[2][9] == "12\u2009346"
    assert final[2][:3] == ["exact", "all classes", ""]
    assert final[3][:2] == ["nce start kept", "tree"]
    assert final[-1][:4] == ["class prior, no features", "", "−5.250", "3.10%"]
    for phrase in (
        "a &lt;file&gt; &amp; more.tsv: objectives and noises at equal time",
        "<b>nce × uniform</b> has the best log-likelihood",
        "Exact softmax, trained for the same time, is 0.075 nats worse and has 48.00% accuracy.",
        "used up the budget before the first step",
        "The 7 rows whose class does not occur in training",
        "Left out: 1 cell<",
        "negative sampling × softmax: SoftmaxNoise changes as the head trains",
        "A &amp; B, 2 threads, 24 GB, Linux",
        "prefers-color-scheme: dark",
    ):
        assert phrase in text, phrase


def test_the_page_begins_with_the_winner_and_the_command_that_trains_it(tmp_path):
    result = synthetic_result("nce×uniform, exact")
    command = "extremax train a.tsv --noise 'frequency(power=0.5)' && echo"
    text = write_report(result, tmp_path, command).read_text(encoding="utf-8")
    places = [
        text.index(part) for part in ("<b>nce × uniform</b>", "<pre>", "5,000 rows", "<table")
    ]
    assert places == sorted(places)
    shown = (
        "<pre>extremax train a.tsv --noise &#x27;frequency(power=0.5)&#x27; &amp;&amp; echo</pre>"
    )
    assert shown in text
    assert "<pre>" not in write_report(result, tmp_path).read_text(encoding="utf-8")


def test_csv_files_have_the_full_results(tmp_path):
    result = synthetic_result("nce×uniform, exact")
    write_report(result, tmp_path)
    final = read_csv(tmp_path / "final.csv")
    assert list(final[0]) == [
        "cell", "objective", "noise", "n_negatives", "accuracy", "accuracy_error",
        "top5_accuracy", "log_likelihood", "log_likelihood_error", "calibration_error",
        "calibration_error_by_chance", "learning_rate", "regularization", "weight_decay",
        "examples_per_s", "scores_per_example", "peak_memory", "seconds", "wall_seconds", "epochs",
        "start_kept", "probabilities",
    ]  # fmt: skip
    assert [row["cell"] for row in final] == ["nce × uniform", "exact"]
    assert [row["start_kept"] for row in final] == ["False", "True"]
    assert float(final[1]["log_likelihood"]) == -2.0375
    assert [row["scores_per_example"] for row in final] == ["6", "300"]
    curves = read_csv(tmp_path / "curves.csv")
    assert list(curves[0]) == ["cell", "seconds", "log_likelihood", "accuracy", "start_kept"]
    assert len(curves) == 6
    tuning = read_csv(tmp_path / "tuning.csv")
    assert list(tuning[0]) == [
        "cell", "round", "seconds", "learning_rate", "regularization", "weight_decay",
        "log_likelihood", "accuracy", "chosen", "diverged",
    ]  # fmt: skip
    assert [row["chosen"] for row in tuning[:5]] == ["False", "True", "False", "False", "False"]
    assert [row["diverged"] for row in tuning[:5]] == ["False"] * 4 + ["True"]


def test_weight_decay_is_shown_where_it_was_tuned(tmp_path):
    result = synthetic_result("nce×uniform, exact")
    result.options = replace(result.options, weight_decays=(0.0, 1e-3))
    text = write_report(result, tmp_path).read_text(encoding="utf-8")
    final = Page(text).tables[0]
    assert final[0][8:10] == ["λ", "Decay"]
    assert final[1][9] == "0.001"
    assert len({len(row) for row in final[:-1]}) == 1
    assert "weight decay among 0, 0.001" in text
    assert "Last round: rate, λ, decay: log-likelihood" in text


def test_many_cells_are_also_shown_as_a_grid(tmp_path):
    text = write_report(synthetic_result("all"), tmp_path).read_text(encoding="utf-8")
    tables = Page(text).tables
    grid = tables[1]
    assert grid[0][:3] == ["Noise", "negative sampling", "nce"]
    by_noise = {row[0]: row[1:] for row in grid[1:]}
    assert by_noise["softmax"][0] == "·"
    assert by_noise["tree"][0] == "−2.000"


def test_failures_are_listed_with_their_reason(tmp_path):
    result = synthetic_result("exact")
    result.failed.append(LeftOut("nce × <b>", "RuntimeError: out of order"))
    text = write_report(result, tmp_path).read_text(encoding="utf-8")
    assert "<details open>\n<summary>Failed: 1 cell</summary>" in text
    assert "nce × &lt;b&gt;: RuntimeError: out of order." in text


def test_cells_are_sorted_by_log_likelihood_and_kept_starts_are_last(tmp_path):
    result = synthetic_result("nce×uniform, nce×tree, nce×frequency, exact")
    likelihoods = (-1.5, -2.0, 0.0, -1.0)
    for i, (record, likelihood) in enumerate(zip(result.final.values(), likelihoods, strict=True)):
        record["test"]["log_likelihood"] = likelihood
        record["start_kept"] = i in (0, 3)
    text = write_report(result, tmp_path).read_text(encoding="utf-8")
    order = [row["cell"] for row in read_csv(tmp_path / "final.csv")]
    assert order == ["nce × frequency", "nce × tree", "exact", "nce × uniform"]
    assert [row[3].split(" ")[0] for row in Page(text).tables[0][1:5]] == [
        "0.000", "−2.000", "−1.000", "−1.500",
    ]  # fmt: skip
    assert "nats worse" not in text


def trained(cells: str, learning_rate: float) -> Comparison:
    X, y = clustered(400, 12, 8, seed=1, noise=0.4)
    problem = Problem.split(X, y, test_fraction=0.25)
    options = Options(
        budget=0.3, learning_rates=(learning_rate,), regularizations=(0.0,),
        validation_fraction=0.25,
    )  # fmt: skip
    return compare(problem, choose(cells, 5)[0], options, name="synthetic")


def test_a_start_that_was_kept_is_marked_and_never_the_best(tmp_path):
    # Class means are good weights for exact softmax, and a huge learning rate only spoils them.
    spoiled = trained("exact", 1000.0)
    ((cell, record),) = spoiled.final.items()
    assert record["start_kept"]
    assert max(record["curve"], key=lambda p: p["log_likelihood"]) == record["curve"][0]
    text = write_report(spoiled, tmp_path / "spoiled").read_text(encoding="utf-8")
    assert "No cell improved on its start" in text
    assert "best log-likelihood on" not in text
    result = trained("negative_sampling×uniform", 0.3)
    assert [r["start_kept"] for r in result.final.values()] == [False]
    # The untrained head is better on the test rows, but not because of its objective.
    result.final[cell], result.tuning[cell] = record, []
    final = result.final.values()
    assert max(final, key=lambda r: r["test"]["log_likelihood"]) is record
    text = write_report(result, tmp_path).read_text(encoding="utf-8")
    assert "<b>negative sampling × uniform</b> has the best log-likelihood" in text
    assert 'best">' not in text
    assert [row[0] for row in Page(text).tables[0][1:3]] == [
        "negative sampling",
        "exact start kept",
    ]
    for name in ("final.csv", "curves.csv"):
        marks = {row["cell"]: row["start_kept"] for row in read_csv(tmp_path / name)}
        assert marks == {"negative sampling × uniform": "False", "exact": "True"}
    lines, chart = pictures(result)["log-likelihood"]
    assert [line.name for line in lines] == ["negative sampling × uniform", "exact, start kept"]
    (axes,) = draw(lines, chart).axes
    (ring,) = [line for line in axes.get_lines() if line.get_markerfacecolor() == "none"]
    # Reliability has no start to mark.
    assert not any(line.has_ring for line in pictures(result)["reliability"][0])
    start = record["curve"][0]
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (start["seconds"], start["log_likelihood"])


def test_kept_starts_are_marked_in_the_grid_and_not_bold(tmp_path):
    result = synthetic_result("all")
    next(iter(result.final.values()))["start_kept"] = True
    text = write_report(result, tmp_path).read_text(encoding="utf-8")
    by_noise = {row[0]: row[1:] for row in Page(text).tables[1][1:]}
    assert by_noise["tree"][0] == "−2.000*"
    assert '"n best">−2.000' not in text


def test_a_comparison_without_results_is_rejected(tmp_path):
    result = synthetic_result("exact")
    result.final.clear()
    with pytest.raises(ValueError, match="nothing to report"):
        write_report(result, tmp_path)


def test_a_cell_that_is_far_worse_does_not_compress_the_others():
    result = synthetic_result("nce×uniform, nce×tree, exact")
    for point in list(result.final.values())[1]["curve"]:
        point["log_likelihood"] = -400.0
    _, chart = pictures(result)["log-likelihood"]
    low, high = chart.limits
    assert -10 < low < -5
    assert -2.0 < high < -1.5
    assert math.isfinite(low)


def test_number_formats():
    assert number(-1234.5678, 2) == "−1\u2009234.57"
    assert number(None, 2) == "–"
    assert plus_minus(0.1234, 0.01, 1, as_percent=True) == "12.3% <small>± 1.0</small>"
    assert (power(1e-5), power(3e-5), power(0.3), power(0)) == ("10⁻⁵", "3·10⁻⁵", "0.3", "0")
    assert (size(12), size(1.5e9), size(21_340_000)) == ("12 bytes", "1.5 GB", "21.3 MB")
    assert (size(24e9), size(999_700)) == ("24 GB", "1 MB")
    assert (duration(0.38), duration(60), duration(600)) == ("0.38 s", "60 s", "10 min")
    assert (duration(1e-5), duration(3.94), duration(9.96)) == ("0 s", "3.9 s", "10 s")
    assert (duration(9000), duration(200_000)) == ("2 h 30 min", "2.3 days")
