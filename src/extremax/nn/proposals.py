"""Draws of a noise for a batch of hidden states, on any device.

Noises without a form for the device (`extremax.nn.device_draws`) are sampled on the CPU; only the
draws, m numbers per example, are moved to the device.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from extremax.nn.device_draws import DeviceNoise, device_noise
from extremax.nn.device_tables import Table
from extremax.nn.following import Follower
from extremax.nn.functional import widen
from extremax.nn.inversion import Random, StepRandom
from extremax.nn.scores import has_kernels
from extremax.noise import Noise, UniformNoise, describe_noise, make_noise
from extremax.random import Stream
from extremax.tensors import Tensors


class Proposals:
    """The noise of a layer, fitted at the start or later."""

    def __init__(self, noise: str | Noise, n_classes: int, in_features: int, seed: int) -> None:
        # A deep copy keeps the fit; the caller's noise may follow another head.
        self.noise = copy.deepcopy(noise) if isinstance(noise, Noise) else make_noise(noise)
        #: What messages call the noise.
        self.name = type(self.noise).__name__
        self.n_classes, self.in_features = n_classes, in_features
        self.seed = seed
        #: The number of steps so far, on the device of the draws. Steps on a GPU count it there, so
        #: that a CUDA graph has new draws whenever it is replayed.
        self._step = torch.zeros((), dtype=torch.int64)
        self.follower = Follower(self.noise)
        if not self.fitted and self.noise.needs_no_data:
            self.noise.fit(np.empty((0, in_features), np.float32), np.empty(0, np.int64), n_classes)
        self._start(None)

    @property
    def n_steps(self) -> int:
        """Training steps so far."""
        return int(self._step)

    @n_steps.setter
    def n_steps(self, value: int) -> None:
        self._step.fill_(value)

    @property
    def fitted(self) -> bool:
        return hasattr(self.noise, "n_classes_")

    @property
    def fits_to_rows(self) -> bool:
        """Whether a fit needs rows, rather than classes alone or nothing."""
        return any(leaf.reads_rows and not leaf.needs_no_data for leaf in self.noise.leaves())

    def refitted_parts(self) -> list[Noise]:
        """The leaves of the noise that follow the hidden states by being fitted again."""
        return [leaf for leaf in self.noise.leaves() if leaf.refits]

    def _start(self, n_columns: int | None) -> None:
        """Use the noise as it is now; an unfitted noise is replaced by uniform draws.

        n_columns:  columns of the rows that the noise was fitted to, if known.
        """
        if self.fitted and self.noise.n_classes_ != self.n_classes:
            raise ValueError(
                f"noise was fitted to {self.noise.n_classes_} classes, but n_classes is "
                f"{self.n_classes}"
            )
        self.active: Noise = self.noise
        if not self.fitted:
            labels = np.empty(0, np.int64)
            self.active = UniformNoise().fit(np.empty((0, 0)), labels, self.n_classes)
        if n_columns is None and self.noise.follows_head:
            n_columns = self.in_features
        elif n_columns is None and self.fitted:
            n_columns = self.noise.n_features_read
        #: Columns of the rows that the noise was fitted to, if known.
        self.n_columns = n_columns
        self.follower.close()
        self.follower = Follower(self.active)
        #: The tensors that a device form of the noise is for, and the form.
        self._device_noise: tuple[Any, DeviceNoise | None] | None = None

    def fit(self, features: Tensor | None, target: Tensor) -> None:
        """Fit the noise to rows (n, F) and their classes (n)."""
        labels = target.reshape(-1).cpu().numpy()
        if features is None and self.fits_to_rows:
            raise ValueError(f"features must be given to fit {self.name}, got None")
        # Placeholder rows, without memory, for noises that learn from classes only.
        rows = np.broadcast_to(np.float32(0.0), (len(labels), self.in_features))
        if features is not None:
            given = _as_array(features)
            if len(given) != len(labels):
                raise ValueError(f"features have {len(given)} rows but target has {len(labels)}")
            rows = given if self.fits_to_rows else rows
        self.noise.fit(rows, labels, self.n_classes)
        self._start(rows.shape[1])

    def refit(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Refit the parts that need it; fit the whole noise if it is not fitted yet."""
        for part in self.refitted_parts() if self.fitted else [self.noise]:
            part.fit(features, labels, self.n_classes)
        self._start(features.shape[1])

    def propose(
        self, features: Tensor, target: Tensor, m: int, shared: bool, weight: Tensor,
        bias: Tensor | None, others: bool = False, truth: bool = True,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """m draws per row of features (n, F), or m draws for all rows together.

        others:  draw from q over the classes other than the row's target; log q of the draws is
                 then that of this distribution. Draws for all rows together cannot.
        truth:   compute log q of the target; NaN otherwise.

        Returns the drawn classes, (n, m) or shared (m,), and log q of the target and the draws,
        (n, 1 + m).
        """
        self._check_width(features)
        device, n = target.device, len(target)
        on_device = self.on_device(weight, bias)
        self._advance(torch.device("cpu") if on_device is None else device)
        if on_device is not None:
            generator = self._random(weight)
            labels, rows = target[:, None], features[:1] if shared else features
            if others:
                drawn = on_device.sample_others(rows, labels, m, generator)
                log_q = on_device.log_prob_others(rows, labels, drawn)
            else:
                drawn = on_device.sample(rows, m, generator)
                log_q = on_device.log_prob(rows, drawn)
            true_log_q = on_device.log_prob(features, labels) if truth else None
        else:
            context, labels = self._context(features, weight, bias), target.cpu()[:, None]
            stream = Stream.of(self.seed, self.n_steps, rows=np.arange(1 if shared else n))
            # The same context object in both calls: a noise may cache what it computed from it.
            if others:
                drawn, log_q = self.active.sample_others(context, labels, m, stream)
            else:
                drawn, log_q = self.active.sample(context[:1] if shared else context, m, stream)
            true_log_q = self.active.log_prob(context, labels).to(device) if truth else None
            drawn, log_q = drawn.to(device), log_q.to(device)
        if shared:
            drawn, log_q = drawn[0], log_q[0]
        if true_log_q is None:
            true_log_q = log_q.new_full((n, 1), torch.nan)
        return drawn, torch.cat([true_log_q, log_q.expand(n, m)], 1)

    def propose_marked(
        self, features: Tensor, target: Tensor, m: int, shared: bool, weight: Tensor,
        bias: Tensor | None, ignore_index: int, others: bool, truth: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Targets and draws together, and their log q, without a wait for the device; arguments are
        as in `propose`, results as in `extremax.kernels.gpu.draws.draw_classes`. The noise must
        have a form for the device, and a GPU with kernels."""
        from extremax.kernels.gpu import draws

        on_device = self.on_device(weight, bias)
        if isinstance(on_device, Table):
            self._advance(target.device)
            table = draws.Table(on_device.log_q, on_device.cumulative)
            clock = draws.Clock(self.seed, self._step)
            return draws.draw_classes(
                table, clock, target, m, shared=shared, others=others, ignore_index=ignore_index
            )
        is_class = (target >= 0) & (target < self.n_classes)
        label = torch.where(is_class, target, 0)
        drawn, log_q = self.propose(features, label, m, shared, weight, bias, others, truth)
        marked = torch.where(is_class, target, draws.UNKNOWN)
        marked = torch.where(target == ignore_index, draws.IGNORED, marked)
        if shared:
            log_q = torch.cat([log_q[:, 0], log_q[0, 1:]])
            return torch.cat([marked, drawn]).int(), log_q
        drawn = torch.where(marked[:, None] < 0, marked[:, None], drawn)
        return torch.cat([marked[:, None], drawn], 1).int(), log_q

    def _advance(self, device: torch.device) -> None:
        """Count a step, on a device."""
        if self._step.device != device:
            self._step = self._step.to(device)
        self._step.add_(1)

    def _random(self, weight: Tensor) -> Random:
        """The random numbers of this step, on the device of the weight."""
        if has_kernels(weight, weight):
            return StepRandom(self.seed, self._step)
        seed = int(Stream.of(self.seed, self.n_steps, rows=np.empty(0)).key >> np.uint64(1))
        return torch.Generator(weight.device).manual_seed(seed)

    def log_prob_all(self, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """log q of every class, (n, C) or (1, C)."""
        self._check_width(features)
        context = self._context(features, weight, bias)
        return self.active.log_prob_all(context).to(features.device)

    def _context(self, features: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        if self.active.follows_head:
            self.follower.catch_up(weight, bias)
        return self.active.context(_as_array(features))

    def _check_width(self, features: Tensor) -> None:
        found, expected = features.shape[1], self.n_columns
        if self.active.reads_rows and expected is not None and found != expected:
            rows = f"context has {found}"
            if found == self.in_features:
                rows = f"hidden has {found}: pass context="
            columns = "column" if expected == 1 else "columns"
            raise ValueError(f"noise was fitted to {expected} {columns}, {rows}")

    def on_device(self, weight: Tensor, bias: Tensor | None) -> DeviceNoise | None:
        """The noise on the device of the weight; None on the CPU or if it has no form there."""
        if weight.device.type == "cpu":
            return None
        # A device form may hold this very memory; autograd may pass it as other objects.
        key = (weight.device, weight.data_ptr(), None if bias is None else bias.data_ptr())
        if self._device_noise is None or self._device_noise[0] != key:
            self._device_noise = key, device_noise(self.active, weight, bias)
        return self._device_noise[1]

    def state(self) -> dict[str, Any]:
        """The noise, its fitted tensors, and the position of its random numbers."""
        return {
            "noise": self._description(),
            "n_columns": self.n_columns,
            "fitted": self.noise.state() if self.fitted else None,
            "seed": self.seed,
            "n_steps": self.n_steps,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; the noise must have the same class and settings."""
        if state["noise"] != self._description():
            raise ValueError(
                f"the state is from a layer with noise {state['noise']}, but this layer has "
                f"{self._description()}; construct the layer with the same noise"
            )
        if state["fitted"] is not None:
            # A copy: the noise keeps the tensors, and the state stays the caller's.
            fitted = {name: tensor.cpu().clone() for name, tensor in state["fitted"].items()}
            n_columns = self.in_features if state["n_columns"] is None else state["n_columns"]
            self.noise.validate(Tensors(fitted, self.name), self.n_classes, n_columns)
            self.noise.load_state(fitted)
        self.seed, self.n_steps = int(state["seed"]), int(state["n_steps"])
        self._start(state["n_columns"])

    def _description(self) -> str:
        description = describe_noise(self.noise)
        # Numbers of numpy and of Python are equal settings.
        return json.dumps(description, sort_keys=True, default=lambda value: value.tolist())


class RecentRows:
    """Ring buffer of the latest ``n_rows`` rows that the noise reads, and their classes."""

    def __init__(self, n_rows: int) -> None:
        self.n_rows, self._next, self._filled = n_rows, 0, 0
        self._features: Tensor | None = None
        #: Batches added since the last `take`.
        self.n_batches = 0

    def add(self, features: Tensor, target: Tensor) -> None:
        """Store one batch, in place of the oldest rows if the buffer is full."""
        features, target = features[-self.n_rows :], target[-self.n_rows :]
        if self._features is None:
            self._features = torch.empty((self.n_rows, features.shape[1]))
            self._target = torch.empty(self.n_rows, dtype=torch.int64)
        positions = (self._next + torch.arange(len(target))) % self.n_rows
        self._features[positions] = features.detach().to("cpu", torch.float32)
        self._target[positions] = target.cpu()
        self._next = (self._next + len(target)) % self.n_rows
        self._filled = min(self.n_rows, self._filled + len(target))
        self.n_batches += 1

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """Stored rows and their classes, without copies."""
        assert self._features is not None
        self.n_batches = 0
        return self._features[: self._filled].numpy(), self._target[: self._filled].numpy()


def _as_array(features: Tensor) -> np.ndarray:
    """Rows for a noise; half precision as float32, because numpy lacks bfloat16."""
    rows = widen(features.detach())
    return rows.reshape(-1, rows.shape[-1]).cpu().contiguous().numpy()
