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
from extremax.evaluation.ranking import RankingTally, inverse_propensity, tally_ranking

__all__ = [
    "TOP",
    "Evaluation",
    "Outcomes",
    "RankingTally",
    "class_lists",
    "evaluate",
    "inverse_propensity",
    "is_correct",
    "outcomes",
    "summarize",
    "tally_ranking",
]
