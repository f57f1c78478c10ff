"""Exact probabilities of every class, in blocks of rows, and losses over all classes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, log_softmax

from extremax.heads import Ranking
from extremax.nn import checks, ops
from extremax.nn.exact import ExactLoss, fused_losses, plain_losses, product_type
from extremax.nn.first_batches import FirstBatches
from extremax.nn.proposals import Proposals
from extremax.nn.scores import has_kernels, score_type
from extremax.objectives import Objective
from extremax.tensor_checks import check_classes, check_count

# Bytes per block of log-probabilities; at least one row.
_BLOCK_BYTES = 256 << 20
# The most classes that kernels on a GPU rank.
_MOST_BEST = 1024


class ClassProbabilities(nn.Module):
    """Base of `ExtremeSoftmax`: log-probabilities of classes given hidden states."""

    in_features: int
    n_classes: int
    ignore_index: int
    label_smoothing: float
    z_loss: float
    class_weight: Tensor | None
    objective: Objective
    proposals: Proposals
    weight: nn.Parameter
    bias: nn.Parameter | None
    _first: FirstBatches | None
    #: By which operators find the layer.
    _number: int

    def log_prob(
        self, hidden: Tensor, classes: Tensor | None = None, context: Tensor | None = None
    ) -> Tensor:
        """Exact log p of every class, (..., n_classes), or of classes (...) or (..., j).

        Computed in blocks of rows. With ``classes`` and under ``torch.no_grad()``, log p of every
        class is never held for more than one block; with gradients, torch keeps all blocks.
        Probit and logistic augment & reduce compute log p by integrals, without gradients.

        context:  see `ExtremeSoftmax.forward`.
        """
        flat, features, leading = self._flatten(hidden, context)
        if classes is None:
            return self._log_prob(flat, features, None).view(*leading, self.n_classes)
        checks.check_device(classes, "classes", hidden, "hidden")
        check_classes(classes, "classes", self.n_classes)
        if classes.shape[: len(leading)] != leading or classes.ndim > len(leading) + 1:
            raise ValueError(
                f"classes must have shape {tuple(leading)} or {(*leading, 'j')}, "
                f"got {tuple(classes.shape)}"
            )
        columns = 1 if classes.ndim == len(leading) else classes.shape[-1]
        requested = classes.long().reshape(len(flat), columns)
        return self._log_prob(flat, features, requested).view(classes.shape)

    def predict(self, hidden: Tensor, context: Tensor | None = None) -> Tensor:
        """The most probable class, (...)."""
        return self.topk(hidden, 1, context).labels[..., 0]

    @torch.no_grad()
    def topk(self, hidden: Tensor, k: int, context: Tensor | None = None) -> Ranking:
        """The k most probable classes, best first, and their exact log p, both (..., k)."""
        check_count(k, "k")
        if k > self.n_classes:
            raise ValueError(f"k must be at most n_classes ({self.n_classes}), got {k}")
        flat, features, leading = self._flatten(hidden, context)
        plain = self.objective.scores_are_logits and k <= _MOST_BEST
        if plain and has_kernels(flat, self.weight):
            # Not `flat`: products of two numbers of 16 bits are exact, and faster.
            rows = hidden.reshape(flat.shape)
            labels, log_probs = ops.topk(rows, self.weight, self.bias, k)
            return Ranking(labels.view(*leading, k), log_probs.view(*leading, k))
        best = [log_p.topk(k, 1) for _, log_p in self._blocks(flat, features)]
        log_probs, labels = (
            torch.cat(parts).view(*leading, k) for parts in zip(*best, strict=True)
        )
        return Ranking(labels, log_probs)

    def _flatten(self, hidden: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, torch.Size]:
        """Checked hidden states (n, in_features), rows for the noise (n, F) and leading shape."""
        checks.check_hidden(hidden, self.weight)
        flat, features = self._rows(hidden), noise_features(hidden, context)
        checks.check_finite_rows(flat, "hidden")
        if context is not None:
            checks.check_finite_rows(features, "context")
        return flat, features, hidden.shape[:-1]

    def _log_prob(self, hidden: Tensor, features: Tensor, classes: Tensor | None) -> Tensor:
        blocks = [
            log_p if classes is None else log_p.gather(1, classes[rows])
            for rows, log_p in self._blocks(hidden, features)
        ]
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    def _blocks(self, hidden: Tensor, features: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of rows and log p of every class; one empty block if there are no rows."""
        if self.objective.adds_log_q:
            self._check_fitted()
        size = max(1, _BLOCK_BYTES // (16 * self.n_classes))
        for start in range(0, max(1, len(hidden)), size):
            rows = slice(start, start + size)
            with torch.autocast(hidden.device.type, enabled=False):
                scores = self._scores(hidden[rows])
                log_q = scores.new_zeros(())
                if self.objective.adds_log_q:
                    log_q = ops.log_q_of_all(features[rows], self._number, self.n_classes)
                logits = self.objective.logits(scores, log_q.to(scores.dtype))
                if self.objective.is_softmax:
                    log_p = log_softmax(logits, 1)
                else:
                    # Tables of integrals, on the CPU and without gradients.
                    log_p = self.objective.log_normalize(logits.detach().cpu()).to(logits.device)
            yield rows, log_p

    def _rows(self, hidden: Tensor) -> Tensor:
        """Hidden states (n, in_features) in the type of the scores, at least float32."""
        return hidden.reshape(-1, self.in_features).to(score_type(hidden, self.weight))

    def log_q_of_all(self, features: Tensor) -> Tensor:
        """log q of every class, (n, C) or (1, C); for `extremax.nn.ops`."""
        return self.proposals.log_prob_all(features, self.weight, self.bias).float()

    def _scores(self, hidden: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(hidden.dtype)
        return linear(hidden, self.weight.to(hidden.dtype), bias)

    def _check_fitted(self) -> None:
        if not self.proposals.fitted and self._first is None:
            raise ValueError(
                f"noise {self.proposals.name} is not fitted: call fit_noise(features, target) "
                "first, or pass labels= or a fitted noise"
            )

    # Losses over all classes --------------------------------------------------------------------

    def _exact_losses(self, hidden: Tensor, target: Tensor, context: Tensor | None) -> Tensor:
        """Losses (n,) over all classes; 0 of ignored rows, whatever their hidden states are."""
        ignored = target == self.ignore_index
        if not self.objective.samples and has_kernels(hidden, self.weight):
            # Nothing waits for the GPU: values that are wrong make the loss NaN.
            rows = hidden.reshape(-1, self.in_features).masked_fill(ignored[:, None], 0)
            rows = rows.to(product_type(hidden, self.weight))
            loss = self._exact_loss() if self.training else ExactLoss()
            chosen = target.masked_fill(ignored, 0)
            losses = fused_losses(rows, self.weight, self.bias, chosen, loss)
            return losses.masked_fill(ignored, 0)
        if not torch.compiler.is_compiling():
            check_classes(target, "target", self.n_classes, self.ignore_index)
        flat, features = (
            rows.masked_fill(ignored[:, None], 0)
            for rows in (self._rows(hidden), noise_features(hidden, context))
        )
        checks.check_finite_rows(flat, "hidden")
        if context is not None:
            checks.check_finite_rows(features, "context")
        target = target.masked_fill(ignored, 0)
        with torch.autocast(hidden.device.type, enabled=False):
            if self.training:
                losses = plain_losses(self._scores(flat), target, self._exact_loss())
            else:
                losses = -self._log_prob(flat, features, target[:, None])[:, 0]
        return losses.masked_fill(ignored, 0)

    def _soft_losses(self, hidden: Tensor, target: Tensor) -> Tensor:
        """Losses (n,) over all classes, for targets that are weights of every class."""
        checks.check_soft_target(target, hidden.shape[:-1], self.n_classes)
        flat = self._rows(hidden)
        checks.check_finite_rows(flat, "hidden")
        loss = self._exact_loss() if self.training else ExactLoss()
        with torch.autocast(hidden.device.type, enabled=False):
            target = target.reshape(-1, self.n_classes).to(flat.dtype)
            return plain_losses(self._scores(flat), target, loss)

    def _exact_loss(self) -> ExactLoss:
        penalty = self.objective.regularization
        return ExactLoss(self.label_smoothing, self.z_loss, penalty, self.class_weight)


def noise_features(hidden: Tensor, context: Tensor | None) -> Tensor:
    """The rows that the noise reads, (n, F): the context if given, else the hidden states."""
    leading = hidden.shape[:-1]
    if context is None:
        return hidden.detach().reshape(-1, hidden.shape[-1])
    checks.check_device(context, "context", hidden, "hidden")
    if context.shape == leading:
        context = context[..., None]
    if context.shape[:-1] != leading:
        raise ValueError(
            f"context must have shape {tuple(leading)} or {(*leading, 'F')}, with the leading "
            f"shape of hidden, got {tuple(context.shape)}"
        )
    return context.detach().reshape(-1, context.shape[-1])
