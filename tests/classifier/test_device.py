"""The device on which a classifier is trained; without a GPU in Triton's interpreter."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.errors import ArgumentError

HAS_GPU = torch.cuda.is_available()
X, Y = clustered(240, 12, 6, seed=0)
SMALL: dict[str, Any] = {"epochs": 1, "batch_size": 64, "random_state": 0}


def test_auto_is_the_cpu_where_there_is_no_gpu_or_little_to_do() -> None:
    usual = ExtremeClassifier("negative_sampling", "uniform", **SMALL).fit(X, Y)
    auto = ExtremeClassifier("negative_sampling", "uniform", device="auto", **SMALL).fit(X, Y)
    assert torch.equal(auto.model_.head.weight, usual.model_.head.weight)


@pytest.mark.skipif(HAS_GPU, reason="a GPU is there")
def test_a_gpu_that_is_not_there_is_refused_before_training() -> None:
    model = ExtremeClassifier("negative_sampling", "uniform", device="cuda", **SMALL)
    with pytest.raises(ArgumentError, match="needs a GPU, and torch finds none; use device='cpu'"):
        model.fit(X, Y)
    usual = ExtremeClassifier("negative_sampling", "uniform", **SMALL).fit(X, Y)
    usual.device = "cuda"
    with pytest.raises(ArgumentError, match="needs a GPU"):
        usual.predict(X)


def test_heads_without_a_form_for_gpus_and_other_names_are_refused() -> None:
    rows = sparse.csr_matrix(X)
    with pytest.raises(ArgumentError, match="cannot train SupportHead"):
        ExtremeClassifier("exact", device="cuda", **SMALL).fit(rows, Y)
    with pytest.raises(ArgumentError, match="device must be 'cpu', 'cuda' or 'auto'"):
        ExtremeClassifier(device="tpu").fit(X, Y)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The GPU, or the CPU in its place."""
    pytest.importorskip("triton")
    if HAS_GPU:
        return torch.device("cuda", 0)
    cpu = torch.device("cpu")

    def resolve(name: str, worth_it: bool = True) -> torch.device | None:
        return cpu if name == "cuda" else None

    monkeypatch.setattr("extremax.preparation.resolve", resolve)
    monkeypatch.setattr("extremax.classifier.resolve", resolve)
    return cpu


CASES: dict[str, dict[str, Any]] = {
    "shared draws": {"objective": "sampled_softmax"},
    "negative sampling": {"objective": "negative_sampling", "noise": "tree"},
    "exact": {"objective": "exact", "weight_decay": 0.01},
    "augment & reduce": {"objective": "augment_reduce"},
    # Five draws of two parts: one is left over, and a part is chosen for it.
    "mixture": {"objective": "sampled_softmax", "noise": "mixture", "n_negatives": 5},
    "kernel noise": {"objective": "sampled_softmax", "noise": "quadratic", "n_negatives": 4},
}


@pytest.mark.extras
@pytest.mark.parametrize("case", CASES)
def test_a_device_learns_what_the_cpu_learns(case: str, device: torch.device) -> None:
    more = SMALL | {"epochs": 2, "start": "frequencies"} | CASES[case]
    found = ExtremeClassifier(device="cuda", **more).fit(X, Y)
    usual = ExtremeClassifier(**more).fit(X, Y)
    # Draws differ. A start at frequencies has −log 12 = −2.48.
    expected = usual.log_likelihood(X, Y)
    assert expected > -2.2
    assert found.log_likelihood(X, Y) == pytest.approx(expected, abs=0.15)
    # The head of the host is up to date, and the model does not need the device.
    copy = pickle.loads(pickle.dumps(found))
    copy.device = "cpu"
    np.testing.assert_allclose(
        copy.predict_log_proba(X), found.predict_log_proba(X), rtol=1e-3, atol=1e-4
    )


@pytest.mark.extras
def test_sparse_rows_train_on_a_device(device: torch.device) -> None:
    rows = sparse.csr_matrix(np.maximum(X, 0.0))
    more = SMALL | {"objective": "sampled_softmax", "bag_size": 16, "n_negatives": 4}
    found = ExtremeClassifier(device="cuda", **more).fit(rows, Y)
    usual = ExtremeClassifier(**more).fit(rows, Y)
    assert found.log_likelihood(rows, Y) == pytest.approx(usual.log_likelihood(rows, Y), abs=0.1)


@pytest.mark.extras
def test_a_run_on_a_device_is_resumed_to_the_same_bits(
    device: torch.device, tmp_path: Path
) -> None:
    class Stopped(Exception):
        pass

    def stop(record: dict[str, Any]) -> None:
        raise Stopped

    more = SMALL | {"epochs": 2, "objective": "sampled_softmax", "device": "cuda"}
    whole = ExtremeClassifier(**more).fit(X, Y)
    with pytest.raises(Stopped):
        ExtremeClassifier(**more).fit(X, Y, checkpoint=tmp_path / "run", callback=stop)
    resumed = ExtremeClassifier(**more).fit(X, Y, checkpoint=tmp_path / "run")
    assert torch.equal(resumed.model_.head.weight, whole.model_.head.weight)
    resumed.partial_fit(X[:40], np.where(np.arange(40) % 2, Y[:40], 99))
    assert 99 in resumed.classes_
    assert np.isfinite(resumed.predict_log_proba(X[:5])).all()
