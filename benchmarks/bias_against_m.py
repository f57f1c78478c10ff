"""How many samples does each noise need until sampled softmax is hardly biased?

The bias is the root mean square over held-out rows of ‖E[gradient on the scores] − (p − y)‖,
computed without sampling (`extremax.diagnostics.bias`). The key of a noise is the number of samples
m at which its bias is a tenth of the bias of uniform noise at m = 10, interpolated linearly between
powers of two on logarithmic axes, or null if 131,072 samples are not enough. The heads have 10,000
classes and 200 features:

- absolute: logits are |ξ|, which Blanc & Rendle 2018 combine with kernels that are even in ξ. The
  keys at the top level are for this head; quadratic_saves is the key of uniform noise divided by
  that of the quadratic kernel.
- class_means, only with --data: logits are |ξ|, but training started where ExtremeClassifier
  starts, at class means and log frequencies, and not at small random weights as in the paper. The
  savings of kernels depend on how far from zero the scores of unlikely classes end.
- plain: logits are ξ.
- shifted: plain, with a constant added to every score. The softmax is the same, but kernels
  depend on the scores themselves, and quadratic kernels need likely classes to be far from zero.

With ``--data DIR`` the heads predict the next word of the Penn Treebank in DIR/ptb from the five
words before it, and are trained by this package. Without it, rows are random and biases follow
Zipf's law.
"""

from __future__ import annotations

import argparse
import lzma
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _common import finish, model_of, say
from scipy import sparse

from extremax.diagnostics import BiasCurve, estimated_bias
from extremax.evaluation import evaluate
from extremax.features import SparseSVD
from extremax.heads import LinearHead
from extremax.labels import one_label_per_row
from extremax.noise import NOISES, FrequencyNoise, Noise, UniformNoise
from extremax.objectives import SampledSoftmax
from extremax.rows import as_rows
from extremax.training.data import Examples
from extremax.training.loop import Trainer
from extremax.training.start import Start, start_at_class_means
from extremax.training.state import Settings

SAMPLES = tuple(2**i for i in range(18))
START, SHARE = 10, 0.1
# Bigram noise needs the previous word, which is no column of these rows; the sparse tree is for
# sparse rows.
NAMES = [name for name in NOISES if name not in ("bigram", "sparse_tree")]
# Words of context, and the most rows that noises are fitted to.
CONTEXT, NOISE_ROWS = 5, 100_000
BUDGET = 2**29


class Task(NamedTuple):
    """Training rows, test rows, and the heads with their objectives."""

    features: np.ndarray
    labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    heads: dict[str, tuple[LinearHead, SampledSoftmax]]
    log_likelihood: dict[str, float]


def synthetic(n_classes: int, width: int, n_rows: int, n_test: int) -> Task:
    """x ~ N(0, I), and scores with standard deviation 2 around log frequencies by Zipf's law, which
    gives the entropy of a language model."""
    rng = np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    features = rng.standard_normal((n_rows + n_test, width), dtype=np.float32)
    zipf = -torch.log(torch.arange(1, n_classes + 1) + 2.7)
    plain = LinearHead(n_classes, width, accumulator_start=1.0)
    plain.weight.normal_(generator=generator).mul_(2.0 / width**0.5)
    plain.bias.copy_(zipf)
    labels = np.empty(len(features), np.int64)
    for start in range(0, len(features), 2048):
        block = slice(start, start + 2048)
        scores = plain.all_scores(torch.from_numpy(features[block]))
        gumbel = -torch.empty_like(scores).exponential_(generator=generator).log_()
        labels[block] = (scores + gumbel).argmax(1).numpy()
    # Shifted so that the rarest classes have scores near zero, where absolute logits are smallest.
    heads = {
        "absolute": (added(plain, -float(zipf.min())), SampledSoftmax(absolute=True)),
        "plain": (plain, SampledSoftmax()),
    }
    parts = slice(None, n_rows), slice(n_rows, None)
    return Task(*(array[part] for part in parts for array in (features, labels)), heads, {})


def penn_treebank(folder: Path, width: int, n_rows: int, n_test: int, epochs: int) -> Task:
    """A row has the vectors of the last two words, and the mean of the last five."""
    words = tokens(folder, "train")
    index = {word: i for i, word in enumerate(sorted(set(words)))}
    train = np.array([index[word] for word in words])
    test = np.array([index[word] for word in tokens(folder, "valid") if word in index])
    quarter = width // 4
    last = word_vectors(train, len(index), 1, width - 2 * quarter)
    views = last, word_vectors(train, len(index), 2, quarter), last[:, :quarter]
    features, labels = rows_of(train, views)
    rows, truth = rows_of(test, views)
    sample = np.random.default_rng(0).permutation(len(truth))[:n_test]
    heads, figures = {}, {}
    for name in ("absolute", "class_means", "plain"):
        objective = SampledSoftmax(absolute=name != "plain")
        sizes = len(index), n_rows, epochs
        head = trained(features, labels, *sizes, objective, at_means=name == "class_means")
        heads[name] = head, objective
        model = model_of(head, UniformNoise().fit(features, labels, len(index)), objective)
        test_labels = one_label_per_row(truth[:2000])
        figures[name] = evaluate(model, as_rows(rows[:2000]), test_labels, BUDGET).log_likelihood
        say(f"{name} head trained: log-likelihood of held-out words {figures[name]:.3f}")
    return Task(features, labels, rows[sample], truth[sample], heads, figures)


def tokens(folder: Path, part: str) -> list[str]:
    with lzma.open(folder / f"ptb.{part}.txt.xz", "rt", encoding="utf-8") as file:
        return file.read().replace("\n", " <eos> ").split()


def word_vectors(words: np.ndarray, n_words: int, lag: int, size: int) -> np.ndarray:
    """Vectors of words from the words ``lag`` positions later: an SVD of log counts, in which rare
    words have larger weights."""
    pairs = words[:-lag], words[lag:]
    counts = sparse.csr_matrix((np.ones(len(pairs[0])), pairs), shape=(n_words, n_words))
    counts.sum_duplicates()
    counts.data = np.log1p(counts.data)
    weight = (np.bincount(words, minlength=n_words) + 1.0) ** -0.35
    table = (counts @ sparse.diags(weight)).tocsr().astype(np.float32)
    return unit_rows(SparseSVD(size).fit(table).transform(table))


def rows_of(words: np.ndarray, views: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
    last, before, bag = views
    n = len(words) - CONTEXT
    total = sum(bag[words[lag : lag + n]] for lag in range(CONTEXT))
    parts = last[words[CONTEXT - 1 :][:n]], before[words[CONTEXT - 2 :][:n]], unit_rows(total)
    return np.concatenate(parts, 1), words[CONTEXT:]


def unit_rows(rows: np.ndarray) -> np.ndarray:
    return (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)).astype(np.float32)


def trained(
    features: np.ndarray,
    labels: np.ndarray,
    n_classes: int,
    n_rows: int,
    epochs: int,
    objective: SampledSoftmax,
    at_means: bool,
) -> LinearHead:
    """Train a head by sampled softmax with 100 frequency draws.

    It starts at small random weights as in the paper, a plain head with log frequencies as biases;
    or, with ``at_means``, where ExtremeClassifier starts.
    """
    scale = 1.0 / float(np.sqrt(np.square(features[:10_000]).mean()))
    head = LinearHead(n_classes, features.shape[1], accumulator_start=1.0, scale=scale)
    head.weight.normal_(generator=torch.Generator().manual_seed(0)).mul_(0.05)
    noise = FrequencyNoise().fit(features, labels, n_classes)
    if not objective.absolute:
        head.bias.copy_(noise.log_prob_all(torch.empty(1, 0))[0])
    model = model_of(head, noise, objective)
    examples = Examples(as_rows(features), labels)
    examples.keep_context(noise)
    train = np.random.default_rng(0).permutation(len(labels))[:n_rows]
    if at_means:
        head.weight.zero_()
        start_at_class_means(Start(model, examples, train, train[:0], 100, 0))
    trainer = Trainer(
        model=model,
        examples=examples,
        settings=Settings(
            n_negatives=100,
            learning_rate=1.0,
            schedule="linear",
            epochs=epochs,
            batch_size=512,
            max_seconds=None,
            patience=epochs,
        ),
        seed=0,
    )
    trainer.run(train, train[:0])
    return head


def added(head: LinearHead, constant: float) -> LinearHead:
    """A copy of the head with a constant added to every score."""
    copy = LinearHead(head.n_classes, head.weight.shape[1], 1.0, head.scale)
    copy.weight.copy_(head.weight)
    copy.bias.copy_(head.bias + constant)
    return copy


def curves(
    task: Task, head: LinearHead, objective: SampledSoftmax, noises: dict[str, Noise]
) -> dict[str, BiasCurve]:
    by_noise = {}
    for name, noise in noises.items():
        model = model_of(head, noise, objective)
        by_noise[name] = estimated_bias(
            model, as_rows(task.test), task.test_labels, noise, SAMPLES, BUDGET
        )
    return by_noise


def samples_needed(by_noise: dict[str, BiasCurve]) -> dict[str, float | None]:
    """The m at which each bias is a tenth of uniform's at m = 10; None if no m tried is enough."""
    uniform = by_noise["uniform"]
    start = math.exp(np.interp(math.log(START), np.log(uniform.m), np.log(uniform.bias)))
    needed = {name: curve.draws_for(SHARE * start) for name, curve in by_noise.items()}
    return {name: m if math.isfinite(m) else None for name, m in needed.items()}


def measure(task: Task, noises: dict[str, Noise]) -> dict[str, dict[str, Any]]:
    plain, objective = task.heads["plain"]
    scores = plain.all_scores(torch.from_numpy(task.test))
    # The lowest score of a row becomes zero on average.
    shift = -float(scores.min(1).values.mean())
    heads = task.heads | {"shifted": (added(plain, shift), objective)}
    figures = {}
    for kind, (head, loss) in heads.items():
        by_noise = curves(task, head, loss, noises)
        needed = samples_needed(by_noise)
        say(f"{kind} head: samples for a tenth of uniform's bias at m = {START}")
        for name, curve in by_noise.items():
            i = curve.m.index(64)
            text = "never" if needed[name] is None else f"{needed[name]:,.0f}"
            say(
                f"  {name:<12} {text:>9}   bias at m = 64: {curve.bias[i]:.4f} ± "
                f"{curve.error[i]:.4f}, norm of the gradient {curve.gradient:.3f}"
            )
        figures[kind] = {
            "samples": needed,
            "bias": {name: curve.bias.tolist() for name, curve in by_noise.items()},
            "gradient": by_noise["uniform"].gradient,
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows, under a minute")
    parser.add_argument("--data", type=Path, help="folder with ptb in it")
    parser.add_argument("--rows", type=int, help="training rows: 600,000, with --quick 60,000")
    parser.add_argument("--test-rows", type=int, help="test rows: 200, with --quick 16")
    parser.add_argument("--classes", type=int, default=10_000, help="of the synthetic problem")
    parser.add_argument("--features", type=int, default=200)
    given = parser.parse_args()
    given.busy_before = os.getloadavg()[0]
    n_test = given.test_rows or (16 if given.quick else 200)
    if given.data:
        n_rows = given.rows or (60_000 if given.quick else 600_000)
        folder = given.data / "ptb" if (given.data / "ptb").is_dir() else given.data
        task = penn_treebank(folder, given.features, n_rows, n_test, 2 if given.quick else 4)
    else:
        n_rows = given.rows or (20_000 if given.quick else 60_000)
        task = synthetic(given.classes, given.features, n_rows, n_test)
        say("synthetic: random rows, Zipf biases")
    n_classes = task.heads["plain"][0].n_classes
    sample = np.random.default_rng(1).permutation(len(task.labels))[: min(NOISE_ROWS, n_rows)]
    rows = task.features[sample], task.labels[sample]
    noises = {name: NOISES[name]().fit(*rows, n_classes) for name in NAMES}
    figures = measure(task, noises)
    needed = figures["absolute"]["samples"]
    headline = dict(needed)
    if needed["quadratic"] is not None:
        # A lower bound if uniform noise needs more samples than were tried.
        headline["quadratic_saves"] = (needed["uniform"] or SAMPLES[-1]) / needed["quadratic"]
    finish(
        given,
        headline,
        figures | {"m": list(SAMPLES), "log_likelihood": task.log_likelihood},
        {
            "rows": n_rows,
            "test_rows": n_test,
            "classes": n_classes,
            "features": given.features,
        },
        data="ptb" if given.data else "synthetic",
    )


if __name__ == "__main__":
    main()
