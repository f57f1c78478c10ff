"""The plot of a diagnosis shows its figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.diagnostics import Diagnosis, diagnose
from extremax.report.diagnosis import draw, plot_diagnosis


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    X, y = clustered(900, 30, 6, seed=1, noise=0.4)
    model = ExtremeClassifier(noise="tree", epochs=2, random_state=0, n_jobs=1).fit(
        X[:700], y[:700]
    )
    return diagnose(model, X[700:], y[700:])


def test_the_lines_are_those_of_the_diagnosis(diagnosis: Diagnosis) -> None:
    left, right = draw(diagnosis, "costs $5 and $6").axes
    diagonal, plain, tempered = left.get_lines()
    assert diagonal.get_xdata()[-1] == diagonal.get_ydata()[-1] == 1
    positive = diagnosis.reliability.accuracy > 0
    assert set(diagnosis.reliability.accuracy[positive]) <= set(plain.get_ydata())
    assert tempered.get_xdata().max() == diagnosis.tempered_reliability.confidence.max()
    assert f"T = {diagnosis.temperature:.2f}" in tempered.get_label()
    lines = right.get_lines()
    assert [line.get_label() for line in lines] == ["tree (its own)", "uniform", "frequency"]
    for line, curve in zip(lines, diagnosis.bias.values(), strict=True):
        assert tuple(line.get_xdata()) == curve.m
        np.testing.assert_allclose(line.get_ydata(), curve.relative)


def test_without_bias_there_is_one_panel(diagnosis: Diagnosis) -> None:
    assert len(draw(replace(diagnosis, bias={}), "probit").axes) == 1


def test_it_is_saved_to_a_file(diagnosis: Diagnosis, tmp_path: Path) -> None:
    plot_diagnosis(diagnosis, "diagnosis", tmp_path / "new" / "d.svg")
    assert (tmp_path / "new" / "d.svg").read_bytes().startswith(b"<?xml")
    with pytest.raises(ValueError, match=r"must end in \.png, \.pdf or \.svg"):
        plot_diagnosis(diagnosis, "diagnosis", tmp_path / "d.txt")
