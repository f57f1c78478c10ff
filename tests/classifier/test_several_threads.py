"""A model that several threads ask at once, as those of a server do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.data import clustered


@pytest.mark.parametrize("kind", ["dense", "texts"])
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_each_gets_its_own_answers(kind: str, n_jobs: int, tmp_path: Path) -> None:
    x, y = clustered(1_200, 40, 8, seed=0)
    if kind == "texts":
        x = np.array([f"w{label} v{i % 7} u{i % 30}" for i, label in enumerate(y)])
    # Sampled softmax has a search, whose index the first call makes.
    ExtremeClassifier("sampled_softmax", epochs=1, random_state=0).fit(x, y).save(tmp_path / "m")
    model = ExtremeClassifier.load(tmp_path / "m").set_params(n_jobs=n_jobs)
    blocks = [x[start : start + 50] for start in range(0, 1_200, 50)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda rows: model.predict_topk(rows, 3, search="beam"), blocks))
    alone = ExtremeClassifier.load(tmp_path / "m").set_params(n_jobs=n_jobs)
    for rows, answer in zip(blocks, found, strict=True):
        expected = alone.predict_topk(rows, 3, search="beam")
        assert np.array_equal(answer.labels, expected.labels)
        np.testing.assert_allclose(answer.log_probs, expected.log_probs, rtol=1e-5, atol=1e-6)
