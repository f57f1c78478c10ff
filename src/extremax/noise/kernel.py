"""Kernel noises: q(y|x) ∝ K(h, w_y), drawn by divide and conquer over the class vectors.

Blanc & Rendle, "Adaptive sampled softmax with kernel based sampling", ICML 2018: where
K(h, w) = ⟨φ(h), φ(w)⟩, the mass of a range of classes is ⟨φ(h), Σ φ(w_j)⟩, so a tree whose nodes
keep Σ φ(w_j) is descended in O(log C) products. With h = [s x, 1] and w = [w_y, b_y], ⟨h, w⟩ is
the head's score ξ_y. Classes are ordered by number.

The quadratic and quartic kernels are even in ξ: they propose classes of large |ξ| and cannot tell
ξ from −ξ. Use them with `SampledSoftmax(absolute=True)`, which trains and predicts with |ξ|.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from extremax.errors import ArgumentError
from extremax.noise.base import Draw, check_number, drawn, filled
from extremax.noise.following import FollowingNoise
from extremax.random import Stream
from extremax.rows import Needs, Sizes
from extremax.tensors import Tensors

if TYPE_CHECKING:
    from extremax.heads import ClassVectors
    from extremax.kernels.cpu.sum_tree import FeatureMap, SumModel
    from extremax.noise.class_sums import ClassSums

# Rows in a chunk of draws: at 10⁵ classes and 5 draws per row, some milliseconds.
_ROWS = 64


class KernelNoise(FollowingNoise):
    """A noise that follows its head through a tree of sums over the class vectors.

    The sums depend on nothing but the vectors as they are, so they are no part of the state: they
    are computed when first needed after `attach`, `extend` or `load_state`, and a run resumed from
    a checkpoint draws the same bits. Vectors that change between `attach` and the first draw need
    no `refresh`; later changes do.

    Classes that appear after the fit (`extend`) form a second tree beside the first. Classes that
    the head does not have yet count as zero vectors.
    """

    n_fitted_: int
    #: The tree of sums, once computed.
    sums_: ClassSums | None = None

    def learn(self, features: Any, labels: np.ndarray, n_classes: int, rows: np.ndarray) -> None:
        super().learn(features, labels, n_classes, rows)
        self.n_fitted_, self.sums_ = n_classes, None

    @abstractmethod
    def _feature_map(self) -> FeatureMap: ...

    def _leaf_size(self, d: int) -> int:
        """The most classes in a leaf, d the number of features + 1."""
        # Halves of a range that is just too large hold d classes on average.
        return max(8, 3 * d // 2)

    def attach(self, vectors: ClassVectors) -> None:
        super().attach(vectors)
        self.sums_ = None

    def extend(self, n_classes: int) -> None:
        super().extend(n_classes)
        self.sums_ = None

    def refresh(self, classes: torch.Tensor) -> None:
        if self.sums_ is not None:
            self.sums_.refresh(np.unique(classes.numpy()))

    def _walks(self, context: torch.Tensor) -> tuple[SumModel, np.ndarray]:
        """What kernels walk on: the sums, computed now if vectors or classes are new, and rows."""
        from extremax.noise.class_sums import ClassSums

        vectors = self._attached()
        n_features = vectors.weight.shape[1]
        if context.shape[1] != n_features:
            raise ArgumentError(
                f"context has {context.shape[1]} features but the head {n_features}"
            )
        if self.sums_ is None:
            classes, most = (self.n_fitted_, self.n_classes_), self._leaf_size(n_features + 1)
            self.sums_ = ClassSums(vectors, self._feature_map(), classes, most)
        return self.sums_.model, context.contiguous().numpy()

    def sample(self, context: torch.Tensor, m: int, stream: Stream) -> Draw:
        from extremax.kernels.cpu.sum_tree import sample

        shape, walks = (len(context), m), self._walks(context)
        return drawn(sample, shape, _ROWS, *walks, stream.key, stream.rows)

    def log_prob(self, context: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from extremax.kernels.cpu.sum_tree import log_prob

        walks, classes = self._walks(context), labels.contiguous().numpy()
        return filled(log_prob, classes.shape, _ROWS, *walks, classes)

    def log_prob_all(self, context: torch.Tensor) -> torch.Tensor:
        from extremax.kernels.cpu.sum_tree import log_prob_all

        return filled(log_prob_all, (len(context), self.n_classes_), 1, *self._walks(context))

    def state(self) -> dict[str, torch.Tensor]:
        return super().state() | {"n_fitted": torch.tensor(self.n_fitted_)}

    def check_state(self, tensors: Tensors, n_classes: int, n_features: int) -> None:
        super().check_state(tensors, n_classes, n_features)
        tensors.integer("n_fitted", 1, n_classes)

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        super().load_state(state)
        self.n_fitted_, self.sums_ = int(state["n_fitted"]), None

    def needs(self, sizes: Sizes, n_threads: int) -> Needs:
        d = sizes.features + 1
        return Needs(kept=4.0 * d * (d + 1) * tree_nodes(sizes.classes, self._leaf_size(d)))


def tree_nodes(n_classes: int, most: int) -> int:
    """Nodes of a tree of sums with leaves of at most ``most`` classes."""
    return 2 ** (1 + max(0, math.ceil(math.log2(n_classes / most)))) - 1


class QuadraticNoise(KernelNoise):
    """q(y|x) ∝ α ξ_y² + 1, exactly.

    A draw costs O(d² log(C/d)), d the number of features + 1. So does an update of the nodes above
    a changed class; its leaf of about d classes is summed anew, O(d³), once for all of its classes
    that a step changed. Meant for d up to a few hundred.

    Nodes keep Σ w wᵀ, d(d + 1)/2 numbers in float64: in float32, xᵀ(Σ w wᵀ)x would lose the
    accuracy of 1e-5 that q needs wherever x is nearly orthogonal to the vectors. All nodes together
    take about 8 bytes × C d, twice the head's weights.

    alpha:  α; 100 in Blanc & Rendle. Larger is sharper where scores are below 1.
    """

    is_even = True

    def __init__(self, alpha: float = 100.0) -> None:
        self.alpha = alpha

    def check_parameters(self) -> None:
        check_number(self, "alpha", above=0)

    def _feature_map(self) -> FeatureMap:
        from extremax.kernels.cpu.sum_tree import QUADRATIC, FeatureMap

        return FeatureMap(QUADRATIC, float(self.alpha), 0.0, np.empty((0, 0)))


class QuarticWalkNoise(KernelNoise):
    """q(y|x) ∝ ξ_y⁴ + 1 within leaves of about d classes; leaves by a bound on their mass.

    The features of ξ⁴ are d⁴ numbers, too many to keep. The sums of the quadratic tree give Σ ξ²
    of any n classes, and with it (Σ ξ²)²/n + n ≤ Σ (ξ⁴ + 1), with equality where all |ξ| are
    equal (Jensen). The walk goes to a child in proportion to that bound and draws a class of the
    leaf by ξ⁴ + 1 itself:

        q(y|x) = Π over the path of bound(child)/(bound(left) + bound(right))
                 · (ξ_y⁴ + 1) / Σ over the leaf of (ξ⁴ + 1).

    log q is exactly the logarithm of this distribution, so the correction for q is as valid as with
    any other noise. q is not ∝ ξ⁴ + 1 overall, as that of `QuarticNoise` is: with 4,096 classes and
    32 dimensions, its distance from that (KL) was 0.00 to 0.03 nats for normal scores of standard
    deviation 0.1 to 10, and 0.1 to 0.8 nats for heavy tails (Student's t with 3 degrees of
    freedom). Costs are those of `QuadraticNoise`.
    """

    is_even = True

    def _feature_map(self) -> FeatureMap:
        from extremax.kernels.cpu.sum_tree import QUARTIC, FeatureMap

        return FeatureMap(QUARTIC, 1.0, 0.0, np.empty((0, 0)))
