"""Noises sampled on the device of the hidden states, without a round trip to the CPU.

q is the same as on the CPU, computed by torch operations; the random numbers differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from extremax.nn.device_tables import Bigram, Table
from extremax.nn.device_tree import Tree
from extremax.nn.inversion import Random, blocks, draw
from extremax.noise import (
    BigramNoise,
    FrequencyNoise,
    LogUniformNoise,
    MixtureNoise,
    Noise,
    QuadraticNoise,
    QuarticNoise,
    SoftmaxNoise,
    TreeNoise,
    UniformNoise,
)


class DeviceNoise(Protocol):
    """q(y|h) for rows h (n, F) on a device."""

    def sample(self, hidden: Tensor, m: int, generator: Random) -> Tensor:
        """Drawn classes, (n, m)."""

    def log_prob(self, hidden: Tensor, classes: Tensor) -> Tensor:
        """log q of classes (n, j), same shape."""

    def sample_others(self, hidden: Tensor, target: Tensor, m: int, generator: Random) -> Tensor:
        """Classes (n, m) drawn from q over the classes other than each row's target (n, 1)."""

    def log_prob_others(self, hidden: Tensor, target: Tensor, classes: Tensor) -> Tensor:
        """log q of classes (n, j), given that they are not the target (n, 1), same shape.

        Accurate also where q of the target rounds to one.
        """


def _tree(noise: TreeNoise, weight: Tensor, bias: Tensor | None) -> Tree | None:
    """None if classes were added after the fit: they are not in the tree."""
    return None if noise.n_late_ else Tree(noise, weight, bias)


def _bigram(noise: BigramNoise, weight: Tensor, bias: Tensor | None) -> Bigram | None:
    """None if classes were added after the fit, or if there are no pairs."""
    fitted = len(noise.contexts_) and len(noise.unigram_) == noise.n_classes_
    return Bigram(noise, weight, bias) if fitted else None


class Scores:
    """A noise that follows its layer, from the scores of all classes.

    O(C) per row, but a matrix product, and no tree to keep up to date. float64 for sums over 10⁶
    classes.

    log_mass:  log of the unnormalized q, from the noise and its scores.
    """

    def __init__(
        self, log_mass: Callable[[Any, Tensor], Tensor], noise: Noise, weight: Tensor,
        bias: Tensor | None,
    ) -> None:  # fmt: skip
        self.log_mass, self.noise, self.weight, self.bias = log_mass, noise, weight, bias

    def sample(self, hidden: Tensor, m: int, generator: Random) -> Tensor:
        classes = []
        for _, log_mass in self._log_masses(hidden):
            cumulative = torch.softmax(log_mass, 1).cumsum(1)
            classes.append(draw(cumulative, (len(log_mass), m), generator))
        return torch.cat(classes)

    def log_prob(self, hidden: Tensor, classes: Tensor) -> Tensor:
        return torch.cat([
            torch.log_softmax(log_mass, 1).gather(1, classes[rows]).float()
            for rows, log_mass in self._log_masses(hidden)
        ])  # fmt: skip

    def sample_others(self, hidden: Tensor, target: Tensor, m: int, generator: Random) -> Tensor:
        classes = []
        for rows, log_mass in self._log_masses(hidden):
            cumulative = torch.softmax(_without(log_mass, target[rows]), 1).cumsum(1)
            classes.append(draw(cumulative, (len(log_mass), m), generator))
        return torch.cat(classes)

    def log_prob_others(self, hidden: Tensor, target: Tensor, classes: Tensor) -> Tensor:
        return torch.cat([
            torch.log_softmax(_without(log_mass, target[rows]), 1).gather(1, classes[rows]).float()
            for rows, log_mass in self._log_masses(hidden)
        ])  # fmt: skip

    def _log_masses(self, hidden: Tensor) -> Iterator[tuple[slice, Tensor]]:
        weight = self.weight.detach()
        hidden = hidden.detach().to(weight.dtype)
        for rows in blocks(len(hidden), 4 * len(weight)):
            scores = hidden[rows] @ weight.T
            if self.bias is not None:
                scores = scores + self.bias.detach()
            yield rows, self.log_mass(self.noise, scores.double())


def _without(log_mass: Tensor, target: Tensor) -> Tensor:
    """log_mass (n, C) without the class of each row in target (n, 1)."""
    return log_mass.scatter(1, target, -torch.inf)


class Mixture:
    """Each part makes its share of the draws, as on the CPU; log q is that of the mixture.

    Parts leave out a target one by one, as on the CPU, and keep their shares.
    """

    def __init__(self, noise: MixtureNoise, parts: list[DeviceNoise], device: torch.device) -> None:
        self.noise, self.parts = noise, parts
        self.log_weights = torch.as_tensor(noise.log_weights_, dtype=torch.float32, device=device)
        #: Sums of the chances of the parts, by m: a copy from the host would wait for the device.
        self._cumulative: dict[int, Tensor] = {}

    def sample(self, hidden: Tensor, m: int, generator: Random) -> Tensor:
        sample_parts = [partial(part.sample, hidden) for part in self.parts]
        return self._sample(sample_parts, len(hidden), m, generator)

    def log_prob(self, hidden: Tensor, classes: Tensor) -> Tensor:
        return self._mixed([part.log_prob(hidden, classes) for part in self.parts])

    def sample_others(self, hidden: Tensor, target: Tensor, m: int, generator: Random) -> Tensor:
        sample_parts = [partial(part.sample_others, hidden, target) for part in self.parts]
        return self._sample(sample_parts, len(hidden), m, generator)

    def log_prob_others(self, hidden: Tensor, target: Tensor, classes: Tensor) -> Tensor:
        return self._mixed([part.log_prob_others(hidden, target, classes) for part in self.parts])

    def _sample(
        self, sample_parts: Sequence[Callable[[int, Random], Tensor]], n_rows: int, m: int,
        generator: Random,
    ) -> Tensor:  # fmt: skip
        """Classes (n_rows, m).

        sample_parts:  draw a number of classes per row from each part.
        """
        counts, chances, n_left = self.noise.shares(m)
        pairs = zip(sample_parts, counts.tolist(), strict=True)
        drawn = [sample(n, generator) for sample, n in pairs if n]
        if m not in self._cumulative:
            sums = torch.from_numpy(np.cumsum(chances)).to(generator.device)
            self._cumulative = {m: sums}
        cumulative = self._cumulative[m]
        for _ in range(n_left):
            candidates = torch.cat([sample(1, generator) for sample in sample_parts], 1)
            chosen = draw(cumulative, (n_rows, 1), generator)
            drawn.append(candidates.gather(1, chosen))
        return torch.cat(drawn, 1)

    def _mixed(self, log_q: list[Tensor]) -> Tensor:
        """log q of the mixture from that of its parts."""
        return torch.logsumexp(torch.stack(log_q, -1) + self.log_weights, -1)


def _mixture(noise: MixtureNoise, weight: Tensor, bias: Tensor | None) -> Mixture | None:
    """None if a part has no form for the device."""
    forms = [device_noise(part, weight, bias) for part in noise.parts_]
    parts = [form for form in forms if form is not None]
    return Mixture(noise, parts, weight.device) if len(parts) == len(forms) else None


#: Device forms by the class of the noise; other noises, subclasses included, draw on the CPU.
DEVICE_FORMS: dict[type[Noise], Callable[[Any, Tensor, Tensor | None], DeviceNoise | None]] = {
    UniformNoise: Table,
    FrequencyNoise: Table,
    LogUniformNoise: Table,
    BigramNoise: _bigram,
    TreeNoise: _tree,
    SoftmaxNoise: partial(Scores, lambda noise, scores: scores.abs() if noise.absolute else scores),
    QuadraticNoise: partial(
        Scores, lambda noise, scores: torch.log1p(noise.alpha * scores.square())
    ),
    QuarticNoise: partial(Scores, lambda noise, scores: torch.log1p(scores.square().square())),
    MixtureNoise: _mixture,
}


def device_noise(noise: Noise, weight: Tensor, bias: Tensor | None) -> DeviceNoise | None:
    """The noise on the device of the weight, or None if it can only be sampled on the CPU."""
    form = DEVICE_FORMS.get(type(noise))
    return None if form is None else form(noise, weight, bias)
