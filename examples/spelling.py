"""Spelling correction as classification: 82,000 words, one class each.

Trains on typos made from symspellpy's word list and corrects the real misspellings that
codespell has collected, none of which was seen in training. Compares adversarial, uniform and
frequency noise at equal training time, and symspellpy's own lookup.

    python examples/spelling.py            # two cores, a few minutes
    python examples/spelling.py --quick    # a small word list, seconds
"""

from __future__ import annotations

import argparse
import time
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.features import SparseSVD
from extremax.noise import TreeNoise
from extremax.report.curves import learning_curves

Words = list[str]
console = Console(width=88)


def read_words(limit: int | None) -> tuple[Words, np.ndarray]:
    """symspellpy's words with their frequencies, most frequent first."""
    file = resources.files("symspellpy") / "frequency_dictionary_en_82_765.txt"
    lines = [line.split() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    lines = lines[:limit]
    return [word for word, _ in lines], np.array([int(count) for _, count in lines])


def read_misspellings(words: Words) -> tuple[Words, np.ndarray]:
    """codespell's misspellings whose one correction is in the list: text, index of the word."""
    index = {word: i for i, word in enumerate(words)}
    wrong, right = [], []
    file = resources.files("codespell_lib") / "data" / "dictionary.txt"
    for line in file.read_text(encoding="utf-8").splitlines():
        typo, _, corrections = line.partition("->")
        options = [c.strip() for c in corrections.split(",") if c.strip()]
        if len(options) == 1 and options[0] in index and typo not in index:
            wrong.append(typo)
            right.append(index[options[0]])
    return wrong, np.array(right)


# Letters taken for one another, by sound or by habit.
CONFUSED = {
    "a": "eiou", "e": "aiou", "i": "eyao", "o": "aue", "u": "oea", "y": "ie",
    "c": "ks", "k": "c", "s": "czx", "z": "s", "f": "v", "v": "f", "g": "j", "j": "g",
    "m": "n", "n": "m", "t": "d", "d": "t", "b": "p", "p": "b",
}  # fmt: skip
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


def misspell(word: str, chance: np.ndarray) -> str:
    """One slip, sometimes two: a letter left out, swapped, doubled, added or mistaken."""
    for slip in range(2 if chance[0] < 0.15 and len(word) > 5 else 1):
        kind, where, which = chance[1 + 3 * slip : 4 + 3 * slip]
        at = int(where * len(word))
        if kind < 0.30 and len(word) > 2:
            at = max(at, 1)
            word = word[:at] + word[at + 1 :]
        elif kind < 0.48 and len(word) > 1:
            at = min(at, len(word) - 2)
            word = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        elif kind < 0.63:
            word = word[:at] + word[at] + word[at:]
        elif kind < 0.73:
            word = word[:at] + LETTERS[int(which * len(LETTERS))] + word[at:]
        else:
            options = CONFUSED.get(word[at], "aeiours")
            word = word[:at] + options[int(which * len(options))] + word[at + 1 :]
    return word


def make_typos(
    words: Words, counts: np.ndarray, unseen: Words, seed: int
) -> tuple[Words, np.ndarray]:
    """Every word itself and 5 to 12 typos of it, more for frequent words; none of ``unseen``.

    About a tenth of the real misspellings would come up by chance.
    """
    each = np.clip((1.2 * np.log10(counts)).astype(int), 5, 12)
    labels = np.repeat(np.arange(len(words)), each)
    chances = np.random.default_rng(seed).random((len(labels), 7))
    typos = [misspell(words[i], chance) for i, chance in zip(labels, chances, strict=True)]
    texts = words + typos
    labels = np.concatenate([np.arange(len(words)), labels])
    hidden = set(unseen)
    kept = [i for i, text in enumerate(texts) if text not in hidden]
    return [texts[i] for i in kept], labels[kept]


class LetterFeatures:
    """Counts of letters, pairs, pairs with one or two letters between, and triples.

    Which letters there are survives most slips, so single letters weigh most.
    """

    KINDS = ((1, 0, 4.0), (2, 0, 1.5), (2, 1, 1.0), (2, 2, 1.0), (3, 0, 0.5))
    LENGTH, ALPHABET = 26, 30

    def __init__(self, words: Words, n_components: int) -> None:
        counts = self._count(words)
        seen = np.bincount(counts.indices, minlength=counts.shape[1])
        rarity = np.log(len(words) / np.maximum(seen, 1)) + 1.0
        self.weights = np.where(seen >= 2, rarity, 0.0).astype(np.float32)
        sizes = [self.ALPHABET**n for n, _, _ in self.KINDS]
        self.weights *= np.repeat([weight for _, _, weight in self.KINDS], sizes)
        self.svd = SparseSVD(n_components).fit(self._weigh(counts))

    def __call__(self, words: Words) -> np.ndarray:
        step = 100_000
        blocks = [self._count(words[i : i + step]) for i in range(0, len(words), step)]
        return np.concatenate([self.svd.transform(self._weigh(block)) for block in blocks])

    def _count(self, words: Words) -> sparse.csr_matrix:
        padded = np.array(
            [f"^{word}$".encode()[: self.LENGTH] for word in words], f"S{self.LENGTH}"
        )
        letters = padded.view(np.uint8).reshape(len(words), self.LENGTH).astype(np.int64)
        code = np.select(
            [
                (letters >= ord("a")) & (letters <= ord("z")),
                letters == ord("^"),
                letters == ord("$"),
            ],
            [letters - ord("a") + 1, 27, 28],
            np.where(letters > 0, 29, 0),
        )
        rows, columns, first = [], [], 0
        for n, gap, _ in self.KINDS:
            stride = gap + 1
            last = self.LENGTH - (n - 1) * stride
            gram = np.zeros((len(words), last), np.int64)
            for i in range(n):
                gram = gram * self.ALPHABET + code[:, i * stride : i * stride + last]
            row, at = np.nonzero(code[:, (n - 1) * stride :])
            rows.append(row)
            columns.append(gram[row, at] + first)
            first += self.ALPHABET**n
        row, column = np.concatenate(rows), np.concatenate(columns)
        ones = np.ones(len(row), np.float32)
        return sparse.csr_matrix((ones, (row, column)), shape=(len(words), first))

    def _weigh(self, counts: sparse.csr_matrix) -> sparse.csr_matrix:
        counts.data = counts.data * self.weights[counts.indices]
        norms = np.sqrt(np.asarray(counts.multiply(counts).sum(1)).ravel())
        counts.data /= np.repeat(np.maximum(norms, 1e-9), np.diff(counts.indptr))
        return counts


def train(
    noise: Any, data: tuple[np.ndarray, np.ndarray], few: tuple, seconds: float
) -> tuple[ExtremeClassifier, list[dict[str, float]]]:
    """A model trained for so many seconds, and how it did on a few misspellings on the way."""
    curve: list[dict[str, float]] = []
    model = ExtremeClassifier(
        noise=noise, max_seconds=seconds, epochs=1000, patience=1000,
        validation_fraction=0.001, random_state=0,
    )  # fmt: skip

    def look(record: dict[str, Any]) -> None:
        found = model.evaluate(*few)
        curve.append(
            {
                "seconds": record["seconds"],
                "accuracy": found.accuracy,
                "log_likelihood": found.log_likelihood,
            }
        )

    model.fit(*data, callback=look)
    return model, curve


def symspell_accuracy(words: Words, counts: np.ndarray, wrong: Words, right: np.ndarray) -> float:
    from symspellpy import SymSpell, Verbosity

    lookup = SymSpell(max_dictionary_edit_distance=2, prefix_length=7)
    for word, count in zip(words, counts.tolist(), strict=True):
        lookup.create_dictionary_entry(word, count)
    hits = 0
    for typo, truth in zip(wrong, right, strict=True):
        found = lookup.lookup(typo, Verbosity.TOP, max_edit_distance=2)
        hits += bool(found) and found[0].term == words[truth]
    return hits / len(wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="6,000 words and 3 s a noise")
    parser.add_argument("--seconds", type=float, default=20.0, help="training time of each noise")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder of the picture")
    options = parser.parse_args()
    if options.quick:
        options.seconds = 3.0

    started = time.perf_counter()
    words, counts = read_words(6_000 if options.quick else None)
    wrong, right = read_misspellings(words)
    texts, labels = make_typos(words, counts, wrong, seed=0)
    console.print(
        f"{len(words):,} words = classes | {len(texts):,} generated typos to learn from | "
        f"{len(wrong):,} real misspellings to correct"
    )
    features = LetterFeatures(words, 128 if options.quick else 256)
    data, test = (features(texts), labels), features(wrong)
    few = np.random.default_rng(1).permutation(len(wrong))[:500]
    console.print(f"features ready after {time.perf_counter() - started:.0f} s")

    # The kernels are compiled when first used; that is not training time.
    train(TreeNoise(2), (data[0][:500], labels[:500] % 9), (test[:9], right[:9] % 9), 1e-9)

    table = Table("method", "correct", "log-likelihood", "corrections/s", box=None, pad_edge=False)
    curves, models = {}, {}
    noises = {"adversarial": TreeNoise(32), "uniform": "uniform", "frequency": "frequency"}
    for name, noise in noises.items():
        models[name], curves[name] = train(noise, data, (test[few], right[few]), options.seconds)
        begun = time.perf_counter()
        result = models[name].evaluate(test, right)
        rate = len(wrong) / (time.perf_counter() - begun)
        table.add_row(
            f"{name} noise",
            f"{result.accuracy:.1%}",
            f"{result.log_likelihood:.3f}",
            f"{rate:,.0f}",
        )
        console.print(f"{name} noise trained and tested, {time.perf_counter() - started:.0f} s in")
    begun = time.perf_counter()
    share = symspell_accuracy(words, counts, wrong, right)
    rate = len(wrong) / (time.perf_counter() - begun)
    table.add_row("symspellpy lookup", f"{share:.1%}", "none", f"{rate:,.0f}")
    console.print()
    console.print(table)

    console.print("\nwith adversarial noise, and how sure it is:")
    tries = ["recieve", "definately", "accomodate", "goverment", "wierd", "neccessary", "thier"]
    best = models["adversarial"].predict_topk(features(tries), 3)
    for typo, indices, log_probs in zip(tries, best.labels, best.log_probs, strict=True):
        answers = "  ".join(
            f"{words[i]} {p:.0%}" for i, p in zip(indices, np.exp(log_probs), strict=True)
        )
        console.print(f"  {typo:<12} {answers}")

    options.out.mkdir(parents=True, exist_ok=True)
    learning_curves(curves, options.out / "spelling.png")
    console.print(
        f"\npicture: {options.out / 'spelling.png'} | {time.perf_counter() - started:.0f} s in all"
    )


if __name__ == "__main__":
    main()
