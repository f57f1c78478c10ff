"""Compare noises for the output layer of a language model by exact perplexity.

An LSTM predicts the next word with exact softmax, or with sampled softmax and uniform, unigram,
bigram, quadratic, quartic, softmax, tree or mixture noise. This is the experiment of Blanc &
Rendle, "Adaptive sampled softmax with kernel based sampling", ICML 2018, on Penn Treebank, which
`reproduce/kernel_sampling.py` repeats with their numbers of negatives. Perplexities are exact for
every noise. Prints a table and draws a picture: the convergence of each noise, and its final
perplexity against the number of negatives m.

    python examples/language_model.py                # Python's docstrings
    python examples/language_model.py --quick        # a small part of them, about a minute
    python examples/language_model.py --data ptb --negatives 20 100  # ptb.train.txt, .valid, .test
    python examples/language_model.py --data ptb --quick             # a small part of those

A draw from the quadratic kernel costs d²: with 200 units on two cores, a step takes seconds. With
``--device cuda``, this kernel scores all words instead, as quartic and softmax noise do anywhere.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _text import RARE, documentation_strings, treebank
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from extremax.nn import ExtremeSoftmax, RowAdam
from extremax.noise import BigramNoise, MixtureNoise, TreeNoise

END = "<eos>"
STEPS_BACK = 35
NOISES = ("uniform", "unigram", "bigram", "quadratic", "quartic", "softmax", "tree", "mixture")
TREES = ("tree", "mixture")
# Steps between refits of a tree, hidden states per refit, and hidden states of the untrained model
# for the first fit. 20,000 states were too few for 10,000 words: perplexity 118 instead of 110.
REFIT_EVERY, REFIT_ROWS, FIRST_FIT = 1_000, 400_000, 100_000
COMPONENTS = 64
console = Console(width=88)


class Text(NamedTuple):
    """Word numbers of the three parts, and the size of the vocabulary."""

    train: Tensor
    valid: Tensor
    test: Tensor
    n_words: int


def docstring_parts() -> list[list[list[str]]]:
    """Python's docstrings, a tenth of them each for validation and test."""
    sentences = documentation_strings()
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(sentences), generator=generator).tolist()
    shuffled = [sentences[i] for i in order]
    tenth = len(shuffled) // 10
    return [shuffled[2 * tenth :], shuffled[:tenth], shuffled[tenth : 2 * tenth]]


def replace_rare_words(parts: list[list[list[str]]], least: int) -> list[list[list[str]]]:
    """Replace words that occur fewer than ``least`` times by `RARE`."""
    counts = Counter(word for part in parts for line in part for word in line)
    return [[[w if counts[w] >= least else RARE for w in line] for line in part] for part in parts]


def number_words(parts: list[list[list[str]]]) -> Text:
    words = sorted({word for part in parts for line in part for word in line} | {END})
    index = {word: i for i, word in enumerate(words)}
    streams = [
        torch.tensor([index[w] for line in part for w in (*line, END)], dtype=torch.int64)
        for part in parts
    ]
    return Text(*streams, len(words))


class LanguageModel(nn.Module):
    """Embedding, LSTM and an output layer over all words."""

    def __init__(self, n_words: int, units: int, output: ExtremeSoftmax) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_words, units, sparse=True)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.lstm = nn.LSTM(units, units, batch_first=True)
        self.output = output

    def forward(self, words: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.lstm(self.embedding(words), state)


def output_layer(noise: str, m: int, units: int, text: Text) -> ExtremeSoftmax:
    if noise == "exact":
        layer = ExtremeSoftmax(units, text.n_words, "exact")
    else:
        # With the even kernels, quadratic and quartic, the layer has p ∝ exp|ξ|.
        noises: dict[str, Any] = {
            "unigram": "frequency",
            "bigram": BigramNoise(),
            "tree": TreeNoise(COMPONENTS),
            "mixture": MixtureNoise((TreeNoise(COMPONENTS), "frequency")),
        }
        layer = ExtremeSoftmax(
            units, text.n_words, noise=noises.get(noise, noise), n_negatives=m,
            refit_every=REFIT_EVERY if noise in TREES else None, refit_rows=REFIT_ROWS,
        )  # fmt: skip
        if noise in ("unigram", "bigram"):
            layer.fit_noise(text.train[:-1, None], text.train[1:])
    layer.start_bias(text.train)
    return layer


def columns(stream: Tensor, n: int) -> Tensor:
    """A text cut into n parallel texts, (n, length)."""
    return stream[: len(stream) // n * n].view(n, -1)


@torch.no_grad()
def fit_tree(model: LanguageModel, stream: Tensor) -> None:
    """Fit the tree for the first time; `refit_every` refits it later."""
    words = stream[:, : FIRST_FIT // len(stream) + 1]
    hidden, _ = model(words[:, :-1], None)
    model.output.fit_noise(hidden, words[:, 1:])


@torch.no_grad()
def perplexity(model: LanguageModel, stream: Tensor) -> float:
    """exp of the exact mean −log p."""
    model.eval()
    text, state, total, n = columns(stream, 10), None, 0.0, 0
    for start in range(0, text.shape[1] - 1, STEPS_BACK):
        words = text[:, start : start + STEPS_BACK + 1]
        hidden, state = model(words[:, :-1], state)
        total += float(model.output(hidden, words[:, 1:])) * words[:, 1:].numel()
        n += words[:, 1:].numel()
    model.train()
    return math.exp(min(total / n, 50.0))


def train(
    noise: str, m: int, text: Text, options: argparse.Namespace
) -> tuple[list[float], float, float]:
    """Validation perplexity per epoch, test perplexity of the best epoch, seconds of training."""
    torch.manual_seed(0)
    layer = output_layer(noise, m, options.units, text)
    model = LanguageModel(text.n_words, options.units, layer).to(options.device)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Adam(model.lstm.parameters(), options.rate),
        RowAdam([model.embedding.weight, *layer.parameters()], options.rate),
    ]
    training, valid, test = (part.to(options.device) for part in text[:3])
    stream = columns(training, options.batch)
    if noise in TREES:
        fit_tree(model, stream)
    starts = range(0, stream.shape[1] - 1, STEPS_BACK)
    history, best, seconds, done = [], math.inf, 0.0, 0
    for _ in range(options.epochs):
        begun, state = time.perf_counter(), None
        for start in starts:
            rate = options.rate * (1.0 - done / (options.epochs * len(starts)))
            for group in (g for optimizer in optimizers for g in optimizer.param_groups):
                group["lr"] = rate
            words = stream[:, start : start + STEPS_BACK + 1]
            hidden, state = model(words[:, :-1], state)
            loss = layer(hidden, words[:, 1:], words[:, :-1] if noise == "bigram" else None)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.lstm.parameters(), 0.25)
            for optimizer in optimizers:
                optimizer.step()
            state = tuple(s.detach() for s in state)
            done += 1
        seconds += time.perf_counter() - begun
        history.append(perplexity(model, valid))
        if history[-1] == min(history):
            best = perplexity(model, test)
    return history, best, seconds


def draw(results: dict[tuple[str, int], tuple[list[float], float, float]], path: Path) -> None:
    """Draw validation perplexity per epoch at the largest m, and test perplexity against m.

    Both axes end at about three times the perplexity of exact softmax.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator, NullLocator

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    names = list(dict.fromkeys(noise for noise, _ in results))
    markers = dict(zip(names, "so^vD<>XP", strict=False))
    for name in names:
        sizes = sorted(m for noise, m in results if noise == name)
        history, final, _ = results[name, sizes[-1]]
        style = {"label": name, "marker": markers[name], "markersize": 4}
        if name == "exact":
            style |= {"color": "black"}
            right.axhline(final, color="black", linewidth=1)
        line = left.plot(range(1, len(history) + 1), history, **style)[0]
        if name != "exact":
            finals = [results[name, m][1] for m in sizes]
            right.plot(sizes, finals, **(style | {"color": line.get_color()}))
    left.set(xlabel="epoch", ylabel="validation perplexity", yscale="log")
    right.set(xlabel="negatives m", ylabel="test perplexity", xscale="log", yscale="log")
    left.set_xticks(range(1, len(history) + 1))
    sizes = sorted({m for _, m in results if m})
    right.set_xticks(sizes, [str(m) for m in sizes])
    right.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    exact = results["exact", 0][1]
    for axes in (left, right):
        # Noises that failed would squeeze the other curves into one line.
        axes.set_ylim(0.92 * exact, 3.2 * exact)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0)))
        axes.yaxis.set_major_formatter("{x:.0f}")
        axes.yaxis.set_minor_locator(NullLocator())
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="little text, small model, two epochs")
    parser.add_argument("--data", type=Path, help="folder with ptb.train.txt, .valid and .test")
    parser.add_argument("--noises", nargs="+", choices=NOISES, default=list(NOISES))
    parser.add_argument("--negatives", nargs="+", type=int, default=[10, 20, 40], help="m")
    parser.add_argument("--units", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=20, help="number of parallel texts")
    parser.add_argument(
        "--rate", type=float, default=4e-3, help="Adam's learning rate, falls to zero"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for the picture")
    options = parser.parse_args()
    if options.quick:
        options.negatives, options.units, options.epochs = [5, 20], 32, 2
    return options


def main() -> None:
    options = arguments()
    if options.quick:
        # In small steps, torch's threads would wait for each other longer than they work.
        torch.set_num_threads(1)
    started = time.perf_counter()
    parts = treebank(options.data) if options.data else docstring_parts()
    if options.quick:
        parts = [part[:n] for part, n in zip(parts, (1_600, 200, 200), strict=True)]
    if options.quick or not options.data:
        parts = replace_rare_words(parts, 10 if options.quick else 3)
    text = number_words(parts)
    console.print(
        f"{text.n_words:,} words = classes | {len(text.train):,} words to train on, "
        f"{len(text.test):,} to test | {options.units} units, {options.epochs} epochs"
    )
    results = {}
    table = Table("noise", "m", "valid", "test", "/ exact", "seconds", box=None, pad_edge=False)
    runs = [("exact", 0), *((noise, m) for noise in options.noises for m in options.negatives)]
    for noise, m in runs:
        results[noise, m] = train(noise, m, text, options)
        history, final, seconds = results[noise, m]
        relative = final / results["exact", 0][1]
        row = (noise, str(m or ""), f"{min(history):.1f}", f"{final:.1f}", f"{relative:.3f}")
        table.add_row(*row, f"{seconds:.0f}")
        console.print(f"{noise} {m or ''}: test perplexity {final:.1f}, {seconds:.0f} s")
    console.print()
    console.print(table)
    options.out.mkdir(parents=True, exist_ok=True)
    draw(results, options.out / "language_model.png")
    console.print(
        f"\npicture: {options.out / 'language_model.png'} | "
        f"{time.perf_counter() - started:.0f} s in total"
    )


if __name__ == "__main__":
    main()
