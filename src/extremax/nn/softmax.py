"""A softmax layer and its loss for networks with very many classes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from extremax.nn import checks
from extremax.nn.functional import pair_losses, reduced
from extremax.nn.probabilities import ClassProbabilities, features_of
from extremax.nn.proposals import Proposals
from extremax.nn.refitting import Latest, trees_in
from extremax.nn.rows import pair_scores, shared_scores
from extremax.noise import Noise
from extremax.objectives import OBJECTIVES, Objective


class ExtremeSoftmax(ClassProbabilities):
    """The last linear layer and its loss in one: ξ_y = w_y·h + b_y, trained on a few classes.

    objective:     a name of ``OBJECTIVES`` or an `Objective`. "exact" is cross-entropy over every
                   class. Those that keep numbers for each example (augment & reduce) are refused.
    noise:         a name of ``NOISES`` or a `Noise`, of which a copy is kept. One that is fitted
                   to data comes fitted, or is by `fit_noise`, or by ``refit_every``. Noises that
                   follow their head (kernels, softmax) follow ``weight`` as it trains.
    n_samples:     m, classes drawn a step: for each example, or for all of them together.
    shared:        one draw of m classes serves the whole batch, which costs less for each. For
                   noises that do not look at the example (uniform, frequency, log-uniform).
    weight:        a parameter (n_classes, in_features) of another layer, such as an embedding.
    sparse:        gradients of weight and bias hold the touched rows alone, for `RowAdagrad`,
                   `RowAdam`, or torch's SparseAdam, Adagrad and SGD. False, or objective
                   "exact": dense ones, for any optimiser.
    ignore_index:  targets of this value count for nothing.
    refit_every:   steps after which tree noise is fitted anew, to the latest ``refit_rows`` hidden
                   states; some tens for each class are wanted. Until its first fit draws are
                   uniform.

    In training, calling it gives the loss of the objective, which depends on the noise; after
    ``eval()`` the exact −log p. Half precision and autocast are widened: scores, sums and losses
    are float32. Draws follow torch's seed at construction and are the same after ``state_dict``
    went to a file and back; but with ``refit_every`` the latest hidden states are not in it, and
    the next fit comes that many steps after they were lost.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        objective: str | Objective = "sampled_softmax",
        noise: str | Noise = "uniform",
        n_samples: int = 100,
        *,
        shared: bool = False,
        bias: bool = True,
        weight: nn.Parameter | None = None,
        sparse: bool = True,
        reduction: str = "mean",
        ignore_index: int = -100,
        refit_every: int | None = None,
        refit_rows: int = 100_000,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("in_features", in_features), ("n_classes", n_classes),
                            ("n_samples", n_samples), ("refit_rows", refit_rows)):  # fmt: skip
            checks.check_count(name, value)
        checks.check_reduction(reduction)
        self.in_features, self.n_classes, self.n_samples = in_features, n_classes, n_samples
        self.shared, self.sparse = shared, sparse
        self.reduction, self.ignore_index = reduction, ignore_index
        self.refit_every = refit_every
        self.objective = _made_objective(objective)
        if self.objective.samples and n_samples >= n_classes:
            raise ValueError(
                f"n_samples must be less than n_classes ({n_classes}), got {n_samples}; "
                "objective='exact' costs no more"
            )
        seed = int(torch.randint(2**31, ()))
        self.proposals = Proposals(noise, n_classes, in_features, seed)
        self._latest = Latest(refit_rows)
        self._check_noise()
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        if weight is None:
            self.weight = nn.Parameter(torch.empty((n_classes, in_features), **options))
            nn.init.uniform_(self.weight, -1 / math.sqrt(in_features), 1 / math.sqrt(in_features))
        else:
            self.weight = _checked_weight(weight, (n_classes, in_features))
            options = {"device": weight.device, "dtype": weight.dtype}
        self.bias = nn.Parameter(torch.zeros(n_classes, **options)) if bias else None
        if bias:
            self._set_bias(torch.full((n_classes,), -math.log(n_classes)))

    # Noise ------------------------------------------------------------------------------------

    def _check_noise(self) -> None:
        proposals, refitted = self.proposals, self.refit_every is not None
        noise, name = proposals.noise, type(proposals.noise).__name__
        if self.objective.adds_log_q and (noise.follows_head or refitted):
            how = "follows the weight" if noise.follows_head else "is refitted"
            raise ValueError(
                f"noise {name} {how}, and the logits of {type(self.objective).__name__} are "
                "ξ + log q: what was learned under an earlier q would be read with a later one. "
                "Use sampled_softmax or nce, whose logits do not depend on q"
            )
        if refitted:
            assert self.refit_every is not None
            checks.check_count("refit_every", self.refit_every)
            if not trees_in(noise):
                raise ValueError(f"refit_every is for noise with a tree in it, got {name}")
        if self.shared and proposals.looks_at_features:
            raise ValueError(
                f"shared=True needs a noise that is the same for every example, {name} is not; "
                "use shared=False"
            )

    def fit_noise(self, features: Tensor | None, target: Tensor) -> None:
        """Fit the noise to hidden states, or to what is given as ``context``, and their classes.

        features is None for noises that look at classes alone.
        """
        checks.check_classes("target", target, self.n_classes, None)
        if features is not None:
            checks.check_tensor("features", features)
            checks.check_finite("features", features.detach().reshape(-1, features.shape[-1]))
        if self.objective.adds_log_q and self.proposals.fitted and self.proposals.n_steps:
            raise ValueError(
                f"fit_noise comes before the first step of {type(self.objective).__name__}, and "
                f"{self.proposals.n_steps} are done: its logits are ξ + log q, and what was "
                "learned under one q would be read with another"
            )
        self.proposals.fit(features, target)
        self._check_noise()

    @torch.no_grad()
    def start_bias(self, target: Tensor) -> None:
        """Biases such that the objective begins with the frequencies of the classes in target.

        NCE needs it. A class that does not occur counts as one.
        """
        checks.check_classes("target", target, self.n_classes, None)
        counts = torch.bincount(target.reshape(-1).cpu(), minlength=self.n_classes).clamp(min=1)
        self._set_bias(torch.log(counts.double() / counts.sum()).float())

    @torch.no_grad()
    def _set_bias(self, log_frequency: Tensor) -> None:
        if self.bias is None:
            raise ValueError("start_bias needs a bias; construct with bias=True")
        self.bias.copy_(self.objective.start_scores(log_frequency))
        self.proposals.follower.forget()

    def _keep_up(self, features: Tensor, target: Tensor) -> None:
        """Refit the tree if it is time, and remember these rows for the next time."""
        if self.refit_every is None:
            return
        if self._latest.due(self.refit_every):
            self.proposals.refit(*self._latest.take())
        self._latest.add(features, target)

    # Loss -------------------------------------------------------------------------------------

    def forward(self, hidden: Tensor, target: Tensor, context: Tensor | None = None) -> Tensor:
        """The loss of hidden (..., in_features) and target (...), reduced.

        target:   classes, or for the exact objective also weights (..., n_classes).
        context:  what the noise looks at in place of hidden, (..., F), or (...) for one number:
                  the previous word for `BigramNoise`.
        """
        checks.check_hidden(hidden, self.weight)
        checks.check_tensor("target", target)
        checks.check_device("target", target, "hidden", hidden)
        leading = hidden.shape[:-1]
        with torch.autocast(hidden.device.type, enabled=False):
            flat, features = self._rows(hidden), features_of(hidden, context)
            if target.is_floating_point() and not self.objective.samples:
                checks.check_soft_target(target, leading, self.n_classes)
                checks.check_finite("hidden", flat)
                losses = self._exact(flat, target.reshape(-1, self.n_classes).to(flat.dtype))
                return reduced(losses.view(leading), self.reduction)
            checks.check_target(target, leading, self.n_classes, self.ignore_index)
            flat_target = target.reshape(-1).long()
            kept = flat_target != self.ignore_index
            if not bool(kept.all()):
                flat, features, flat_target = flat[kept], features[kept], flat_target[kept]
            checks.check_finite("hidden", flat)
            if context is not None:
                checks.check_finite("context", features)
            losses = self._losses(flat, flat_target, features)
            if self.reduction == "none":
                losses = losses.new_zeros(kept.shape).masked_scatter(kept, losses).view(leading)
            return reduced(losses, self.reduction)

    def _losses(self, hidden: Tensor, target: Tensor, features: Tensor) -> Tensor:
        if not len(target):
            return hidden.sum(1)
        if not self.training:
            return -self._log_prob(hidden, features, target[:, None])[:, 0]
        if not self.objective.samples:
            return self._exact(hidden, target)
        if self.refit_every is None:
            self._check_fitted()
        self._keep_up(features, target)
        drawn, log_q = self.proposals.propose(
            features, target, self.n_samples, self.shared, self.weight, self.bias
        )
        rows = (hidden, self.weight, self.bias)
        if self.shared:
            scores = shared_scores(*rows, target, drawn, self.sparse)
        else:
            scores = pair_scores(*rows, torch.cat([target[:, None], drawn], 1), self.sparse)
        hits = drawn == target[:, None]
        return pair_losses(self.objective, scores, log_q.to(scores.dtype), hits)

    def _exact(self, hidden: Tensor, target: Tensor) -> Tensor:
        """−Σ t_y log p_y + λ(Σ t_y ξ_y² + mean ξ²), t one-hot where target holds classes."""
        scores = self._scores(hidden)
        log_p, squares = log_softmax(scores, 1), None
        if self.objective.regularization:
            squares = scores.square()

        def expected(values: Tensor) -> Tensor:
            if target.is_floating_point():
                return (target * values).sum(1)
            return values.gather(1, target[:, None])[:, 0]

        losses = -expected(log_p)
        if squares is not None:
            losses = losses + self.objective.regularization * (expected(squares) + squares.mean(1))
        return losses

    def get_extra_state(self) -> dict[str, Any]:
        return self.proposals.state()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.proposals.load_state(state)
        # Hidden states of another network, or of this one at another time.
        self._latest = Latest(self._latest.n_rows)
        self._check_noise()

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.n_classes}, objective={self.objective}, "
            f"noise={self.proposals.noise}, n_samples={self.n_samples}, shared={self.shared}"
        )


def _made_objective(objective: str | Objective) -> Objective:
    if isinstance(objective, str) and objective in OBJECTIVES:
        objective = OBJECTIVES[objective]()
    if not isinstance(objective, Objective):
        names = ", ".join(OBJECTIVES)
        raise ValueError(f"objective must be one of {names} or an Objective, got {objective!r}")
    if objective.local_size:
        raise ValueError(
            f"objective {type(objective).__name__} keeps numbers for each training example, which "
            "a layer cannot tell apart; use ExtremeClassifier, or another objective"
        )
    return objective


def _checked_weight(weight: nn.Parameter, shape: tuple[int, int]) -> nn.Parameter:
    if not isinstance(weight, nn.Parameter):
        raise TypeError(f"weight must be an nn.Parameter, got {type(weight).__name__}")
    if weight.shape != shape:
        raise ValueError(
            f"weight must have shape {shape} (n_classes, in_features), got {tuple(weight.shape)}"
        )
    return weight
