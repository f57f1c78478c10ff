"""Kernel noises in training: they follow the head, also across an interruption."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered
from extremax.objectives import SampledSoftmax
from extremax.training.checkpoint import Interrupted

X, Y = clustered(900, 30, 8, seed=0, noise=0.2)

every_kernel = pytest.mark.parametrize("kind", ["quadratic", "quartic_walk", "fourier"])


def small(kind: str, n_jobs: int = 1) -> ExtremeClassifier:
    objective = SampledSoftmax(absolute=kind != "fourier")
    return ExtremeClassifier(objective, kind, epochs=3, random_state=1, n_jobs=n_jobs)


def assert_same(one: ExtremeClassifier, other: ExtremeClassifier) -> None:
    theirs = other.model_.head.state()
    for name, value in one.model_.head.state().items():
        assert torch.equal(value, theirs[name])


@every_kernel
def test_a_classifier_learns_the_same_with_any_number_of_threads(kind: str) -> None:
    model = small(kind).fit(X, Y)
    assert model.score(X, Y) > 0.8
    assert_same(model, small(kind, n_jobs=2).fit(X, Y))


@every_kernel
def test_the_noise_knows_the_head_as_it_is_after_training(kind: str) -> None:
    # Nothing is held out, so that no head of an earlier epoch is put back at the end.
    model = small(kind).set_params(validation_fraction=0.0).fit(X, Y)
    noise, head = model.model_.noise, model.model_.head
    context = noise.context(X[:20])
    after = noise.log_prob_all(context)
    noise.attach(head.vectors)
    assert torch.equal(noise.log_prob_all(context), after)


@every_kernel
def test_an_interrupted_run_resumes_to_the_same_end(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradient, steps = SampledSoftmax.loss_and_gradient, [0]

    def interrupted(self: Any, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        steps[0] += 1
        if steps[0] == 37:
            signal.raise_signal(signal.SIGINT)
        return gradient(self, *args)

    monkeypatch.setattr(SampledSoftmax, "loss_and_gradient", interrupted)
    with pytest.raises(Interrupted):
        small(kind).fit(X, Y, checkpoint=tmp_path)
    monkeypatch.undo()
    assert_same(small(kind).fit(X, Y, checkpoint=tmp_path), small(kind).fit(X, Y))


@every_kernel
def test_classes_may_come_later_also_to_a_saved_model(kind: str, tmp_path: Path) -> None:
    known = Y < 20
    model = small(kind).partial_fit(X[known], Y[known])
    model.save(tmp_path)
    both = [model, ExtremeClassifier.load(tmp_path)]
    for one in both:
        one.partial_fit(X, Y).partial_fit(X, Y)
        assert one.model_.noise.n_classes_ == len(np.unique(Y))
        assert one.model_.noise.n_fitted_ == 20
    assert_same(*both)
