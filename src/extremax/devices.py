"""Where training and scoring happen: on the CPU, or on a GPU by CUDA."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from extremax.errors import ArgumentError

NAMES = "cpu", "cuda", "auto"


def resolve(name: str, worth_it: bool = True) -> torch.device | None:
    """The GPU that this name asks for, None for the CPU.

    worth_it:  whether "auto" is to take a GPU that is there.
    """
    if name == "cpu" or (name == "auto" and not (worth_it and missing() is None)):
        return None
    reason = missing()
    if reason is not None:
        raise ArgumentError(f"device='cuda' needs a GPU, and {reason}; use device='cpu' or 'auto'")
    return torch.device("cuda", torch.cuda.current_device())


def missing() -> str | None:
    """What stands against using a GPU, None if nothing does."""
    if not torch.cuda.is_available():
        return "torch finds none"
    if find_spec("triton") is None:
        return "Triton, which kernels are written in, is not installed"
    return None
