"""Peak memory of training, itemised.

What stays for the whole run is counted exactly from its shapes. To it comes the largest of the
passing needs: projecting sparse rows, fitting the noise, or looking at the held-out rows.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from extremax.memory import return_the_rest
from extremax.planning.problem import Problem, csr_bytes

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.noise import Noise

# Labels as read, their indices, the rows that train, their order in this epoch, the held-out.
_BYTES_A_ROW = 40
# Row blocks, BLAS and thread buffers, whatever the problem.
_BUFFERS = 64 << 20
# What the libraries take where the system does not tell: measured on Linux.
_LIBRARIES = 440_000_000


@dataclass(frozen=True)
class Memory:
    """Bytes. ``items`` are there for the whole run, ``passing`` only while ``phase`` lasts."""

    items: dict[str, float]
    phase: str
    passing: float

    @property
    def peak(self) -> float:
        return sum(self.items.values()) + self.passing


def estimate_memory(problem: Problem, model: ExtremeClassifier) -> Memory:
    """What `fit` holds at its peak, the data included; measures the libraries as they are now."""
    noise = made_noise(problem, model)
    # What a trial has left is no part of the libraries.
    return_the_rest()
    given = {
        "libraries": float(resident_bytes() or _LIBRARIES),
        "data": problem.rows * problem.row_bytes,
        "labels and order of rows": float(_BYTES_A_ROW * problem.rows),
    }
    if problem.stays_sparse:
        from extremax.planning.sparse_memory import needs

        made, phases = needs(problem, model, noise)
    else:
        made, phases = _dense_needs(problem, model, noise)
    phases["looking at held-out rows"] = _looking(model, noise, problem)
    phase = max(phases, key=lambda name: phases[name])
    return Memory(given | made, phase, _BUFFERS + phases[phase])


def _dense_needs(
    problem: Problem, model: ExtremeClassifier, noise: Noise
) -> tuple[dict[str, float], dict[str, float]]:
    """What is made and stays, and what passing phases need beside it."""
    head = 4.0 * problem.classes * (problem.width + 1)
    made = {
        "head": head,
        "Adagrad accumulators": head,
        "noise": _noise_bytes(noise, problem) + _soft_bytes(noise, problem),
        "noise's view of the rows": _context_bytes(noise, problem),
    }
    if problem.kind != "dense":
        projected = 4.0 * problem.rows * problem.width
        made = {"projected rows": projected, "projection": _encoder_bytes(problem)} | made
    elif problem.several:
        made = {"a row for each label": 4.0 * problem.rows * problem.width} | made
    phases = {
        # Nothing of what is made is there yet.
        "projecting the rows": _projecting(problem) - sum(made.values()),
        # The weights are there but not yet written to: they take no memory before they are.
        "fitting the noise": _fitting(noise, problem) - head,
    }
    return made, phases


def model_bytes(problem: Problem, model: ExtremeClassifier) -> float:
    """The size of the saved model."""
    if problem.stays_sparse:
        from extremax.planning.sparse_memory import saved_bytes

        return saved_bytes(problem, model, made_noise(problem, model))
    head = 8.0 * problem.classes * (problem.width + 1)
    labels = 16.0 * problem.classes
    encoder = _encoder_bytes(problem) if problem.kind != "dense" else 0.0
    return head + labels + encoder + _noise_bytes(made_noise(problem, model), problem)


def rows_apart(problem: Problem, model: ExtremeClassifier) -> float:
    """Rows that do not train, see `extremax.training.holdout`."""
    from extremax.training.holdout import _MOST

    return min(model.validation_fraction * max(0, problem.rows - problem.classes), float(_MOST))


def held_out_rows(problem: Problem, model: ExtremeClassifier) -> int:
    """Rows that one look at the held-out figures scores."""
    from extremax.prediction.blending import blends
    from extremax.training.loop import looked_at

    objective, noise = model._parts(
        problem.rows, problem.width, problem.classes, problem.stays_sparse
    )
    most = looked_at(problem.classes, blends(noise, objective))
    return int(min(rows_apart(problem, model), most))


def made_noise(problem: Problem, model: ExtremeClassifier) -> Noise:
    """The noise that the model would fit."""
    return model._parts(problem.rows, problem.width, problem.classes, problem.stays_sparse)[1]


def _encoder_bytes(problem: Problem) -> float:
    idf = problem.features if problem.kind == "text" else 0
    return 4.0 * (problem.features * problem.width + idf)


def _projecting(problem: Problem) -> float:
    """The sketch of the singular vectors four times, as QR has it; the hashed texts."""
    if problem.kind == "dense":
        return 0.0
    sketch = min(problem.width + 10, problem.features)
    hashed = 2 * csr_bytes(problem.nonzeros) * problem.rows if problem.kind == "text" else 0.0
    block = 4.0 * 32_768 * sketch
    return 16.0 * problem.features * sketch + hashed + block


def _is_tree(noise: Noise) -> bool:
    from extremax.noise import TreeNoise

    return isinstance(noise, TreeNoise)


def _tree_width(noise: Noise, problem: Problem) -> int:
    return min(int(noise.get_params()["n_components"]), problem.width)


def _noise_bytes(noise: Noise, problem: Problem) -> float:
    if _is_tree(noise):
        # Nodes, the order of the classes and its inverse, the splits.
        return problem.classes * (4.0 * (_tree_width(noise, problem) + 1) + 32.0)
    return probed(noise, problem.width)[0] * problem.classes


def _soft_bytes(noise: Noise, problem: Problem) -> float:
    """A tree's nodes a second time, as soft as they are used: not in the saved model."""
    return 4.0 * problem.classes * (_tree_width(noise, problem) + 1) if _is_tree(noise) else 0.0


def _context_bytes(noise: Noise, problem: Problem) -> float:
    if _is_tree(noise):
        return 4.0 * problem.rows * _tree_width(noise, problem)
    return probed(noise, problem.width)[1] * problem.rows


def probed(noise: Noise, width: int) -> tuple[float, float]:
    """(bytes a class, bytes a row) of any noise, from a small fit of it."""
    import numpy as np
    from sklearn.base import clone

    from extremax.head import LinearHead

    n_classes, n_rows = 1024, 256
    features = np.random.default_rng(0).standard_normal((n_rows, width), dtype=np.float32)
    fitted = clone(noise).fit(features, np.arange(n_rows) * 4, n_classes)
    if fitted.follows_head:
        fitted.attach(LinearHead(n_classes, width, accumulator_start=1.0))
    state = sum(t.numel() * t.element_size() for t in fitted.state().values())
    context = fitted.context(features) if fitted.keeps_context else fitted.context(features[:0])
    return state / n_classes, context.numel() * context.element_size() / n_rows


def _fitting(noise: Noise, problem: Problem) -> float:
    if not _is_tree(noise):
        return 24.0 * problem.rows
    k = _tree_width(noise, problem)
    # The projected rows a second time, sorted by class; the sums of the classes; all splits.
    return problem.rows * (4.0 * k + 24.0) + problem.classes * (8.0 * k + 56.0)


def _looking(model: ExtremeClassifier, noise: Noise, problem: Problem) -> float:
    """Blocks of logits over every class, as many rows as training lets in."""
    from extremax.training.loop import HELD_OUT_BYTES

    # As in `extremax.prediction.blocks`.
    block = max(1, min(4096, HELD_OUT_BYTES // (16 * problem.classes)))
    rows = min(block, held_out_rows(problem, model))
    # Scores; of an eighth of them the tree's activations, their logarithms and its log q. Or
    # scores and a copy of them.
    more = 3 * max(1, rows // 8) if _is_tree(noise) else rows
    return 4.0 * problem.classes * (rows + more if rows else 0)


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
    """Memory a new process could take, or None where the system does not say."""
    if not sys.platform.startswith("linux"):
        return None
    with open("/proc/meminfo") as file:
        lines = dict(line.split(":", 1) for line in file)
    found = int(lines["MemAvailable"].split()[0]) * 1024
    try:
        # A container's limit.
        with open("/sys/fs/cgroup/memory.max") as file:
            return min(found, int(file.read()))
    except (OSError, ValueError):
        return found
