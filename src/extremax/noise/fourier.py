"""Random Fourier noise: approximately q(y|x) ∝ exp(ν cos(h, w_y)).

Rawat, Chen, Yu, Suresh & Kumar, "Sampled softmax with random Fourier features", NeurIPS 2019.
For unit vectors u = h/‖h‖ and v = w/‖w‖ the Gaussian kernel exp(−ν‖u − v‖²/2) is e^(−ν) e^(ν u·v):
the softmax, if all class vectors have the same length. Features

    φ(u) = D^(−1/2) [cos Ωu, sin Ωu],  Ω ~ N(0, ν I), D rows,

give the kernel as E⟨φ(u), φ(v)⟩ (Rahimi & Recht 2007); the tree of `extremax.noise.kernel` keeps
their sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from extremax.noise.base import check_number
from extremax.noise.kernel import KernelNoise, tree_nodes
from extremax.random import Stream
from extremax.rows import Needs, Sizes
from extremax.tensors import Tensors

if TYPE_CHECKING:
    from extremax.heads import ClassVectors
    from extremax.kernels.cpu.sum_tree import FeatureMap

# The purpose of the random stream of frequencies.
_FREQUENCIES = 7
# The most classes in a leaf.
_LEAF = 32


class FourierNoise(KernelNoise):
    """Leaves of up to 32 classes by random Fourier features, a class of the leaf by the kernel:

        q(y|x) = Π over the path of mass(child)/(mass(left) + mass(right))
                 · k(u, v_y) / Σ over the leaf of k,   mass(n classes) = max(⟨φ(u), Σ φ(v)⟩, εn).

    The estimate of a mass can be near zero or negative, so it is clipped at ε per class; log q
    contains the clipped numbers and is exactly the log-probability of a draw. A zero vector, which
    has no direction, counts as being at distance 1 from all others.

    A draw costs O(D (d + log C)), and so does the update of a changed class. Memory: 8 bytes × D
    per class for its features, and a tenth of that for the nodes.

    n_features:  D, the number of frequencies; the error of an estimated kernel is about D^(−1/2).
    nu:          ν, the sharpness of the kernel; a sharp kernel needs many features.
    clip:        ε. With the defaults and 4,000 classes in 32 dimensions, in random order, q was
                 0.06 nats (KL) from the kernel itself, uniform noise 0.2 to 0.7, and no class had
                 less than a fifth of its probability under the kernel. With ε = 0.001 some classes
                 had less than a hundredth: their weight 1/q is far too large, which sampled softmax
                 tolerates badly. Where similar classes have neighboring numbers, the mass of their
                 leaf is hard to estimate: 0.24 nats, and a twenty-fifth.
    seed:        seed of the frequencies.
    """

    def __init__(
        self, n_features: int = 64, nu: float = 4.0, clip: float = 0.02, seed: int = 0
    ) -> None:
        self.n_features = n_features
        self.nu = nu
        self.clip = clip
        self.seed = seed

    def check_parameters(self) -> None:
        check_number(self, "n_features", least=1, integer=True)
        check_number(self, "seed", least=0, integer=True)
        check_number(self, "nu", above=0, most=100)
        check_number(self, "clip", above=0, most=1)

    def learn(self, features: Any, labels: np.ndarray, n_classes: int, rows: np.ndarray) -> None:
        super().learn(features, labels, n_classes, rows)
        self._set_frequencies(features.shape[1])

    def _set_frequencies(self, n_features: int) -> None:
        from scipy.special import ndtri

        stream = Stream.of(self.seed, _FREQUENCIES, rows=np.arange(self.n_features))
        normal = ndtri(stream.uniform(n_features + 1))
        self.frequencies_ = torch.from_numpy(np.sqrt(self.nu) * normal)

    def attach(self, vectors: ClassVectors) -> None:
        super().attach(vectors)
        if self.frequencies_.shape[1] != vectors.weight.shape[1] + 1:
            self._set_frequencies(vectors.weight.shape[1])

    def _feature_map(self) -> FeatureMap:
        from extremax.kernels.cpu.sum_tree import FOURIER, FeatureMap

        return FeatureMap(FOURIER, float(self.nu), float(self.clip), self.frequencies_.numpy())

    def _leaf_size(self, d: int) -> int:
        return _LEAF

    def state(self) -> dict[str, torch.Tensor]:
        return super().state() | {"frequencies": self.frequencies_}

    def check_state(self, tensors: Tensors, n_classes: int, n_features: int) -> None:
        super().check_state(tensors, n_classes, n_features)
        tensors.array("frequencies", torch.float64, self.n_features, n_features + 1)

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        super().load_state(state)
        self.frequencies_ = state["frequencies"]

    def needs(self, sizes: Sizes, n_threads: int) -> Needs:
        nodes = tree_nodes(sizes.classes, _LEAF)
        frequencies = 8.0 * self.n_features * (sizes.features + 1)
        kept = self.n_features * (8.0 * sizes.classes + 16.0 * nodes) + frequencies
        return Needs(kept=kept, saved=frequencies)
