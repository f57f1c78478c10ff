"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

if TYPE_CHECKING:
    from extremax.heads import Head
    from extremax.model import Model
    from extremax.noise import Noise
    from extremax.objectives import Objective

# Where there is no GPU, Triton's interpreter runs its kernels. Triton asks when it is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    """Idle torch threads spin: next to other processes, small tests would take minutes.

    Tests of threads set their number themselves, with `extremax.kernels.cpu.threads.limit`.
    """
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def bare_model() -> Callable[[Head, Noise, Objective], Model]:
    """Build a model around a head, without data: the labels are 0..C−1, each seen zero times."""
    from extremax.features import Encoder
    from extremax.labels import ClassLabels, LabelIndex
    from extremax.model import Model
    from extremax.prediction import Blend

    def build(head: Head, noise: Noise, objective: Objective) -> Model:
        labels = ClassLabels(LabelIndex(np.arange(head.n_classes)))
        blend = Blend.start(objective, noise)
        return Model(Encoder(), labels, head, noise, objective, blend)

    return build
