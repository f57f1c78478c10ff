"""The file for evaluators of calibration: what is in it, and that it appears whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.evaluation import export_outcomes

X, Y = clustered(700, 12, 6, seed=0, noise=0.5)
LISTS = [
    [f"c{label}", f"c{(label + 1) % 12}"] if i % 2 else [f"c{label}"] for i, label in enumerate(Y)
]
TEST = [*LISTS[500:698], ["never seen", "c1"], []]


@pytest.fixture(scope="module")
def model() -> ExtremeClassifier:
    return ExtremeClassifier(epochs=2, random_state=0, n_jobs=1).fit(X[:500], LISTS[:500])


def test_arrays_are_predictions_and_truth(model: ExtremeClassifier, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    blocks = [model.outcomes(X[500 + a : 500 + b], TEST[a:b], k=3) for a, b in ((0, 70), (70, 200))]
    export_outcomes(path, blocks)
    saved = np.load(path, allow_pickle=False)
    assert sorted(saved) == ["labels", "prediction_ids", "scores", "true_positives"]
    expected = model.predict_topk(X[500:], 3, search="exact")
    assert (model.classes_[saved["prediction_ids"]] == expected.labels).all()
    np.testing.assert_allclose(saved["scores"], expected.marginals, rtol=1e-5)
    relevant = [
        [label in row for label in best] for best, row in zip(expected.labels, TEST, strict=True)
    ]
    assert saved["true_positives"].dtype == bool
    assert saved["true_positives"].tolist() == relevant
    numbers = {label: i for i, label in enumerate(model.classes_)}
    pairs = [[i, numbers.get(label, -1)] for i, row in enumerate(TEST) for label in row]
    assert saved["labels"].tolist() == pairs
    # What the evaluator makes of it: precision and micro recall at 3.
    hits = sum(map(sum, relevant))
    assert saved["true_positives"].mean() == pytest.approx(hits / 600)
    assert saved["true_positives"].sum() / len(saved["labels"]) == pytest.approx(hits / len(pairs))


def test_a_file_is_replaced_whole_or_not_at_all(
    model: ExtremeClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.npz"
    path.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", full)
        with pytest.raises(OSError, match="no space"):
            export_outcomes(path, [model.outcomes(X[500:], TEST)])
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]
    assert path.read_text() == "old"
    link = tmp_path / "link.npz"
    link.symlink_to(path)
    export_outcomes(link, [model.outcomes(X[500:], TEST)])
    assert link.is_symlink()
    assert np.load(path)["scores"].shape == (200, 5)


def test_nothing_to_export(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no outcomes"):
        export_outcomes(tmp_path / "a.npz", [])
    assert not list(tmp_path.iterdir())
