"""Figures of a model on labeled rows."""

from extremax.evaluation.answers import AnswerTally, write_by_class
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
from extremax.evaluation.marginals import MarginalTally, tally_marginals
from extremax.evaluation.ranking import RankingTally, hits, inverse_propensity, tally_ranking
from extremax.evaluation.reliability import (
    FrequencyBand,
    Reliability,
    reliability,
    reliability_by_frequency,
)

__all__ = [
    "TOP",
    "AnswerTally",
    "ClassTally",
    "Evaluation",
    "FrequencyBand",
    "MarginalTally",
    "Outcomes",
    "RankingTally",
    "Reliability",
    "class_lists",
    "evaluate",
    "export_outcomes",
    "hits",
    "inverse_propensity",
    "is_correct",
    "outcomes",
    "reliability",
    "reliability_by_frequency",
    "summarize",
    "tally_classes",
    "tally_marginals",
    "tally_ranking",
    "write_by_class",
]
