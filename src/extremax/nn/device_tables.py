"""Noises of frequencies on the device of the hidden states."""

from __future__ import annotations

import torch
from torch import Tensor

from extremax.nn.inversion import Random, draw, locate, uniform
from extremax.noise import BigramNoise, FrequencyNoise, Noise


class Table:
    """A noise that does not read rows: one log q per class, drawn by inverting its sums."""

    def __init__(self, noise: Noise, weight: Tensor, bias: Tensor | None) -> None:
        self.log_q = noise.log_prob_all(torch.empty((1, 0)))[0].to(weight.device)
        self.cumulative = self.log_q.double().exp().cumsum(0)

    def sample(self, hidden: Tensor, m: int, generator: Random) -> Tensor:
        return draw(self.cumulative, (len(hidden), m), generator)

    def log_prob(self, hidden: Tensor, classes: Tensor) -> Tensor:
        return self.log_q[classes]

    def sample_others(self, hidden: Tensor, target: Tensor, m: int, generator: Random) -> Tensor:
        below, after, above = self._around(target)
        position = uniform((len(target), m), generator) * (below + above)
        # Positions from the start of the target's interval on continue after its end.
        skipped = torch.where(position < below, position, after + (position - below))
        return locate(self.cumulative, skipped)

    def log_prob_others(self, hidden: Tensor, target: Tensor, classes: Tensor) -> Tensor:
        return (self.log_q[classes] - torch.log(self.other_mass(target))).float()

    def other_mass(self, target: Tensor) -> Tensor:
        """The sum of q over the classes other than the target."""
        below, _, above = self._around(target)
        return below + above

    def _around(self, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The sums of q before a class and up to it, and the sum of what comes after it."""
        after = self.cumulative[target]
        below = torch.where(target > 0, self.cumulative[target - 1], 0.0)
        return below, after, self.cumulative[-1] - after


class Bigram:
    """`BigramNoise` without late classes: q(y|c) = n(c, y)/(N_c + β) + s_c q(y).

    A draw is from the counts of its context or, with probability s_c, from the frequencies q(y).
    """

    def __init__(self, noise: BigramNoise, weight: Tensor, bias: Tensor | None) -> None:
        state = {name: tensor.to(weight.device) for name, tensor in noise.state().items()}
        self.column, self.n_classes = noise.column, noise.n_classes_
        self.contexts, offsets = state["contexts"], state["offsets"]
        # Sums of whole numbers, which float64 holds exactly.
        self.classes, self.counts = state["classes"], state["counts"].double()
        self.cumulative = self.counts.cumsum(0)
        numbers = torch.arange(len(self.contexts), device=weight.device)
        #: Numbers of the pairs of context and class, which rise.
        self.pairs = numbers.repeat_interleave(offsets.diff()) * self.n_classes + self.classes
        starts = torch.cat([self.counts.new_zeros(1), self.cumulative])[offsets]
        per_count = 1.0 / (state["totals"].double() + noise.backoff_)
        shares = 1.0 - starts.diff() * per_count
        # One more context stands for all others: it has no pairs, and nothing but frequencies.
        self.starts, self.n_kept = starts, _append(starts.diff(), 0.0)
        self.per_count, self.shares = _append(per_count, 0.0), _append(shares, 1.0)
        unigram = FrequencyNoise()
        unigram.load_state({"counts": noise.unigram_})
        self.unigram = Table(unigram, weight, bias)

    def sample(self, hidden: Tensor, m: int, generator: Random) -> Tensor:
        context = self._context(hidden)
        of_frequencies = self.unigram.sample(hidden, m, generator)
        nothing = torch.zeros_like(context)
        return self._draw(context, (nothing, nothing), of_frequencies, 1.0, generator)

    def log_prob(self, hidden: Tensor, classes: Tensor) -> Tensor:
        return torch.log(self._mass(self._context(hidden), classes)).float()

    def sample_others(self, hidden: Tensor, target: Tensor, m: int, generator: Random) -> Tensor:
        context = self._context(hidden)
        position, count = self._find(context, target)
        start = self.cumulative[position] - self.starts[context] - count
        of_frequencies = self.unigram.sample_others(hidden, target, m, generator)
        frequency = self.unigram.other_mass(target)
        return self._draw(context, (start, count), of_frequencies, frequency, generator)

    def log_prob_others(self, hidden: Tensor, target: Tensor, classes: Tensor) -> Tensor:
        context = self._context(hidden)
        counts = (self.n_kept[context] - self._find(context, target)[1]) * self.per_count[context]
        others = counts + self.unigram.other_mass(target) * self.shares[context]
        return torch.log(self._mass(context, classes) / others).float()

    def _draw(
        self, context: Tensor, gap: tuple[Tensor, Tensor], of_frequencies: Tensor,
        frequency: Tensor | float, generator: Random,
    ) -> Tensor:  # fmt: skip
        """Classes (n, m).

        gap:             start and length of what is left out of the counts of the context.
        of_frequencies:  classes (n, m) drawn from the frequencies.
        frequency:       the sum of the frequencies of the classes that may be drawn.
        """
        shape = (len(of_frequencies), of_frequencies.shape[1])
        n_kept = self.n_kept[context] - gap[1]
        of_counts = n_kept * self.per_count[context]
        chosen = uniform(shape, generator) * (of_counts + frequency * self.shares[context])
        row = torch.floor(uniform(shape, generator) * n_kept)
        row = self.starts[context] + torch.where(row < gap[0], row, row + gap[1])
        drawn = self.classes[locate(self.cumulative, row)]
        return torch.where(chosen < of_counts, drawn, of_frequencies)

    def _mass(self, context: Tensor, classes: Tensor) -> Tensor:
        """q of classes (n, j)."""
        counts = self._find(context, classes)[1] * self.per_count[context]
        return counts + self.unigram.log_q[classes].double().exp() * self.shares[context]

    def _find(self, context: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of pairs of the context (n, 1) and classes (n, j), and their counts or zero."""
        pairs = context * self.n_classes + classes
        position = torch.searchsorted(self.pairs, pairs).clamp(max=len(self.pairs) - 1)
        return position, torch.where(self.pairs[position] == pairs, self.counts[position], 0.0)

    def _context(self, hidden: Tensor) -> Tensor:
        """(n, 1) indices of the kept contexts, as `BigramNoise.context`."""
        values = hidden[:, self.column, None].double().floor().long()
        index = torch.searchsorted(self.contexts, values).clamp(max=len(self.contexts) - 1)
        return torch.where(self.contexts[index] == values, index, len(self.contexts))


def _append(values: Tensor, last: float) -> Tensor:
    return torch.cat([values, values.new_full((1,), last)])
