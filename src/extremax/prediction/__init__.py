"""From scores to probabilities: `blend` owns the logits formula."""

from extremax.prediction.blend import Blend, log_counts

__all__ = ["Blend", "log_counts"]
