"""Spelling correction as classification: 82,000 words, one class each.

Learns from typos made of symspellpy's word list and corrects the real misspellings that codespell
has collected, none of which was seen in training. A word is a sparse row of the pieces that most
slips leave alone, so that exact softmax over all words looks at a few hundred of them. Compared
with the nearest word by these rows alone, and with symspellpy's own lookup.

    python examples/spelling.py            # two cores, a few minutes
    python examples/spelling.py --quick    # a small word list, seconds

How slips are distributed, what the views of a word weigh and how sure to be was chosen on 5,000 of
the misspellings (`CHOOSING`); figures are of the others.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import sparse
from sklearn.pipeline import Pipeline
from word_views import word_views

from extremax import ExtremeClassifier

Words = list[str]
CHOOSING = 5_000
# Okabe & Ito (2008).
COLORS = ("#0072b2", "#e69f00", "#999999")
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


def divided(wrong: Words, right: np.ndarray) -> list[tuple[Words, np.ndarray]]:
    """Misspellings to choose settings on, and the others."""
    order = np.random.default_rng(1).permutation(len(wrong))
    parts = np.sort(order[:CHOOSING]), np.sort(order[CHOOSING:])
    return [([wrong[i] for i in part], right[part]) for part in parts]


# Letters taken for one another, by sound or by habit; neighbors on the keyboard come to them.
CONFUSED = {
    "a": "eiou", "e": "aiou", "i": "eyao", "o": "aue", "u": "oea", "y": "ie",
    "c": "ks", "k": "c", "s": "czx", "z": "s", "f": "v", "v": "f", "g": "j", "j": "g",
    "m": "n", "n": "m", "t": "d", "d": "t", "b": "p", "p": "b",
}  # fmt: skip
KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
MISTAKEN = {
    key: 2 * CONFUSED.get(key, "") + row[max(i - 1, 0) : i] + row[i + 1 : i + 2]
    for row in KEYBOARD
    for i, key in enumerate(row)
}
# The most frequent first.
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


def misspell(word: str, chance: np.ndarray) -> str:
    """A slip, sometimes two or three: a letter left out, swapped, doubled, added or mistaken."""
    slips = 1 + (chance[0] < 0.25 and len(word) > 5) + (chance[0] < 0.07 and len(word) > 7)
    for slip in range(slips):
        kind, where, which = chance[1 + 3 * slip : 4 + 3 * slip]
        at = int(where * len(word))
        if kind < 0.33 and len(word) > 2:
            word = word[:at] + word[at + 1 :]
        elif kind < 0.51 and len(word) > 1:
            at = min(at, len(word) - 2)
            word = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        elif kind < 0.61:
            word = word[:at] + word[at] + word[at:]
        elif kind < 0.81:
            word = word[:at] + LETTERS[int(which**2 * len(LETTERS))] + word[at:]
        else:
            options = MISTAKEN.get(word[at], "aeiours")
            word = word[:at] + options[int(which * len(options))] + word[at + 1 :]
    return word


def make_typos(
    words: Words, counts: np.ndarray, unseen: Words, n: int, seed: int
) -> tuple[Words, np.ndarray]:
    """About n typos, more of frequent and of long words; text, index of the word.

    None is a word itself, and none is one of ``unseen``: a few of the real misspellings would come
    up by chance.
    """
    random = np.random.default_rng(seed)
    lengths = np.minimum([len(word) for word in words], 12)
    share = counts**0.6 * lengths**3.0
    labels = np.repeat(np.arange(len(words)), random.poisson(n * share / share.sum()))
    chances = random.random((len(labels), 10))
    # The middle of a word suffers most.
    chances[:, [2, 5, 8]] = random.beta(1.6, 2.0, (len(labels), 3))
    typos = [misspell(words[i], chance) for i, chance in zip(labels, chances, strict=True)]
    hidden = {*unseen, *words}
    kept = [i for i, typo in enumerate(typos) if typo not in hidden]
    return [typos[i] for i in kept], labels[kept]


def training_rows(
    features: Pipeline, words: Words, typos: Words, labels: np.ndarray
) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Every word right as often as wrong, and once more."""
    right = np.repeat(np.arange(len(words)), 1 + np.bincount(labels, minlength=len(words)))
    rows = [features.transform(words)[right], features.transform(typos)]
    return sparse.vstack(rows, "csr"), np.concatenate([right, labels])


Correct = Callable[[Words], np.ndarray]


def nearest_word(features: Pipeline, words: Words) -> Correct:
    """Of every misspelling the word whose row is closest to its own by cosine, or −1."""
    known = features.transform(words).T.tocsr()

    def correct(wrong: Words) -> np.ndarray:
        found = [
            features.transform(wrong[i : i + 10_000]) @ known for i in range(0, len(wrong), 10_000)
        ]
        scores = sparse.vstack(found, "csr")
        cut = np.split(np.arange(scores.nnz), scores.indptr[1:-1])
        return np.array(
            [scores.indices[at[scores.data[at].argmax()]] if len(at) else -1 for at in cut]
        )

    return correct


def symspell(words: Words, counts: np.ndarray) -> Correct:
    """symspellpy's lookup of words within two edits: the closest, of these the most frequent."""
    from symspellpy import SymSpell, Verbosity

    lookup = SymSpell(max_dictionary_edit_distance=2, prefix_length=7)
    for word, count in zip(words, counts.tolist(), strict=True):
        lookup.create_dictionary_entry(word, count)
    index = {word: i for i, word in enumerate(words)}

    def correct(wrong: Words) -> np.ndarray:
        found = [lookup.lookup(typo, Verbosity.TOP, max_edit_distance=2) for typo in wrong]
        return np.array([index[best[0].term] if best else -1 for best in found])

    return correct


def edits(words: Words, wrong: Words, right: np.ndarray) -> np.ndarray:
    """Letters added, left out, mistaken or swapped, by symspellpy's measure; 3 is three or more."""
    from symspellpy.editdistance import DistanceAlgorithm, EditDistance

    distance = EditDistance(DistanceAlgorithm.DAMERAU_OSA)
    found = [distance.compare(typo, words[i], 2) for typo, i in zip(wrong, right, strict=True)]
    return np.where(np.array(found) < 0, 3, found)


def draw(
    path: Path, right: np.ndarray, n_edits: np.ndarray, answers: dict[str, np.ndarray],
    log_probs: np.ndarray,
) -> None:  # fmt: skip
    """Left: how many each method corrects, by edits. Right: how many are right of those that the
    first is surest of; a method that cannot say answers what it answers."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 9, "axes.titlesize": 10}):
        figure = Figure(figsize=(7.6, 3.1), dpi=200, layout="constrained")
        by_edits, by_sureness = figure.subplots(1, 2, width_ratios=[1.3, 1])
        kinds = {1: "one edit", 2: "two", 3: "three or more"}
        for i, (name, answer) in enumerate(answers.items()):
            hit, given = answer == right, answer >= 0
            shares = [100 * hit[n_edits == kind].mean() for kind in kinds]
            bars = by_edits.bar(
                np.arange(3) + 0.28 * (i - 1), shares, 0.26, color=COLORS[i], label=name
            )
            by_edits.bar_label(bars, fmt="%.0f", fontsize=8, padding=1)
            if i > 0:
                point = 100 * given.mean(), 100 * hit[given].mean()
                by_sureness.plot(*point, "o", color=COLORS[i], clip_on=False)
                by_sureness.annotate(
                    name, point, (-7, 0), textcoords="offset points", ha="right", va="center"
                )
                continue
            surest = np.cumsum(hit[np.argsort(-log_probs, kind="stable")]) / (
                1 + np.arange(len(hit))
            )
            steps = np.linspace(0.05, 1.0, 96)
            by_sureness.plot(
                100 * steps, 100 * surest[(steps * len(hit)).astype(int) - 1], color=COLORS[i]
            )
        sizes = [f"{name}\n{(n_edits == kind).mean():.0%} of all" for kind, name in kinds.items()]
        by_edits.set_xticks(range(3), sizes)
        figure.suptitle(f"{len(right):,} real misspellings", fontsize=10)
        by_edits.set(title="Corrected (%)", ylim=(0, 145), yticks=(0, 25, 50, 75, 100))
        by_edits.legend(frameon=False, loc="upper right")
        by_sureness.set(
            title="Right (%) if only the surest are answered", xlabel="share answered (%)",
            xlim=(0, 100),
        )  # fmt: skip
        for axes in (by_edits, by_sureness):
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="6,000 words and 60,000 typos")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder of the picture")
    options = parser.parse_args()

    started = time.perf_counter()
    words, counts = read_words(6_000 if options.quick else None)
    wrong, right = read_misspellings(words)
    typos, labels = make_typos(words, counts, wrong, 60_000 if options.quick else 600_000, seed=0)
    (some, some_right), (wrong, right) = divided(wrong, right)
    console.print(
        f"{len(words):,} words = classes | {len(typos):,} generated typos to learn from | "
        f"{len(wrong):,} real misspellings to correct"
    )
    features = word_views(words)
    data = training_rows(features, words, typos, labels)
    console.print(f"features ready after {time.perf_counter() - started:.0f} s")

    model = ExtremeClassifier(
        "exact", epochs=1, learning_rate=1.0, validation_fraction=0.02, random_state=0, verbose=1
    )
    begun = time.perf_counter()
    model.fit(*data)
    # Real misspellings are harder than generated ones.
    model.recalibrate(features.transform(some), some_right)
    console.print(f"trained in {time.perf_counter() - begun:.0f} s")

    methods: dict[str, Correct] = {
        "extremax": lambda typos: model.predict(features.transform(typos)),
        "nearest word": nearest_word(features, words),
        "symspellpy, two edits": symspell(words, counts),
    }
    table = Table("method", "correct", "log-likelihood", "corrections/s", box=None, pad_edge=False)
    answers = {}
    for name, correct in methods.items():
        seconds = []
        # The faster of two: the first one finds caches cold.
        for _ in range(2):
            begun = time.perf_counter()
            answers[name] = correct(wrong)
            seconds.append(time.perf_counter() - begun)
        rate = len(wrong) / min(seconds)
        likelihood = "none"
        if name == "extremax":
            log_probs = model.predict_log_proba(features.transform(wrong), labels=right)
            likelihood = f"{log_probs.mean():.3f}"
        table.add_row(name, f"{(answers[name] == right).mean():.1%}", likelihood, f"{rate:,.0f}")
    console.print()
    console.print(table)

    console.print("\nextremax, and how sure it is:")
    tries = ["recieve", "definately", "stiring", "drivr", "caesed", "squirl", "repedable"]
    best = model.predict_topk(features.transform(tries), 3)
    for typo, indices, log_probs in zip(tries, best.labels, best.log_probs, strict=True):
        guesses = "  ".join(
            f"{words[i]} {p:.0%}" for i, p in zip(indices, np.exp(log_probs), strict=True)
        )
        console.print(f"  {typo:<12} {guesses}")

    options.out.mkdir(parents=True, exist_ok=True)
    sure = model.predict_topk(features.transform(wrong), 1).log_probs[:, 0]
    draw(options.out / "spelling.png", right, edits(words, wrong, right), answers, sure)
    console.print(
        f"\npicture: {options.out / 'spelling.png'} | {time.perf_counter() - started:.0f} s in all"
    )


if __name__ == "__main__":
    main()
