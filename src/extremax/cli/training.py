"""Options of training, shared by ``train``, ``plan`` and ``compare``, and the classifier that they
describe.

Defaults are those of `ExtremeClassifier`, `TreeNoise` and `Encoder`. They are repeated here
because importing those classes takes seconds; a test keeps them equal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from extremax.cli.options import (
    DETAILS,
    METHOD,
    RUNNING,
    TEXTS,
    TRAINING,
    Machine,
    Threads,
    choice,
    count,
    option,
)
from extremax.errors import ArgumentError

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.data import Dataset
    from extremax.features import Encoder
    from extremax.noise import Noise


@dataclass(frozen=True, kw_only=True)
class Fitting(Threads):
    """Options of everything that trains."""

    tree_components: int = count(
        16,
        "Dense rows, --noise tree or mixture: number of principal components that the tree uses. "
        "More make a better tree and slower draws.",
        panel=DETAILS,
    )
    start: str | None = choice(
        None,
        "The head before training: class_means, the default for dense rows, frequencies, the "
        "default for sparse rows, or zeros.",
        *("class_means", "frequencies", "zeros"),
        panel=DETAILS,
    )
    n_negatives: int | None = count(
        None,
        "Classes drawn per example: by default 5 for dense rows, 16 for sparse rows. Sessions: "
        "1024 per batch. Dense rows, sampled softmax: 2048 per batch.",
        "--n-negatives",
        panel=DETAILS,
    )
    validation_fraction: float = option(
        0.1, "Share of rows held out to evaluate the run.", metavar="X", panel=TRAINING
    )
    seed: int = option(
        0, "Random seed; the same seed gives the same model.", metavar="N", panel=RUNNING
    )
    components: int | None = count(
        None,
        "Project sparse rows and texts to this many dimensions and train on dense rows. By default "
        "they stay sparse.",
        panel=DETAILS,
    )
    analyzer: str = choice(
        "word",
        "Texts: features are words, or characters inside words (for names and spelling).",
        *("word", "char_wb"),
        panel=TEXTS,
    )
    ngrams: str = option(
        "1", "Texts: number of words or characters per feature.", metavar="N|N-M", panel=TEXTS
    )

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ArgumentError(f"--seed must be at least 0, got {self.seed}")

    def encoder(self) -> Encoder:
        """Create the encoder."""
        from extremax.features import Encoder

        return Encoder(self.components, self.analyzer, parse_ngrams(self.ngrams))

    def check(self, data: Dataset, name: str) -> str:
        """Reject options that have no effect on these rows; return what messages say about them.

        name:  what messages call the data.
        """
        if data.kind == "sequences" and data.features.sessions is None:
            raise ArgumentError(
                f"{name} has lines of prefix<TAB>next item, which are for `extremax evaluate`; "
                "train on whole sessions, one per line"
            )
        encoder = self.encoder()
        unused = encoder.unused_parameters(data.features)
        rows = f"the rows of {name} are {encoder.rows_class(data.features).name.split()[0]}"
        for parameter in ("analyzer", "ngrams"):
            if parameter in unused:
                self.reject(parameter, f"applies to texts, but {rows}")
        if "n_components" in unused:
            self.reject("components", f"applies to sparse rows and texts, but {rows}")
        return rows

    def reject(self, field: str, reason: str) -> None:
        """Raise an error if the option was given."""
        if getattr(self, field) != getattr(type(self), field):
            flag = "--" + field.replace("_", "-")
            raise ArgumentError(f"{flag} {reason}; omit {flag}")


@dataclass(frozen=True, kw_only=True)
class Training(Fitting, Machine):
    """Options of one training run."""

    objective: str | None = option(
        None,
        "Training objective: by default exact for dense rows where that takes about a minute at "
        "most, else sampled_softmax. Parameters follow in parentheses: "
        "`nce(regularization=0.01)`. An unknown name or parameter lists all.",
        metavar="NAME",
        panel=METHOD,
    )
    noise: str | None = option(
        None,
        "Distribution of negatives: by default mixture(parts=(tree, frequency(power=0.5))) for "
        "dense rows, sparse_tree for sparse rows. Parameters follow in parentheses: "
        "`frequency(power=0.75)`. An unknown name or parameter lists all.",
        metavar="NAME",
        panel=METHOD,
    )
    bag_size: int = count(
        128,
        "Sparse rows, sessions: dimensions of the learned vectors of features and classes.",
        panel=DETAILS,
    )
    accumulators: str | None = choice(
        None,
        "Whether Adagrad keeps a number for each weight, the default for dense rows, or for each "
        "row of weights, which takes half of the memory: the default for sparse rows.",
        *("weight", "row"),
        panel=DETAILS,
    )
    learning_rate: float | None = option(
        None,
        "Learning rate of Adagrad, which falls to zero over the run: by default 0.5 for dense rows "
        "with exact or sampled softmax, else 0.3.",
        metavar="X",
        panel=METHOD,
    )
    weight_decay: float = option(
        0.0,
        "λ of the penalty (λ/2)‖W‖² on the weights, added to the mean loss: 1/(N σ²) for N "
        "examples and a Gaussian prior of variance σ². Sparse rows: with --objective exact only.",
        metavar="X",
        panel=METHOD,
    )
    epochs: int | None = count(
        None,
        "Maximum number of passes over the rows: by default 10 for dense rows, 5 for sparse rows. "
        "Sessions: 10.",
        panel=TRAINING,
    )
    max_seconds: float | None = option(
        None, "End training after this many seconds.", metavar="X", panel=TRAINING
    )
    batch_size: int | None = count(
        None, "Rows per step: by default a hundredth of the rows, within bounds.", panel=DETAILS
    )
    calibrate: bool = option(
        False, "Fit to the held-out rows how sure to be.", "--calibrate", panel=TRAINING
    )
    similar_rows: bool = option(
        True,
        "Sparse rows: do not let training rows that resemble a row vote for their classes. The "
        "model then does not contain them.",
        " /--no-similar-rows",
        show_default=False,
        panel=DETAILS,
    )

    n_models: int = count(
        1,
        "Models to train, which differ in their seeds; the probabilities are the mean of theirs.",
        "--n-models",
        panel=TRAINING,
    )

    def check(self, data: Dataset, name: str) -> str:
        from extremax.recipes import RECIPES

        rows = super().check(data, name)
        recipe = RECIPES[self.encoder().rows_class(data.features)]
        if not recipe.dense:
            unused = self.encoder().unused_parameters(data.features)
            advice = "" if "n_components" in unused else " (--components 256 makes them dense)"
            self.reject("tree_components", f"applies to dense rows, but {rows}{advice}")
        if "bag_size" not in recipe.parameters:
            projected = " (made dense by --components)" if self.components else ""
            self.reject("bag_size", f"applies to sparse rows and sessions, but {rows}{projected}")
        if "accumulators" not in recipe.parameters:
            self.reject("accumulators", f"applies to dense and sparse rows, but {rows}")
        if "similar_rows" not in recipe.parameters:
            self.reject("similar_rows", f"applies to sparse rows, but {rows}")
        return rows

    def classifier(self, verbose: bool = False) -> ExtremeClassifier:
        """Create the classifier."""
        from extremax import ExtremeClassifier
        from extremax.checks import check_parameters
        from extremax.named import parse_named
        from extremax.noise import NOISES, Noise, make_noise
        from extremax.objectives import OBJECTIVES, Objective, make_objective
        from extremax.recipes import RECIPES
        from extremax.rows import DenseRows

        kinds: tuple[tuple[type, dict[str, Any], Any], ...] = (
            (Objective, OBJECTIVES, make_objective),
            (Noise, NOISES, make_noise),
        )
        for base, known, make in kinds:
            word = base.__name__.lower()
            text = getattr(self, word)
            if text in (None, "auto"):
                continue
            try:
                is_known = parse_named(base, text)[word] in known
                if is_known:
                    make(text)
            except ArgumentError as error:
                raise ArgumentError(f"--{word}: {error}") from error
            if not is_known:
                names = ", ".join(known)
                raise ArgumentError(f"--{word} must be one of auto, {names}, got {text!r}")
        noise = self._noise()
        # Another size of the usual tree is for the usual objective.
        usual = RECIPES[DenseRows].objective if noise is not None and self.noise is None else None
        same = (
            "bag_size", "accumulators", "n_negatives", "learning_rate", "weight_decay", "epochs",
            "max_seconds", "batch_size", "calibrate", "similar_rows", "n_models", "start",
            "validation_fraction",
        )  # fmt: skip
        classifier = ExtremeClassifier(
            self.objective or usual,
            noise,
            **{name: getattr(self, name) for name in same},
            encoder=self.encoder(),
            device=self.device,
            n_jobs=self.threads,
            random_state=self.seed,
            verbose=int(verbose),
        )
        check_parameters(classifier)
        return classifier

    def _noise(self) -> Any:
        from extremax.noise import NOISES, describe_noise, make_noise, with_components
        from extremax.recipes import RECIPES
        from extremax.rows import DenseRows

        if self.tree_components == Training.tree_components:
            return self.noise

        def resized(noise: str) -> Noise | None:
            made = with_components(noise, self.tree_components)
            return made if describe_noise(made) != describe_noise(make_noise(noise)) else None

        chosen = self.noise or RECIPES[DenseRows].noise
        noise = None if chosen == "auto" else resized(chosen)
        if noise is None:
            trees = " and ".join(name for name in NOISES if resized(name) is not None)
            self.reject("tree_components", f"applies to --noise {trees}, not {chosen}")
        return noise


def parse_ngrams(text: str) -> tuple[int, int]:
    """Parse ``3`` as (3, 3) and ``2-4`` as (2, 4)."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    first = int(match[1]) if match else 0
    last = int(match[2] or match[1]) if match else 0
    if not 1 <= first <= last:
        raise ArgumentError(
            f"--ngrams must be a number such as 1 or a range like 2-4, got {text!r}"
        )
    return first, last
