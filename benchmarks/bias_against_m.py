"""How many samples does each noise need until sampled softmax is hardly biased?

The bias is the root mean square over held-out rows of ‖E[gradient on the scores] − (p − y)‖,
computed without sampling (`extremax.diagnostics.bias`). A noise's key is the number of samples m
that brings it down to a tenth of what uniform noise has at m = 10, read between powers of two on
straight lines of logarithms, or null if 131,072 are not enough. The heads have 10,000 classes
and 200 features:

- absolute: logits are |ξ|, as Blanc & Rendle 2018 pair with kernels that are even in ξ. The keys
  at the top level are its; quadratic_saves is uniform's key over the quadratic kernel's.
- class_means, with --data only: logits are |ξ|, but training began where ExtremeClassifier begins,
  at class means and log frequencies, and not at small random weights as in the paper. How far
  from zero the scores of unlikely classes end decides what kernels save.
- plain: logits are ξ.
- shifted: plain with a constant added to every score. The softmax is the same, but kernels see
  the scores themselves, and quadratic ones want likely classes far from zero.

With ``--data DIR`` the heads learn the next word of the Penn Treebank in DIR/ptb from the five
before it, trained by this package. Without, rows are random and biases follow Zipf's law.
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
from _common import finish, say
from scipy import sparse

from extremax.diagnostics import BiasCurve, estimated_bias
from extremax.features import SparseSVD
from extremax.head import LinearHead
from extremax.noise import NOISES, FrequencyNoise, Noise, UniformNoise
from extremax.objectives import SampledSoftmax
from extremax.prediction import Scorer, likelihood
from extremax.training.checkpoint import Checkpoint
from extremax.training.loop import Examples, Settings, Trainer
from extremax.training.progress import Progress
from extremax.training.start import start_at_class_means

SAMPLES = tuple(2**i for i in range(18))
START, SHARE = 10, 0.1
# Bigram noise asks for a previous word, which these rows do not hold as such.
NAMES = [name for name in NOISES if name != "bigram"]
# Words before the next one; noises are fitted to so many rows at most.
CONTEXT, NOISE_ROWS = 5, 100_000
BUDGET = 2**29


class Task(NamedTuple):
    """Rows to train on, rows to measure on, and the heads with their objectives."""

    features: np.ndarray
    labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    heads: dict[str, tuple[LinearHead, SampledSoftmax]]
    log_likelihood: dict[str, float]


def synthetic(n_classes: int, width: int, n_rows: int, n_test: int) -> Task:
    """x ~ N(0, I) and scores of deviation 2 around log Zipf: the entropy of a language model."""
    rng = np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    features = rng.standard_normal((n_rows + n_test, width), dtype=np.float32)
    zipf = -torch.log(torch.arange(1, n_classes + 1) + 2.7)
    plain = LinearHead(n_classes, width, accumulator_start=1.0)
    plain.weight.normal_(generator=generator).mul_(2.0 / width**0.5)
    plain.bias.copy_(zipf)
    labels = np.empty(len(features), np.int64)
    for at in range(0, len(features), 2048):
        scores = plain.scores_all(torch.from_numpy(features[at : at + 2048]))
        gumbel = -torch.empty_like(scores).exponential_(generator=generator).log_()
        labels[at : at + 2048] = (scores + gumbel).argmax(1).numpy()
    # Absolute logits grow from zero, where the rarest classes are.
    heads = {
        "absolute": (added(plain, -float(zipf.min())), SampledSoftmax(absolute=True)),
        "plain": (plain, SampledSoftmax()),
    }
    cut = slice(None, n_rows), slice(n_rows, None)
    return Task(*(a[c] for c in cut for a in (features, labels)), heads, {})


def penn_treebank(folder: Path, width: int, n_rows: int, n_test: int, epochs: int) -> Task:
    """A row is the word before, the one before that, and the mean of five, each as a vector."""
    words = tokens(folder, "train")
    index = {word: i for i, word in enumerate(sorted(set(words)))}
    train = np.array([index[word] for word in words])
    test = np.array([index[word] for word in tokens(folder, "valid") if word in index])
    quarter = width // 4
    last = word_vectors(train, len(index), 1, width - 2 * quarter)
    views = last, word_vectors(train, len(index), 2, quarter), last[:, :quarter]
    features, labels = rows_of(train, views)
    rows, truth = rows_of(test, views)
    some = np.random.default_rng(0).permutation(len(truth))[:n_test]
    heads, figures = {}, {}
    for name in ("absolute", "class_means", "plain"):
        objective = SampledSoftmax(absolute=name != "plain")
        sizes = len(index), n_rows, epochs
        head = trained(features, labels, *sizes, objective, at_means=name == "class_means")
        heads[name] = head, objective
        scorer = Scorer(head, UniformNoise().fit(features, labels, len(index)), objective)
        found = likelihood(scorer, rows[:2000], truth[:2000], BUDGET)
        figures[name] = float(found.log_prob.double().mean())
        say(f"{name} head trained: log-likelihood of held-out words {figures[name]:.3f}")
    return Task(features, labels, rows[some], truth[some], heads, figures)


def tokens(folder: Path, part: str) -> list[str]:
    with lzma.open(folder / f"ptb.{part}.txt.xz", "rt", encoding="utf-8") as file:
        return file.read().replace("\n", " <eos> ").split()


def word_vectors(words: np.ndarray, n_words: int, lag: int, size: int) -> np.ndarray:
    """Words by what follows them ``lag`` places on: an SVD of log counts, rare words weighing
    more."""
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
    """By sampled softmax with 100 frequency draws, from small random weights as in the paper, a
    plain head's biases from log frequency; or from where ExtremeClassifier begins."""
    scale = 1.0 / float(np.sqrt(np.square(features[:10_000]).mean()))
    head = LinearHead(n_classes, features.shape[1], accumulator_start=1.0, scale=scale)
    head.weight.normal_(generator=torch.Generator().manual_seed(0)).mul_(0.05)
    noise = FrequencyNoise().fit(features, labels, n_classes)
    if not objective.absolute:
        head.bias.copy_(noise.log_prob_all(torch.empty(1, 0))[0])
    scorer = Scorer(head, noise, objective)
    examples = Examples(features, labels, None, noise.context(features))
    some = np.random.default_rng(0).permutation(len(labels))[:n_rows]
    if at_means:
        head.weight.zero_()
        start_at_class_means(scorer, examples, some, some[:0], 100, 0)
    trainer = Trainer(
        scorer=scorer,
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
        progress=Progress(0),
        checkpoint=Checkpoint(None, {}),
    )
    trainer.run(some, some[:0])
    return head


def added(head: LinearHead, constant: float) -> LinearHead:
    """The head with a constant added to every score."""
    copy = LinearHead(head.n_classes, head.weight.shape[1], 1.0, head.scale)
    copy.weight.copy_(head.weight)
    copy.bias.copy_(head.bias + constant)
    return copy


def curves(
    task: Task, head: LinearHead, objective: SampledSoftmax, noises: dict[str, Noise]
) -> dict[str, BiasCurve]:
    found = {}
    for name, noise in noises.items():
        noise.attach(head)
        scorer = Scorer(head, noise, objective)
        found[name] = estimated_bias(scorer, task.test, task.test_labels, noise, SAMPLES, BUDGET)
    return found


def samples_needed(found: dict[str, BiasCurve]) -> dict[str, float | None]:
    """m at which each is down to a tenth of uniform at 10; None where no m tried is enough."""
    uniform = found["uniform"]
    start = math.exp(np.interp(math.log(START), np.log(uniform.m), np.log(uniform.bias)))
    needed = {name: curve.samples_for(SHARE * start) for name, curve in found.items()}
    return {name: m if math.isfinite(m) else None for name, m in needed.items()}


def measure(task: Task, noises: dict[str, Noise]) -> dict[str, dict[str, Any]]:
    plain, objective = task.heads["plain"]
    scores = plain.scores_all(torch.from_numpy(task.test))
    # The lowest score of a row becomes zero, on average.
    shift = -float(scores.min(1).values.mean())
    heads = task.heads | {"shifted": (added(plain, shift), objective)}
    figures = {}
    for kind, (head, loss) in heads.items():
        found = curves(task, head, loss, noises)
        needed = samples_needed(found)
        say(f"{kind} head: samples for a tenth of uniform's bias at m = {START}")
        for name, curve in found.items():
            at = curve.m.index(64)
            text = "never" if needed[name] is None else f"{needed[name]:,.0f}"
            say(
                f"  {name:<12} {text:>9}   bias at m = 64: {curve.bias[at]:.4f} ± "
                f"{curve.error[at]:.4f} of a gradient of {curve.gradient:.3f}"
            )
        figures[kind] = {
            "samples": needed,
            "bias": {name: curve.bias.tolist() for name, curve in found.items()},
            "gradient": found["uniform"].gradient,
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows, under a minute")
    parser.add_argument("--data", type=Path, help="folder with ptb in it")
    parser.add_argument("--rows", type=int, help="training rows: 600,000, with --quick 60,000")
    parser.add_argument("--test-rows", type=int, help="rows measured on: 200, with --quick 16")
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
    some = np.random.default_rng(1).permutation(len(task.labels))[: min(NOISE_ROWS, n_rows)]
    rows = task.features[some], task.labels[some]
    noises = {name: NOISES[name]().fit(*rows, n_classes) for name in NAMES}
    figures = measure(task, noises)
    needed = figures["absolute"]["samples"]
    headline = dict(needed)
    if needed["quadratic"] is not None:
        # Where uniform noise is never there, at least this.
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
