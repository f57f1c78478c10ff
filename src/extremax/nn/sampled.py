"""A training step on a few classes: check, count, draw, score."""

from __future__ import annotations

import torch
from torch import Tensor, distributed

from extremax.nn import checks, device_step
from extremax.nn.examples import ExampleParameters
from extremax.nn.first_batches import FirstBatches, even
from extremax.nn.functional import correct_shared_draws, losses_and_slopes
from extremax.nn.probabilities import ClassProbabilities
from extremax.nn.proposals import RecentRows
from extremax.nn.scores import has_kernels, pair_scores, score_type, shared_scores
from extremax.objectives import Pairs
from extremax.tensor_checks import check_classes


class SampledLosses(ClassProbabilities):
    """Base of `ExtremeSoftmax`: what `extremax.nn.ops.sampled_losses` asks of a layer."""

    n_negatives: int
    shared: bool
    refit_every: int | None
    _examples: ExampleParameters | None
    _recent: RecentRows

    def sampled_losses(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor,
        context: Tensor | None, examples: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See `extremax.nn.ops.sampled_losses`."""
        if self._stays_on_device(hidden, weight, bias):
            return self._device_step(hidden, weight, bias, target, context)
        check_classes(target, "target", self.n_classes, self.ignore_index)
        kept = target != self.ignore_index
        rows = hidden.detach().to(score_type(hidden, weight))
        if bool(kept.all()):
            _check_rows(rows, context)
            features = hidden.detach() if context is None else context
            return self._step(rows, weight, bias, target, features, examples)
        rows = rows.masked_fill(~kept[:, None], 0)
        context = None if context is None else context.masked_fill(~kept[:, None], 0)
        _check_rows(rows, context)
        features = rows if context is None else context
        chosen = None if examples is None else examples[kept]
        found = self._step(rows[kept], weight, bias, target[kept], features[kept], chosen)
        return self._with_ignored(kept, *found)

    def _stays_on_device(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether a step needs nothing of the CPU: kernels score the classes, the noise has a form
        for the device, and nothing is kept per example or for a refit."""
        return (
            has_kernels(hidden, weight)
            and len(hidden) > 0
            and self._examples is None
            and self.refit_every is None
            and self.proposals.on_device(weight, bias) is not None
        )

    def _device_step(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor,
        context: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """`sampled_losses` without a wait for the device; see `extremax.nn.device_step`."""
        hidden, weight = hidden.detach(), weight.detach()
        bias = None if bias is None else bias.detach()
        features = hidden if context is None else context
        if self._first is None:
            self._check_fitted()
        else:
            self._count(self._first, target, bias)
        classes, log_q = self.proposals.propose_marked(
            features, target, self.n_negatives, self.shared, weight, bias, self.ignore_index,
            others=self.objective.draws_others and not self.shared,
            truth=self.objective.reads_true_log_q or self.shared,
        )  # fmt: skip
        found = device_step.losses_of(self.objective, hidden, weight, bias, classes, log_q)
        return *found, classes

    def _with_ignored(
        self, kept: Tensor, losses: Tensor, slopes: Tensor, classes: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What was found for kept rows, in tensors for all rows."""
        n, numbers = len(kept), kept.nonzero()[:, 0]
        all_classes = classes.new_full((n, *classes.shape[1:]), -1)
        all_classes.index_copy_(0, numbers, classes[: len(numbers)])
        if self.shared:
            all_classes = torch.cat([all_classes, classes[len(numbers) :]])
        return (
            losses.new_zeros(n).index_copy_(0, numbers, losses),
            slopes.new_zeros((n, *slopes.shape[1:])).index_copy_(0, numbers, slopes),
            all_classes,
        )

    def _step(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor,
        features: Tensor, examples: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Losses, slopes and classes of rows that are not ignored."""
        if self._examples is not None and examples is not None:
            checks.check_examples(examples, len(self._examples))
        if not len(target):
            n_scores = 1 + self.n_negatives
            classes = target.new_full((self.n_negatives,) if self.shared else (0, n_scores), -1)
            return hidden.new_zeros(0), hidden.new_zeros((0, n_scores)), classes
        self._prepare_noise(features, target, bias)
        drawn, log_q = self.proposals.propose(
            features, target, self.n_negatives, self.shared, weight, bias,
            others=self.objective.draws_others and not self.shared,
            truth=self.objective.reads_true_log_q or self.shared,
        )  # fmt: skip
        if self.shared:
            classes = torch.cat([target, drawn])
            scores = shared_scores(hidden, weight, bias, classes)
        else:
            classes = torch.cat([target[:, None], drawn], 1)
            scores = pair_scores(hidden, weight, bias, classes)
        hits, nothing = drawn == target[:, None], scores.new_zeros((len(scores), 0))
        pairs, weights = Pairs(scores, log_q.to(scores.dtype), hits, nothing), None
        if self._examples is not None and examples is not None:
            per_example = self._examples.update(pairs, examples.long(), self.proposals.seed)
            pairs = pairs._replace(per_example=per_example)
        if self.shared and self.objective.draws_others:
            pairs, weights = correct_shared_draws(pairs)
        return *losses_and_slopes(self.objective, pairs, weights), classes

    def _prepare_noise(self, features: Tensor, target: Tensor, bias: Tensor | None) -> None:
        """Fit the noise to earlier batches, if it is time to."""
        if self._first is not None:
            self._count(self._first, target, bias)
        elif self.refit_every is None:
            self._check_fitted()
        else:
            if self._recent.n_batches >= self.refit_every:
                self.proposals.refit(*self._recent.take())
            self._recent.add(features, target)

    def _count(self, first: FirstBatches, target: Tensor, bias: Tensor | None) -> None:
        """Count the classes of a batch; now and then, fit the noise to the counts and shift biases
        from the frequencies that they stand for to those of the counts."""
        if target.is_cuda and torch.cuda.is_current_stream_capturing():
            raise ValueError(
                "a layer that counts the classes of its first batches cannot be captured in a CUDA "
                "graph: pass labels= or a noise"
            )
        if not first.n_batches and bias is not None and self._may_start(bias):
            first.log_frequency = even(self.n_classes)
        counted = (target >= 0) & (target < self.n_classes) & (target != self.ignore_index)
        if not first.add(torch.where(counted, target, 0), counted) or not bool(first.counts.any()):
            return
        self.proposals.fit(None, first.labels())
        if first.log_frequency is not None and bias is not None:
            before, first.log_frequency = first.log_frequency.to(bias.device), first.estimate()
            start_scores = self.objective.start_scores
            with torch.no_grad():
                bias += start_scores(first.log_frequency) - start_scores(before)
        # Logits with log q allow no other q after the first step.
        if first.ended or self.objective.adds_log_q:
            self._first = None

    def _may_start(self, bias: Tensor) -> bool:
        """Whether biases are as constructed, and no other process must have the same."""
        start = self.objective.start_scores(even(self.n_classes))
        return not several_processes() and torch.equal(bias.detach(), start.to(bias))


def several_processes() -> bool:
    """Whether this is one of several processes, which train together on different batches."""
    together = distributed.is_available() and distributed.is_initialized()
    return together and distributed.get_world_size() > 1


def _check_rows(hidden: Tensor, context: Tensor | None) -> None:
    checks.check_finite_rows(hidden, "hidden")
    if context is not None:
        checks.check_finite_rows(context, "context")
