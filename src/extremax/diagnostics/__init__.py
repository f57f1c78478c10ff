"""Diagnostics: gradient bias, signal-to-noise ratio, what objectives recover, calibration,
feature sums."""

from extremax.diagnostics.bias import (
    BiasCurve,
    estimated_bias,
    exact_bias,
    expected_gradient,
    gradient_bias,
)
from extremax.diagnostics.maximum_entropy import FeatureSums, feature_sums
from extremax.diagnostics.recovery import recovered
from extremax.diagnostics.signal import Signal, alpha, estimated_signal, signal_to_noise
from extremax.diagnostics.summary import Diagnosis, diagnose
from extremax.evaluation.reliability import (
    FrequencyBand,
    Reliability,
    reliability,
    reliability_by_frequency,
)

__all__ = [
    "BiasCurve",
    "Diagnosis",
    "FeatureSums",
    "FrequencyBand",
    "Reliability",
    "Signal",
    "alpha",
    "diagnose",
    "estimated_bias",
    "estimated_signal",
    "exact_bias",
    "expected_gradient",
    "feature_sums",
    "gradient_bias",
    "recovered",
    "reliability",
    "reliability_by_frequency",
    "signal_to_noise",
]
