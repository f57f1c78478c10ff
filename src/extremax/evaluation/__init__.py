"""Figures of a model on labeled rows."""

from extremax.evaluation.evaluator import (
    TOP,
    Evaluation,
    Outcomes,
    class_lists,
    evaluate,
    is_correct,
    outcomes,
    summarize,
)
from extremax.evaluation.marginals import MarginalTally, tally_marginals
from extremax.evaluation.ranking import RankingTally, hits, inverse_propensity, tally_ranking
from extremax.evaluation.reliability import Reliability, reliability

__all__ = [
    "TOP",
    "Evaluation",
    "MarginalTally",
    "Outcomes",
    "RankingTally",
    "Reliability",
    "class_lists",
    "evaluate",
    "hits",
    "inverse_propensity",
    "is_correct",
    "outcomes",
    "reliability",
    "summarize",
    "tally_marginals",
    "tally_ranking",
]
