"""What a training will take, before it starts: memory by counting, time by a short trial."""

from extremax.planning.memory import Memory, estimate_memory, model_bytes
from extremax.planning.problem import Problem, few_texts
from extremax.planning.timing import Step, estimate_time

__all__ = [
    "Memory",
    "Problem",
    "Step",
    "estimate_memory",
    "estimate_time",
    "few_texts",
    "model_bytes",
]
