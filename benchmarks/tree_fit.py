"""Cost of the noise tree: its fit relative to training, and the growth of a draw with the classes.

The fit is compared with ten epochs of the dense step (one uniform negative) on the same data; one
epoch is timed and multiplied by ten. ``growth`` compares draws from trees over 10⁴ and 10⁶ classes
with random instead of fitted nodes, because a fit at 10⁶ takes half a minute. This slightly
understates the growth: walks through a fitted tree of 10⁴ classes stay on few nodes.
"""

from __future__ import annotations

import numpy as np
import torch
from _common import DenseStep, arguments, finish, held_out_rows, say, timed

from extremax.data.synthetic import clustered
from extremax.noise import TreeNoise
from extremax.random import Stream

COMPONENTS = 16
GROWTH = (10_000, 1_000_000)


def seconds_per_draw(noise: TreeNoise, context: torch.Tensor, n_draws: int, key: int) -> float:
    stream = Stream.of(0, key, rows=np.arange(len(context)))
    return timed(lambda: noise.sample(context, n_draws, stream)) / (len(context) * n_draws)


def random_tree(like: TreeNoise, n_classes: int) -> TreeNoise:
    """A tree of the same shape as a fitted one, with random nodes."""
    generator = torch.Generator().manual_seed(n_classes)
    width = like.nodes_.shape[1]
    noise = TreeNoise(**like.get_params())
    noise.load_state(
        like.state()
        | {
            "nodes": 0.25 * torch.randn(n_classes, width, generator=generator),
            "order": torch.randperm(n_classes, generator=generator),
            "n_classes": torch.tensor(n_classes),
        }
    )
    return noise


def growth(like: TreeNoise, n_rows: int, repetitions: int) -> tuple[float, list[float]]:
    """Median ratio of the times per draw, and the median times in nanoseconds."""
    trees = [random_tree(like, n) for n in GROWTH]
    context = torch.randn(n_rows, COMPONENTS, generator=torch.Generator().manual_seed(0))
    times = np.array(
        [[seconds_per_draw(tree, context, 5, i) for tree in trees] for i in range(repetitions + 1)]
    )[1:]
    return float(np.median(times[:, 1] / times[:, 0])), list(1e9 * np.median(times, axis=0))


def main() -> None:
    given = arguments(__doc__, {"rows": 100_000, "classes": 40_000, "features": 256})
    warm = np.random.default_rng(0).standard_normal((2_000, given.features), dtype=np.float32)
    TreeNoise(COMPONENTS).fit(warm, np.arange(2_000) % 100, 100)  # Compiles kernels.

    n_held_out = min(10_000, given.rows // 10)
    features, labels = clustered(given.rows + n_held_out, given.classes, given.features)
    rows, out = held_out_rows(labels, n_held_out)
    noise = TreeNoise(COMPONENTS)
    fit_seconds = timed(lambda: noise.fit(features, labels, given.classes, rows))
    say(f"fit of the tree: {fit_seconds:.1f} s")
    context = noise.context(features[out])
    log_prob = noise.log_prob(context, torch.from_numpy(labels[out])[:, None])
    log_likelihood, uniform = float(log_prob.double().mean()), -float(np.log(given.classes))
    say(f"held-out log-likelihood: {log_likelihood:.3f}, uniform {uniform:.3f}")

    step = DenseStep(features, labels, given.classes)
    step.run(20)
    epoch_seconds = float(np.median([timed(step.run) for _ in range(3)]))
    epoch_seconds *= len(rows) / len(labels)
    ratio = fit_seconds / (10 * epoch_seconds)
    say(f"ten epochs of the dense step: {10 * epoch_seconds:.1f} s; fit over that: {ratio:.2f}")
    del step

    context = noise.context(features[rows[:200_000]])
    draws = [seconds_per_draw(noise, context, 5, i) for i in range(5)]
    draws_per_s = float(1 / np.median(draws))
    say(f"draws with log q: {draws_per_s:,.0f} per second")
    factor, nanoseconds = growth(noise, 20_000 if given.quick else 100_000, 5)
    few, many = nanoseconds
    say(f"time per draw: {few:.0f} ns at C = 10⁴, {many:.0f} at 10⁶: × {factor:.2f}")
    finish(
        given,
        {"fit_over_ten_epochs": ratio, "draws_per_s": draws_per_s, "growth": factor},
        {
            "fit_s": fit_seconds,
            "ten_epochs_s": 10 * epoch_seconds,
            "held_out_log_likelihood": log_likelihood,
            "uniform_log_likelihood": uniform,
            "ns_a_draw": dict(zip(map(str, GROWTH), nanoseconds, strict=True)),
            "growth_trees": "random nodes, not fitted",
            "penalties": noise.penalties_,
        },
        {"components": COMPONENTS, "held_out": len(out), "growth_classes": GROWTH},
    )


if __name__ == "__main__":
    main()
