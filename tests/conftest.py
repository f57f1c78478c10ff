"""What every test shares."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    """torch's threads spin while they wait: beside other processes small tests take minutes.

    Tests of threads set their own number, with `extremax.kernels.cpu.threads.limit`.
    """
    torch.set_num_threads(1)
