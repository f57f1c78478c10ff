"""What a training will take, before it starts: memory by counting, time by a short trial."""

from extremax.planning.memory import Memory, available_bytes, estimate_memory, model_bytes
from extremax.planning.sizes import survey
from extremax.planning.timing import Step, estimate_time
from extremax.planning.workload import Workload

__all__ = [
    "Memory",
    "Step",
    "Workload",
    "available_bytes",
    "estimate_memory",
    "estimate_time",
    "model_bytes",
    "survey",
]
