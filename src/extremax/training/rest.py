"""Fit what the classes that are no candidates of a search add to the normalizer.

Z of some held-out rows is computed over every class. The weights of r minimize the squared error of

    log(Σ_S exp(logit) + exp(r(f))) − log Z

(`extremax.prediction.rest`), with a small penalty on them.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch
from scipy.optimize import least_squares
from scipy.special import expit

from extremax.heads.blocks import over_rows, row_slices
from extremax.kernels.cpu.threads import one_torch_thread
from extremax.model import Model
from extremax.prediction.rest import LEAST_SHARE, N_NUMBERS, N_TERMS, Rest, terms
from extremax.rows import Rows

# Scores that are computed, and bounds on the rows they are for.
_SCORES, _FEWEST, _MOST = 2**28, 200, 2000
# Classes that the head scores on every row, where the searcher does not know what to score.
_CLASSES = 256
# With no more classes than this, a search hardly leaves any out.
_FEW_CLASSES = 512
# Candidates are those of a search for this many classes; log p of held-out titles was 0.047 off.
# The estimate is used for other numbers, too, where it is less exact.
_K = 5
_PENALTY = 0.02
# Rows that each weight needs.
_ROWS_PER_TERM = 20


def fit_rest(model: Model, rows: Rows, numbers: np.ndarray, budget: int) -> Rest | None:
    """From held-out rows; None where there is no search, or too few rows or classes.

    numbers:  held-out rows.
    """
    few = len(numbers) < _FEWEST or model.n_classes <= _FEW_CLASSES
    searcher = model.searcher
    blend, link = model.blend, model.objective.link
    if few or searcher is None or not searcher.fits(blend.weights, link):
        return None
    n = int(np.clip(_SCORES // model.n_classes, _FEWEST, _MOST))
    chosen = rows[np.sort(numbers[:n])]
    by_frequency = np.argsort(-model.labels.counts, kind="stable")
    n_scored = 0 if searcher.knows_rest else min(_CLASSES, model.n_classes)
    classes = by_frequency[np.linspace(0, model.n_classes - 1, n_scored).astype(np.int64)]
    log_z, log_s, summaries = _exact(model, chosen, torch.from_numpy(classes), budget)
    center, scale = _rounded(summaries.mean(0)), _rounded(summaries.std(0))
    scale[scale < 1e-6] = 1.0
    features = terms(torch.from_numpy((summaries - center) / scale)).numpy()
    if len(chosen) < _ROWS_PER_TERM * N_TERMS:
        # Too few rows for the products: the penalty keeps their weights at zero.
        features[:, 1 + N_NUMBERS :] = 0.0
    # What is left may be less than float32 can tell.
    left = log_z + np.log(np.maximum(-np.expm1(log_s - log_z), 1e-6))

    def misses(weights: np.ndarray) -> np.ndarray:
        return np.logaddexp(log_s, features @ weights) - log_z

    def penalized(weights: np.ndarray) -> np.ndarray:
        return np.concatenate([misses(weights), _PENALTY * weights[1:]])

    def slopes(weights: np.ndarray) -> np.ndarray:
        share = expit(features @ weights - log_s)
        return np.concatenate([share[:, None] * features, _PENALTY * np.eye(N_TERMS)[1:]])

    start = np.linalg.lstsq(
        np.concatenate([features, np.eye(N_TERMS)[1:]]),
        np.concatenate([left, np.zeros(N_TERMS - 1)]),
        rcond=None,
    )[0]
    weights = _rounded(least_squares(penalized, start, slopes).x)
    share = np.exp(features @ weights - np.logaddexp(log_s, features @ weights))
    error = np.sqrt(np.square(misses(weights) / np.maximum(share, LEAST_SHARE)).mean())
    return Rest(tuple(classes.tolist()), tuple(center), tuple(scale), tuple(weights), float(error))


def _exact(
    model: Model, rows: Rows, classes: torch.Tensor, budget: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log Z, the same over candidates, and f, of each row."""
    log_z, log_s = np.empty(len(rows)), np.empty(len(rows))

    def normalize(block: slice) -> None:
        log_z[block] = model.logits(rows[block]).logsumexp(1).double()

    if model.blend.levels:
        over_rows(normalize, len(rows), model.n_classes, budget, more=4)
    else:
        for block in row_slices(len(rows), model.n_classes, budget, more=4):
            normalize(block)
    summaries = np.empty((len(rows), N_NUMBERS))
    with one_torch_thread() if model.blend.levels else nullcontext():
        for scored in model.candidates(rows, _K, None, classes):
            log_s[scored.rows] = scored.logits.double().logsumexp(1)
            summaries[scored.rows] = scored.summary
    # Rounding must not make a part larger than the whole.
    return np.maximum(log_z, log_s + 1e-7), log_s, summaries


def _rounded(numbers: np.ndarray) -> np.ndarray:
    return np.array([float(f"{number:.7g}") for number in numbers])
