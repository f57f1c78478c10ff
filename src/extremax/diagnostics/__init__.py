"""Measured, not believed: bias, signal-to-noise, what objectives recover, calibration."""

from extremax.diagnostics.bias import (
    BiasCurve,
    estimated_bias,
    exact_bias,
    expected_gradient,
    gradient_bias,
)
from extremax.diagnostics.calibration import Outcomes, Reliability, outcomes, reliability
from extremax.diagnostics.recovery import recovered
from extremax.diagnostics.signal import Signal, alpha, estimated_signal, signal_to_noise
from extremax.diagnostics.summary import Diagnosis, diagnose

__all__ = [
    "BiasCurve",
    "Diagnosis",
    "Outcomes",
    "Reliability",
    "Signal",
    "alpha",
    "diagnose",
    "estimated_bias",
    "estimated_signal",
    "exact_bias",
    "expected_gradient",
    "gradient_bias",
    "outcomes",
    "recovered",
    "reliability",
    "signal_to_noise",
]
