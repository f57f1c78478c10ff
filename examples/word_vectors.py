"""Learn word vectors by skip-gram, with one class per word.

The text is Python's own docstrings, or Penn Treebank. The vector of a word predicts the words
around it through an output layer over the whole vocabulary, trained by negative sampling, NCE and
exact softmax for the same time. Prints the exact held-out likelihood of each method and the nearest
neighbors of a few words, and draws a picture.

    python examples/word_vectors.py               # a minute or two on two cores
    python examples/word_vectors.py --quick       # less text, a few seconds
    python examples/word_vectors.py --data ptb    # ptb.train.txt, .valid and .test
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from _text import RARE, documentation_strings, treebank
from rich.console import Console
from rich.table import Table

from extremax.nn import ExtremeSoftmax, RowAdagrad
from extremax.noise import FrequencyNoise
from extremax.report.curves import learning_curves

WINDOW, BATCH, HELD_OUT = 4, 1024, 3_000
QUERIES = ("file", "list", "error", "thread", "returns", "int", "socket", "first")
console = Console(width=88)


def vocabulary(sentences: list[list[str]], least: int) -> tuple[list[str], np.ndarray]:
    """Words that occur at least ``least`` times, most frequent first, and their counts.

    The placeholder for rare words is left out.
    """
    counts = Counter(word for sentence in sentences for word in sentence)
    words = sorted(
        (w for w in counts if counts[w] >= least and w != RARE), key=lambda w: (-counts[w], w)
    )
    return words, np.array([counts[w] for w in words])


def pairs(
    sentences: list[list[str]], words: list[str], counts: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """All pairs (word, nearby word), after random removal of frequent words.

    A word of frequency f is kept with probability √(t/f), t = 10⁻³ (Mikolov et al. 2013).
    """
    index = {word: i for i, word in enumerate(words)}
    keep = np.sqrt(1e-3 * counts.sum() / counts)
    blocks = []
    for sentence in sentences:
        line = np.array([index[w] for w in sentence if w in index], dtype=np.int64)
        line = line[rng.random(len(line)) < keep[line]]
        for gap in range(1, min(WINDOW, len(line) - 1) + 1):
            near = np.stack([line[:-gap], line[gap:]], 1)
            blocks += [near, near[:, ::-1]]
    return rng.permutation(np.concatenate(blocks))


class SkipGram(torch.nn.Module):
    """One vector per word, and an output layer over all words."""

    def __init__(self, n_words: int, width: int, objective: str, train: torch.Tensor) -> None:
        super().__init__()
        self.vectors = torch.nn.Embedding(n_words, width, sparse=True)
        torch.nn.init.normal_(self.vectors.weight, std=width**-0.5)
        # The noise of word2vec.
        noise = FrequencyNoise(power=0.75)
        # The sum of losses, not their mean: the step of a word depends on its own pairs only.
        self.output = ExtremeSoftmax(
            width, n_words, objective, noise, n_negatives=5, reduction="sum"
        )
        self.output.fit_noise(None, train[:, 1])
        self.output.start_bias(train[:, 1])

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        return self.output(self.vectors(pairs[:, 0]), pairs[:, 1])


def train_model(
    objective: str, n_words: int, train: torch.Tensor, held_out: torch.Tensor, seconds: float
) -> tuple[SkipGram, list[dict[str, float]], int]:
    """The model after this many seconds, its evaluations, and the number of pairs trained on."""
    torch.manual_seed(0)
    model = SkipGram(n_words, 100, objective, train)
    optimizer = RowAdagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.1)
    history: list[dict[str, float]] = []
    spent, done, next_evaluation = 0.0, 0, 0.0
    while True:
        if spent >= next_evaluation:
            history.append(evaluate(model, held_out) | {"seconds": spent})
            next_evaluation = spent + seconds / 12
        if spent >= seconds:
            return model, history, done
        begun = time.perf_counter()
        start = done % (len(train) - BATCH)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (1.0 - spent / seconds) + 1e-4
        optimizer.zero_grad()
        model(train[start : start + BATCH]).backward()
        optimizer.step()
        done += BATCH
        spent += time.perf_counter() - begun


@torch.no_grad()
def evaluate(model: SkipGram, held_out: torch.Tensor) -> dict[str, float]:
    """Exact held-out log-likelihood and accuracy."""
    model.eval()
    hidden = model.vectors(held_out[:, 0])
    loss, best = model(held_out) / len(held_out), model.output.predict(hidden)
    model.train()
    hits = (best == held_out[:, 1]).double().mean()
    return {"log_likelihood": -float(loss), "accuracy": float(hits)}


def neighbors(model: SkipGram, words: list[str], word: str, n: int = 5) -> list[str]:
    """The n words with the most similar vectors, by cosine."""
    unit = torch.nn.functional.normalize(model.vectors.weight.detach(), dim=1)
    near = (unit @ unit[words.index(word)]).topk(n + 1).indices[1:]
    return [words[i] for i in near.tolist()]


def read(folder: Path | None) -> tuple[list[list[str]], list[list[str]]]:
    """Training sentences and held-out sentences."""
    if folder:
        train, _, test = treebank(folder)
        return train, test
    sentences = documentation_strings()
    unseen = sentences[::50]
    del sentences[::50]
    return sentences, unseen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="part of the text, 2 s per method")
    parser.add_argument("--data", type=Path, help="folder with ptb.train.txt, .valid and .test")
    parser.add_argument("--seconds", type=float, default=15.0, help="training time per method")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for the picture")
    options = parser.parse_args()
    if options.quick:
        options.seconds = 2.0
    # In small steps, torch's threads would wait for each other longer than they work.
    torch.set_num_threads(1)

    started = time.perf_counter()
    sentences, unseen = read(options.data)
    words, counts = vocabulary(sentences + unseen, 20 if options.quick else 5)
    rng = np.random.default_rng(0)
    held_out = torch.from_numpy(pairs(unseen, words, counts, rng)[:HELD_OUT])
    train = torch.from_numpy(pairs(sentences, words, counts, rng))
    console.print(
        f"{len(words):,} words = classes | {len(train):,} pairs of words from {len(sentences):,} "
        f"sentences | {options.seconds:.0f} s per method"
    )
    frequency = torch.bincount(train[:, 1], minlength=len(words)).clamp(min=1).double()
    prior = float((frequency / frequency.sum()).log()[held_out[:, 1]].mean())

    table = Table("method", "log-likelihood", "correct", "pairs/s", box=None, pad_edge=False)
    models, curves = {}, {}
    for name, objective in (
        ("negative sampling", "negative_sampling"), ("NCE", "nce"), ("exact softmax", "exact"),
    ):  # fmt: skip
        # Compile the kernels first, so that compilation does not count as training time.
        train_model(objective, len(words), train[: 2 * BATCH], held_out[:9], 1e-9)
        model, history, done = train_model(objective, len(words), train, held_out, options.seconds)
        models[name], curves[name] = model, history
        last = history[-1]
        table.add_row(
            name, f"{last['log_likelihood']:.3f}", f"{last['accuracy']:.1%}",
            f"{done / options.seconds:,.0f}",
        )  # fmt: skip
    table.add_row("word frequencies", f"{prior:.3f}", "", "")
    console.print()
    console.print(table)
    for name in ("negative sampling", "NCE"):
        console.print(f"\nnearest neighbors, {name}:")
        # Frequent but meaningful words replace the queries if none is in the vocabulary.
        for word in [w for w in QUERIES if w in words] or words[50:58]:
            near = ", ".join(neighbors(models[name], words, word))
            console.print(f"  {word:<8} {near}", highlight=False)

    options.out.mkdir(parents=True, exist_ok=True)
    picture = options.out / "word_vectors.png"
    learning_curves(curves, picture)
    console.print(f"\npicture: {picture} | {time.perf_counter() - started:.0f} s in total")


if __name__ == "__main__":
    main()
