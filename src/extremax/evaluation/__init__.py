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
from extremax.evaluation.export import export_outcomes
from extremax.evaluation.macro import ClassTally, tally_classes
from extremax.evaluation.ranking import RankingTally, inverse_propensity, tally_ranking

__all__ = [
    "TOP",
    "ClassTally",
    "Evaluation",
    "Outcomes",
    "RankingTally",
    "class_lists",
    "evaluate",
    "export_outcomes",
    "inverse_propensity",
    "is_correct",
    "outcomes",
    "summarize",
    "tally_classes",
    "tally_ranking",
]
