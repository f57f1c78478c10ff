"""Prediction: exact in blocks of rows, or sublinear by beam search through the noise tree."""

from extremax.prediction.blocks import Likelihood, Ranking, Scorer, likelihood

__all__ = ["Likelihood", "Ranking", "Scorer", "likelihood"]
