"""Pictures of a run. Matplotlib is imported when one is drawn."""

from extremax.report.curves import check_picture, learning_curves

__all__ = ["check_picture", "learning_curves"]
