"""How the time of a draw, and of an update, grows with the number of classes, for every noise.

Classes go from a thousandth of ``--classes`` to all of them, by tens: 10³ to 10⁶. A draw is one
of five for each of ``--rows`` rows, with its log q. An update is what a noise that follows a head
does for one of 16 random classes whose rows have changed, so few that they seldom share a leaf.
(With 1,000 at a time, also shown, those of 10³ classes share nearly everything they cost, those
of 10⁶ nothing.) Heads are random, of ``--features`` features, trees have random nodes instead of
fitted ones. ``worst_growth`` is the largest ratio of the last to the first time over all noises
but the softmax noise, which is the O(C) reference; the ratios are medians over repetitions.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _common import arguments, finish, say, timed

from extremax.head import LinearHead
from extremax.noise import NOISES, MixtureNoise, Noise, TreeNoise
from extremax.random import Stream

# Sizes of this script, unless others are given.
SIZES = ("--rows", "4096", "--classes", "1000000", "--features", "32")
DRAWS, FEW, MANY = 5, 16, 1000
CONTEXTS = 100
LINEAR = "softmax"
# Rows that the O(C) reference gets.
LINEAR_ROWS = 8


def made(name: str, features: np.ndarray, n_classes: int) -> Noise:
    """The noise of that name as it comes, fitted to rows of random classes."""
    noise = NOISES[name]()
    fits_a_tree = isinstance(noise, (TreeNoise, MixtureNoise))
    n_fitted = min(n_classes, 100) if fits_a_tree else n_classes
    labels = np.random.default_rng(n_classes).integers(0, n_fitted, len(features))
    noise.fit(features, labels, n_fitted)
    if fits_a_tree:
        noise.load_state(with_more_classes(noise.state(), n_classes))
    return noise


def with_more_classes(state: dict[str, torch.Tensor], n: int) -> dict[str, torch.Tensor]:
    """The state of a tree, or of a mixture of a tree and frequencies, as if fitted to n classes."""
    generator = torch.Generator().manual_seed(n)
    for key, old in state.items():
        match key.split(".")[-1]:
            case "nodes":
                state[key] = 0.25 * torch.randn((n, old.shape[1]), generator=generator)
            case "order":
                state[key] = torch.randperm(n, generator=generator)
            case "counts":
                state[key] = torch.randint(1, 100, (n,), generator=generator)
            case "n_classes":
                state[key] = torch.tensor(n)
    return state


def random_head(n_classes: int, n_features: int) -> LinearHead:
    head = LinearHead(n_classes, n_features, accumulator_start=1.0)
    generator = torch.Generator().manual_seed(n_classes)
    torch.randn(head.weight.shape, generator=generator, out=head.weight)
    head.weight /= n_features**0.5
    return head


class Timed:
    """A noise over so many classes; seconds of a draw and of updates."""

    def __init__(self, name: str, features: np.ndarray, n_classes: int) -> None:
        self.noise, self.n_classes = made(name, features, n_classes), n_classes
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


def said(name: str, what: str, found: dict[str, Any]) -> dict[str, Any]:
    values = ", ".join(f"{t:.3g} µs at {int(n):,}" for n, t in found["us"].items())
    say(f"{name}, {what}: {values}: × {found['growth']:.2f}")
    return found


def main() -> None:
    given = arguments(__doc__, {}, [*SIZES, *sys.argv[1:]])
    repetitions = 5 if given.quick else 15
    rng = np.random.default_rng(0)
    features = rng.standard_normal((given.rows, given.features), dtype=np.float32)
    # The bigram noise takes its context from here.
    features[:, 0] = rng.integers(0, CONTEXTS, given.rows)
    classes = [max(2, given.classes // part) for part in (1000, 100, 10, 1)]
    figures: dict[str, Any] = {}
    for name in NOISES:
        noises = [Timed(name, features, n) for n in classes]
        found = {"draw": said(name, "a draw", compared(Timed.draw, noises, repetitions))}
        if noises[0].noise.follows_head:
            few = compared(lambda noise: noise.update(FEW, 20), noises, repetitions)
            many = compared(lambda noise: noise.update(MANY, 1), noises, repetitions)
            found["update"] = said(name, f"an update, {FEW} at a time", few)
            found["update_of_many"] = said(name, f"an update, {MANY} at a time", many)
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
