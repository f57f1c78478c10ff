"""What an objective keeps for each training example (augment & reduce), by example number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from extremax.objectives import Objective, Pairs
from extremax.random import Purpose, Stream


class ExampleParameters:
    """Variational parameters of n examples, (n, `Objective.per_example_size`).

    An update depends on how often the example has been seen, as it depends on the epoch in
    `extremax.training`.
    """

    def __init__(self, objective: Objective, n_examples: int) -> None:
        self.objective = objective
        self.values = objective.per_example_start(n_examples)
        #: Updates of each example so far.
        self.n_updates = torch.zeros(n_examples, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.values)

    def update(self, pairs: Pairs, numbers: Tensor, seed: int) -> Tensor:
        """The values that the loss of the examples with these distinct numbers (n,) takes now;
        what they keep until the next visit is updated.

        pairs:  scores, log q and hits of the examples.
        """
        # Where the scores are, and as precise.
        self.values = self.values.to(pairs.scores)
        current = self.objective.current_per_example(
            pairs._replace(per_example=self.values[numbers])
        )
        self.n_updates = self.n_updates.to(numbers.device)
        epochs = self.n_updates[numbers]
        for epoch in epochs.unique().tolist():
            rows = epochs == epoch
            chosen = numbers[rows]
            stream = Stream.of(seed, Purpose.PER_EXAMPLE, epoch, rows=chosen.cpu().numpy())
            uniform = torch.from_numpy(stream.uniform(self.objective.per_example_size))
            before = Pairs(
                pairs.scores[rows], pairs.log_q[rows], pairs.hits[rows], self.values[chosen]
            )
            self.values[chosen] = self.objective.update_per_example(
                before, epoch, uniform.to(numbers.device)
            )
        self.n_updates[numbers] += 1
        return current

    def state(self) -> dict[str, Tensor]:
        return {"values": self.values, "n_updates": self.n_updates}

    def load_state(self, state: dict[str, Any] | None) -> None:
        """Restore what `state` returned."""
        name, size = type(self.objective).__name__, tuple(self.values.shape)
        if state is None:
            raise ValueError(f"the state has no parameters of examples, which {name} needs")
        values, n_updates = state["values"], state["n_updates"]
        if tuple(values.shape) != size or tuple(n_updates.shape) != size[:1]:
            raise ValueError(
                f"the state has parameters of shape {tuple(values.shape)} for its examples, but "
                f"this layer has {size}; construct it with the same objective and n_examples"
            )
        if not bool(values.isfinite().all()) or n_updates.is_floating_point():
            raise ValueError(f"the parameters of examples in the state of {name} are damaged")
        # Copies: the state stays the caller's.
        self.values, self.n_updates = values.clone(), n_updates.clone()
