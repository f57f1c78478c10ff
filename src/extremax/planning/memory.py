"""Peak memory of training, by item.

What stays for the whole run is asked of the parts: encoder, head, noise, draws. On top of it comes
the largest of the passing needs: encoding the rows, fitting the noise, starting the head,
evaluating held-out rows, blending.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from extremax.kernels.cpu.threads import resolve
from extremax.memory import trim_heap
from extremax.planning.workload import Workload
from extremax.prediction.blend import is_product
from extremax.preparation import Parameters, choose_for, head_options, settings_for
from extremax.recipes import Choice
from extremax.training.calibration import blend_needs
from extremax.training.holdout import expected_held_out
from extremax.training.loop import evaluated_rows, evaluation_bytes
from extremax.training.steps import kept_draws_bytes

# Labels as read, their class numbers, the rows that train, their order in this epoch, the held-out
# rows.
_BYTES_PER_ROW = 40
# The label of a class and its number of examples, on disk.
_LABEL_BYTES = 24
# Row blocks, BLAS and thread buffers, whatever the job.
_BUFFERS = 64 << 20
# What the libraries take where the system does not say: measured on Linux.
_LIBRARIES = 440_000_000


@dataclass(frozen=True)
class Memory:
    """Bytes. ``items`` stay for the whole run, ``passing`` only while ``phase`` lasts."""

    items: dict[str, float]
    phase: str
    passing: float

    @property
    def peak(self) -> float:
        return sum(self.items.values()) + self.passing


def choice_of(work: Workload, parameters: Parameters) -> Choice:
    """The recipe that training would follow."""
    return choose_for(parameters, work.encoded.rows, work.sizes)


def estimate_memory(work: Workload, parameters: Parameters) -> Memory:
    """What `fit` holds at its peak, the data included; measures the libraries as they are now."""
    choice, sizes = choice_of(work, parameters), work.sizes
    # What a trial has left behind is not part of the libraries.
    trim_heap()
    head = choice.head.needs(sizes, head_options(parameters, choice, 1.0, 0))
    noise = choice.noise.needs(sizes, resolve(parameters.n_jobs))
    n_negatives = settings_for(parameters, choice, work.rows).n_negatives
    experts, n_models = choice.experts(sizes, parameters.similar_rows), parameters.n_models
    items = {
        "libraries": float(resident_bytes() or _LIBRARIES),
        "data": work.rows * work.row_bytes,
        "labels and order of rows": float(_BYTES_PER_ROW * work.rows),
    }
    made = {
        "encoded rows": work.rows * work.encoded.bytes_per_row,
        "encoder": work.encoded.needs.kept,
        "head": n_models * (head.kept - head.accumulators),
        "Adagrad accumulators": n_models * head.accumulators,
        "noise": n_models * noise.kept,
        "noise's view of the rows": choice.noise.context_bytes(sizes),
        "draws": kept_draws_bytes(work.rows, n_negatives) if choice.noise.draws_once else 0.0,
        "further experts": sum(kind.needs(sizes).kept for kind in experts),
    }
    product = is_product(choice.objective, choice.noise)
    evaluated = rows_per_evaluation(work, parameters)
    uses_noise = choice.objective.adds_log_q or product
    blending = 0.0
    if product or experts:
        n_levels = len(experts)
        n_levels += choice.noise.planned_levels(work.classes) if product else 0
        n_blended = held_out_rows(work, parameters)
        blending = blend_needs(n_blended, work.classes, n_levels).passing
    phases = {
        # Nothing else has been made by then, and while the noise is fitted there is no head.
        "encoding the rows": work.encoded.needs.passing - sum(made.values()),
        "fitting the noise": noise.passing - head.kept,
        "starting the head": head.passing,
        "evaluating held-out rows": evaluation_bytes(evaluated, work.classes, uses_noise),
        "blending the experts": blending + sum(kind.needs(sizes).passing for kind in experts),
    }
    phase = max(phases, key=phases.__getitem__)
    items |= {name: size for name, size in made.items() if size}
    return Memory(items, phase, _BUFFERS + phases[phase])


def model_bytes(work: Workload, parameters: Parameters) -> float:
    """The size of the saved model."""
    choice, sizes = choice_of(work, parameters), work.sizes
    head = choice.head.needs(sizes, head_options(parameters, choice, 1.0, 0))
    noise = choice.noise.needs(sizes, 1)
    labels = float(_LABEL_BYTES * work.classes)
    experts = sum(
        kind.needs(sizes).saved for kind in choice.experts(sizes, parameters.similar_rows)
    )
    own = parameters.n_models * (head.saved + noise.saved)
    return own + experts + work.encoded.needs.saved + labels


def held_out_rows(work: Workload, parameters: Parameters) -> float:
    """Rows that do not train."""
    return expected_held_out(work.rows, parameters.validation_fraction)


def rows_per_evaluation(work: Workload, parameters: Parameters) -> int:
    """Held-out rows that one evaluation scores."""
    choice = choice_of(work, parameters)
    most = evaluated_rows(work.classes, is_product(choice.objective, choice.noise))
    return int(min(held_out_rows(work, parameters), most))


def resident_bytes() -> int | None:
    """Memory of this process now, or None where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
    except OSError:
        return None
    import resource

    return pages * resource.getpagesize()


def available_bytes() -> int | None:
    """Memory that a new process could take, or None where the system does not say."""
    if not sys.platform.startswith("linux"):
        return None
    with open("/proc/meminfo") as file:
        lines = dict(line.split(":", 1) for line in file)
    available = int(lines["MemAvailable"].split()[0]) * 1024
    try:
        # A container's limit.
        with open("/sys/fs/cgroup/memory.max") as file:
            return min(available, int(file.read()))
    except (OSError, ValueError):
        return available
