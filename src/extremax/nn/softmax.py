"""A softmax layer with its loss, for networks with very many classes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from extremax.nn import checks, ops
from extremax.nn.exact import check_exact_loss
from extremax.nn.examples import ExampleParameters
from extremax.nn.first_batches import FirstBatches, even
from extremax.nn.optim import takes_rows
from extremax.nn.probabilities import noise_features
from extremax.nn.proposals import Proposals, RecentRows
from extremax.nn.sampled import SampledLosses, several_processes
from extremax.noise import FrequencyNoise, Noise, incompatibility, paired_objective
from extremax.objectives import Objective, make_objective
from extremax.tensor_checks import check_classes, check_count, check_shape, check_tensor


class ExtremeSoftmax(SampledLosses):
    """The last linear layer and its loss: ξ_y = w_y·h + b_y, trained on a few classes per step.

    objective:     a name from ``OBJECTIVES`` or an `Objective`. "exact" is cross-entropy over every
                   class. "sampled_softmax" trains and predicts with |ξ| where the noise is even in
                   ξ (quadratic, quartic). Augment & reduce keeps parameters of every training
                   example: it needs ``n_examples`` and, in training mode, the numbers of the
                   examples (`forward`).
    noise:         a name from ``NOISES`` or a `Noise`, which is copied. A noise that needs data
                   must be fitted beforehand, by ``labels``, by `fit_noise`, or by ``refit_every``.
                   Noises that follow their head (kernels, softmax) follow ``weight`` as it trains.
                   None is frequency noise, which the layer can fit by itself, see ``labels``.
    n_negatives:   m, the number of classes drawn per example, or per step if ``shared``.
    shared:        use the same m draws for the whole batch, which costs less per draw. Requires a
                   noise that does not depend on the example (uniform, frequency, log-uniform).
                   Sampled softmax draws from q over the classes other than the target, which
                   shared draws cannot: those that hit the target y are dropped, and the loss is
                   weighted by 1/(1 − q_y^m), of large variance as q_y → 1.
    weight:        a parameter (n_classes, in_features) of another layer, such as an embedding.
    labels:        the classes of the training examples, or of many of them, (n,). Biases start at
                   their frequencies, and a noise that depends on the classes only is fitted to
                   them. If neither labels nor a noise is given, the first batches take their place:
                   after 1, 2, 4, ... 1024 of them, the noise is fitted to the classes so far, and
                   biases are shifted to their frequencies, unless they were set otherwise, or
                   several processes train together, which see different batches.
    sparse:        give weight and bias sparse gradients of the touched rows, for `RowAdagrad`,
                   `RowAdam`, or torch's SparseAdam, Adagrad and SGD. If False, gradients are dense
                   and any optimizer works. None is True for parameters of a `RowAdagrad` or
                   `RowAdam`, except where several processes train together, and False for others.
                   Gradients are always dense under `torch.compile` and of objective "exact".
    ignore_index:  examples with this target are ignored.
    label_smoothing, z_loss:  ε and ζ: the target is 1 − ε of its class and ε of all classes, and
                   ζ log² Σ e^ξ is added, which keeps the scores of a row near log p. Only of
                   objective "exact"; a sample of the classes does not tell.
    class_weight:  (n_classes,); the loss of an example is weighted by that of its target, and the
                   mean divides by the sum of these weights. With label smoothing, weights are as
                   in `torch.nn.functional.cross_entropy`.
    n_examples:    the number of training examples; only augment & reduce reads it.
    refit_every:   refit tree noise after this many steps, to the latest ``refit_rows`` hidden
                   states; a few dozen hidden states per class work well. Draws are uniform until
                   the first fit.

    In training mode, calling the layer returns the loss of the objective, which depends on the
    noise; in evaluation mode it returns the exact −log p, neither smoothed nor weighted. Half
    precision and autocast are computed in float32: scores, sums and losses. On a GPU, objective
    "exact" never holds the scores; its products are in half precision there, or in TF32 if torch
    allows that, and its sums in float32. Draws depend on torch's seed at construction, and continue
    unchanged after ``state_dict`` is saved and loaded. The hidden states kept for ``refit_every``
    are not saved: after loading, the next refit happens ``refit_every`` steps later.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        objective: str | Objective = "sampled_softmax",
        noise: str | Noise | None = None,
        n_negatives: int = 100,
        *,
        labels: Tensor | None = None,
        shared: bool = False,
        bias: bool = True,
        weight: nn.Parameter | None = None,
        sparse: bool | None = None,
        reduction: str = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        class_weight: Tensor | None = None,
        n_examples: int | None = None,
        refit_every: int | None = None,
        refit_rows: int = 100_000,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_count(in_features, "in_features")
        check_count(n_classes, "n_classes")
        check_count(n_negatives, "n_negatives")
        check_count(refit_rows, "refit_rows")
        checks.check_reduction(reduction)
        self.in_features, self.n_classes, self.n_negatives = in_features, n_classes, n_negatives
        self.shared, self.sparse = shared, sparse
        self.reduction, self.ignore_index = reduction, ignore_index
        self.refit_every = refit_every
        seed = int(torch.randint(2**31, ()))
        given = FrequencyNoise() if noise is None else noise
        self.proposals = Proposals(given, n_classes, in_features, seed)
        if isinstance(objective, str):
            objective = paired_objective(objective, self.proposals.noise)
        self.objective = make_objective(objective)
        self.label_smoothing, self.z_loss = label_smoothing, z_loss
        self.register_buffer("class_weight", class_weight)
        check_exact_loss(self._exact_loss(), n_classes, self.objective.samples)
        counts = noise is None and self.objective.samples
        self._first = FirstBatches(n_classes) if counts else None
        self._examples: ExampleParameters | None = None
        if self.objective.per_example_size:
            if n_examples is None:
                raise ValueError(
                    f"objective {type(self.objective).__name__} keeps parameters per training "
                    "example: pass n_examples, and examples= whenever you call the layer"
                )
            check_count(n_examples, "n_examples")
            self._examples = ExampleParameters(self.objective, n_examples)
        if self.objective.samples and n_negatives >= n_classes:
            raise ValueError(
                f"n_negatives must be less than n_classes ({n_classes}), got {n_negatives}; "
                "objective='exact' costs no more"
            )
        self._recent = RecentRows(refit_rows)
        self._check_noise()
        shape = (n_classes, in_features)
        if weight is None:
            weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            nn.init.uniform_(weight, -1 / math.sqrt(in_features), 1 / math.sqrt(in_features))
        elif not isinstance(weight, nn.Parameter):
            raise TypeError(f"weight must be an nn.Parameter, got {type(weight).__name__}")
        check_shape(weight, "weight", shape, "a table of n_classes rows of in_features")
        self.weight = weight
        self.bias = nn.Parameter(weight.new_zeros(n_classes)) if bias else None
        if bias:
            self._set_bias(even(n_classes))
        if labels is not None:
            check_classes(labels, "labels", n_classes, ignore_index)
            self._start(labels[labels != ignore_index])
        self._number = ops.number_of(self)

    def _start(self, labels: Tensor) -> None:
        """Fit the noise, if classes alone are enough for it, and start biases."""
        if not self.proposals.fitted and not self.proposals.fits_to_rows:
            self.fit_noise(None, labels)
        if self.bias is not None:
            self.start_bias(labels)

    # Noise ------------------------------------------------------------------------------------

    def _check_noise(self) -> None:
        noise, name = self.proposals.noise, self.proposals.name
        if self.refit_every is not None:
            check_count(self.refit_every, "refit_every")
            if not self.proposals.refitted_parts():
                raise ValueError(f"refit_every needs a noise with a tree, got {name}")
        reason = incompatibility(noise, self.objective, refitted=self.refit_every is not None)
        if reason is not None:
            raise ValueError(reason)
        if self.shared and noise.reads_rows:
            raise ValueError(
                f"shared=True needs a noise that is the same for every example, but {name} is "
                "not; use shared=False"
            )

    def fit_noise(self, features: Tensor | None, target: Tensor) -> None:
        """Fit the noise to examples.

        features:  hidden states (..., in_features), or what `forward` will get as ``context``.
                   None for noises that depend on the classes only.
        target:    classes (...).
        """
        check_classes(target, "target", self.n_classes)
        if features is not None:
            check_tensor(features, "features")
            checks.check_finite_rows(features.detach().reshape(-1, features.shape[-1]), "features")
        if self.objective.adds_log_q and self.proposals.fitted and self.proposals.n_steps:
            raise ValueError(
                f"fit_noise must precede the first training step of "
                f"{type(self.objective).__name__} (steps so far: {self.proposals.n_steps}): its "
                "logits are ξ + log q, and scores trained with one q would be used with another"
            )
        self._first = None
        self.proposals.fit(features, target)
        self._check_noise()

    @torch.no_grad()
    def start_bias(self, target: Tensor) -> None:
        """Set biases so that the initial probabilities are the class frequencies in target.

        Required for NCE. Classes that do not occur count as occurring once.
        """
        check_classes(target, "target", self.n_classes)
        counts = torch.bincount(target.reshape(-1).cpu(), minlength=self.n_classes).clamp(min=1)
        self._set_bias(torch.log(counts.double() / counts.sum()).float())

    @torch.no_grad()
    def _set_bias(self, log_frequency: Tensor) -> None:
        if self.bias is None:
            raise ValueError("start_bias needs a bias; construct the layer with bias=True")
        self.bias.copy_(self.objective.start_scores(log_frequency))
        self.proposals.follower.forget()

    # Loss -------------------------------------------------------------------------------------

    def forward(
        self,
        hidden: Tensor,
        target: Tensor,
        context: Tensor | None = None,
        examples: Tensor | None = None,
    ) -> Tensor:
        """Loss of hidden (..., in_features) and target (...), reduced by ``reduction``.

        target:    classes; for the exact objective also weights (..., n_classes).
        context:   what the noise reads instead of hidden, (..., F), or (...) for a single number
                   such as the previous word for `BigramNoise`.
        examples:  (...), which of the ``n_examples`` pairs of hidden and target these are: 0 to
                   n_examples − 1, the same in every epoch, each at most once per batch. Only
                   augment & reduce reads them, in training mode.
        """
        checks.check_hidden(hidden, self.weight)
        checks.check_device(target, "target", hidden, "hidden")
        leading = hidden.shape[:-1]
        if target.is_floating_point() and not self.objective.samples:
            losses = self._soft_losses(hidden, target)
            return self._reduced(losses.view(leading), max(1, leading.numel()))
        checks.check_target(target, leading, self.n_classes)
        flat_target = target.reshape(-1).long()
        if self.training and self.objective.samples:
            losses = self._sampled_losses(hidden, flat_target, context, examples)
        else:
            losses = self._exact_losses(hidden, flat_target, context)
        kept = flat_target != self.ignore_index
        if self.class_weight is None or not self.training:
            return self._reduced(losses.view(leading), kept.sum().clamp(min=1))
        weights = self.class_weight.to(losses.dtype)[flat_target.masked_fill(~kept, 0)] * kept
        if self.objective.samples:
            losses = losses * weights
        total = weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
        return self._reduced(losses.view(leading), total)

    def _reduced(self, losses: Tensor, total: Tensor | int) -> Tensor:
        if self.reduction == "none":
            return losses
        return losses.sum() if self.reduction == "sum" else losses.sum() / total

    def _sampled_losses(
        self, hidden: Tensor, target: Tensor, context: Tensor | None, examples: Tensor | None
    ) -> Tensor:
        """Losses (n,) of the objective on drawn classes."""
        features = None if context is None else noise_features(hidden, context)
        if self._examples is None:
            examples = None
        elif examples is None:
            raise ValueError(
                f"examples must be given to train {type(self.objective).__name__}: the numbers of "
                f"these examples, 0 to {len(self._examples) - 1}, the same in every epoch"
            )
        else:
            checks.check_device(examples, "examples", target, "target")
            check_shape(examples, "examples", hidden.shape[:-1], "target")
            examples = examples.reshape(-1)
        sparse_weight, sparse_bias = (
            _gives_rows(parameter, self.sparse) for parameter in (self.weight, self.bias)
        )
        given = (
            hidden.reshape(-1, self.in_features), self.weight, self.bias, target, features, examples
        )  # fmt: skip
        sparse = sparse_weight, sparse_bias
        if torch.compiler.is_compiling():
            return ops.sampled_losses(
                *given, self._number, self.n_negatives, self.shared, *sparse
            )[0]  # fmt: skip
        return ops.EagerLosses.apply(*given, self, self.shared, *sparse)

    def get_extra_state(self) -> dict[str, Any]:
        examples = None if self._examples is None else self._examples.state()
        first = None if self._first is None else self._first.state()
        return self.proposals.state() | {"examples": examples, "first_batches": first}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        if self._examples is not None:
            self._examples.load_state(state.get("examples"))
        self.proposals.load_state(state)
        first, self._first = state.get("first_batches"), None
        if first is not None:
            self._first = FirstBatches(self.n_classes)
            self._first.load_state(first)
        # The stored hidden states belong to other parameters.
        self._recent = RecentRows(self._recent.n_rows)
        self._check_noise()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # A copy is a layer of its own.
        self._number = ops.number_of(self)

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.n_classes}, objective={self.objective}, "
            f"noise={self.proposals.noise}, n_negatives={self.n_negatives}, shared={self.shared}"
        )


def _gives_rows(parameter: Tensor | None, sparse: bool | None) -> bool:
    """Whether the gradient of a parameter is sparse."""
    # Compiled graphs have no sparse tensors.
    if torch.compiler.is_compiling():
        return False
    # `DistributedDataParallel` accepts sparse gradients of embeddings only.
    return takes_rows(parameter) and not several_processes() if sparse is None else sparse
