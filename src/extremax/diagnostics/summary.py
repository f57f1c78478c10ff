"""All that the diagnostics say of one model on some labelled rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from extremax.diagnostics.bias import BiasCurve, estimated_bias
from extremax.diagnostics.calibration import Outcomes, Reliability, outcomes, reliability
from extremax.diagnostics.signal import Signal, estimated_signal
from extremax.kernels.cpu import threads
from extremax.labels import label_array
from extremax.noise import NOISES, SPARSE_NOISES, FrequencyNoise, Noise, UniformNoise
from extremax.objectives.base import Objective
from extremax.prediction.calibration import fit_temperature

if TYPE_CHECKING:
    from extremax.classifier import ExtremeClassifier

#: Numbers of samples at which the bias is measured.
SAMPLES = (1, 3, 10, 30, 100, 300, 1000, 3000)
# Rows × classes that the bias is measured on, and rows at least and at most.
_BIAS_SCORES, _BIAS_ROWS = 2_000_000, (4, 128)


@dataclass(frozen=True)
class Diagnosis:
    """Figures of a model on rows.

    outcomes, reliability:  of the model as it is.
    temperature:            that of the greatest likelihood on these very rows, on top of the
                            model's own. One number fitted to n rows flatters by about 1/(2n) nat.
    tempered, tempered_reliability:  with the logits divided by it.
    bias:                   of sampled softmax on this head, by the name of the noise; empty where
                            the probabilities are no softmax.
    bias_rows:              how many rows it was measured on.
    signal:                 of negative sampling, by the name of the noise.
    own_noise:              the name of the model's noise, None if it was trained without.
    """

    outcomes: Outcomes
    reliability: Reliability
    temperature: float
    tempered: Outcomes
    tempered_reliability: Reliability
    bias: dict[str, BiasCurve]
    bias_rows: int
    signal: dict[str, Signal]
    own_noise: str | None


def diagnose(model: ExtremeClassifier, X: Any, y: Any) -> Diagnosis:
    """Measure a trained classifier on labelled rows it was not trained on."""
    features = model.encoder_.transform(X)
    labels = model.index_.encode(label_array(y))
    if len(labels) != len(features):
        raise ValueError(f"X has {len(features)} rows but y has {len(labels)} labels")
    return diagnose_rows(model, features, labels)


def diagnose_rows(
    model: ExtremeClassifier,
    features: Any,
    labels: np.ndarray,
    counts: np.ndarray | None = None,
) -> Diagnosis:
    """The same for rows as the encoder makes them and labels as integers, −1 for unseen classes.

    counts:  examples of each class in the data that the rows are from, for the frequency noise;
             by default in the rows.
    """
    known = np.flatnonzero(labels >= 0)
    if not len(known):
        raise ValueError("no row has a class that the model knows")
    if counts is None:
        counts = np.bincount(labels[known], minlength=len(model.index_))
    scorer, budget = model._scorer, model.memory_budget
    with threads.limit(model.n_jobs):
        plain = outcomes(scorer, features, labels, budget)
        temperature = fit_temperature(scorer, features, labels, budget)
        tempered = outcomes(scorer, features, labels, budget, temperature)
        noises = _noises(model, counts)
        few = known[: int(np.clip(_BIAS_SCORES // len(counts), *_BIAS_ROWS))]
        bias = {}
        # Training knows of no temperature, and of no noise beside the head.
        as_trained = replace(scorer, temperature=1.0, blend=None)
        if type(scorer.objective).log_normalise is Objective.log_normalise:
            for name, noise in noises.items():
                part = features[few], labels[few]
                bias[name] = estimated_bias(as_trained, *part, noise, SAMPLES, budget)
        signal = {}
        for name, noise in noises.items():
            signal[name] = estimated_signal(scorer, features[known], labels[known], noise, budget)
            if noise is not model.noise_ and isinstance(noise, FrequencyNoise):
                log_q = _leave_one_out(counts, labels[known])
                signal[name] = signal[name]._replace(log_q=log_q)
    return Diagnosis(
        outcomes=plain,
        reliability=reliability(plain.confidence, plain.correct),
        temperature=temperature,
        tempered=tempered,
        tempered_reliability=reliability(tempered.confidence, tempered.correct),
        bias=bias,
        bias_rows=len(few),
        signal=signal,
        own_noise=_name(model.noise_) if scorer.objective.samples else None,
    )


def _noises(model: ExtremeClassifier, counts: np.ndarray) -> dict[str, Noise]:
    """The model's own noise and the two plain ones to compare it with."""
    found: dict[str, Noise] = {}
    if model.objective_.samples:
        found[_name(model.noise_)] = model.noise_
    uniform, frequency = UniformNoise(), FrequencyNoise()
    uniform.extend(len(counts))
    frequency.load_state({"counts": torch.from_numpy(counts.astype(np.int64))})
    found.setdefault("uniform", uniform)
    found.setdefault("frequency", frequency)
    return found


def _name(noise: Noise) -> str:
    names = {kind: name for name, kind in (*NOISES.items(), *SPARSE_NOISES.items())}
    return names.get(type(noise), type(noise).__name__)


def _leave_one_out(counts: np.ndarray, labels: np.ndarray) -> float:
    """Mean log q of frequency noise, each row left out of the counts that judge it."""
    total = np.maximum(counts, 1).sum() - (counts[labels] > 1)
    return float(np.log(np.maximum(counts[labels] - 1, 1) / total).mean())
