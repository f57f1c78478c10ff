"""Further experts beside head and noise. A new one is a file here and a line in ``EXPERTS``; `base`
is the contract."""

from extremax.experts.base import Expert
from extremax.experts.nearest import NearestRows
from extremax.experts.order import VisitedAfter
from extremax.experts.similar import SimilarRows
from extremax.experts.visits import VisitedTogether

EXPERTS: dict[str, type[Expert]] = {
    "nearest_rows": NearestRows,
    "similar_rows": SimilarRows,
    "visited_after": VisitedAfter,
    "visited_together": VisitedTogether,
}

__all__ = ["EXPERTS", "Expert", "NearestRows", "SimilarRows", "VisitedAfter", "VisitedTogether"]
