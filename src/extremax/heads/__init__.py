"""Heads ξ_y(x). A new one is a file here and a line in ``HEADS``; `base` is the contract."""

from extremax.heads.bag import BagHead
from extremax.heads.base import ClassVectors, Head, HeadOptions
from extremax.heads.blocks import Ranking
from extremax.heads.device import DeviceHead
from extremax.heads.device_bag import BagOnDevice
from extremax.heads.device_linear import LinearOnDevice
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

#: Copies of heads on a GPU; the others train and score on the CPU.
DEVICE_HEADS: dict[type[Head], type[DeviceHead]] = {
    LinearHead: LinearOnDevice,
    BagHead: BagOnDevice,
}

__all__ = [
    "DEVICE_HEADS",
    "HEADS",
    "BagHead",
    "ClassVectors",
    "DeviceHead",
    "Head",
    "HeadOptions",
    "LinearHead",
    "Ranking",
    "SupportHead",
    "TiedHead",
    "VectorTable",
    "pair_scores",
]
