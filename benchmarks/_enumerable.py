"""Parts of `papers.py` on problems so small that every draw or every context can be enumerated."""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

import numpy as np
import torch
from _common import model_of, say

from extremax import ExtremeClassifier
from extremax.comparison.cells import Cell, choose, make, names
from extremax.diagnostics.enumeration import all_draws, noise_for
from extremax.fitting import Fitted, fit
from extremax.heads import LinearHead
from extremax.nn import ExtremeSoftmax
from extremax.noise import SoftmaxNoise
from extremax.noise.base import Draw
from extremax.objectives import SampledSoftmax
from extremax.random import Stream
from extremax.rows import as_rows
from extremax.softmax import cross_entropy_gradient
from extremax.training.data import Examples
from extremax.training.steps import Steps

#: The keys of a part, and the figures behind them.
Result = tuple[dict[str, float], dict[str, Any]]


# bias -----------------------------------------------------------------------------------------


class EveryDraw(SoftmaxNoise):
    """Softmax noise whose draws are given, with the log q that it reports for them."""

    given: torch.Tensor

    def sample_others(
        self, context: torch.Tensor, labels: torch.Tensor, m: int, stream: Stream
    ) -> Draw:
        return Draw(self.given, self.log_prob_others(context, labels, self.given))


class WatchedHead(LinearHead):
    """Adds up the gradient on the score of each class, and takes no step."""

    def step(
        self, inputs: Any, classes: torch.Tensor, gradient: torch.Tensor, learning_rate: float
    ) -> None:
        total = torch.zeros(self.n_classes, dtype=torch.float64)
        self.gradient = total.index_add_(0, classes.ravel(), gradient.double().ravel())


def expected_gradient(row: np.ndarray, truth: int, m: int, weight: torch.Tensor) -> torch.Tensor:
    """E g − (p − y) on the scores: one training step whose batch has every multiset of draws,
    weighted by its probability."""
    n_classes, width = weight.shape
    head, noise = WatchedHead(n_classes, width), EveryDraw()
    head.weight.copy_(weight)
    noise.fit(row[None], np.array([truth]), n_classes)
    model = model_of(head, noise, SampledSoftmax())
    q = noise.log_prob_all(noise.context(row[None]))[0].double().exp()
    noise.given, probability = all_draws(noise_for(model.objective, q / q.sum(), truth), m)
    n = len(probability)
    examples = Examples(
        as_rows(np.repeat(row[None], n, 0)), np.full(n, truth), probability.float().numpy()
    )
    numbers = np.arange(n)
    key = Stream.of(0, rows=numbers).key
    Steps(model, examples, m, n, seed=0).take(numbers, key, np.ones(1), 0)
    scores = head.all_scores(torch.from_numpy(row[None]))[0].double()
    return head.gradient - cross_entropy_gradient(scores, torch.tensor(truth))


def bias(given: argparse.Namespace) -> Result:
    generator = torch.Generator().manual_seed(0)
    weight = 2.0 * torch.randn((6, 3), generator=generator)
    rows = torch.randn((3, 3), generator=generator).numpy()
    largest = {}
    for m in (1, 2, 5):
        differences = [
            expected_gradient(row, truth, m, weight) for row, truth in product(rows, range(6))
        ]
        largest[m] = max(float(difference.abs().max()) for difference in differences)
        say(f"m = {m}: largest |E g − (p − y)| {largest[m]:.1e}")
    return {"softmax_noise_bias": max(largest.values())}, {"by_m": largest}


# share ----------------------------------------------------------------------------------------

# 0.9026 of 5,000 rows, and ten rare classes.
SHARE_COUNTS = [4513] + [49] * 7 + [48] * 3


def share_by_estimator(labels: np.ndarray, m: int) -> float:
    rows = np.zeros((len(labels), 1), np.float32)
    model = ExtremeClassifier(
        "sampled_softmax", "softmax", n_negatives=m, epochs=20, learning_rate=1.0, start="zeros",
        validation_fraction=0.0, random_state=0,
    ).fit(rows, labels)  # fmt: skip
    return float(model.predict_proba(rows[:1])[0, 0])


def share_by_layer(labels: np.ndarray, m: int) -> float:
    torch.manual_seed(0)
    target, epochs, batch = torch.from_numpy(labels), 20, 100
    layer = ExtremeSoftmax(1, len(SHARE_COUNTS), "sampled_softmax", "softmax", m, sparse=False)
    optimizer = torch.optim.Adagrad([layer.bias], 0.5)
    n_steps = epochs * -(-len(labels) // batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step / n_steps)
    for _ in range(epochs):
        for part in torch.randperm(len(target)).split(batch):
            optimizer.zero_grad()
            layer(torch.zeros(len(part), 1), target[part]).backward()
            optimizer.step()
            schedule.step()
    return float(layer.bias.detach().double().softmax(0)[0])


def share(given: argparse.Namespace) -> Result:
    counts = np.array(SHARE_COUNTS)
    labels = np.repeat(np.arange(len(counts)), counts)
    labels = np.random.default_rng(0).permutation(labels)
    truth = counts[0] / counts.sum()
    errors = {}
    for m in (1, 2, 5, 10):
        for name, train in (("estimator", share_by_estimator), ("layer", share_by_layer)):
            found = train(labels, m)
            errors[f"{name}, m = {m}"] = abs(found - truth)
            say(f"{name}, m = {m}: {found:.4f} of {truth:.4f}")
    return {"share_error": max(errors.values())}, {"errors": errors}


# recovery -------------------------------------------------------------------------------------

CONTEXTS, CLASSES, DRAWS, EPOCHS = 3, 12, 8, 20
# Of the Dirichlet distribution that p(y|x) is drawn from: the smaller, the more peaked.
CONCENTRATIONS = {"recovered": 2.0, "recovered_peaked": 1.0}
AUGMENT_REDUCE = ("augment_reduce", "augment_reduce_probit", "augment_reduce_logistic")
BESIDES = ["sampled_softmax×softmax@1"] + [
    f"{name}×uniform@{m}" for name in AUGMENT_REDUCE for m in (1, 10)
]


def recovery_cells(quick: bool) -> list[Cell]:
    every, _ = choose("all", DRAWS)
    exact = [c for c in every if make(c)[0].probabilities in ("exact", "bias-corrected")]
    if quick:
        exact = [cell for cell in exact if cell.noise in (None, "tree", "uniform")]
    return exact + choose(",".join(BESIDES), DRAWS)[0]


class Divergences:
    """KL(data ‖ model) over all contexts, at the start and after each epoch."""

    def __init__(self, contexts: np.ndarray, counts: np.ndarray) -> None:
        self.rows, self.counts = as_rows(contexts), torch.from_numpy(counts).double()
        self.values: list[float] = []

    def start(self, fitted: Fitted) -> None:
        self.model = fitted.model
        self.add({})

    def add(self, record: dict[str, Any]) -> None:
        log_p = self.model.log_probs_all(self.rows).double()
        log_data = (self.counts / self.counts.sum(1, keepdim=True)).log()
        total = (self.counts * (log_data - log_p)).sum() / self.counts.sum()
        self.values.append(float(total))


def recovery(given: argparse.Namespace) -> Result:
    headline, figures = {}, {}
    for key, concentration in CONCENTRATIONS.items():
        say(f"{key}, concentration {concentration:g}:")
        figures[key] = recover(concentration, given.quick)
        headline[key] = max(figures[key]["kl"].values())
    return headline, figures


def recover(concentration: float, quick: bool) -> dict[str, Any]:
    """KL and best epoch of every cell, on rows whose shares are p(y|x) to rounding."""
    n_rows, rng = 10_000 if quick else 40_000, np.random.default_rng(0)
    data = rng.dirichlet(np.full(CLASSES, concentration), CONTEXTS)
    counts = np.maximum(1, np.round(data * n_rows / CONTEXTS).astype(np.int64))
    pairs = np.repeat(np.arange(counts.size), counts.ravel())
    pairs = rng.permutation(pairs)
    contexts = np.eye(CONTEXTS, dtype=np.float32)
    divergence, best = {}, {}
    for cell, name in names(recovery_cells(quick)).items():
        objective, noise = make(cell)
        found = Divergences(contexts, counts)
        settings = ExtremeClassifier(
            objective, noise, n_negatives=cell.n_negatives, epochs=EPOCHS, learning_rate=1.0,
            start="zeros", validation_fraction=0.0, random_state=0,
        )  # fmt: skip
        fit(
            settings, contexts[pairs // CLASSES], pairs % CLASSES,
            on_start=found.start, callback=found.add,
        )  # fmt: skip
        divergence[name], best[name] = found.values[-1], int(np.argmin(found.values))
        say(
            f"{name:<44} KL {divergence[name]:.1e}, {found.values[0]:.2f} at the start, best epoch "
            f"{best[name]} of {EPOCHS}"
        )
    return {"kl": divergence, "best_epoch": min(best.values()), "rows": int(counts.sum())}
