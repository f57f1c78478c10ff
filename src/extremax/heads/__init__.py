"""Heads ξ_y(x). A new one is a file here and a line in ``HEADS``; `base` is the contract."""

from extremax.heads.bag import BagHead
from extremax.heads.base import ClassVectors, Head, HeadOptions
from extremax.heads.blocks import Ranking
from extremax.heads.linear import LinearHead
from extremax.heads.support import SupportHead
from extremax.heads.table import VectorTable, pair_scores
from extremax.heads.tied import TiedHead

HEADS: dict[str, type[Head]] = {
    "linear": LinearHead,
    "bag": BagHead,
    "support": SupportHead,
    "tied": TiedHead,
}

__all__ = [
    "HEADS",
    "BagHead",
    "ClassVectors",
    "Head",
    "HeadOptions",
    "LinearHead",
    "Ranking",
    "SupportHead",
    "TiedHead",
    "VectorTable",
    "pair_scores",
]
