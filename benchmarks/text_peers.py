"""Titles to subjects on sparse TF-IDF: extremax compared with other classifiers of text.

Words are lowercase, with document frequency >= 5; training rows are shuffled. Every contender runs
in its own process (``peers/``) with the same rows, two threads and its defaults. The peers have
their own environment, which ``make bench-peers`` creates. ``--data DIR``: yso-finna-en, with one
subject per title and with all of them. Without it, or with ``--quick``: a synthetic text, and only
extremax unless ``--only`` names peers. ``--out DIR`` stores rows and results and resumes from them;
``--only`` then reruns the named contenders and reads the results of the others.

"extremax, with label names" knows more than the others: its training rows are those of all, and
before them the names of the labels of training, turned into rows as the titles are.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _common import finish, say
from scipy import sparse

HERE = Path(__file__).resolve().parent
ENVIRONMENT = HERE.parent / ".venv-peers"
THREADS = "2"
TASKS = {"single": "single label", "all": "all labels"}
COLUMNS = {
    "fit_s": "fit s", "acc1": "acc@1", "acc5": "acc@5", "loglik": "log-lik", "p1": "P@1",
    "p3": "P@3", "p5": "P@5", "docs_per_s": "docs/s", "model_mb": "model MB", "peak_gb": "peak GB",
}  # fmt: skip


class Contender(NamedTuple):
    """A row of the tables: a module of peers/ and its parameters."""

    name: str
    title: str
    parameters: dict[str, Any]
    tasks: tuple[str, ...] = ("single", "all")
    file: str | None = None

    @property
    def module(self) -> str:
        return f"{self.file or self.name}_"

    @property
    def ours(self) -> bool:
        return self.module == "extremax_"


# PECOS comes right after extremax, because the two are compared in time. For another variant of
# extremax, add a line with other parameters and file="extremax".
CONTENDERS = (
    Contender("extremax", "extremax", {}),
    Contender("pecos", "PECOS XR-Linear", {}),
    Contender("extremax3", "3 of extremax, averaged", {"n_models": 3}, file="extremax"),
    Contender("names", "extremax, with label names", {"label_names": True}, file="extremax"),
    Contender("parabel", "omikuji Parabel (3 trees)", {"n_trees": 3}, file="omikuji"),
    Contender(
        "bonsai",
        "omikuji Bonsai (3 trees)",
        {"n_trees": 3, "cluster_balanced": False, "cluster_k": 100, "max_depth": 3},
        ("all",),
        file="omikuji",
    ),
    Contender("hsm", "napkinXC HSM", {}, ("single",), file="napkinxc"),
    Contender("plt", "napkinXC PLT", {}, ("all",), file="napkinxc"),
    Contender("fasttext", "fastText hs", {"loss": "hs", "dim": 100, "epoch": 10}),
    Contender(
        "vowpalwabbit",
        "Vowpal Wabbit PLT",
        {"kary_tree": 16, "loss_function": "logistic", "l": 0.5, "passes": 5, "b": 28},
    ),
)


class Texts(NamedTuple):
    documents: list[str]
    single: list[str]
    every: list[list[str]]


def yso(path: Path) -> Texts:
    """``title<TAB>one subject<TAB>all subjects``."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    return Texts([r[0] for r in rows], [r[1] for r in rows], [r[2].split() for r in rows])


def yso_names(path: Path) -> dict[str, str]:
    """All names of each subject: ``subject<TAB>id<TAB>name<TAB>all names<TAB>documents``."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    return {row[0]: row[3] for row in rows}


def synthetic(n: int, n_classes: int, seed: int) -> Texts:
    """One to three classes per document, with two words of each and two common words; words and
    classes follow a power law, so that some are rare."""
    random = np.random.default_rng(seed)
    own = own_words(n_classes)
    chance = 1.0 / np.arange(1, n_classes + 1) ** 0.7
    chance /= chance.sum()
    documents, every = [], []
    for size in random.integers(1, 4, n):
        classes = random.choice(n_classes, size, p=chance, replace=False)
        words = own[classes[:, None], random.integers(4, size=(size, 2))].ravel()
        common = random.zipf(1.5, 2) % (4 * n_classes)
        documents.append(" ".join(f"word{w}" for w in [*words, *common]))
        every.append([str(y) for y in classes])
    return Texts(documents, [labels[0] for labels in every], every)


def own_words(n_classes: int) -> np.ndarray:
    """Numbers of the four words of each class of the synthetic text."""
    return np.random.default_rng(2).integers(4 * n_classes, size=(n_classes, 4))


def synthetic_names(n_classes: int) -> dict[str, str]:
    """The first word of each class."""
    return {str(y): f"word{word}" for y, word in enumerate(own_words(n_classes)[:, 0])}


def prepare(folder: Path, train: Texts, test: Texts, names: dict[str, str]) -> None:
    """Write the rows, the same for every contender, and rows of the names of training labels."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import MultiLabelBinarizer

    # The files are sorted.
    order = np.random.default_rng(0).permutation(len(train.documents))
    train = Texts(*([column[i] for i in order] for column in train))
    vectorizer = TfidfVectorizer(min_df=5, dtype=np.float32).fit(train.documents)
    classes, labels = np.unique(train.single, return_inverse=True)
    number = {y: i for i, y in enumerate(classes)}
    columns = MultiLabelBinarizer(sparse_output=True).fit([*train.every, *test.every])
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "single_train.npy", labels)
    np.save(folder / "single_test.npy", [number.get(y, -1) for y in test.single])
    analyze, vocabulary = vectorizer.build_analyzer(), vectorizer.vocabulary_
    for part, texts in (("train", train), ("test", test)):
        _write(folder / f"X_{part}.npz", vectorizer.transform(texts.documents))
        _write(folder / f"all_{part}.npz", columns.transform(texts.every))
        with (folder / f"{part}.txt").open("w", encoding="utf-8") as file:
            for document in texts.documents:
                file.write(" ".join(w for w in analyze(document) if w in vocabulary) + "\n")
    known = {y for labels in train.every for y in labels} | set(classes)
    named = [y for y in names if y in known]
    _write(folder / "names.npz", vectorizer.transform([names[y] for y in named]))
    np.save(folder / "single_names.npy", [number.get(y, -1) for y in named])
    column = {y: i for i, y in enumerate(columns.classes_)}
    np.save(folder / "all_names.npy", [column.get(y, -1) for y in named])
    (folder / "complete").touch()


def _write(path: Path, matrix: Any) -> None:
    # Some peers need this type of matrix with sorted indices.
    matrix = sparse.csr_matrix(matrix, dtype=np.float32)
    matrix.sort_indices()
    sparse.save_npz(path, matrix)


def run(contender: Contender, folder: Path, task: str) -> dict[str, Any] | None:
    """Run a contender, store its figures in a file and return them; None if it failed."""
    python = sys.executable if contender.ours else ENVIRONMENT / "bin/python"
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            python, HERE / "peers" / "measure.py", contender.module, folder, task,
            json.dumps(contender.parameters), scratch,
        ]  # fmt: skip
        environment = os.environ | {"OMP_NUM_THREADS": THREADS}
        # Progress bars go to a file, because a terminal would slow the contender down.
        with (Path(scratch) / "log").open("w+", encoding="utf-8", errors="replace") as log:
            done = subprocess.run(
                [str(word) for word in command],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
            log.seek(0)
            if done.returncode:
                say(f"{done.stdout}{log.read()[-2000:]}\nexit status {done.returncode}")
                return None
    line = done.stdout.splitlines()[-1]
    stored(contender, folder, task).write_text(line + "\n")
    return json.loads(line)


def stored(contender: Contender, folder: Path, task: str) -> Path:
    return folder / f"{task}-{contender.name}.json"


def results_of(task: str, folder: Path, wanted: list[str], again: bool) -> dict[str, Any]:
    """Results by name: of the contenders in ``wanted``, and stored results of the others."""
    results: dict[str, Any] = {}
    for contender in CONTENDERS:
        path = stored(contender, folder, task)
        if task not in contender.tasks:
            continue
        if contender.name in wanted and (again or not path.exists()):
            results[contender.name] = figures = run(contender, folder, task)
            say(f"{contender.title}, {TASKS[task]}: {shown(figures) if figures else 'failed'}")
        elif path.exists():
            results[contender.name] = json.loads(path.read_text())
    return results


def shown(figures: dict[str, Any]) -> str:
    return ", ".join(f"{COLUMNS[key]} {cell(key, value)}" for key, value in figures.items())


def cell(key: str, value: float | None) -> str:
    if value is None:
        return "(scores)"
    if key[:3] == "acc" or key in ("p1", "p3", "p5"):
        return f"{value:.1%}"
    digits = {"loglik": 3, "peak_gb": 2}.get(key, 0)
    return f"{value:,.{digits}f}"


def table(task: str, results: dict[str, dict[str, Any] | None], n_classes: int) -> str:
    """Format results as Markdown, one row per contender."""
    titles = {c.name: c.title for c in CONTENDERS}
    keys = [k for k in COLUMNS if any(r and k in r for r in results.values())]
    lines = [
        f"| {TASKS[task]}, {n_classes:,} | " + " | ".join(COLUMNS[k] for k in keys) + " |",
        "|---" * (len(keys) + 1) + "|",
    ]
    for name, row in results.items():
        cells = [cell(k, row[k]) for k in keys] if row else ["failed"] + [""] * (len(keys) - 1)
        lines.append(f"| {titles[name]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def headline(results: dict[str, dict[str, Any]]) -> dict[str, float | None]:
    """The figures that extremax must reach; ratios to PECOS are null if PECOS did not run."""
    single, every = results["single"]["extremax"], results["all"]["extremax"]
    pecos = results["single"].get("pecos")
    return {
        "acc1": single["acc1"],
        "loglik": single["loglik"],
        "p1": every["p1"],
        "fit_over_pecos": single["fit_s"] / pecos["fit_s"] if pecos else None,
        "docs_per_s_over_pecos": single["docs_per_s"] / pecos["docs_per_s"] if pecos else None,
        "peak_gb": max(single["peak_gb"], every["peak_gb"]),
    }


def main() -> None:
    names = [c.name for c in CONTENDERS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small synthetic problem")
    parser.add_argument("--data", type=Path, help="folder with yso-finna-en")
    parser.add_argument("--only", nargs="+", choices=names, help="run these contenders")
    parser.add_argument("--out", type=Path, help="folder for rows and results, and to resume from")
    given = parser.parse_args()
    given.busy_before = os.getloadavg()[0]
    real = given.data is not None and not given.quick
    wanted = given.only or [c.name for c in CONTENDERS if real or c.ours]
    peers = any(c.name in wanted and not c.ours for c in CONTENDERS)
    if peers and not (ENVIRONMENT / ".installed").exists():
        sys.exit(
            f"The environment of the peers does not exist: {ENVIRONMENT}. Run `make bench-peers "
            "DATA=dir`, which creates it and runs this script, or pass `--only extremax`."
        )
    data = "yso-finna-en" if real else "synthetic"
    with tempfile.TemporaryDirectory() as scratch:
        folder = (given.out or Path(scratch)) / (f"{data}-quick" if given.quick else data)
        if not (folder / "complete").exists():
            if real:
                source = given.data / data
                names = yso_names(source / "labels.tsv.xz")
                prepare(folder, yso(source / "train.tsv.xz"), yso(source / "test.tsv.xz"), names)
            else:
                n, n_classes = (4_000, 200) if given.quick else (100_000, 5_000)
                parts = synthetic(n, n_classes, 0), synthetic(n // 10, n_classes, 1)
                prepare(folder, *parts, synthetic_names(n_classes))
        sizes = sizes_of(folder)
        say(", ".join(f"{name} {size:,}" for name, size in sizes.items()))
        results = {t: results_of(t, folder, wanted, again=given.only is not None) for t in TASKS}
    say("")
    for task, size in zip(TASKS, (sizes["classes"], sizes["labels"]), strict=True):
        say(f"{table(task, results[task], size)}\n")
    if not all(of_task.get("extremax") for of_task in results.values()):
        sys.exit("extremax has no figures for one of the tables, so there is no JSON line.")
    finish(given, headline(results), results, sizes, data)


def sizes_of(folder: Path) -> dict[str, int]:
    rows, features = sparse.load_npz(folder / "X_train.npz").shape
    return {
        "rows": rows,
        "features": features,
        "classes": int(np.load(folder / "single_train.npy").max()) + 1,
        "labels": sparse.load_npz(folder / "all_train.npz").shape[1],
    }


if __name__ == "__main__":
    main()
