"""From scores to probabilities: `blend` owns the logits formula."""

from extremax.prediction.blend import Blend, Scored, log_counts
from extremax.prediction.confidence import Confidence
from extremax.prediction.marginals import Marginals
from extremax.prediction.rest import Rest

__all__ = ["Blend", "Confidence", "Marginals", "Rest", "Scored", "log_counts"]
