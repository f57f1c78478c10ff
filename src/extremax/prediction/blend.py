"""The logits formula, and its only owner: models, searches and calibration ask it.

    logits = (link(ξ) + Σ_l a_l log q_l + Σ_e d_e log(1 + v_e/ε_e) + c log n) / T

Objectives whose scores are log p/q have a = 1: that is bias removal (Bamler & Mandt 2020, Eq. 5).
Where the noise is a classifier of its own and the objective does not add log q, head and noise are
a product of experts (Hinton, "Training products of experts by minimizing contrastive divergence",
2002): they err in different places, and together less than either. log q_l is the part of log q
that level l of the noise contributes, since some levels deserve more trust than others. n is the
number of examples of a class plus one: both experts know which classes are frequent, and together
they may overstate it. v_e is the evidence of further experts (`extremax.experts`).
`extremax.training.calibration` fits T, a, d and c on held-out rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from extremax.errors import ArgumentError
from extremax.experts import Expert
from extremax.heads import Head
from extremax.heads.blocks import Ranking, eighths
from extremax.labels import Prior
from extremax.noise import Noise
from extremax.objectives import Objective
from extremax.prediction.confidence import N_BEST, Confidence, RowMap
from extremax.prediction.rest import Rest, log_sums, summary
from extremax.prediction.shift import shifted
from extremax.rows import Rows
from extremax.search.base import Searcher
from extremax.tensors import LARGEST

# Weight of each expert before held-out rows have a say.
START = 0.5


@dataclass(frozen=True)
class Blend:
    """T, a_l, d_e and c; no levels where log q plays no part in the logits."""

    temperature: float = 1.0
    levels: tuple[float, ...] = ()
    experts: tuple[float, ...] = ()
    prior: float = 0.0

    @classmethod
    def start(cls, objective: Objective, noise: Noise, n_experts: int = 0) -> Blend:
        """The blend of a model that has not been calibrated: further experts have no weight."""
        return replace(cls._of_two(objective, noise), experts=(0.0,) * n_experts)

    @classmethod
    def _of_two(cls, objective: Objective, noise: Noise) -> Blend:
        if objective.adds_log_q:
            return cls(levels=(1.0,) * noise.n_levels)
        if is_product(objective, noise):
            # Equal weights; calibration refits them.
            return cls(temperature=1.0 / START, levels=(1.0,) * noise.n_levels)
        return cls()

    def as_trained(self, objective: Objective) -> Blend:
        """The part of the logits that training sees: no temperature, no other expert."""
        levels = self.levels if objective.adds_log_q else ()
        return Blend(levels=levels, experts=(0.0,) * len(self.experts))

    def check(self, objective: Objective, noise: Noise, n_experts: int) -> None:
        """Refuse numbers that no training gives, as a damaged file may hold."""
        numbers = np.array([self.temperature, *self.levels, *self.experts, self.prior], float)
        within = (np.abs(numbers) <= LARGEST).all() and self.temperature >= 1.0 / LARGEST
        if not within:
            raise ArgumentError(
                f"a blend needs numbers within ±{LARGEST:g} and a temperature of at least "
                f"{1.0 / LARGEST:g}, got {self}"
            )
        if len(self.levels) != len(Blend.start(objective, noise).levels):
            name = type(objective).__name__
            raise ArgumentError(f"{self} is not for {name} with a noise of {noise.n_levels} levels")
        if len(self.experts) != n_experts:
            raise ArgumentError(f"{self} is not for {n_experts} further experts")

    @property
    def weights(self) -> np.ndarray:
        """a, one number per level."""
        return np.array(self.levels)

    @property
    def is_scaling(self) -> bool:
        """Whether logits are the scores divided by T."""
        return not self.levels and not any(self.experts) and not self.prior

    def logits(
        self,
        scores: torch.Tensor,
        noise: Noise,
        experts: Sequence[Expert],
        rows: Rows,
        log_n: torch.Tensor,
    ) -> torch.Tensor:
        """Logits of every class from link(ξ) of every class (n, C), in place."""
        if self.levels:
            context = noise.context(rows)
            for part in eighths(len(scores)):
                scores[part] += noise.weighted_log_probs(context[part], self.weights)
        for weight, expert in zip(self.experts, experts, strict=True):
            if weight:
                expert.add_to(scores, rows, weight)
        return self._finish(scores, log_n)

    def logits_at(
        self,
        classes: torch.Tensor,
        head: Head,
        noise: Noise,
        experts: Sequence[Expert],
        rows: Rows,
        objective: Objective,
        log_n: torch.Tensor,
    ) -> torch.Tensor:
        """Logits of classes (n, j), same shape."""
        sums = objective.link(head.scores(head.inputs(rows), classes))
        if self.levels:
            levels = noise.level_log_probs(noise.context(rows), classes)
            sums = sums + levels @ torch.from_numpy(self.weights).float()
        for weight, expert in zip(self.experts, experts, strict=True):
            if weight:
                sums = torch.add(sums, expert.at(rows, classes), alpha=weight)
        return self._finish(sums, log_n[classes] if self.prior else log_n)

    def candidates(
        self,
        searcher: Searcher,
        experts: Sequence[Expert],
        rows: Rows,
        k: int,
        width: int,
        objective: Objective,
        log_n: torch.Tensor,
        also: torch.Tensor | None = None,
    ) -> Iterator[Scored]:
        """Logits of the classes that a search finds, block by block.

        also:  classes (m,) that the head scores on every row, for `extremax.prediction.rest`.
        """
        found = searcher.candidates(rows, k, width, self.weights, objective.link, also)
        for block, sums, classes_of, log_mass, scores in found:
            part, total, log_counts_at = rows[block], sums, log_n
            if self.prior or any(self.experts):
                # Of all candidates only here: there may be thousands of a row.
                classes = _every(classes_of, sums)
                log_counts_at = log_n[classes] if self.prior else log_n
                for weight, expert in zip(self.experts, experts, strict=True):
                    if weight:
                        total = torch.add(total, expert.at(part, classes), alpha=weight)
            # Unused places may have class −1; their sums are −∞ whatever is added.
            logits = self._finish(total, log_counts_at)
            totals, numbers = log_sums(logits), None
            if also is not None:
                # What the searcher lets stand for other classes has no number of examples.
                others = (
                    self._finish(scores, log_n[also]) if len(also) else scores / self.temperature
                )
                means = (totals if total is sums else log_sums(sums))[:, 2]
                numbers = summary(means, totals, log_mass, others, experts, part)
            yield Scored(block, logits, totals[:, 0], classes_of, log_mass, numbers)

    def rank(
        self,
        found: Scored,
        k: int,
        n_classes: int,
        rest: Rest | None,
        shift: tuple[Prior, Scored] | None = None,
        confidence: tuple[Confidence, torch.Tensor] | None = None,
    ) -> tuple[Ranking, torch.Tensor]:
        """The k best candidates of each row, and the standard error of their log-probabilities
        (n,).

        Without ``rest``, log-probabilities are normalized over the candidates, which together get
        the probability that the searcher says they have; their error is not known, NaN.

        shift:       for other class frequencies, these and the candidates of a search for them; how
                     far off log-probabilities are is not known then, either.
        confidence:  how sure to be of a row, and log n of every class.
        """
        log_s = found.log_sum
        if rest is None:
            log_z = log_s - torch.as_tensor(found.log_mass).reshape(-1)
            error = torch.full((len(log_s),), torch.nan)
        else:
            left = rest.log_rest(found.summary).float()
            if found.logits.shape[1] >= n_classes:
                every = (~found.logits.isneginf()).sum(1) == n_classes
                left.masked_fill_(every, -torch.inf)
            log_z = torch.logaddexp(log_s, left)
            error = rest.standard_error(left - log_z)
        n_best = k if confidence is None else max(k, N_BEST)
        best, columns = found.logits.topk(min(n_best, found.logits.shape[1]), dim=1)
        best = best - log_z[:, None]
        mapped = None
        if confidence is not None:
            top = found.classes(columns[:, :1])[:, 0]
            mapped = confidence[0].of_best(best[:, :N_BEST], confidence[1][top])
        if shift is None:
            log_p = best[:, :k] if mapped is None else mapped(best[:, :k])
            labels = found.classes(columns[:, :k])
        else:
            prior, more = shift
            first, second = (_log_probs(part, log_z, mapped) for part in (found, more))
            logits, classes, log_z = shifted(prior, first, second, torch.zeros_like(log_z))
            log_p, columns = (logits - log_z[:, None]).topk(k, dim=1)
            labels, error = classes.gather(1, columns), torch.full_like(error, torch.nan)
        return Ranking(labels, log_p), error

    def _finish(self, sums: torch.Tensor, log_n: torch.Tensor) -> torch.Tensor:
        if self.prior:
            sums.add_(log_n, alpha=self.prior)
        return sums if self.temperature == 1.0 else sums.div_(self.temperature)


def _every(classes_of: Callable[[torch.Tensor], torch.Tensor], sums: torch.Tensor) -> torch.Tensor:
    """The classes of all candidates, (n, j)."""
    return classes_of(torch.arange(sums.shape[1]).expand(sums.shape))


def _log_probs(
    found: Scored, log_z: torch.Tensor, mapped: RowMap | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """log p of every candidate, (n, j), and the classes."""
    log_p = found.logits - log_z[:, None]
    return (log_p if mapped is None else mapped(log_p)), _every(found.classes, log_p)


class Scored(NamedTuple):
    """Candidates of a block of rows, as in `extremax.search.base.Candidates`.

    log_sum:  log Σ exp of the logits of each row, (n,).
    summary:  what `extremax.prediction.rest` asks of each row.
    """

    rows: slice
    logits: torch.Tensor
    log_sum: torch.Tensor
    classes: Callable[[torch.Tensor], torch.Tensor]
    log_mass: torch.Tensor | float
    summary: Any


def is_product(objective: Objective, noise: Noise) -> bool:
    """Whether head and noise are blended as two experts: the noise is a classifier of its own, and
    the scores are softmax logits that do not contain its log q already."""
    return noise.is_classifier and objective.is_softmax and not objective.adds_log_q


def log_counts(counts: np.ndarray) -> torch.Tensor:
    """log n of each class, n its number of examples plus one."""
    return torch.from_numpy(np.log1p(counts)).float()
