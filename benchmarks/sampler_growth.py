"""How the time of a draw, and of an update, grows with the number of classes, for every noise.

The number of classes goes from a thousandth of ``--classes`` to ``--classes`` by factors of ten:
10³ to 10⁶. A draw is one of five for each of ``--rows`` rows, with its log q. An update is what a
noise that follows a head does for one of 16 random classes whose vectors have changed; so few
classes seldom share a leaf. (With 1,000 at a time, which is also shown, updates share nearly all
of their cost at 10³ classes and nothing at 10⁶.) Heads are random, with ``--features`` features,
and trees have random instead of fitted nodes. ``worst_growth`` is the largest ratio of the last to
the first time over all noises except the softmax noise, which is the O(C) reference. Ratios are
medians over repetitions.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _common import arguments, finish, say, timed

from extremax.heads import LinearHead
from extremax.noise import NOISES, Noise
from extremax.random import Stream
from extremax.rows import Sizes

# Default sizes of this script.
SIZES = ("--rows", "4096", "--classes", "1000000", "--features", "32")
DRAWS, FEW, MANY = 5, 16, 1000
CONTEXTS = 100
LINEAR = "softmax"
# Rows for the O(C) reference.
LINEAR_ROWS = 8
# All noises for dense rows.
NAMES = [name for name in NOISES if name != "sparse_tree"]


def noise_of(name: str, features: np.ndarray, n_classes: int) -> Noise:
    """A noise with default parameters, fitted to random labels; trees get random nodes."""
    labels = np.random.default_rng(n_classes).integers(0, n_classes, len(features))
    sizes = Sizes(*features.shape, n_classes, float(features.shape[1]))
    return NOISES[name]().stand_in(features, labels, n_classes, sizes)


def random_head(n_classes: int, n_features: int) -> LinearHead:
    head = LinearHead(n_classes, n_features, accumulator_start=1.0)
    generator = torch.Generator().manual_seed(n_classes)
    torch.randn(head.weight.shape, generator=generator, out=head.weight)
    head.weight.div_(n_features**0.5)
    return head


class Timed:
    """A noise over ``n_classes`` classes, and its seconds per draw and per update."""

    def __init__(self, name: str, features: np.ndarray, n_classes: int) -> None:
        self.noise, self.n_classes = noise_of(name, features, n_classes), n_classes
        if self.noise.follows_head:
            self.noise.attach(random_head(n_classes, features.shape[1]))
        self.context = self.noise.context(features[: LINEAR_ROWS if name == LINEAR else None])
        self.calls = 0

    def draw(self) -> float:
        self.calls += 1
        rows = np.arange(len(self.context))
        stream = Stream.of(self.calls, rows=rows)
        seconds = timed(lambda: self.noise.sample(self.context, DRAWS, stream))
        return seconds / (len(rows) * DRAWS)

    def update(self, n: int, times: int) -> float:
        self.calls += 1
        n = min(n, self.n_classes)
        rng = np.random.default_rng(self.calls)
        batches = [torch.from_numpy(rng.integers(0, self.n_classes, n)) for _ in range(times)]

        def work() -> None:
            for classes in batches:
                self.noise.refresh(classes)

        return timed(work) / (n * times)


def compared(measure: Callable[[Timed], float], noises: list[Timed], repetitions: int) -> dict:
    """Median times in microseconds by number of classes, and the median growth."""
    times = np.array([[measure(n) for n in noises] for _ in range(repetitions + 1)])[1:]
    medians = 1e6 * np.median(times, axis=0)
    by_classes = {str(n.n_classes): float(t) for n, t in zip(noises, medians, strict=True)}
    return {"us": by_classes, "growth": float(np.median(times[:, -1] / times[:, 0]))}


def shown(name: str, what: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Print the figures and return them."""
    values = ", ".join(f"{t:.3g} µs at {int(n):,}" for n, t in figures["us"].items())
    say(f"{name}, {what}: {values}: × {figures['growth']:.2f}")
    return figures


def main() -> None:
    given = arguments(__doc__, {}, [*SIZES, *sys.argv[1:]])
    repetitions = 5 if given.quick else 15
    rng = np.random.default_rng(0)
    features = rng.standard_normal((given.rows, given.features), dtype=np.float32)
    # The bigram noise reads its context from this column.
    features[:, 0] = rng.integers(0, CONTEXTS, given.rows)
    classes = [max(2, given.classes // part) for part in (1000, 100, 10, 1)]
    figures: dict[str, Any] = {}
    for name in NAMES:
        noises = [Timed(name, features, n) for n in classes]
        found = {"draw": shown(name, "draw", compared(Timed.draw, noises, repetitions))}
        if noises[0].noise.follows_head:
            few = compared(lambda noise: noise.update(FEW, 20), noises, repetitions)
            many = compared(lambda noise: noise.update(MANY, 1), noises, repetitions)
            found["update"] = shown(name, f"update, {FEW} at a time", few)
            found["update_of_many"] = shown(name, f"update, {MANY} at a time", many)
        figures[name] = found
        del noises
        gc.collect()
    growths = {
        f"{name} {what}": found[what]["growth"]
        for name, found in figures.items()
        for what in ("draw", "update")
        if name != LINEAR and what in found
    }
    worst = max(growths, key=lambda key: growths[key])
    say(f"worst growth: {worst}, × {growths[worst]:.2f}")
    finish(
        given,
        {"worst_growth": growths[worst]},
        {"worst": worst, "softmax_growth": figures[LINEAR]["draw"]["growth"], "noises": figures},
        {"numbers_of_classes": classes, "draws_a_row": DRAWS, "updates": [FEW, MANY]},
    )


if __name__ == "__main__":
    main()
