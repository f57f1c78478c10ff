"""Plots of training runs and of explanations, and the report of a comparison. matplotlib is
imported when needed."""

from extremax.report.curves import learning_curves
from extremax.report.drawing import check_picture
from extremax.report.explanations import draw_explanation

__all__ = ["check_picture", "draw_explanation", "learning_curves"]
