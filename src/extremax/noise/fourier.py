"""Random Fourier noise: about q(y|x) ∝ exp(ν cos(h, w_y)).

Rawat, Chen, Yu, Suresh & Kumar, "Sampled softmax with random Fourier features", NeurIPS 2019.
For unit vectors u = h/‖h‖ and v = w/‖w‖ the Gaussian kernel exp(−ν‖u − v‖²/2) is e^(−ν) e^(ν u·v):
the softmax, where all rows of the head have the same length. Features

    φ(u) = D^(−1/2) [cos Ωu, sin Ωu],  Ω ~ N(0, ν I), D rows,

give it as E⟨φ(u), φ(v)⟩ (Rahimi & Recht 2007), and their sums are what the tree of
`extremax.noise.kernel` keeps.
"""

from __future__ import annotations

import numpy as np
import torch

from extremax.checks import is_number
from extremax.head import LinearHead
from extremax.kernels.cpu import kernel_sums
from extremax.kernels.cpu import kernel_tree as kernel
from extremax.kernels.cpu.threads import parallel
from extremax.noise.kernel import KernelNoise, _arrays
from extremax.random import Stream

_FREQUENCIES = 7
_LEAF = 32
_CLASSES = 256


class FourierNoise(KernelNoise):
    """Leaves of up to 32 classes by random Fourier features, a class of the leaf by the kernel:

        q(y|x) = Π over the path of mass(child)/(mass(left) + mass(right))
                 · k(u, v_y) / Σ over the leaf of k,   mass(n classes) = max(⟨φ(u), Σ φ(v)⟩, εn).

    The features' estimate of a mass can be near zero or below, so it is clipped at ε a class;
    log q has the clipped numbers in it and is exactly the probability of a draw. A row of zeros,
    which has no direction, is at distance 1 from all.

    A draw costs O(D (d + log C)), an update of a touched class the same. Memory: 8 bytes × D a
    class for its features, and a tenth of that for the nodes.

    n_features:  D, frequencies; the error of an estimated kernel is about D^(−1/2).
    nu:          ν, how sharp the kernel is; a sharp one asks for many features.
    clip:        ε. With the defaults and 4,000 classes in 32 dimensions, in no order, q was 0.06
                 nats (KL) from the kernel itself, uniform noise 0.2 to 0.7, and no class had less
                 than a fifth of its due. With ε = 0.001 some had less than a hundredth: a weight
                 1/q far too large, which sampled softmax bears badly. Where like classes have
                 neighbouring numbers, their leaf is hard to estimate: 0.24 nats, and a
                 twenty-fifth of its due.
    seed:        of the frequencies.
    """

    def __init__(
        self, n_features: int = 64, nu: float = 4.0, clip: float = 0.02, seed: int = 0
    ) -> None:
        self.n_features = n_features
        self.nu = nu
        self.clip = clip
        self.seed = seed

    def _check_parameters(self) -> None:
        for name, least in (("n_features", 1), ("seed", 0)):
            value = getattr(self, name)
            if not (is_number(value, integer=True) and value >= least):
                raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")
        if not (is_number(self.nu) and 0 < self.nu <= 100):
            raise ValueError(f"nu must be in (0, 100], got {self.nu!r}")
        if not (is_number(self.clip) and 0 < self.clip <= 1):
            raise ValueError(f"clip must be in (0, 1], got {self.clip!r}")

    def fit(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        n_classes: int,
        rows: np.ndarray | None = None,
    ) -> FourierNoise:
        super().fit(features, labels, n_classes, rows)
        self._set_frequencies(features.shape[1])
        return self

    def _set_frequencies(self, n_features: int) -> None:
        from scipy.special import ndtri

        stream = Stream.of(self.seed, _FREQUENCIES, rows=np.arange(self.n_features))
        normal = ndtri(stream.uniform(n_features + 1))
        self.frequencies_ = torch.from_numpy(np.sqrt(self.nu) * normal)

    def attach(self, head: LinearHead) -> None:
        super().attach(head)
        if self.frequencies_.shape[1] != head.weight.shape[1] + 1:
            self._set_frequencies(head.weight.shape[1])

    def _follow(self, head: LinearHead | None) -> None:
        super()._follow(head)
        self._waves: np.ndarray | None = None

    def _kernel(self, head: LinearHead) -> kernel.Kernel:
        frequencies = self.frequencies_.numpy()
        return kernel.Kernel(kernel.FOURIER, float(self.nu), float(self.clip), frequencies)

    def _most(self, head: LinearHead) -> int:
        return _LEAF

    def _width(self, head: LinearHead) -> int:
        return 2 * self.n_features

    def _sum_leaves(self, classes: np.ndarray, leaves: np.ndarray) -> None:
        assert self._head is not None
        if self._waves is None:
            self._waves = np.empty((self.n_classes_, 2 * self.n_features), np.float32)
        parallel(
            kernel_sums.class_waves, len(classes), _CLASSES, classes, self.frequencies_.numpy(),
            _arrays(self._head), self._waves,
        )  # fmt: skip
        parallel(kernel_sums.wave_sums, len(leaves), _CLASSES, leaves, self._tree, self._waves)

    def state(self) -> dict[str, torch.Tensor]:
        return super().state() | {"frequencies": self.frequencies_}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        super().load_state(state)
        self.frequencies_ = state["frequencies"]
