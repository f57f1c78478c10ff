"""The model: what training fills, prediction asks and storage writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from extremax.errors import ArgumentError
from extremax.experts import Expert
from extremax.features import Encoder
from extremax.heads import DEVICE_HEADS, DeviceHead, Head, LinearHead, Ranking
from extremax.heads.blocks import check_overflow, eighths, rank_and_score_in_blocks
from extremax.kernels.cpu.threads import active, each
from extremax.labels import ClassLabels, LabelLists, Prior
from extremax.noise import Noise
from extremax.objectives import Objective
from extremax.prediction import Blend, Confidence, Marginals, Rest, Scored, log_counts
from extremax.prediction.confidence import N_BEST
from extremax.prediction.marginals import log_frequency
from extremax.rows import Rows
from extremax.search import Searcher, VectorSearcher
from extremax.search.base import ROWS_ALONE

# Blocks of rows that a thread searches: with more of them, none waits long for the last one.
_BLOCKS_PER_THREAD = 3


@dataclass
class Model:
    """Encoder, labels, head, noise, objective, further experts and their blend: features to
    probabilities of classes. ``rest`` is for the probabilities of a search, ``confidence`` makes
    those of the best classes right, ``marginals`` is for rows with several labels, ``prior`` for
    other class frequencies than in training. ``twin`` is a copy of the head on a GPU: it is trained
    and scores in place of the head, and is not saved.

    Methods take `Rows`, which ``encoder.transform`` makes of the user's features, and class
    numbers, which ``labels`` translates. ``budget`` is the bytes that a request may take.
    """

    encoder: Encoder
    labels: ClassLabels
    head: Head
    noise: Noise
    objective: Objective
    blend: Blend
    experts: tuple[Expert, ...] = ()
    rest: Rest | None = None
    marginals: Marginals | None = None
    prior: Prior | None = None
    confidence: Confidence | None = None
    twin: DeviceHead | None = None

    def __post_init__(self) -> None:
        self._searcher: Searcher | None = None
        self._shifted_searcher: Searcher | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Another process may have no GPU.
        return vars(self) | {"twin": None}

    def on(self, device: torch.device | None) -> None:
        """Score on this GPU from now on, where the head has a form for it, or on the CPU."""
        form = DEVICE_HEADS.get(type(self.head))
        if device is None or form is None:
            self.twin = None
        elif self.twin is None or self.twin.device != device:
            self.twin = form(self.head, device)

    def fetch(self) -> None:
        """Bring the head up to date with its copy on a GPU, if there is one."""
        if self.twin is not None:
            self.twin.fetch()

    @property
    def _scorer(self) -> Head | DeviceHead:
        return self.head if self.twin is None else self.twin

    def attach(self) -> None:
        """Let a noise that follows its head follow this one, as it is now."""
        self._searcher = self._shifted_searcher = None
        if self.noise.follows_head:
            self.noise.attach(self.head.vectors)

    @property
    def members(self) -> tuple[Model, ...]:
        """The models that it consists of; more than one in an `extremax.ensemble.Ensemble`."""
        return (self,)

    def tempered(self, temperature: float) -> Model:
        """The same model with its logits divided by this number."""
        scaled = replace(self.blend, temperature=temperature * self.blend.temperature)
        return replace(self, blend=scaled)

    def as_trained(self) -> Model:
        """The same model with the logits that training sees: no temperature, no second expert."""
        blend = self.blend.as_trained(self.objective)
        return replace(self, blend=blend, rest=None, prior=None, confidence=None)

    @property
    def n_classes(self) -> int:
        return self.head.n_classes

    def logits(self, rows: Rows) -> torch.Tensor:
        """(n, C) logits of every class, for rows that fit in memory together."""
        scores = self.objective.link(self._scorer.scores_all(rows))
        return self.blend.logits(scores, self.noise, self.experts, rows, self._log_counts)

    def decisions(self, rows: Rows) -> torch.Tensor:
        """(n, C) of every class, whose softmax is p where the objective is a softmax: the logits,
        or log p where more than they decide it."""
        plain = self.confidence is None and self.prior is None
        return self.logits(rows) if plain else self.log_probs_all(rows)

    def linear_form(self) -> tuple[np.ndarray, np.ndarray]:
        """W and b of `decisions` = W x + b, (C, K) and (C,), where they are linear in dense rows x
        as the user has them. Of two classes the second minus the first, (1, K) and (1,), as in
        scikit-learn."""
        reasons = {
            "it averages several models": len(self.members) > 1,
            f"it was trained on {self.encoder.input_name}": self.encoder.input_kind != "dense",
            "its logits are not the scores of a linear head alone": not (
                isinstance(self.head, LinearHead)
                and self.blend.is_scaling
                and self.objective.scores_are_logits
            ),
            "how sure to be depends on the row": self.confidence is not None,
            "it is a view with other class frequencies": self.prior is not None,
        }
        for reason, holds in reasons.items():
            if holds:
                # As scikit-learn expects of an attribute that this model does not have.
                raise AttributeError(f"this model has neither coef_ nor intercept_: {reason}")
        assert isinstance(self.head, LinearHead)
        weight = self.head.weight.numpy() * (self.head.scale / self.blend.temperature)
        bias = self.head.bias.numpy() / self.blend.temperature
        if self.n_classes == 2:
            return weight[1:] - weight[:1], bias[1:] - bias[:1]
        return weight, bias

    @property
    def _log_counts(self) -> torch.Tensor:
        return log_counts(self.labels.counts)

    def logits_at(self, rows: Rows, classes: torch.Tensor) -> torch.Tensor:
        """Logits of classes (n, j), same shape."""
        return self.blend.logits_at(
            classes, self.head, self.noise, self.experts, rows, self.objective, self._log_counts
        )

    def log_probs_all(self, rows: Rows) -> torch.Tensor:
        """log p of every class, (n, C), for rows that fit in memory together."""
        logits = self.logits(rows)
        for part in eighths(len(logits)):
            logits[part] = self.log_normalize(logits[part])
        return logits

    def log_normalize(self, logits: torch.Tensor) -> torch.Tensor:
        """Turn logits of every class, (n, C), into log-probabilities, with ``confidence`` and the
        class frequencies of ``prior``."""
        log_p = self.objective.log_normalize(logits)
        if self.confidence is not None:
            log_p = self.confidence.of_all(log_p, self._log_counts)(log_p)
        if self._checked_prior is None:
            return log_p
        return (log_p + torch.from_numpy(self._checked_prior.log_ratio)).log_softmax(1)

    @property
    def _checked_prior(self) -> Prior | None:
        if self.prior is not None and len(self.prior.after) != self.n_classes:
            raise ArgumentError(
                f"the model had {len(self.prior.after):,} classes when with_prior was called, and "
                f"has {self.n_classes:,} now; call with_prior again"
            )
        return self.prior

    def topk(self, rows: Rows, k: int, budget: int) -> Ranking:
        """The k most probable classes, exactly."""
        return self._rank_and_score(rows, np.empty((len(rows), 0), np.int64), k, budget)[0]

    def log_probs(self, rows: Rows, classes: np.ndarray, budget: int) -> torch.Tensor:
        """Exact log p of classes (n, j); −∞ for −1, a class the model does not have."""
        _, log_p = self._rank_and_score(rows, np.maximum(classes, 0), 0, budget)
        return log_p.masked_fill_(torch.from_numpy(classes < 0), -torch.inf)

    def rank_and_score(
        self, rows: Rows, truth: LabelLists, k: int, budget: int
    ) -> tuple[Ranking, torch.Tensor]:
        """The k most probable classes of each row, and log p of each of ``truth.values``, exactly,
        in one pass over the classes."""
        columns = np.arange(truth.counts.max(initial=1)) < truth.counts[:, None]
        known = np.zeros(columns.shape, np.int64)
        known[columns] = np.maximum(truth.values, 0)
        ranking, log_p = self._rank_and_score(rows, known, k, budget)
        log_p = log_p[torch.from_numpy(columns)]
        return ranking, log_p.masked_fill_(torch.from_numpy(truth.values < 0), -torch.inf)

    def _rank_and_score(
        self, rows: Rows, labels: np.ndarray, k: int, budget: int
    ) -> tuple[Ranking, torch.Tensor]:
        """By the head where p is the softmax of its scores, which it may know a faster way to."""
        is_softmax = self.blend.is_scaling and self.objective.scores_are_logits
        if is_softmax and self.prior is None:
            n_best = k if self.confidence is None else max(k, N_BEST)
            ranking, log_p = self._scorer.rank_and_score(
                rows, labels, n_best, self.blend.temperature, budget
            )
            if self.confidence is None:
                return ranking, log_p
            log_count = self._log_counts[ranking.labels[:, 0]]
            mapped = self.confidence.of_best(ranking.log_probs, log_count)
            best = Ranking(ranking.labels[:, :k], mapped(ranking.log_probs[:, :k]))
            return best, mapped(log_p)
        # A product of experts is many small operations.
        return rank_and_score_in_blocks(
            self.log_probs_all, rows, self.n_classes, labels, k, budget, bool(self.blend.levels)
        )

    def marginal_probs(self, ranking: Ranking, best: torch.Tensor) -> torch.Tensor:
        """P(class is a label of the row) of the classes of a ranking: p itself where a row has one
        label.

        best:  log-probabilities of the best classes of each row, see `Marginals.of`.
        """
        if self.marginals is None:
            return ranking.log_probs.double().exp().clamp(max=1.0)
        return self.marginals.of(ranking.log_probs, self.log_frequency[ranking.labels], best)

    @property
    def log_frequency(self) -> torch.Tensor:
        """Of each class in the training rows."""
        return log_frequency(self.labels.counts, self.labels.n_rows)

    # Sublinear search -------------------------------------------------------------------------

    @property
    def searcher(self) -> Searcher | None:
        """A search for the best classes, if there is one."""
        if self._searcher is None:
            self._searcher = self._new_searcher()
        return self._searcher

    def _new_searcher(self, prior: Prior | None = None) -> Searcher | None:
        """That of the head's vectors where the head alone decides, that of the noise elsewhere."""
        if self.head.has_vectors and not self.blend.levels:
            return VectorSearcher(self.head.vectors, prior)
        return self.noise.searcher(self.head, prior)

    @property
    def prefers_search(self) -> bool:
        """Whether predictions search by default instead of scoring every class."""
        return self.searcher is not None and self.searcher.preferred

    def best(self, rows: Rows, k: int, budget: int) -> Ranking:
        """The k most probable classes, as predictions give them by default."""
        return self.search(rows, k, None)[0] if self.prefers_search else self.topk(rows, k, budget)

    def search(self, rows: Rows, k: int, width: int | None) -> tuple[Ranking, torch.Tensor]:
        """The k best classes that the noise's search finds, in time sublinear in their number, and
        the standard error of their log-probabilities (n,), NaN where it is not known."""
        if self.searcher is None:
            raise ArgumentError(
                f"{type(self.noise).__name__} offers no search; use search='exact', or train with "
                "noise 'tree' (dense rows) or 'sparse_tree' (sparse rows)"
            )
        k = min(k, self.n_classes)
        ranking = Ranking(
            torch.empty((len(rows), k), dtype=torch.int64), torch.empty((len(rows), k))
        )
        errors, size = torch.empty(len(rows)), len(rows)
        if self.searcher.searches_alone:
            size = -(-len(rows) // (_BLOCKS_PER_THREAD * active() * ROWS_ALONE)) * ROWS_ALONE
        if self.prior is not None:
            self._searcher_of_prior()  # Threads must not make it.

        def search(i: int) -> None:
            part = slice(i * size, min((i + 1) * size, len(rows)))
            labels, log_probs = (tensor[part] for tensor in ranking)
            for found, best, error in self._search_blocks(rows[part], k, width):
                labels[found], log_probs[found] = best
                errors[part][found] = error

        if self.searcher.searches_alone:
            each(search, -(-len(rows) // max(1, size)))
        else:
            search(0)
        check_overflow(ranking.log_probs, slice(0, len(rows)))
        return ranking, errors

    def _search_blocks(
        self, rows: Rows, k: int, width: int | None
    ) -> Iterator[tuple[slice, Ranking, torch.Tensor]]:
        """What `search` finds, block by block."""
        log_n, confidence = self._log_counts, None
        also = None if self.rest is None else torch.tensor(self.rest.classes, dtype=torch.int64)
        if self.confidence is not None:
            confidence = self.confidence, log_n
        for found in self.candidates(rows, k, width, also):
            shift = self._shift(rows[found.rows], k, width)
            best = self.blend.rank(found, k, self.n_classes, self.rest, shift, confidence)
            yield found.rows, *best

    def candidates(
        self, rows: Rows, k: int, width: int | None, also: torch.Tensor | None
    ) -> Iterator[Scored]:
        """Logits of the classes that the search for k classes finds, block by block; see
        `Blend.candidates`."""
        assert self.searcher is not None
        return self._candidates(self.searcher, rows, k, width, also)

    def _candidates(
        self,
        searcher: Searcher,
        rows: Rows,
        k: int,
        width: int | None,
        also: torch.Tensor | None = None,
    ) -> Iterator[Scored]:
        return self.blend.candidates(
            searcher, self.experts, rows, k, width or searcher.default_width,
            self.objective, self._log_counts, also,
        )  # fmt: skip

    def _shift(self, rows: Rows, k: int, width: int | None) -> tuple[Prior, Scored] | None:
        """What `Blend.rank` needs for the class frequencies of ``prior``, if there are any; the
        rows are one block of `candidates`."""
        prior = self._checked_prior
        if prior is None:
            return None
        (found,) = self._candidates(self._searcher_of_prior(), rows, k, width)
        return prior, found

    def _searcher_of_prior(self) -> Searcher:
        if self._shifted_searcher is None:
            self._shifted_searcher = self._new_searcher(self._checked_prior)
        assert self._shifted_searcher is not None
        return self._shifted_searcher

    @property
    def normalization(self) -> str:
        """How log-probabilities of a search are normalized, in words."""
        assert self.searcher is not None
        if self.rest is not None:
            return "over candidates and an estimate of all other classes"
        return self.searcher.normalization

    # Growing ----------------------------------------------------------------------------------

    def grow(self) -> None:
        """Make room in head and noise for classes that ``labels`` got since."""
        if self.rest is not None:
            self.rest = self.rest.grown(len(self.labels) / self.n_classes)
        self.twin = None
        self.head.grow(len(self.labels))
        self.noise.extend(len(self.labels))
        for expert in self.experts:
            expert.extend(len(self.labels))
        self.attach()
