"""Plots of training runs, and the report of a comparison. matplotlib is imported when needed."""

from extremax.report.curves import learning_curves
from extremax.report.drawing import check_picture

__all__ = ["check_picture", "learning_curves"]
