"""Examples per second of the dense CPU step, against torch's sparse Adagrad and memory bandwidth.

Both sides use one uniform negative per example and the same loss; torch runs at its best batch
size. Labels are uniform over the classes, so nearly every pair touches a different row of weights,
which is the hardest case for memory. Repetitions are interleaved. Every rate is the best of its
repetitions, which is least affected by other processes, and ratios are those of the best rates. One
repetition of our step is an epoch.

The step has an accumulator per weight, as torch's; ``row_over_element`` is how much faster it is
with one per row of weights.
"""

from __future__ import annotations

import numpy as np
from _common import DenseStep, TorchStep, arguments, finish, say, timed

from extremax.kernels.cpu.threads import parallel

# Rows of K floats that are moved per example with two classes: the row of the example, and for each
# class its weights and accumulators, both read and written. At K = 512, 18,432 bytes.
ROWS_PER_EXAMPLE = 9
TORCH_BATCHES = (512, 4096, 16_384)
# A repetition of torch takes about as long as one of ours: the best of many short repetitions would
# be luckier.
TORCH_EXAMPLES = 65_536


def copy_block(start: int, stop: int, source: np.ndarray, target: np.ndarray) -> None:
    np.copyto(target[start:stop], source[start:stop])


def copy(source: np.ndarray, target: np.ndarray) -> None:
    parallel(copy_block, len(source), max(1, len(source) // 64), source, target)


def main() -> None:
    given = arguments(__doc__, {"rows": 100_000})
    rng = np.random.default_rng(0)
    features = rng.standard_normal((given.rows, given.features), dtype=np.float32)
    labels = rng.integers(given.classes, size=given.rows)
    ours = DenseStep(features, labels, given.classes)
    by_row = DenseStep(features, labels, given.classes, accumulators="row")
    theirs = TorchStep(features, labels, given.classes)
    source = np.ones(min(2**27, features.size), np.float32)
    target = np.full_like(source, 0.5)

    repetitions = 6 if given.quick else 15
    work = {"copy": (lambda: copy(source, target), 2 * source.nbytes)}
    work["ours"] = (ours.run, len(labels))
    work["row"] = (by_row.run, len(labels))
    for size in TORCH_BATCHES:
        n = max(2, TORCH_EXAMPLES // size)
        work[f"torch {size}"] = (lambda n=n, size=size: theirs.run(n, size), n * size)
    for run, _ in work.values():
        run()
    rates: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repetitions):
        for name, (run, amount) in work.items():
            rates[name].append(amount / timed(run))
    best = {name: max(values) for name, values in rates.items()}
    median = {name: float(np.median(values)) for name, values in rates.items()}

    bytes_per_example = ROWS_PER_EXAMPLE * 4 * given.features
    best_size = max(TORCH_BATCHES, key=lambda size: best[f"torch {size}"])
    speedup = best["ours"] / best[f"torch {best_size}"]
    share = best["ours"] * bytes_per_example / best["copy"]
    row_over_element = best["row"] / best["ours"]
    say(f"this project: {best['ours']:,.0f} examples/s (median {median['ours']:,.0f})")
    say(f"one accumulator per row: {best['row']:,.0f} examples/s (median {median['row']:,.0f})")
    say(f"over one per weight: {row_over_element:.2f}")
    for size in TORCH_BATCHES:
        name = f"torch {size}"
        say(f"{name}: {best[name]:,.0f} examples/s (median {median[name]:,.0f})")
    say(f"speedup over torch at its best batch size: {speedup:.1f}")
    say(f"copy bandwidth: {best['copy'] / 1e9:.1f} GB/s; share of it: {share:.2f}")
    finish(
        given,
        {"speedup": speedup, "roofline_share": share, "row_over_element": row_over_element},
        {
            "examples_per_s": best["ours"],
            "row_examples_per_s": best["row"],
            "torch_examples_per_s": {str(s): best[f"torch {s}"] for s in TORCH_BATCHES},
            "copy_bytes_per_s": best["copy"],
            "medians": median,
            "row_over_element_of_medians": median["row"] / median["ours"],
            "speedup_of_medians": median["ours"] / median[f"torch {best_size}"],
            "roofline_share_of_medians": median["ours"] * bytes_per_example / median["copy"],
        },
        {
            "negatives": 1,
            "batch": ours.batch_size,
            "torch_batch": best_size,
            "bytes_an_example": bytes_per_example,
            "repetitions": repetitions,
        },
    )


if __name__ == "__main__":
    main()
