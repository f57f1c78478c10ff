"""Learning curves: what is plotted and what is rejected."""

from __future__ import annotations

import sys

import pytest

from extremax.errors import ExtremaxError
from extremax.report import learning_curves
from extremax.report.curves import draw


def history(n: int = 4, best: int = 3) -> list[dict]:
    """Records of epochs with the best log-likelihood in epoch ``best``."""
    return [
        {
            "epoch": i,
            "seconds": 2.0 * i,
            "surrogate_loss": 1.0 / i,
            "log_likelihood": -1.0 - 0.1 * abs(i - best),
            "accuracy": 0.1 * i,
        }
        for i in range(1, n + 1)
    ]


def test_results_are_plotted_against_seconds():
    figure = draw({"a run": history()})
    left, right = figure.axes
    curve, ring = left.get_lines()
    assert curve.get_xdata().tolist() == [2, 4, 6, 8]
    assert curve.get_ydata().tolist() == pytest.approx([-1.2, -1.1, -1.0, -1.1])
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (6, -1.0)
    curve, ring = right.get_lines()
    assert curve.get_ydata().tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    # The epoch that was kept, not the one with the best accuracy.
    assert ring.get_ydata()[0] == pytest.approx(0.3)
    assert [text.get_text() for text in (*left.texts, *right.texts)] == ["−1.000", "30.0%"]
    assert right.yaxis.get_major_formatter()(0.305) == "30.5%"
    assert figure.get_suptitle() == "a run"


def test_several_runs_have_a_legend_and_different_colors():
    names = ["_tree", "costs $5 and $6", "uniform"]
    figure = draw({name: history() for name in names})
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == names
    curves = figure.axes[0].get_lines()[::2]
    assert len({line.get_color() for line in curves}) == 3
    assert [h.get_color() for h in legend.get_lines()] == [line.get_color() for line in curves]
    assert not figure.axes[0].texts


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".SVG", b"<?xml")]
)
def test_the_file_has_the_format_of_its_name_and_is_reproducible(tmp_path, suffix, start):
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path in paths:
        learning_curves({"a $ run": history()}, path)
        assert path.read_bytes().startswith(start)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_epochs_without_evaluation_are_left_out():
    partial = [{"epoch": 1, "seconds": 1.0, "surrogate_loss": 1.0}, *history()[1:]]
    assert draw({"a": partial}).axes[0].get_lines()[0].get_xdata().tolist() == [4, 6, 8]
    with pytest.raises(ValueError, match="'a' has no held-out evaluations"):
        draw({"a": partial[:1]})
    with pytest.raises(ValueError, match="nothing to plot"):
        draw({})


def test_invalid_paths_are_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png"):
        learning_curves({"a": history()}, tmp_path / "a.jpeg")
    (tmp_path / "b.png").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        learning_curves({"a": history()}, tmp_path / "b.png")


def test_without_matplotlib_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ExtremaxError, match=r"pip install 'extremax\[report\]'"):
        learning_curves({"a": history()}, tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []
