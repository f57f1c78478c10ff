"""The complete diagnosis of one model on labeled rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from extremax.diagnostics.bias import BiasCurve, estimated_bias
from extremax.diagnostics.signal import Signal, estimated_signal
from extremax.errors import ArgumentError
from extremax.evaluation import (
    FrequencyBand,
    Outcomes,
    Reliability,
    class_lists,
    outcomes,
    reliability,
    reliability_by_frequency,
)
from extremax.kernels.cpu import threads
from extremax.labels import LabelLists
from extremax.model import Model
from extremax.noise import FrequencyNoise, Noise, UniformNoise, noise_name
from extremax.rows import Rows
from extremax.training.calibration import fit_temperature

if TYPE_CHECKING:
    from extremax.classifier import ExtremeClassifier

#: Numbers of draws for which the bias is computed.
DRAWS = (1, 3, 10, 30, 100, 300, 1000, 3000)
# Rows × classes for which the bias is computed, and bounds on the number of rows.
_BIAS_SCORES, _BIAS_ROWS = 2_000_000, (4, 128)


@dataclass(frozen=True)
class Diagnosis:
    """Results of `diagnose`. Where rows have several labels, likelihood, temperature, bias and
    signal are those of (row, label) pairs.

    outcomes, reliability:  of the model as it is; confidence is the probability that the best class
                            is a label of the row.
    bands:                  reliability by training frequency of the predicted class, rare first.
    temperature:            the temperature that maximizes the likelihood of these very rows, on top
                            of the model's own. Fitting one number to n rows overstates the mean
                            log-likelihood by about 1/(2n) nat.
    tempered, tempered_reliability:  with the logits divided by that temperature.
    bias:                   of sampled softmax on this head, by name of the noise; empty if the
                            probabilities are not a softmax.
    bias_rows:              number of rows for which the bias was computed.
    signal:                 of negative sampling, by name of the noise.
    own_noise:              name of the model's noise, or None if it was trained without one.
    """

    outcomes: Outcomes
    reliability: Reliability
    bands: list[FrequencyBand]
    temperature: float
    tempered: Outcomes
    tempered_reliability: Reliability
    bias: dict[str, BiasCurve]
    bias_rows: int
    signal: dict[str, Signal]
    own_noise: str | None


def diagnose(classifier: ExtremeClassifier, X: Any, y: Any) -> Diagnosis:
    """Measure a trained classifier on rows that it was not trained on.

    y:  one label per row or several, as in `ExtremeClassifier.fit`.
    """
    model = classifier.model_
    rows = model.encoder.transform(X)
    return diagnose_rows(classifier, rows, class_lists(model, y, len(rows)))


def diagnose_rows(
    classifier: ExtremeClassifier,
    rows: Rows,
    truth: LabelLists,
    counts: np.ndarray | None = None,
) -> Diagnosis:
    """`diagnose` for encoded rows and class numbers, −1 for labels that training never saw.

    counts:  for the frequency noise, pairs of row and label per class in the data set that the rows
             were drawn from; None counts the rows themselves.
    """
    model, budget = classifier.model_, classifier.memory_budget
    labeled = truth.counts > 0
    if not labeled.all():
        rows, truth = rows[np.flatnonzero(labeled)], truth[labeled]
    known = np.flatnonzero(truth.values >= 0)
    if not len(known):
        raise ArgumentError("no row has a label that training saw")
    known_labels, owner = truth.values[known], truth.rows[known]
    if counts is None:
        counts = np.bincount(known_labels, minlength=model.n_classes)
    with threads.limit(classifier.n_jobs):
        plain = outcomes(model, rows, truth, budget)
        known_rows = rows[owner]
        temperature = fit_temperature(model, known_rows, known_labels, budget)
        tempered = outcomes(model.tempered(temperature), rows, truth, budget)
        noises = _noises(model, counts)
        selected = slice(int(np.clip(_BIAS_SCORES // len(counts), *_BIAS_ROWS)))
        bias = {}
        if model.objective.is_softmax:
            # Training uses neither the temperature nor the blend with the noise.
            as_trained = model.as_trained()
            for name, noise in noises.items():
                bias[name] = estimated_bias(
                    as_trained, known_rows[selected], known_labels[selected], noise, DRAWS, budget
                )
        signal = {
            name: estimated_signal(model, known_rows, known_labels, noise, budget)
            for name, noise in noises.items()
        }
        if noises["frequency"] is not model.noise:
            log_q = leave_one_out_log_q(counts, known_labels)
            signal["frequency"] = signal["frequency"]._replace(log_q=log_q)
    return Diagnosis(
        outcomes=plain,
        reliability=reliability(plain.confidence, plain.correct),
        bands=reliability_by_frequency(
            plain.confidence,
            plain.correct,
            model.labels.counts[plain.ranking.labels[:, 0].numpy()],
        ),
        temperature=temperature,
        tempered=tempered,
        tempered_reliability=reliability(tempered.confidence, tempered.correct),
        bias=bias,
        bias_rows=len(known_labels[selected]),
        signal=signal,
        own_noise=noise_name(model.noise) if model.objective.samples else None,
    )


def _noises(model: Model, counts: np.ndarray) -> dict[str, Noise]:
    """The model's noise, and uniform and frequency noise for comparison."""
    noises: dict[str, Noise] = {}
    if model.objective.samples:
        noises[noise_name(model.noise)] = model.noise
    uniform, frequency = UniformNoise(), FrequencyNoise()
    uniform.extend(len(counts))
    frequency.load_state({"counts": torch.from_numpy(counts.astype(np.int64))})
    noises.setdefault("uniform", uniform)
    noises.setdefault("frequency", frequency)
    return noises


def leave_one_out_log_q(counts: np.ndarray, labels: np.ndarray) -> float:
    """Mean log q of frequency noise, where each row is left out of the counts that define its q."""
    total = np.maximum(counts, 1).sum() - (counts[labels] > 1)
    return float(np.log(np.maximum(counts[labels] - 1, 1) / total).mean())
