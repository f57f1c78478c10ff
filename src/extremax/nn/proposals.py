"""Draws of a noise for the hidden states of a batch, on whatever device those are.

What has no form of its own for the device (`extremax.nn.device_draws`) is drawn on the CPU, and
the draws, some m numbers an example, are moved.
"""

from __future__ import annotations

import copy
import json
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from extremax.nn.device_draws import DeviceNoise, device_noise
from extremax.nn.following import Follower
from extremax.nn.refitting import trees_in
from extremax.noise import NOISES, MixtureNoise, Noise, SoftmaxNoise, TreeNoise, UniformNoise
from extremax.noise.kernel import KernelNoise
from extremax.random import Stream


class Proposal(NamedTuple):
    """Drawn classes, (n, m) or shared (m,); log q of target and draws, (n, 1 + m)."""

    drawn: Tensor
    log_q: Tensor


class Proposals:
    """A noise beside a module: fitted now or later, following its weight if that is its way."""

    _device_noise: tuple[Any, DeviceNoise | None] | None

    def __init__(self, noise: str | Noise, n_classes: int, in_features: int, seed: int) -> None:
        self.noise = _made(noise)
        self.n_classes, self.in_features = n_classes, in_features
        self.seed, self.n_steps = seed, 0
        self.follower = Follower(self.noise)
        if not self.fitted and _needs_no_data(self.noise):
            self.noise.fit(np.empty((0, in_features), np.float32), np.empty(0, np.int64), n_classes)
        self._start()

    @property
    def fitted(self) -> bool:
        return hasattr(self.noise, "n_classes_")

    @property
    def looks_at_features(self) -> bool:
        """Whether q depends on the example."""
        return any(type(leaf).context is not Noise.context for leaf in self.noise.leaves())

    def _start(self, width: int | None = None) -> None:
        """After the noise was fitted, to so many columns, or loaded; before that, draws would be
        uniform."""
        if self.fitted and self.noise.n_classes_ != self.n_classes:
            raise ValueError(
                f"noise was fitted to {self.noise.n_classes_} classes, n_classes is "
                f"{self.n_classes}"
            )
        self.active: Noise = self.noise
        #: Columns of what the noise looks at; None where it looks at nothing, or where only who
        #: fitted it knows.
        self.width: int | None = None
        if self.fitted and self.looks_at_features:
            own = _own_width(self.noise, self.in_features)
            self.width = width if own is None else own
        if not self.fitted:
            labels = np.empty(0, np.int64)
            self.active = UniformNoise().fit(np.empty((0, 0)), labels, self.n_classes)
        self.follower.close()
        self.follower = Follower(self.active)
        self._forget_device()

    def fit(self, features: Tensor | None, target: Tensor) -> None:
        labels = target.reshape(-1).cpu().numpy()
        if features is None:
            if trees_in(self.noise):
                raise ValueError("features are needed to fit tree noise, got None")
            rows = np.empty((len(labels), 0), np.float32)
        else:
            rows = as_array(features)
            if len(rows) != len(labels):
                raise ValueError(f"features have {len(rows)} rows but target {len(labels)}")
        self.noise.fit(rows, labels, self.n_classes)
        self._start(rows.shape[1])

    def refit(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Trees anew; the first time, whatever else is not fitted yet."""
        parts = trees_in(self.noise) if self.fitted else [self.noise]
        for part in parts:
            part.fit(features, labels, self.n_classes)
        if parts == [self.noise]:
            self._start(features.shape[1])
        self._forget_device()

    def propose(
        self, features: Tensor, target: Tensor, m: int, shared: bool, weight: Tensor,
        bias: Tensor | None,
    ) -> Proposal:  # fmt: skip
        """m draws for each row of features (n, F), or for all of them together."""
        self._check_width(features)
        device, n = target.device, len(target)
        self.n_steps += 1
        on_device = self._on_device(weight, bias)
        if on_device is not None:
            seed = int(Stream.of(self.seed, self.n_steps, rows=np.empty(0)).key >> np.uint64(1))
            generator = torch.Generator(device).manual_seed(seed)
            rows = features[:1] if shared else features
            drawn = on_device.sample(rows, m, generator)
            log_q = on_device.log_prob(rows, drawn)
            own = on_device.log_prob(features, target[:, None])
        else:
            if self.active.follows_head:
                self.follower.catch_up(weight, bias)
            context = self.active.context(as_array(features))
            stream = Stream.of(self.seed, self.n_steps, rows=np.arange(1 if shared else n))
            # The very context, if it can be: a noise may remember what it computed of it.
            drawn, log_q = self.active.sample(context[:1] if shared else context, m, stream)
            own = self.active.log_prob(context, target.cpu()[:, None]).to(device)
            drawn, log_q = drawn.to(device), log_q.to(device)
        if shared:
            drawn, log_q = drawn[0], log_q[0]
        return Proposal(drawn, torch.cat([own, log_q.expand(n, m)], 1))

    def log_prob_all(self, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """log q of every class, (n, C) or (1, C)."""
        self._check_width(features)
        if self.active.follows_head:
            self.follower.catch_up(weight, bias)
        context = self.active.context(as_array(features))
        return self.active.log_prob_all(context).to(features.device)

    def _check_width(self, features: Tensor) -> None:
        found = features.shape[1]
        if self.width is None or found == self.width:
            return
        columns = f"{self.width} column{'s' if self.width > 1 else ''}"
        what = f"context has {found}"
        if found == self.in_features:
            what = f"hidden has {found}: pass context="
        raise ValueError(f"noise was fitted to {columns}, {what}")

    def _on_device(self, weight: Tensor, bias: Tensor | None) -> DeviceNoise | None:
        """The noise on the device of the weight, if that is not the CPU and it can be."""
        if weight.device.type == "cpu":
            return None
        # These very tensors: a noise that follows them holds them.
        for_these = (weight.device, id(weight), id(bias))
        if self._device_noise is None or self._device_noise[0] != for_these:
            self._device_noise = for_these, device_noise(self.active, weight, bias)
        return self._device_noise[1]

    def _forget_device(self) -> None:
        self._device_noise = None

    def state(self) -> dict[str, Any]:
        """Kind and fitted tensors of the noise, and where its random numbers stand."""
        return {
            "noise": type(self.noise).__name__,
            "settings": _settings(self.noise),
            "width": self.width,
            "fitted": self.noise.state() if self.fitted else None,
            "seed": self.seed,
            "n_steps": self.n_steps,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        own = type(self.noise).__name__
        if state["noise"] != own:
            raise ValueError(f"the state is of a module with {state['noise']}, this one has {own}")
        if state["settings"] != _settings(self.noise):
            raise ValueError(
                f"the state is of a module with {own} of settings {state['settings']}, this one "
                f"has {_settings(self.noise)}"
            )
        if state["fitted"] is not None:
            # A copy: a noise keeps what it is given, and the state stays the caller's.
            self.noise.load_state({k: v.cpu().clone() for k, v in state["fitted"].items()})
        self.seed, self.n_steps = int(state["seed"]), int(state["n_steps"])
        self._start(state["width"])


def as_array(features: Tensor) -> np.ndarray:
    """Rows for a noise; half precision, which numpy has not, as float32."""
    features = features.detach()
    if features.dtype in (torch.bfloat16, torch.float16):
        features = features.float()
    return features.reshape(-1, features.shape[-1]).cpu().contiguous().numpy()


def _made(noise: str | Noise) -> Noise:
    if isinstance(noise, Noise):
        # A copy, because a noise that follows a head follows one.
        return copy.deepcopy(noise)
    if not isinstance(noise, str) or noise not in NOISES:
        raise ValueError(f"noise must be one of {', '.join(NOISES)} or a Noise, got {noise!r}")
    return NOISES[noise]()


def _settings(noise: Noise) -> str:
    """Constructor arguments as a text, to be compared."""

    def plain(value: Any) -> Any:
        return value.tolist() if hasattr(value, "tolist") else repr(value)

    return json.dumps(noise.get_params(deep=False), sort_keys=True, default=plain)


def _own_width(noise: Noise, in_features: int) -> int | None:
    """Columns that a fitted noise looks at, where it knows."""
    for leaf in noise.leaves():
        if leaf.follows_head:
            return in_features
        if isinstance(leaf, TreeNoise):
            return len(leaf.pca_.mean_)
    return None


def _needs_no_data(noise: Noise) -> bool:
    """Whether q depends on nothing but the number of classes and the head."""
    if isinstance(noise, MixtureNoise):
        return all(_needs_no_data(part) for part in noise._parts())
    return isinstance(noise, (UniformNoise, SoftmaxNoise, KernelNoise))
