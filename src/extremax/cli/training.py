"""The options of training, and the classifier they describe; `train` and `plan` share them.

Defaults are those of `ExtremeClassifier`, `TreeNoise` and `Encoder`, written out here because
importing them takes seconds; a test keeps them equal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from extremax.cli.options import Analyzer, at_least_one

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.features import Encoder

Objective = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The training objective: by default negative_sampling, for rows that stay sparse "
        "sampled_softmax.",
    ),
]
Noise = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Where negatives come from: tree, mixture, frequency, ...; a wrong name lists all.",
    ),
]
TreeComponents = Annotated[
    int,
    typer.Option(
        metavar="N",
        callback=at_least_one,
        help="Dense rows: dimensions the noise tree looks at. More make a better tree and slower "
        "draws.",
    ),
]
BagSize = Annotated[
    int,
    typer.Option(
        metavar="N",
        callback=at_least_one,
        help="Rows that stay sparse: dimensions of the vectors learned for features and classes.",
    ),
]
Negatives = Annotated[
    int | None,
    typer.Option(
        "--n-negatives",
        metavar="N",
        callback=at_least_one,
        help="Classes drawn for each example: by default 5, for rows that stay sparse 16.",
    ),
]
LearningRate = Annotated[
    float, typer.Option(metavar="X", help="Adagrad's, falling to zero over the run.")
]
Epochs = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        callback=at_least_one,
        help="Passes over the rows, at most: by default 10, for rows that stay sparse 5.",
    ),
]
MaxSeconds = Annotated[
    float | None,
    typer.Option(metavar="X", help="End after so many seconds of training."),
]
ValidationFraction = Annotated[
    float, typer.Option(metavar="X", help="Share of rows held out to watch the run.")
]
Seed = Annotated[int, typer.Option(metavar="N", help="The same seed gives the same model.")]
Components = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        callback=at_least_one,
        help="Project sparse rows and texts to so many dimensions, and train on dense rows. "
        "Without it they stay sparse.",
    ),
]
TextAnalyzer = Annotated[
    Analyzer,
    typer.Option(
        "--analyzer", help="Texts: words, or characters inside words (for names and spelling)."
    ),
]
Ngrams = Annotated[
    str,
    typer.Option(metavar="N|N-M", help="Texts: how many words or characters make a feature."),
]


@dataclass(frozen=True)
class Training:
    """How to train."""

    objective: str | None = None
    noise: str = "tree"
    tree_components: int = 16
    bag_size: int = 128
    n_negatives: int | None = None
    learning_rate: float = 0.3
    epochs: int | None = None
    max_seconds: float | None = None
    validation_fraction: float = 0.1
    components: int | None = None
    analyzer: Analyzer = Analyzer.word
    ngrams: str = "1"
    seed: int = 0
    threads: int | None = None

    def check(self, kind: str, what: str) -> None:
        """Refuse options that mean nothing for this kind of rows: silence would mislead."""
        if kind != "text" and self.analyzer != Training.analyzer:
            raise ValueError(f"--analyzer is for texts, and {what} has {kind} rows")
        if kind != "text" and self.ngrams != Training.ngrams:
            raise ValueError(f"--ngrams is for texts, and {what} has {kind} rows")
        if kind == "dense" and self.components is not None:
            raise ValueError(f"--components is for sparse rows and texts, and {what} is dense")
        stay_sparse = kind != "dense" and self.components is None
        if not stay_sparse and self.bag_size != Training.bag_size:
            are = "dense" if kind == "dense" else "projected by --components"
            raise ValueError(f"--bag-size is for rows that stay sparse, those of {what} are {are}")
        if stay_sparse and self.tree_components != Training.tree_components:
            raise ValueError(
                f"--tree-components is for dense rows, and those of {what} stay sparse; leave it "
                "out, or project them by --components 256"
            )

    def classifier(self, verbose: bool = False) -> ExtremeClassifier:
        """The classifier, its parameters checked by itself."""
        from extremax import ExtremeClassifier

        return ExtremeClassifier(
            objective=self._objective(),
            noise=self._noise(),
            bag_size=self.bag_size,
            n_negatives=self.n_negatives,
            learning_rate=self.learning_rate,
            epochs=self.epochs,
            max_seconds=self.max_seconds,
            validation_fraction=self.validation_fraction,
            encoder=self.encoder(),
            n_jobs=self.threads,
            random_state=self.seed,
            verbose=int(verbose),
        )

    def _noise(self) -> Any:
        from extremax.noise import NOISES, MixtureNoise, TreeNoise

        if self.noise not in ("auto", *NOISES):
            raise ValueError(f"--noise is one of auto, {', '.join(NOISES)}, not {self.noise!r}")
        if self.tree_components == Training.tree_components:
            return self.noise
        tree = TreeNoise(n_components=self.tree_components)
        if self.noise == "tree":
            return tree
        if self.noise == "mixture":
            return MixtureNoise(parts=(tree, "frequency"))
        raise ValueError(f"--tree-components is for --noise tree and mixture, not {self.noise}")

    def _objective(self) -> str | None:
        from extremax.objectives import OBJECTIVES

        if self.objective not in (None, "auto", *OBJECTIVES):
            names = ", ".join(OBJECTIVES)
            raise ValueError(f"--objective is one of auto, {names}, not {self.objective!r}")
        return self.objective

    def encoder(self) -> Encoder:
        from extremax.features import Encoder

        return Encoder(self.components, self.analyzer.value, parse_ngrams(self.ngrams))


def parse_ngrams(text: str) -> tuple[int, int]:
    """``3`` as (3, 3) and ``2-4`` as (2, 4)."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    first = int(match[1]) if match else 0
    last = int(match[2] or match[1]) if match else 0
    if not 1 <= first <= last:
        raise ValueError(f"--ngrams {text!r} is no length such as 1 and no range such as 2-4")
    return first, last
