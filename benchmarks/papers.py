"""What the papers behind the methods promise, measured through this package.

- bias: Blanc & Rendle 2018 prove that sampled softmax with draws from the softmax itself has the
  gradient p − y on average. softmax_noise_bias is the largest difference from it, over every
  possible draw, by the noise and the step that training uses.
- share: share_error is the largest error of the share of a class that has 0.9026 of the examples,
  learned by sampled softmax from such draws, by `ExtremeClassifier` and `ExtremeSoftmax`.
- recovery: recovered is the largest KL divergence of a trained model from the distribution of the
  data, over every objective × noise that promises exact or bias-corrected probabilities, sampled
  softmax with one draw from the softmax, and augment & reduce with one draw and with ten. Training
  starts from zeros, holds nothing out and keeps the last epoch; best_epoch is the smallest, over
  those cells, of the epoch with the smallest divergence. recovered_peaked is the same for more
  peaked p(y|x). No limit is set for it: with as many draws, some cells end further than 5e-4 from
  the data there, such as one-vs-each with the quartic kernel.
- bias_removal: bias_removal_gain is the log-likelihood on diginetica that adding log q to the
  scores of negative sampling with the tree brings (Bamler & Mandt 2020, Eq. 5), in nats, with a
  temperature fitted to held-out rows with and without it.
- even_kernel: even_kernel_gain is the perplexity of Penn Treebank's validation words under logits
  |ξ| over that under logits ξ, both trained with 20 draws from the quadratic kernel (Blanc & Rendle
  2018) for as many steps, each a mean over three seeds at the best of three learning rates.
- trees: nan_trees counts trees that are not finite, over penalties, numbers of examples and of
  classes, on one-hot rows and on duplicates.

Without ``--data DIR``, the folder with diginetica and ptb, the two parts that need it are left out.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from _common import finish, held_out_rows, say
from _enumerable import CLASSES, CONTEXTS, DRAWS, EPOCHS, Result, bias, recovery, share
from _real import features_of
from bias_against_m import rows_of, tokens, word_vectors

from extremax import ExtremeClassifier
from extremax.evaluation import evaluate
from extremax.labels import one_label_per_row
from extremax.noise import TreeNoise
from extremax.objectives import SampledSoftmax
from extremax.prediction import Blend
from extremax.rows import as_rows
from extremax.training.calibration import fit_temperature

BUDGET = 2**28


# bias_removal ---------------------------------------------------------------------------------


def bias_removal(given: argparse.Namespace) -> Result:
    task = features_of("diginetica", given.data)
    train, held_out = held_out_rows(task.labels, 1_000 if given.quick else 4_000)
    model = ExtremeClassifier(
        "negative_sampling", TreeNoise(16 if given.quick else 64), n_negatives=1,
        learning_rate=1.0, epochs=1 if given.quick else 5, validation_fraction=0.0, random_state=0,
    ).fit(task.train[train], task.labels[train])  # fmt: skip
    sample = np.random.default_rng(0).permutation(len(task.test))[: len(held_out)]

    def numbers(labels: np.ndarray) -> np.ndarray:
        return model.model_.labels.encode(labels)

    figures = {}
    rows, test = as_rows(task.train[held_out]), as_rows(task.test[sample])
    for name, blend in (("with_log_q", model.model_.blend), ("without_log_q", Blend())):
        part = replace(model.model_, blend=blend)
        temperature = fit_temperature(part, rows, numbers(task.labels[held_out]), BUDGET)
        part = replace(part, blend=replace(blend, temperature=temperature))
        truth = one_label_per_row(numbers(task.test_labels[sample]))
        result = evaluate(part, test, truth, BUDGET)
        figures[name] = {
            "log_likelihood": result.log_likelihood,
            "accuracy": result.accuracy,
            "temperature": temperature,
        }
        say(f"{name}: {figures[name]}")
    gain = figures["with_log_q"]["log_likelihood"] - figures["without_log_q"]["log_likelihood"]
    return {"bias_removal_gain": gain}, figures


# even_kernel ----------------------------------------------------------------------------------


def even_kernel(given: argparse.Namespace) -> Result:
    folder, width = given.data / "ptb", 16 if given.quick else 32
    n_rows, n_test = (10_000, 500) if given.quick else (60_000, 4_000)
    words = tokens(folder, "train")
    index = {word: i for i, word in enumerate(sorted(set(words)))}
    train = np.array([index[word] for word in words])
    valid = np.array([index[word] for word in tokens(folder, "valid") if word in index])
    quarter = width // 4
    last = word_vectors(train, len(index), 1, width - 2 * quarter)
    views = last, word_vectors(train, len(index), 2, quarter), last[:, :quarter]
    (features, labels), (rows, truth) = rows_of(train, views), rows_of(valid, views)
    test = np.random.default_rng(0).permutation(len(truth))[:n_test]
    perplexity: dict[str, dict[float, float]] = {"absolute": {}, "plain": {}}
    for kind, rate in product(perplexity, (0.01, 0.1, 1.0)):
        found = []
        for seed in range(3):
            chosen = np.random.default_rng(seed).permutation(len(labels))[:n_rows]
            model = ExtremeClassifier(
                SampledSoftmax(absolute=kind == "absolute"), "quadratic", n_negatives=20, epochs=1,
                learning_rate=rate, start="frequencies", validation_fraction=0.0, random_state=seed,
            ).fit(features[chosen], labels[chosen])  # fmt: skip
            known = test[np.isin(truth[test], model.classes_)]
            found.append(math.exp(-model.evaluate(rows[known], truth[known]).log_likelihood))
        perplexity[kind][rate] = float(np.mean(found))
        values = ", ".join(f"{value:.1f}" for value in found)
        say(f"{kind}, learning rate {rate}: perplexity {values}")
    gain = min(perplexity["absolute"].values()) / min(perplexity["plain"].values())
    return {"even_kernel_gain": gain}, {"perplexity": perplexity}


# trees ----------------------------------------------------------------------------------------


def trees(given: argparse.Namespace) -> Result:
    rng, failed, n_trees = np.random.default_rng(0), [], 0
    sizes = product((1, 2, 40, 4000), (2, 3, 8, 50) if given.quick else (2, 3, 8, 50, 300))
    for n, n_classes in sizes:
        kind = rng.integers(n_classes, size=n)
        labels = (kind + rng.integers(2, size=n)) % n_classes
        features = {
            "one-hot": np.eye(n_classes, dtype=np.float32)[kind],
            "duplicates": rng.standard_normal((5, 6), dtype=np.float32)[kind % 5],
        }
        for (name, x), penalty in product(features.items(), 10.0 ** -np.arange(0, 13, 2)):
            tree = TreeNoise(lambda_=float(penalty)).fit(x, labels, n_classes)
            finite = tree.nodes_.isfinite().all() and (
                tree.log_prob_all(tree.context(x[:100])).isfinite().all()
            )
            n_trees += 1
            if not finite:
                failed.append(f"{name}, N = {n}, C = {n_classes}, λ = {penalty:g}")
    say(f"{len(failed)} of {n_trees} trees are not finite")
    return {"nan_trees": len(failed)}, {"trees": n_trees, "not_finite": failed}


PARTS: dict[str, Callable[[argparse.Namespace], Result]] = {
    "bias": bias,
    "share": share,
    "recovery": recovery,
    "bias_removal": bias_removal,
    "even_kernel": even_kernel,
    "trees": trees,
}
NEED_DATA = ("bias_removal", "even_kernel")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; by default all")
    parser.add_argument("--quick", action="store_true", help="fewer rows and cells")
    parser.add_argument("--data", type=Path, help="folder with diginetica and ptb")
    given = parser.parse_args()
    given.busy_before = os.getloadavg()[0]
    if not set(given.parts) <= PARTS.keys():
        parser.error(f"parts must be of {', '.join(PARTS)}, got {' '.join(given.parts)}")
    if given.data is None and set(given.parts) & set(NEED_DATA):
        parser.error(f"{' and '.join(NEED_DATA)} need --data")
    headline: dict[str, float] = {}
    figures: dict[str, Any] = {}
    for name in given.parts or PARTS:
        if given.data is None and name in NEED_DATA:
            continue
        say(f"{name}:")
        values, figures[name] = PARTS[name](given)
        headline |= values
    sizes = {"contexts": CONTEXTS, "classes": CLASSES, "draws": DRAWS, "epochs": EPOCHS}
    real = [name for name in NEED_DATA if name in figures]
    data = {"bias_removal": "diginetica", "even_kernel": "ptb"}
    finish(
        given, headline, figures, {"recovery": sizes},
        data=", ".join(["synthetic", *(data[name] for name in real)]),
    )  # fmt: skip


if __name__ == "__main__":
    main()
