"""Options of training, shared by ``train`` and ``plan``, and the classifier that they describe.

Defaults are those of `ExtremeClassifier`, `TreeNoise` and `Encoder`. They are repeated here
because importing those classes takes seconds; a test keeps them equal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from extremax.cli.options import Analyzer, at_least_one

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.data import Dataset
    from extremax.features import Encoder

Objective = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Training objective: by default negative_sampling for dense rows, sampled_softmax "
        "for sparse rows. An unknown name lists all.",
    ),
]
Noise = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Distribution of negatives: by default tree for dense rows, sparse_tree for sparse "
        "rows. An unknown name lists all.",
    ),
]
TreeComponents = Annotated[
    int,
    typer.Option(
        metavar="N",
        callback=at_least_one,
        help="Dense rows, --noise tree or mixture: number of principal components that the tree "
        "uses. More make a better tree and slower draws.",
    ),
]
BagSize = Annotated[
    int,
    typer.Option(
        metavar="N",
        callback=at_least_one,
        help="Sparse rows: dimensions of the learned vectors of features and classes.",
    ),
]
Negatives = Annotated[
    int | None,
    typer.Option(
        "--n-negatives",
        metavar="N",
        callback=at_least_one,
        help="Classes drawn per example: by default 5 for dense rows, 16 for sparse rows.",
    ),
]
LearningRate = Annotated[
    float,
    typer.Option(metavar="X", help="Learning rate of Adagrad, which falls to zero over the run."),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        callback=at_least_one,
        help="Maximum number of passes over the rows: by default 10 for dense rows, 5 for sparse "
        "rows.",
    ),
]
MaxSeconds = Annotated[
    float | None,
    typer.Option(metavar="X", help="End training after this many seconds."),
]
ValidationFraction = Annotated[
    float, typer.Option(metavar="X", help="Share of rows held out to evaluate the run.")
]
Seed = Annotated[
    int, typer.Option(metavar="N", help="Random seed; the same seed gives the same model.")
]
Components = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        callback=at_least_one,
        help="Project sparse rows and texts to this many dimensions and train on dense rows. By "
        "default they stay sparse.",
    ),
]
TextAnalyzer = Annotated[
    Analyzer,
    typer.Option(
        "--analyzer",
        help="Texts: features are words, or characters inside words (for names and spelling).",
    ),
]
Ngrams = Annotated[
    str,
    typer.Option(metavar="N|N-M", help="Texts: number of words or characters per feature."),
]


@dataclass(frozen=True)
class Training:
    """Values of the training options."""

    objective: str | None = None
    noise: str | None = None
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

    def check(self, data: Dataset, name: str) -> None:
        """Reject options that have no effect on these rows.

        name:  what messages call the data.
        """
        from extremax.recipes import RECIPES

        encoder = self.encoder()
        kind = encoder.rows_class(data.features)
        rows = f"the rows of {name} are {kind.name.split()[0]}"
        recipe, unused = RECIPES[kind], encoder.unused_parameters(data.features)
        for option in ("analyzer", "ngrams"):
            if option in unused:
                self._reject(option, f"applies to texts, but {rows}")
        if "n_components" in unused:
            self._reject("components", f"applies to sparse rows and texts, but {rows}")
        if not recipe.dense:
            advice = "(--components 256 makes them dense)"
            self._reject("tree_components", f"applies to dense rows, but {rows} {advice}")
        if "bag_size" not in recipe.parameters:
            projected = " (made dense by --components)" if self.components else ""
            self._reject("bag_size", f"applies to sparse rows, but {rows}{projected}")

    def _reject(self, option: str, reason: str) -> None:
        if getattr(self, option) != getattr(Training, option):
            flag = "--" + option.replace("_", "-")
            raise ValueError(f"{flag} {reason}; omit {flag}")

    def classifier(self, verbose: bool = False) -> ExtremeClassifier:
        """Create the classifier."""
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

        if self.noise not in (None, "auto", *NOISES):
            names = ", ".join(NOISES)
            raise ValueError(f"--noise must be one of auto, {names}, got {self.noise!r}")
        if self.tree_components == Training.tree_components:
            return self.noise
        tree = TreeNoise(n_components=self.tree_components)
        if self.noise in (None, "tree"):
            return tree
        if self.noise == "mixture":
            return MixtureNoise(parts=(tree, "frequency"))
        raise ValueError(
            f"--tree-components applies to --noise tree and mixture, not {self.noise}; omit "
            "--tree-components"
        )

    def _objective(self) -> str | None:
        from extremax.objectives import OBJECTIVES

        if self.objective not in (None, "auto", *OBJECTIVES):
            names = ", ".join(OBJECTIVES)
            raise ValueError(f"--objective must be one of auto, {names}, got {self.objective!r}")
        return self.objective

    def encoder(self) -> Encoder:
        """Create the encoder."""
        from extremax.features import Encoder

        return Encoder(self.components, self.analyzer.value, parse_ngrams(self.ngrams))


def parse_ngrams(text: str) -> tuple[int, int]:
    """Parse ``3`` as (3, 3) and ``2-4`` as (2, 4)."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    first = int(match[1]) if match else 0
    last = int(match[2] or match[1]) if match else 0
    if not 1 <= first <= last:
        raise ValueError(f"--ngrams must be a number such as 1 or a range like 2-4, got {text!r}")
    return first, last
