"""What does an objective learn? Its optimum over free scores, by enumeration.

Theorem 1 of Bamler & Mandt 2020 made executable: with one free score a class and every possible
draw weighed by its probability, negative sampling ends at e^ξ = p_D/q, and softmax of ξ + log q is
p_D. The same search shows the fixed point of the others, and where sampled softmax with few draws
ends instead.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from extremax.diagnostics.enumeration import all_draws, pairs_of
from extremax.objectives.base import Objective

# Where every score begins: far from the kink that absolute softmax has at zero.
_START = 10.0


def recovered(objective: Objective, p_data: Tensor, q: Tensor, m: int = 1) -> Tensor:
    """The probabilities (C,) that the objective's minimum gives, for data p_data and noise q.

    Minimizes Σ_y p_D(y) E[loss(ξ; y, m draws from q)] over ξ ∈ R^C exactly, so C and m are small.
    An objective that draws nothing sees every other class once. Numbers that an objective keeps
    for each example are minimized over as well, one set of them for each y; where a random draw is
    among them (normal and logistic augment & reduce) there is no such minimum, and it is refused.
    """
    from scipy.optimize import minimize

    if objective.per_example_size and objective.probabilities != "exact":
        raise ValueError(
            f"{type(objective).__name__} keeps a random draw of its own for each example: its "
            "loss has no minimum over what it keeps"
        )
    p_data, q = p_data.double(), q.double()
    if p_data.shape != q.shape or not bool((p_data > 0).all()):
        raise ValueError("p_data and q are one distribution each, and p_data > 0 for every class")
    n_classes = len(p_data)
    every = [_draws(objective, q, m, y) for y in range(n_classes)]
    local = objective.per_example_start(n_classes).double()

    def loss_and_gradient(values: np.ndarray) -> tuple[float, np.ndarray]:
        free = torch.from_numpy(values).requires_grad_()
        scores, kept = free[:n_classes], free[n_classes:].view(local.shape)
        total = torch.zeros((), dtype=torch.float64)
        for y, (labels, weight) in enumerate(every):
            pairs = pairs_of(objective, scores, q, y, labels)
            pairs = pairs._replace(per_example=kept[y].expand(len(labels), -1))
            total = total + p_data[y] * (objective.loss(pairs) @ weight)
        (slope,) = torch.autograd.grad(total, free)
        return float(total.detach()), slope.numpy()

    start = np.append(np.full(n_classes, _START), local.numpy())
    options = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-16, "gtol": 1e-11, "maxcor": 30}
    found = minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", options=options)
    logits = objective.logits(torch.from_numpy(found.x[:n_classes]), q.log())
    return objective.log_normalize(logits.clone()[None])[0].exp()


def _draws(objective: Objective, q: Tensor, m: int, truth: int) -> tuple[Tensor, Tensor]:
    if objective.samples:
        return all_draws(q, m)
    others = [c for c in range(len(q)) if c != truth]
    return torch.tensor([others]), torch.ones(1, dtype=torch.float64)
