"""Uniform and frequency noise drawn where the hidden states are, with no trip to the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from extremax.noise import Draw, FrequencyNoise, Noise, UniformNoise


class DeviceTable:
    """The tables of a fixed q on a device: C thresholds and aliases (Walker 1977), and log q."""

    def __init__(self, noise: UniformNoise | FrequencyNoise, device: torch.device) -> None:
        self.n_classes, self.device = noise.n_classes_, device
        self.log_q = noise.log_prob_all(torch.empty((1, 0)))[0].to(device)
        self.threshold: Tensor | None = None
        if isinstance(noise, FrequencyNoise):
            self.threshold = torch.from_numpy(noise._threshold).to(device)
            self.alias = torch.from_numpy(noise._alias).to(device)

    def sample(self, shape: tuple[int, ...], seed: int) -> Draw:
        """Independent draws of this shape."""
        generator = torch.Generator(self.device).manual_seed(seed)
        labels = torch.randint(self.n_classes, shape, generator=generator, device=self.device)
        if self.threshold is not None:
            uniform = torch.rand(
                shape, generator=generator, device=self.device, dtype=torch.float64
            )
            labels = torch.where(uniform < self.threshold[labels], labels, self.alias[labels])
        return Draw(labels, self.log_q[labels])


def device_table(noise: Noise, device: torch.device) -> DeviceTable | None:
    """A table for noises that can be drawn on the device, None for the others."""
    # The very classes: one derived from them may draw otherwise.
    if type(noise) in (UniformNoise, FrequencyNoise):
        return DeviceTable(noise, device)
    return None
