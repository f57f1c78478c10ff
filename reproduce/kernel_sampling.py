"""Six proposal distributions for sampled softmax in a language model, by exact perplexity.

Blanc & Rendle, "Adaptive sampled softmax with kernel based sampling", ICML 2018, on Penn Treebank:
final perplexity against the number m of sampled words, and convergence for each m. The even
kernels, quadratic and quartic, train and predict with p ∝ exp|ξ|.

    python reproduce/kernel_sampling.py --data DIR --output RUNS --device cuda --jobs 6
    python reproduce/kernel_sampling.py --report RUNS
    python reproduce/kernel_sampling.py --quick --output RUNS  # synthetic text

DIR/ptb holds ptb.train.txt, ptb.valid.txt and ptb.test.txt, or the same with .xz. Finished runs are
kept in RUNS; started again, the script does the missing ones.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path
from typing import Any

import torch
from _common import Cell, read_results
from _proposals import (
    Task,
    arguments,
    cells,
    check,
    draw_by_m,
    draw_curves,
    output_layer,
    report_coverage,
    run_all,
    table,
    train,
)
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from language_model import LanguageModel, Text, columns, number_words, treebank

NOISES = ("uniform", "unigram", "bigram", "quadratic", "quartic", "softmax")
NEGATIVES, REPEATED = (10, 20, 40, 80, 160, 320, 640), (20, 160)
FILE = "kernel_sampling.jsonl"
# Words that the LSTM reads before a step, parallel texts, and parallel texts in evaluation.
LENGTH, BATCH, EVALUATION = 35, 32, 64


@functools.cache
def text_of(data: Path | None) -> Text:
    if data is not None:
        return number_words(treebank(data / "ptb"))
    # Each word is followed by one of eight, the first of them most often.
    generator = torch.Generator().manual_seed(0)
    n_words, n = 300, 24_000
    following = torch.randint(n_words, (n_words, 8), generator=generator)
    choices = (8 * torch.rand(n, generator=generator) ** 2).long().tolist()
    words = [0]
    for choice in choices:
        words.append(int(following[words[-1], choice]))
    stream = torch.tensor(words)
    return Text(stream[:16_000], stream[16_000:20_000], stream[20_000:], n_words)


class NextWord(Task):
    """An LSTM over parallel texts that go on from step to step."""

    stream: Tensor

    def __init__(self, text: Text, cell: Cell) -> None:
        super().__init__()
        noise, units = cell["noise"], cell["units"]
        self.output = output_layer(noise, cell["m"], units, text.n_words)
        if noise in ("unigram", "bigram"):
            self.output.fit_noise(text.train[:-1, None], text.train[1:])
        self.output.start_bias(text.train)
        self.model = LanguageModel(text.n_words, units, self.output)
        self.embedding = self.model.embedding
        self.text, self.reads_words = text, noise == "bigram"
        self.register_buffer("stream", columns(text.train, BATCH), persistent=False)
        self.state: Any = None

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        n_blocks = (self.stream.shape[1] - 1) // LENGTH
        start = step % n_blocks * LENGTH
        words = self.stream[:, start : start + LENGTH + 1]
        hidden, state = self.model(words[:, :-1], self.state if start else None)
        self.state = tuple(s.detach() for s in state)
        return hidden, words[:, 1:], words[:, :-1] if self.reads_words else None

    def validation_loss(self) -> float:
        return self._loss(self.text.valid)

    def test(self) -> dict[str, float]:
        return {"loss": self._loss(self.text.test)}

    def _loss(self, stream: Tensor) -> float:
        text, state = columns(stream.to(self.stream.device), EVALUATION), None
        total, n = torch.zeros((), dtype=torch.float64, device=text.device), 0
        for start in range(0, text.shape[1] - 1, LENGTH):
            words = text[:, start : start + LENGTH + 1]
            hidden, state = self.model(words[:, :-1], state)
            total += self.output(hidden, words[:, 1:]).double() * words[:, 1:].numel()
            n += words[:, 1:].numel()
        return float(total) / n


def run(cell: Cell, data: Path | None, device: str) -> dict[str, Any]:
    torch.manual_seed(cell["seed"])
    return train(NextWord(text_of(data), cell).to(device), cell)


def report(options: argparse.Namespace) -> None:
    records = list(read_results(options.report / FILE).values())
    print(report_coverage(records, cells(options)) + "\n")
    print("Test perplexity, ± standard error and (seeds) where there are several:\n")
    print(table(records, "loss", 1, exponential=True) + "\n")
    draw_by_m(options.images / "kernel_sampling.png", records, {"loss": "test loss, nats a word"})
    draw_curves(records, options.images, "kernel_sampling")


def options_of(given: list[str] | None = None) -> argparse.Namespace:
    made = arguments(__doc__.splitlines()[0], NOISES, NEGATIVES, REPEATED, steps=3_000)
    options = made.parse_args(given)
    check(options, made)
    return options


def main() -> None:
    options = options_of()
    if options.report is not None:
        report(options)
        return
    sizes = {"units": 16, "rate": 3e-2} if options.quick else {"units": 200, "rate": 4e-3}
    work = functools.partial(run, data=options.data, device=options.device)
    run_all(work, cells(options, **sizes), options.output / FILE, options)


if __name__ == "__main__":
    main()
