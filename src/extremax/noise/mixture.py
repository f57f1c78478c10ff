"""Mixture noise: q = Σ w_i q_i.

A sharp noise combined with a safe one: negatives are hard where the sharp one knows something, and
as q ≥ w q_safe, an importance weight 1/q is at most 1/w times that of the safe noise alone. Sampled
softmax from a tree alone can fail because its weights are unbounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from extremax.checks import refusing
from extremax.errors import ArgumentError, ModelFileError
from extremax.noise.base import Context, Draw, Noise, filled
from extremax.noise.registry import describe_noise, make_noise
from extremax.random import Stream
from extremax.rows import Needs, Sizes
from extremax.tensors import Tensors, prefixed, under

if TYPE_CHECKING:
    from extremax.heads import ClassVectors


class Contexts:
    """The context of each part, for the same rows."""

    def __init__(self, contexts: list[Context]) -> None:
        self.contexts = contexts

    def __len__(self) -> int:
        return len(self.contexts[0])

    def __getitem__(self, numbers: Any) -> Contexts:
        return Contexts([context[numbers] for context in self.contexts])


def _of_parts(name: str, rule: Callable[[Iterable[bool]], bool]) -> Any:
    """A property of a mixture that any or all of its parts have."""
    return property(lambda mixture: rule(getattr(part, name) for part in mixture.leaves()))


class MixtureNoise(Noise):
    """Draws from each part in proportion to its weight; log q is always that of the mixture.

    Of m draws, part i makes ⌊w_i m⌋, and the remaining draws choose their parts at random: on
    average the draws of a row follow q, with less variance than if every draw chose its part at
    random (Veach & Guibas 1995).

    The mixture follows a head if a part does. All parts that can be tempered are tempered together.

    Parts differ in the probability they give to classes that appear after the fit (`extend`).
    Weights then shift toward parts that give more, so that the proportions among the old classes
    stay as they were. A part that follows its head has no such proportions; with one, weights stay.

    parts:    names from ``NOISES``, noises, or their JSON form from `describe_noise`:
              ``{"noise": "tree", "n_components": 64}``.
    weights:  the share of the draws that each part makes; positive, normalized to sum to one.
    """

    def __init__(
        self,
        parts: Sequence[str | Noise | dict[str, Any]] = ("tree", "frequency"),
        weights: Sequence[float] = (0.5, 0.5),
    ) -> None:
        self.parts = parts
        self.weights = weights

    follows_head = _of_parts("follows_head", any)
    is_even = _of_parts("is_even", any)
    needs_dense = _of_parts("needs_dense", any)
    needs_no_data = _of_parts("needs_no_data", all)
    keeps_context = _of_parts("keeps_context", all)
    draws_once = _of_parts("draws_once", any)

    @property
    def n_features_read(self) -> int | None:
        return next((n for part in self._parts() if (n := part.n_features_read) is not None), None)

    def _parts(self) -> list[Noise]:
        """The fitted parts, or unfitted ones before the fit."""
        return self.parts_ if hasattr(self, "parts_") else [make_noise(part) for part in self.parts]

    def check_parameters(self) -> None:
        if not isinstance(self.parts, (list, tuple)) or not self.parts:
            raise ArgumentError(f"parts must be a sequence of noises, got {self.parts!r}")
        with refusing("weights"):
            weights = np.asarray(self.weights, dtype=np.float64)
        if weights.shape != (len(self.parts),):
            raise ArgumentError(
                f"weights must be one number for each of the {len(self.parts)} parts, "
                f"got {self.weights!r}"
            )
        if not np.all(np.isfinite(weights)) or not np.all(weights > 0):
            raise ArgumentError(f"weights must be > 0 and finite, got {self.weights!r}")
        for part in self.parts:
            make_noise(part).check_parameters()

    def learn(self, features: Any, labels: np.ndarray, n_classes: int, rows: np.ndarray) -> None:
        fitted = [make_noise(part).fit(features, labels, n_classes, rows) for part in self.parts]
        self._set(fitted, features.shape[1])

    def _set(self, parts: list[Noise], n_features: int) -> MixtureNoise:
        weights = np.asarray(self.weights, dtype=np.float64)
        #: log w_i.
        self.log_weights_ = np.log(weights / weights.sum())
        self.parts_, self.n_classes_ = parts, parts[0].n_classes_
        self.n_features_in_ = n_features
        return self

    def context(self, features: Any) -> Contexts:
        return Contexts([part.context(features) for part in self.parts_])

    # Draws ------------------------------------------------------------------------------------

    def shares(self, m: int) -> tuple[np.ndarray, np.ndarray, int]:
        """How m draws are divided: the draws of each part, the probability of each part to make
        one of the remaining draws, and their number."""
        wanted = np.exp(self.log_weights_) * m
        certain = np.floor(wanted + 1e-9).astype(np.int64)
        chances = np.maximum(wanted - certain, 0.0)
        n_left = m - int(certain.sum())
        return certain, chances / chances.sum() if n_left else chances, n_left

    def leaves(self) -> list[Noise]:
        return [leaf for part in self._parts() for leaf in part.leaves()]

    def shared_part(self, context: Contexts) -> tuple[Noise, Context]:
        if not self.has_shared_part:
            return self, context
        pairs = zip(self.parts_, context.contexts, strict=True)
        return next(pair for pair in pairs if not pair[0].reads_rows)

    @property
    def has_shared_part(self) -> bool:  # type: ignore[override]
        return sorted(part.reads_rows for part in self._parts()) == [False, True]

    def strata(self, m: int) -> list[tuple[int, np.ndarray]]:
        certain, chances, n_left = self.shares(m)
        strata, remaining, before = [], np.zeros(len(self.leaves())), 0
        for part, n, chance in zip(self.parts_, certain.tolist(), chances, strict=True):
            leaves = slice(before, before + len(part.leaves()))
            for size, weights in part.strata(n) if n else []:
                strata.append((size, np.zeros_like(remaining)))
                strata[-1][1][leaves] = weights
            # The remaining draws are made one at a time, so a part divides none of them.
            remaining[leaves] = chance * part.strata(1)[0][1]
            before = leaves.stop
        return strata + ([(n_left, remaining)] if n_left else [])

    def sample(self, context: Contexts, m: int, stream: Stream) -> Draw:
        pairs = list(zip(self.parts_, context.contexts, strict=True))
        return self._stratified(
            [partial(part.sample, own) for part, own in pairs],
            [partial(part.log_prob, own) for part, own in pairs],
            m, stream,
        )  # fmt: skip

    def _sample_others(
        self, context: Contexts, labels: torch.Tensor, m: int, stream: Stream
    ) -> Draw:
        """Every part makes its share of the draws among the other classes, also one that is sure
        of the label: q = Σ w_i q_i/(1 − q_i(label))."""
        pairs = list(zip(self.parts_, context.contexts, strict=True))
        return self._stratified(
            [partial(part.sample_others, own, labels) for part, own in pairs],
            [partial(part.log_prob_others, own, labels) for part, own in pairs],
            m, stream,
        )  # fmt: skip

    def _stratified(
        self,
        samplers: list[Callable[[int, Stream], Draw]],
        log_probs: list[Callable[[torch.Tensor], torch.Tensor]],
        m: int,
        stream: Stream,
    ) -> Draw:
        """m draws by the samplers of the parts, and the mixture of their log q."""
        certain, chances, n_left = self.shares(m)
        draws = [
            sampler(int(certain[i]), stream.child(i)) if certain[i] else None
            for i, sampler in enumerate(samplers)
        ]
        remaining = self._sample_remaining(samplers, chances, n_left, stream)
        labels = torch.cat([*(draw.labels for draw in draws if draw), remaining], 1)
        log_q = torch.empty((len(samplers), len(labels), m))
        stop = np.cumsum(certain)
        for i, (log_prob, draw) in enumerate(zip(log_probs, draws, strict=True)):
            # A part already knows log q of its own draws.
            others = np.delete(np.arange(m), slice(stop[i] - certain[i], stop[i]))
            log_q[i][:, others] = log_prob(labels[:, others])
            if draw:
                log_q[i][:, stop[i] - certain[i] : stop[i]] = draw.log_q
        return Draw(labels, self._mixed(log_q))

    def _sample_remaining(
        self,
        samplers: list[Callable[[int, Stream], Draw]],
        chances: np.ndarray,
        n: int,
        stream: Stream,
    ) -> torch.Tensor:
        """Classes (rows, n), each from a part chosen at random."""
        labels = torch.empty((len(stream.rows), n), dtype=torch.int64)
        below, n_parts = np.cumsum(chances)[:-1], len(samplers)
        chosen = torch.from_numpy(np.searchsorted(below, stream.uniform(n), side="right"))
        for j in range(n):
            for i, sampler in enumerate(samplers):
                drawn = sampler(1, stream.child(n_parts * (j + 1) + i)).labels
                labels[:, j] = torch.where(chosen[:, j] == i, drawn[:, 0], labels[:, j])
        return labels

    def log_prob(self, context: Contexts, labels: torch.Tensor) -> torch.Tensor:
        pairs = zip(self.parts_, context.contexts, strict=True)
        return self._mixed(torch.stack([part.log_prob(own, labels) for part, own in pairs]))

    def log_prob_others(
        self, context: Contexts, labels: torch.Tensor, others: torch.Tensor
    ) -> torch.Tensor:
        pairs = zip(self.parts_, context.contexts, strict=True)
        log_q = [part.log_prob_others(own, labels, others) for part, own in pairs]
        return self._mixed(torch.stack(log_q))

    def _mixed(self, log_q: torch.Tensor) -> torch.Tensor:
        """log q of the mixture from that of the parts, (parts, n, m)."""
        from extremax.kernels.cpu.mixture import mix_log_probs

        shape = tuple(log_q.shape[1:])
        return filled(mix_log_probs, shape, 2048, self.log_weights_, log_q.numpy())

    def log_prob_all(self, context: Contexts) -> torch.Tensor:
        parts = zip(self.parts_, context.contexts, self.log_weights_, strict=True)
        weighted = (part.log_prob_all(own) + float(weight) for part, own, weight in parts)
        return reduce(torch.logaddexp, weighted)

    # Changes ----------------------------------------------------------------------------------

    def extend(self, n_classes: int) -> None:
        late = torch.arange(self.n_classes_, max(self.n_classes_, n_classes))[None]
        super().extend(n_classes)
        for part in self.parts_:
            part.extend(n_classes)
        if late.numel() and not self.follows_head:
            # The probability of late classes does not depend on the row: any row will do.
            context = self.context(np.zeros((1, self.n_features_in_), np.float32))
            pairs = zip(self.parts_, context.contexts, strict=True)
            taken = [float(part.log_prob(own, late).double().exp().sum()) for part, own in pairs]
            log_weights = self.log_weights_ - np.log1p(-np.array(taken))
            self.log_weights_ = log_weights - np.logaddexp.reduce(log_weights)

    def attach(self, vectors: ClassVectors) -> None:
        for part in self.parts_:
            part.attach(vectors)

    def refresh(self, classes: torch.Tensor) -> None:
        for part in self.parts_:
            if part.follows_head:
                part.refresh(classes)

    def sharpnesses(self) -> tuple[float, ...]:
        return next((s for part in self._parts() if (s := part.sharpnesses())), ())

    def default_sharpness(self, adds_log_q: bool) -> float:
        """As sharp as fitted where log q is no part of the logits, else the middle.

        Where log q is not added, q is best close to p itself (Blanc & Rendle 2018), and the other
        parts bound its importance weights. With 200 draws from 22,649 subjects of titles, a sharp
        tree in the mixture left sampled softmax 0.02 nats behind exact softmax instead of 0.16. A
        tree alone is softened, because a class it wrongly deems impossible would enter with a huge
        weight.
        """
        return super().default_sharpness(adds_log_q) if adds_log_q else self.sharpnesses()[0]

    def temper(self, sharpness: float) -> None:
        tempered = [part for part in self._parts() if part.sharpnesses()]
        if not tempered:
            super().temper(sharpness)
        for part in tempered:
            part.temper(sharpness)

    # Saving and planning ----------------------------------------------------------------------

    def state(self) -> dict[str, torch.Tensor]:
        state = super().state() | {
            "n_features": torch.tensor(self.n_features_in_),
            "log_weights": torch.from_numpy(self.log_weights_),
        }
        for i, part in enumerate(self.parts_):
            state |= prefixed(str(i), part.state())
        return state

    def check_state(self, tensors: Tensors, n_classes: int, n_features: int) -> None:
        parts = [make_noise(part) for part in self.parts]
        super().check_state(tensors, n_classes, n_features)
        tensors.integer("n_features", n_features, n_features)
        log_weights = tensors.array("log_weights", torch.float64, len(parts))
        if not abs(np.logaddexp.reduce(log_weights)) < 1e-9:
            raise ModelFileError(f"log_weights of the saved {tensors.owner} do not sum to one")
        for i, part in enumerate(parts):
            owner = f"{type(part).__name__} in {tensors.owner}"
            part.validate(tensors.under(str(i), owner), n_classes, n_features)

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        parts = [make_noise(part) for part in self.parts]
        for i, part in enumerate(parts):
            part.load_state(under(str(i), state))
        self._set(parts, int(state["n_features"]))
        self.log_weights_ = state["log_weights"].numpy()

    def settings(self) -> dict[str, Any]:
        settings = self.get_params(deep=False)
        if any(isinstance(part, Noise) for part in self.parts):
            settings["parts"] = [
                describe_noise(part) if isinstance(part, Noise) else part for part in self.parts
            ]
        if isinstance(self.weights, np.ndarray):
            settings["weights"] = self.weights.tolist()
        return settings

    def needs(self, sizes: Sizes, n_threads: int) -> Needs:
        # Parts are fitted one after another.
        parts = [part.needs(sizes, n_threads) for part in self._parts()]
        passing = max(part.passing for part in parts)
        return Needs(sum(part.kept for part in parts), passing, sum(part.saved for part in parts))

    def context_bytes(self, sizes: Sizes) -> float:
        return sum(part.context_bytes(sizes) for part in self._parts())

    def fit_work(self, sizes: Sizes, n_threads: int) -> float:
        # The slowest part takes nearly all of the time.
        return max(part.fit_work(sizes, n_threads) for part in self._parts())

    def stand_in(
        self, features: Any, labels: np.ndarray, n_classes: int, sizes: Sizes
    ) -> MixtureNoise:
        parts = [make_noise(p).stand_in(features, labels, n_classes, sizes) for p in self.parts]
        return self._set(parts, features.shape[1])
