"""Options that say which classes a prediction may answer with, and how frequent they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.cli.console import warn
from extremax.cli.options import ANSWERS, option
from extremax.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from extremax import ExtremeClassifier


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Which classes to answer with. Files of labels are text with one label per line."""

    threshold: float = option(0.0, "Leave out classes whose probability is smaller.", metavar="P")
    among: Path | None = option(
        None,
        "File with the labels to choose from, one per line. Exact.",
        metavar="FILE",
        panel=ANSWERS,
    )
    exclude: Path | None = option(
        None, "File with labels not to answer with, one per line.", metavar="FILE", panel=ANSWERS
    )
    renormalize: bool = option(
        False,
        "Give probabilities that the label is one of --among, or none of --exclude.",
        "--renormalize",
        panel=ANSWERS,
    )
    prior: Path | None = option(
        None,
        "File with how often each class occurs where the model is used, if not as in training: "
        "label, TAB, number, for every class.",
        metavar="FILE",
        panel=ANSWERS,
    )
    tau: float | None = option(
        None,
        "Instead of --prior: class frequencies of training to the power of 1 − T. 1 makes all "
        "classes equally frequent.",
        metavar="T",
        panel=ANSWERS,
    )

    def check(self, beam: int | None) -> None:
        """Refuse options that contradict each other."""
        check_threshold(self.threshold)
        if self.among is not None and beam is not None:
            raise ArgumentError("--among scores all of its labels; omit --beam")
        if self.renormalize and self.among is None and self.exclude is None:
            raise ArgumentError("--renormalize needs --among or --exclude")
        if self.prior is not None and self.tau is not None:
            raise ArgumentError("--prior and --tau contradict each other; omit one of them")

    def shifted(self, classifier: ExtremeClassifier) -> ExtremeClassifier:
        """The classifier with the class frequencies of --prior or --tau."""
        if self.tau is not None:
            return classifier.with_prior(tau=self.tau)
        if self.prior is None:
            return classifier
        shares: dict[Any, float] = {}
        for number, line in _lines(self.prior):
            name, tab, text = line.rpartition("\t")
            try:
                share = float(text)
            except ValueError:
                tab = ""
            if not tab:
                message = f"expected label, TAB, number, got {line!r:.80} (--prior)"
                raise DataError(message, self.prior, number)
            label = _label(name, classifier)
            if label in shares:
                raise DataError(f"label {name!r:.80} again (--prior)", self.prior, number)
            shares[label] = share
        try:
            return classifier.with_prior(shares)
        except ArgumentError as error:
            raise DataError(f"{error} (--prior)", self.prior) from error

    def parameters(self, classifier: ExtremeClassifier, quiet: bool) -> dict[str, Any]:
        """Parameters of `predict_topk`, with the labels that the files name."""
        given = {"among": self.among, "exclude": self.exclude}
        labels = {
            name: _known(f"--{name}", path, classifier, quiet)
            for name, path in given.items()
            if path is not None
        }
        return {"threshold": self.threshold, "renormalize": self.renormalize, **labels}


def check_threshold(threshold: float) -> None:
    """Refuse what is no probability."""
    if not 0.0 <= threshold <= 1.0:
        raise ArgumentError(f"--threshold must be a number from 0 to 1, got {threshold}")


def _known(flag: str, path: Path, classifier: ExtremeClassifier, quiet: bool) -> list[Any]:
    """The labels of a file that are classes; --among must have no others."""
    from extremax.labels import object_array

    lines = list(_lines(path))
    labels = [_label(line, classifier) for _, line in lines]
    known = classifier.model_.labels.encode(object_array(labels)) >= 0
    if flag == "--among" and not known.all():
        number, line = lines[int(known.argmin())]
        raise DataError(f"label {line!r:.80} is none that training saw ({flag})", path, number)
    if flag == "--among" and not labels:
        raise DataError(f"the file has no labels ({flag})", path)
    if not known.any() and not quiet:
        warn(f"{path}: no label is a class of the model, so that none is left out ({flag})")
    return [label for label, is_known in zip(labels, known, strict=True) if is_known]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a file that are not empty."""
    from extremax.data.streams import text_lines

    return ((number, line) for number, line in text_lines(path) if line)


def _label(text: str, classifier: ExtremeClassifier) -> Any:
    """The label of this text: a number, where the labels of the model are numbers."""
    kind = classifier.classes_.dtype.kind
    try:
        return int(text) if kind in "iu" else text
    except ValueError:
        return text
