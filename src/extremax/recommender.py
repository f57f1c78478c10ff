"""Next items of sessions: a classifier over items that reads sequences of items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from extremax.checks import is_number
from extremax.classifier import Evaluation, ExtremeClassifier
from extremax.data.sequences import Sequences
from extremax.errors import ArgumentError, ModelFileError
from extremax.evaluation import TOP, Outcomes
from extremax.heads import Ranking
from extremax.prediction.limits import visible

__all__ = ["Recommendation", "SessionRecommender"]


@dataclass(frozen=True)
class Recommendation:
    """The items that are likely to come next, likeliest first. Unpacks as ``items, probabilities``.

    One session gives arrays (k,), several give (n, k).
    """

    items: np.ndarray
    probabilities: np.ndarray

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter((self.items, self.probabilities))


class SessionRecommender(ExtremeClassifier):
    """Recommends what comes next in a session, with probabilities.

    Every item is a class, and also what rows consist of: a vector per item serves both sides
    (`extremax.heads.TiedHead`). Beside it counts which items are visited together
    (`extremax.experts.VisitedTogether`) and which after which (`extremax.experts.VisitedAfter`);
    held-out sessions weigh the three.

    Parameters are those of `ExtremeClassifier`; the defaults suit sessions.

    Examples
    --------
    >>> from extremax import SessionRecommender
    >>> sessions = [["tent", "stove"], ["tent", "stove", "lamp"], ["sofa", "lamp"]] * 50
    >>> model = SessionRecommender(random_state=0, epochs=2).fit(sessions)
    >>> items, probabilities = model.recommend(["tent"], k=2)
    >>> items.shape
    (2,)
    """

    def fit(  # type: ignore[override]
        self, sessions: Iterable[Sequence[Any]], y: None = None, **more: Any
    ) -> SessionRecommender:
        """Learn the next item from every prefix of every session. Sessions of one item teach
        nothing. ``more`` is as in `ExtremeClassifier.fit`."""
        _check_no_labels(y)
        super().fit(*_examples(sessions), **more)
        return self

    def partial_fit(  # type: ignore[override]
        self, sessions: Iterable[Sequence[Any]], y: None = None
    ) -> SessionRecommender:
        """Make one pass over further sessions; items may be new."""
        _check_no_labels(y)
        super().partial_fit(*_examples(sessions))
        return self

    def recommend(
        self,
        sessions: Sequence[Any],
        k: int = 20,
        *,
        exclude: Iterable[Any] = (),
        exclude_visited: bool = False,
    ) -> Recommendation:
        """The k items most likely to come next in a session, or in each of several sessions.

        exclude:          items never to recommend, such as those out of stock.
        exclude_visited:  also leave out the items of the session itself.

        Probabilities are those before items are left out. Items that training never saw count for
        nothing; a session without a known item gets what is popular.
        """
        is_count = is_number(k, integer=True) and k >= 1
        if not is_count:
            raise ArgumentError(f"k must be an integer >= 1, got {k!r}")
        check_is_fitted(self)
        one = not isinstance(sessions, Sequences) and not (
            len(sessions) and isinstance(sessions[0], (list, tuple, np.ndarray))
        )
        given = Sequences.of([sessions] if one else sessions)
        labels = self.model_.labels
        rows = given.rows(labels.index)
        visited = rows.sizes if exclude_visited else np.zeros(len(rows), np.int64)
        n_asked = min(k + int(visited.max(initial=0)), len(labels))
        found = self.predict_topk(given, n_asked, exclude=exclude)
        classes = labels.encode(found.labels.ravel()).reshape(found.labels.shape)
        hidden = np.isneginf(found.log_probs)
        for row, (end, size) in enumerate(zip(rows.ends, visited, strict=True)):
            hidden[row] |= np.isin(classes[row], rows.items[end - size : end])
        k = min(k, int((~hidden).sum(1).min(initial=k)))
        ranking = Ranking(torch.from_numpy(classes), torch.from_numpy(found.log_probs))
        ranking = visible(ranking, torch.from_numpy(hidden), k)
        items = labels.values[ranking.labels.numpy()]
        probabilities = ranking.log_probs.exp().numpy()
        return (
            Recommendation(items[0], probabilities[0])
            if one
            else Recommendation(items, probabilities)
        )

    def evaluate(self, sessions: Any, y: Any = None, *, k: int = TOP) -> Evaluation:
        """Exact figures over every prefix of these sessions and the item that follows it; or, if
        y has the item that follows each session, over whole sessions.

        k:  ranks that are counted: figures such as recall are at 1 to k, at least to 5.
        """
        return super().evaluate(*_examples(sessions, y), k=k)

    def outcomes(self, sessions: Any, y: Any = None, *, k: int = TOP) -> Outcomes:
        """The k most probable items after what `evaluate` counts, and log p of the item that
        follows."""
        return super().outcomes(*_examples(sessions, y), k=k)

    def recalibrate(self, sessions: Any, y: Any = None) -> SessionRecommender:
        """Fit how sure to be on sessions that training has not seen, see
        `ExtremeClassifier.recalibrate` and `evaluate`."""
        super().recalibrate(*_examples(sessions, y))
        return self

    def score(self, sessions: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Share of what `evaluate` counts whose next item is the one recommended first."""
        return super().score(*_examples(sessions, y), sample_weight)

    def log_likelihood(self, sessions: Any, y: Any = None) -> float:
        """Mean exact log p(next item | what came before), see `evaluate`."""
        return self.evaluate(sessions, y).log_likelihood

    @classmethod
    def load(cls, folder: str | Path) -> SessionRecommender:
        """A model of sessions from its folder, also one that `extremax train` has written."""
        loaded = super().load(folder)
        assert isinstance(loaded, cls)
        encoder = loaded.model_.encoder
        if encoder.input_kind != "sequences":
            raise ModelFileError(
                f"{folder} was trained on {encoder.input_name}; use ExtremeClassifier.load"
            )
        return loaded


def _check_no_labels(y: Any) -> None:
    if y is not None:
        raise ArgumentError("y must be None: what comes next is in the sessions")


def _examples(sessions: Iterable[Sequence[Any]], y: Any = None) -> tuple[Sequences, Any]:
    """Every prefix of every session, and the item that follows it, unless y says what follows."""
    given = Sequences.of(sessions)
    if y is not None:
        return given, y
    if given.sessions is not None:
        raise ArgumentError("these are prefixes of sessions; pass whole sessions")
    prefixes, following = given.prefixes()
    if not len(prefixes):
        raise ArgumentError("no session has two items, so there is no next item to learn from")
    return prefixes, following
