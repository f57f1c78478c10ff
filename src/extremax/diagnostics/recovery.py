"""What an objective learns: its optimum over free scores, by enumeration.

Verifies theorem 1 of Bamler & Mandt 2020 numerically: with one free score per class and every
possible draw weighted by its probability, the optimum of negative sampling is e^ξ = p_D/q, and the
softmax of ξ + log q is p_D. The same search finds the optimum of the other objectives, and where
sampled softmax with few draws ends instead.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from extremax.diagnostics.enumeration import all_draws, make_pairs, noise_for
from extremax.errors import ArgumentError
from extremax.objectives.base import Objective

# Initial value of every score: far from the kink that absolute softmax has at zero.
_START = 10.0


def recovered(objective: Objective, p_data: Tensor, q: Tensor, m: int = 1) -> Tensor:
    """The probabilities (C,) at the minimum of the objective, for data p_data and noise q.

    Minimizes Σ_y p_D(y) E[loss(ξ; y, m draws from q)] over ξ ∈ R^C exactly, so C and m must be
    small. Where `Objective.draws_others`, draws are from q over the classes other than y. An
    objective that draws nothing gets every other class once. Per-example variables of the objective
    are minimized over as well, one set for each y. If they include a random draw (normal and
    logistic augment & reduce), no such minimum exists and a ValueError is raised.
    """
    from scipy.optimize import minimize

    if objective.per_example_size and objective.probabilities != "exact":
        raise ArgumentError(
            f"{type(objective).__name__} keeps a random draw for each example, so its loss has no "
            "minimum over the per-example variables"
        )
    p_data, q = p_data.double(), q.double()
    if p_data.shape != q.shape or not bool((p_data > 0).all()):
        raise ArgumentError(
            "p_data and q must be distributions over the same classes, with p_data > 0 for every "
            "class"
        )
    n_classes = len(p_data)
    draws_by_class = [_draws(objective, q, m, y) for y in range(n_classes)]
    per_example = objective.per_example_start(n_classes).double()

    def loss_and_gradient(values: np.ndarray) -> tuple[float, np.ndarray]:
        free = torch.from_numpy(values).requires_grad_()
        scores, kept = free[:n_classes], free[n_classes:].view(per_example.shape)
        total = torch.zeros((), dtype=torch.float64)
        for y, (labels, weight) in enumerate(draws_by_class):
            pairs = make_pairs(objective, scores, q, y, labels)
            pairs = pairs._replace(per_example=kept[y].expand(len(labels), -1))
            total = total + p_data[y] * (objective.loss(pairs) @ weight)
        (gradient,) = torch.autograd.grad(total, free)
        return float(total.detach()), gradient.numpy()

    start = np.append(np.full(n_classes, _START), per_example.numpy())
    options = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-16, "gtol": 1e-11, "maxcor": 30}
    optimum = minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", options=options)
    logits = objective.logits(torch.from_numpy(optimum.x[:n_classes]), q.log())
    return objective.log_normalize(logits.clone()[None])[0].exp()


def _draws(objective: Objective, q: Tensor, m: int, truth: int) -> tuple[Tensor, Tensor]:
    if objective.samples:
        return all_draws(noise_for(objective, q, truth), m)
    others = [c for c in range(len(q)) if c != truth]
    return torch.tensor([others]), torch.ones(1, dtype=torch.float64)
