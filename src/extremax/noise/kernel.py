"""Kernel noises: q(y|x) ∝ K(h, w_y), drawn by divide and conquer over the head's own rows.

Blanc & Rendle, "Adaptive sampled softmax with kernel based sampling", ICML 2018: where
K(h, w) = ⟨φ(h), φ(w)⟩, the mass of a range of classes is ⟨φ(h), Σ φ(w_j)⟩, so a tree whose nodes
keep Σ φ(w_j) is descended in O(log C) products. With h = [s x, 1] and w = [w_y, b_y], ⟨h, w⟩ is
the head's score ξ_y. Classes stand in the order of their numbers.

The quadratic and quartic kernels are even in ξ: they propose classes of large |ξ| and cannot tell
ξ from −ξ. They go with `SampledSoftmax(absolute=True)`, which trains and predicts with |ξ|.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch

from extremax.checks import check_rows, is_number
from extremax.head import LinearHead
from extremax.kernels.cpu import kernel_sums
from extremax.kernels.cpu import kernel_tree as kernel
from extremax.kernels.cpu.threads import parallel
from extremax.noise.base import Draw, Noise, check_growth, check_labels
from extremax.random import Stream

# Tasks that a large update is cut into, and leaves a task has at least.
_TASKS, _LEAVES = 64, 16
# Rows of a chunk of draws: at 10⁵ classes and 5 draws a row, some milliseconds.
_ROWS = 64


class KernelNoise(Noise):
    """A noise that follows its head through a tree of sums over the head's rows.

    The sums depend on nothing but the head as it is (`extremax.kernels.cpu.kernel_sums`), so they
    are no part of the state: they are made when they are first needed after `attach`, `extend`
    or `load_state`, and a run that goes on from a checkpoint draws the same bits. Changes of the
    head between `attach` and the first draw need no `refresh`; later ones do.

    Classes that came after the fit (`extend`) are a tree of their own beside that of the others.
    Rows that the head does not have yet count as zero.
    """

    follows_head = True
    keeps_context = False

    n_fitted_: int
    _head: LinearHead | None = None
    _tree: kernel.Tree | None = None

    def fit(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        n_classes: int,
        rows: np.ndarray | None = None,
    ) -> KernelNoise:
        labels = check_labels(labels, n_classes)
        check_rows(features, labels)
        self._check_parameters()
        self.n_classes_ = self.n_fitted_ = n_classes
        self._follow(None)
        return self

    @abstractmethod
    def _check_parameters(self) -> None: ...

    @abstractmethod
    def _kernel(self, head: LinearHead) -> kernel.Kernel: ...

    @abstractmethod
    def _most(self, head: LinearHead) -> int:
        """Classes in a leaf at most."""

    @abstractmethod
    def _width(self, head: LinearHead) -> int:
        """Numbers in z of a node."""

    @abstractmethod
    def _sum_leaves(self, classes: np.ndarray, leaves: np.ndarray) -> None:
        """z of these leaves, in which these classes have changed."""

    # The tree ---------------------------------------------------------------------------------

    def _follow(self, head: LinearHead | None) -> None:
        self._head, self._tree = head, None

    def attach(self, head: LinearHead) -> None:
        if head.n_classes != self.n_classes_:
            raise ValueError(f"the head has {head.n_classes} classes, not {self.n_classes_}")
        self._follow(head)

    def extend(self, n_classes: int) -> None:
        check_growth(self, n_classes)
        self.n_classes_ = n_classes
        self._follow(self._head)

    def refresh(self, classes: torch.Tensor) -> None:
        if self._tree is not None:
            changed = np.unique(classes.numpy())
            self._update(changed, np.unique(self._leaf_of[changed]))

    def _update(self, classes: np.ndarray, leaves: np.ndarray) -> None:
        """z of the leaves numbered so, in the order of classes, and of all nodes above them."""
        nodes = self._leaves[leaves]
        self._sum_leaves(classes, nodes)
        n_tasks = min(_TASKS, max(1, len(nodes) // _LEAVES))
        bounds = np.arange(n_tasks + 1) * len(nodes) // n_tasks
        parallel(kernel_sums.climb, n_tasks, 1, bounds, nodes, self._parent, self._tree)
        kernel_sums.meet(bounds, nodes, self._parent, self._tree)

    def _built(self, context: torch.Tensor) -> tuple[kernel.Kernel, kernel.Tree, kernel.Head]:
        """What the kernels need, made now if the head or the classes are new."""
        head = self._head
        if head is None:
            raise ValueError(f"{type(self).__name__} follows a head: attach it to one first")
        if context.shape[1] != head.weight.shape[1]:
            raise ValueError(
                f"context has {context.shape[1]} features but the head {head.weight.shape[1]}"
            )
        if self._tree is None:
            most = self._most(head)
            child, first, stop = kernel.shape(self.n_fitted_, self.n_classes_, most)
            z = np.empty((len(child), self._width(head)))
            self._tree = kernel.Tree(child, first, stop, z, most)
            self._parent, self._leaves = kernel_sums.relations(child)
            sizes = stop[self._leaves] - first[self._leaves]
            self._leaf_of = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
            self._update(np.arange(self.n_classes_), np.arange(len(sizes)))
        return self._kernel(head), self._tree, _arrays(head)

    # The distribution -------------------------------------------------------------------------

    def context(self, features: np.ndarray) -> torch.Tensor:
        """The rows themselves, as float32; no copy where they are that already."""
        return torch.from_numpy(np.require(features, np.float32, ["C", "W"]))

    def sample(self, context: torch.Tensor, m: int, stream: Stream) -> Draw:
        labels = torch.empty((len(context), m), dtype=torch.int64)
        log_q = torch.empty((len(context), m))
        parallel(
            kernel.sample, len(context), _ROWS, *self._built(context), _rows(context),
            stream.key, stream.rows, labels.numpy(), log_q.numpy(),
        )  # fmt: skip
        return Draw(labels, log_q)

    def log_prob(self, context: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        out = torch.empty(labels.shape)
        parallel(
            kernel.log_prob, len(context), _ROWS, *self._built(context), _rows(context),
            labels.contiguous().numpy(), out.numpy(),
        )  # fmt: skip
        return out

    def log_prob_all(self, context: torch.Tensor) -> torch.Tensor:
        out = torch.empty((len(context), self.n_classes_))
        parallel(
            kernel.log_prob_all, len(context), 1, *self._built(context), _rows(context),
            out.numpy(),
        )  # fmt: skip
        return out

    def state(self) -> dict[str, torch.Tensor]:
        return {
            "n_classes": torch.tensor(self.n_classes_),
            "n_fitted": torch.tensor(self.n_fitted_),
        }

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.n_classes_, self.n_fitted_ = int(state["n_classes"]), int(state["n_fitted"])
        self._follow(None)


def _rows(context: torch.Tensor) -> np.ndarray:
    return context.contiguous().numpy()


def _arrays(head: LinearHead) -> kernel.Head:
    return kernel.Head(head.table(), head.weight.shape[1], head.bias.numpy(), float(head.scale))


class _Products(KernelNoise):
    """Nodes keep Σ w wᵀ, d(d + 1)/2 numbers in float64, d = features + 1; leaves about d classes.

    In float32 xᵀ(Σ w wᵀ)x would lose the 1e-5 that q is to be exact to wherever x is nearly
    orthogonal to the rows. All nodes together take about 8 bytes × C d, twice the head's weights.
    """

    def _most(self, head: LinearHead) -> int:
        # Halves of what is just too large hold d classes.
        return max(8, 3 * (head.weight.shape[1] + 1) // 2)

    def _width(self, head: LinearHead) -> int:
        d = head.weight.shape[1] + 1
        return d * (d + 1) // 2

    def _sum_leaves(self, classes: np.ndarray, leaves: np.ndarray) -> None:
        assert self._head is not None
        parallel(
            kernel_sums.products, len(leaves), _LEAVES, leaves, self._tree, _arrays(self._head)
        )


class QuadraticNoise(_Products):
    """q(y|x) ∝ α ξ_y² + 1, exactly.

    A draw costs O(d² log(C/d)), d the number of features + 1. So does an update of the nodes
    above a touched class; its leaf of about d classes is summed anew, O(d³), once for all of its
    classes that a step touched. Memory 8 bytes × C d. Meant for d up to a few hundred.

    alpha:  α; 100 in Blanc & Rendle. Larger is sharper where scores are below 1.
    """

    def __init__(self, alpha: float = 100.0) -> None:
        self.alpha = alpha

    def _check_parameters(self) -> None:
        if not (is_number(self.alpha) and self.alpha > 0):
            raise ValueError(f"alpha must be a number > 0, got {self.alpha!r}")

    def _kernel(self, head: LinearHead) -> kernel.Kernel:
        return kernel.Kernel(kernel.QUADRATIC, float(self.alpha), 0.0, np.empty((0, 0)))


class QuarticNoise(_Products):
    """q(y|x) ∝ ξ_y⁴ + 1 within leaves of about d classes; leaves by a bound on their mass.

    The features of ξ⁴ are d⁴ numbers, too many to keep. What the quadratic tree keeps gives
    Σ ξ² of any n classes, and with it (Σ ξ²)²/n + n ≤ Σ (ξ⁴ + 1), with equality where all |ξ| are
    alike (Jensen). The walk goes to a child in proportion to that bound and draws a class of the
    leaf by ξ⁴ + 1 itself:

        q(y|x) = Π over the path of bound(child)/(bound(left) + bound(right))
                 · (ξ_y⁴ + 1) / Σ over the leaf of (ξ⁴ + 1).

    That is a distribution of its own, log q is exactly its logarithm, and the correction for q is
    as right as with any other. It is not ∝ ξ⁴ + 1 overall: from it, in 4,096 classes and 32
    dimensions with normal scores of deviation 0.1 to 10, it was 0.00 to 0.03 nats away (KL), with
    heavy tails (Student's t of 3 degrees) 0.1 to 0.8. On a GPU (`extremax.nn`) it is ∝ ξ⁴ + 1
    exactly, from the scores of all classes. Costs are those of `QuadraticNoise`.
    """

    def _check_parameters(self) -> None:
        pass

    def _kernel(self, head: LinearHead) -> kernel.Kernel:
        return kernel.Kernel(kernel.QUARTIC, 1.0, 0.0, np.empty((0, 0)))
