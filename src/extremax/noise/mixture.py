"""Mixture noise: q = Σ w_i q_i.

A sharp noise beside a safe one: draws are hard where the sharp one knows something, and as
q ≥ w q_safe, an importance weight 1/q is never more than 1/w times what the safe one alone would
give. Sampled softmax from a tree alone can fail for want of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import clone

from extremax.head import LinearHead
from extremax.noise.base import Draw, Noise, check_growth, check_labels
from extremax.random import Stream

# What a context may be made of; a state holds the place in this list.
_DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64)
_WORD = torch.int32

Part = str | Noise | dict[str, Any]


class MixtureNoise(Noise):
    """Draws from each part in proportion; their log q is that of the mixture, whoever drew them.

    Of m draws part i makes ⌊w_i m⌋, and what is left over is left to chance: on average the draws
    of a row follow q, with less variance than if chance chose every part (Veach & Guibas 1995).

    parts:    names from ``NOISES``, noises, or what `settings` makes of a noise for JSON:
              ``{"noise": "tree", "n_components": 64}``.
    weights:  how much of the draws each part gets; positive, made to sum to one.

    Follows a head if a part does. Whatever can be tempered in it is tempered together.

    Parts differ in how much they give to classes that appear after the fit (`extend`). Weights
    then shift to those that give more, just so that the proportions among the old classes stay as
    they were; with a part that follows its head, which knows no such proportions, they do not.
    """

    def __init__(
        self,
        parts: Sequence[Part] = ("tree", "frequency"),
        weights: Sequence[float] = (0.5, 0.5),
    ) -> None:
        self.parts = parts
        self.weights = weights

    @property
    def follows_head(self) -> bool:  # type: ignore[override]
        return any(part.follows_head for part in self._parts())

    @property
    def keeps_context(self) -> bool:  # type: ignore[override]
        return all(part.keeps_context for part in self._parts())

    def _parts(self) -> list[Noise]:
        """The fitted parts, or how they would begin."""
        return self.parts_ if hasattr(self, "parts_") else [_made(part) for part in self.parts]

    def fit(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        n_classes: int,
        rows: np.ndarray | None = None,
    ) -> MixtureNoise:
        labels = check_labels(labels, n_classes)
        log_weights = self._checked_log_weights()
        parts = [_made(part).fit(features, labels, n_classes, rows) for part in self.parts]
        self.parts_, self._log_weights, self.n_classes_ = parts, log_weights, n_classes
        self._layout = [_shape(part.context(features[:0])) for part in parts]
        return self

    def _checked_log_weights(self) -> np.ndarray:
        weights = np.asarray(self.weights, dtype=np.float64)
        if isinstance(self.parts, str) or not len(self.parts):
            raise ValueError(f"parts must be a sequence of noises, got {self.parts!r}")
        if weights.shape != (len(self.parts),):
            raise ValueError(
                f"weights must be one number for each of the {len(self.parts)} parts, "
                f"got {self.weights!r}"
            )
        if not np.all(np.isfinite(weights)) or not np.all(weights > 0):
            raise ValueError(f"weights must be > 0 and finite, got {self.weights!r}")
        return np.log(weights / weights.sum())

    def context(self, features: np.ndarray) -> torch.Tensor:
        """The contexts of all parts side by side, whatever their types, as 32-bit words."""
        contexts = [part.context(features) for part in self.parts_]
        return torch.cat([c.contiguous().view(_WORD) for c in contexts], 1)

    def _split(self, context: torch.Tensor) -> list[torch.Tensor]:
        contexts, at = [], 0
        for dtype, words in self._layout:
            # A copy begins where its type may begin, which a slice need not.
            own = context[:, at : at + words].clone(memory_format=torch.contiguous_format)
            contexts.append(own.view(_DTYPES[dtype]))
            at += words
        return contexts

    def _shares(self, m: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Draws of each part, and the chances of the parts to make one of those left over."""
        wanted = np.exp(self._log_weights) * m
        own = np.floor(wanted + 1e-9).astype(np.int64)
        chances = np.maximum(wanted - own, 0.0)
        n_left = m - int(own.sum())
        return own, chances / chances.sum() if n_left else chances, n_left

    def leaves(self) -> list[Noise]:
        return [leaf for part in self._parts() for leaf in part.leaves()]

    def strata(self, m: int) -> list[tuple[int, np.ndarray]]:
        own, chances, n_left = self._shares(m)
        found, left, before = [], np.zeros(len(self.leaves())), 0
        for part, n, chance in zip(self.parts_, own.tolist(), chances, strict=True):
            here = slice(before, before + len(part.leaves()))
            for size, weights in part.strata(n) if n else []:
                found.append((size, np.zeros_like(left)))
                found[-1][1][here] = weights
            # One draw at a time: whatever the part is made of, by chance.
            left[here] = chance * part.strata(1)[0][1]
            before = here.stop
        return found + ([(n_left, left)] if n_left else [])

    def sample(self, context: torch.Tensor, m: int, stream: Stream) -> Draw:
        own, chances, n_left = self._shares(m)
        contexts, n_parts = self._split(context), len(self.parts_)
        drawn = [
            part.sample(contexts[i], int(own[i]), stream.child(i)) if own[i] else None
            for i, part in enumerate(self.parts_)
        ]
        left = self._left_over(contexts, chances, n_left, stream)
        labels = torch.cat([*(draw.labels for draw in drawn if draw), left], 1)
        each = torch.empty((n_parts, len(context), m))
        stop = np.cumsum(own)
        for i, (part, draw) in enumerate(zip(self.parts_, drawn, strict=True)):
            # A part knows log q of what it drew itself.
            others = np.delete(np.arange(m), slice(stop[i] - own[i], stop[i]))
            each[i][:, others] = part.log_prob(contexts[i], labels[:, others])
            if draw:
                each[i][:, stop[i] - own[i] : stop[i]] = draw.log_q
        return Draw(labels, self._mixed(each))

    def _left_over(
        self, contexts: list[torch.Tensor], chances: np.ndarray, n: int, stream: Stream
    ) -> torch.Tensor:
        """Classes (rows, n), the part of each chosen by the stream itself."""
        rows, n_parts = len(stream.rows), len(self.parts_)
        labels = torch.empty((rows, n), dtype=torch.int64)
        below = np.cumsum(chances)[:-1]
        chosen = torch.from_numpy(np.searchsorted(below, stream.uniform(n), side="right"))
        for j in range(n):
            for i, part in enumerate(self.parts_):
                other = part.sample(contexts[i], 1, stream.child(n_parts * (j + 1) + i)).labels
                labels[:, j] = torch.where(chosen[:, j] == i, other[:, 0], labels[:, j])
        return labels

    def log_prob(self, context: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self._log_prob(self._split(context), labels)

    def _log_prob(self, contexts: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        pairs = zip(self.parts_, contexts, strict=True)
        return self._mixed(torch.stack([part.log_prob(own, labels) for part, own in pairs]))

    def _mixed(self, each: torch.Tensor) -> torch.Tensor:
        """log q from those of the parts, (parts, n, m)."""
        from extremax.kernels.cpu.mixture import mix_log_probs
        from extremax.kernels.cpu.threads import parallel

        out = torch.empty(each.shape[1:])
        parallel(mix_log_probs, len(out), 2048, self._log_weights, each.numpy(), out.numpy())
        return out

    def log_prob_all(self, context: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor | None = None
        for part, own, weight in zip(
            self.parts_, self._split(context), self._log_weights, strict=True
        ):
            log_q = part.log_prob_all(own) + float(weight)
            total = log_q if total is None else torch.logaddexp(total, log_q)
        assert total is not None
        return total

    def extend(self, n_classes: int) -> None:
        check_growth(self, n_classes)
        for part in self.parts_:
            part.extend(n_classes)
        late = torch.arange(self.n_classes_, n_classes)[None]
        if late.numel() and not self.follows_head:
            # What is left to the old classes is the same in any context: nothing will do for one.
            nothing = torch.zeros((1, sum(words for _, words in self._layout)), dtype=_WORD)
            pairs = zip(self.parts_, self._split(nothing), strict=True)
            taken = [part.log_prob(own, late).double().exp().sum() for part, own in pairs]
            log_weights = self._log_weights - np.log1p(-np.array(taken))
            self._log_weights = log_weights - np.logaddexp.reduce(log_weights)
        self.n_classes_ = n_classes

    def attach(self, head: LinearHead) -> None:
        for part in self.parts_:
            part.attach(head)

    def refresh(self, classes: torch.Tensor) -> None:
        for part in self.parts_:
            if part.follows_head:
                part.refresh(classes)

    def sharpnesses(self) -> tuple[float, ...]:
        return next((s for part in self._parts() if (s := part.sharpnesses())), ())

    def temper(self, sharpness: float) -> None:
        soft = [part for part in self._parts() if part.sharpnesses()]
        if not soft:
            super().temper(sharpness)
        for part in soft:
            part.temper(sharpness)

    def state(self) -> dict[str, torch.Tensor]:
        state = {
            f"{i}.{name}": tensor
            for i, part in enumerate(self.parts_)
            for name, tensor in part.state().items()
        }
        state["n_classes"] = torch.tensor(self.n_classes_)
        state["log_weights"] = torch.from_numpy(self._log_weights)
        state["layout"] = torch.tensor(self._layout, dtype=torch.int64)
        return state

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self._checked_log_weights()
        parts = [_made(part) for part in self.parts]
        for i, part in enumerate(parts):
            prefix = f"{i}."
            own = {k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}
            part.load_state(own)
        self.parts_, self._log_weights = parts, state["log_weights"].numpy()
        self.n_classes_ = int(state["n_classes"])
        self._layout = [(int(dtype), int(words)) for dtype, words in state["layout"]]

    def settings(self) -> dict[str, Any]:
        settings = self.get_params(deep=False)
        if any(isinstance(part, Noise) for part in self.parts):
            settings["parts"] = [_described(part) for part in self.parts]
        if isinstance(self.weights, np.ndarray):
            settings["weights"] = self.weights.tolist()
        return settings


def _made(part: Part) -> Noise:
    """An unfitted noise of what stands for it."""
    from extremax.noise import NOISES

    if isinstance(part, Noise):
        return clone(part)
    parameters = dict(part) if isinstance(part, dict) else {"noise": part}
    name = parameters.pop("noise", None)
    if not isinstance(name, str) or name not in NOISES:
        raise ValueError(f"a part must be one of {', '.join(NOISES)} or a noise, got {part!r}")
    return NOISES[name](**parameters)


def _described(part: Part) -> Part:
    """A name or a dictionary for JSON."""
    from extremax.noise import NOISES

    if not isinstance(part, Noise):
        return part
    names = {kind: name for name, kind in NOISES.items()}
    if type(part) not in names:
        raise ValueError(f"{type(part).__name__} is not in NOISES, so no one could load it")
    return {"noise": names[type(part)], **part.settings()}


def _shape(context: torch.Tensor) -> tuple[int, int]:
    """Its type and the number of 32-bit words of a row."""
    return _DTYPES.index(context.dtype), context.shape[1] * context.element_size() // 4
