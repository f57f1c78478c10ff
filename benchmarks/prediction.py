"""Beam search through the noise tree against exact top-1 search, on a trained model.

The data are synthetic (`extremax.data.clustered`): classes with power-law frequencies in clusters
of sub-clusters, with two to three rows per class, as many as Amazon-670K has. Test rows are further
rows of the same draw, of classes that also occur in training. The model is trained as a user would
train it. The figures include its accuracy, because recall means little where the exact answer is
arbitrary.

The reported width is the smallest one at which the best class of the beam is the exact one on 98%
of the rows, or the largest width if none reaches that; the whole curve is in the figures. ``plain``
is what a user without this package would write: a matrix product and an argmax over the scores of
the head. It leaves out log q, so its answers are not those of the model, but it bounds the speed of
any exact search. The first beam search builds an index of the head; ``index_s`` is the time that
this takes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from _common import arguments, finish, held_out_rows, say, timed

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered
from extremax.noise import TreeNoise
from extremax.noise.tree_search import Index

RECALL = 0.98
WIDTHS = (4, 8, 16, 24, 32, 48, 64, 128)
COMPONENTS = 64
REPETITIONS = 3


def plain_top1(features: np.ndarray, weight: torch.Tensor, bias: torch.Tensor) -> None:
    for block in torch.from_numpy(features).split(512):
        torch.addmm(bias, block, weight.T).argmax(1)


def rate_of(work: Callable[[], None], n_rows: int) -> float:
    """Rows per second, from the median time."""
    return n_rows / float(np.median([timed(work) for _ in range(REPETITIONS)]))


def main() -> None:
    given = arguments(__doc__, {"rows": 30_000, "classes": 10_000, "features": 128})
    n_test = min(1_024 if given.quick else 4_096, given.rows // 10)
    epochs = 3 if given.quick else 5
    features, labels = clustered(given.rows + n_test, given.classes, given.features)
    rows, out = held_out_rows(labels, n_test)
    test, truth = features[out], labels[out]
    model = ExtremeClassifier(noise=TreeNoise(COMPONENTS), epochs=epochs, random_state=0)
    train_seconds = timed(lambda: model.fit(features[rows], labels[rows]))
    last = model.history_[-1]
    say(f"trained in {train_seconds:.0f} s; validation log-likelihood {last.get('log_likelihood')}")

    model.predict_topk(test[:64], 1)
    results = {}

    def exact() -> None:
        results["exact"] = model.predict_topk(test, 1)

    exact_rate = rate_of(exact, len(test))
    best = results["exact"].labels[:, 0]
    accuracy = float((best == truth).mean())
    say(f"exact top-1: {exact_rate:,.0f} rows/s, accuracy {accuracy:.3f}")
    part = test[:1024]
    head, noise = model.model_.head, model.model_.noise
    plain_rate = rate_of(lambda: plain_top1(part, head.vectors.weight, head.bias), len(part))
    say(f"plain matrix product and argmax: {plain_rate:,.0f} rows/s")

    model.predict_topk(test, 1, search="beam", width=WIDTHS[0])  # Compiles kernels.
    index_seconds = timed(lambda: Index(head.vectors, noise))
    say(f"index of the first beam search: {index_seconds:.2f} s")
    curve = []
    for width in WIDTHS:

        def beam(width: int = width) -> None:
            results[width] = model.predict_topk(test, 1, search="beam", width=width)

        rate = rate_of(beam, len(test))
        recall = float((results[width].labels[:, 0] == best).mean())
        curve.append({"width": width, "recall_at_1": recall, "rows_per_s": rate})
        say(f"beam of {width}: recall {recall:.4f}, {rate:,.0f} rows/s, {rate / exact_rate:.1f} ×")
    chosen = next((c for c in curve if c["recall_at_1"] >= RECALL), curve[-1])
    width = chosen["width"]
    answer = results[width]
    exact_log_p = model.predict_log_proba(test, answer.labels)
    error = float(np.abs(answer.log_probs - exact_log_p).mean())
    beam_accuracy = float((answer.labels[:, 0] == truth).mean())
    speedup = chosen["rows_per_s"] / exact_rate
    say(f"width {width}: {speedup:.1f} × exact, recall {chosen['recall_at_1']:.4f}")
    say(f"mean |log p by beam − exact log p| of the same class: {error:.4f}")
    finish(
        given,
        {"speedup": speedup, "recall_at_1": chosen["recall_at_1"], "width": width},
        {
            "recall_reached": chosen["recall_at_1"] >= RECALL,
            "exact_rows_per_s": exact_rate,
            "beam_rows_per_s": chosen["rows_per_s"],
            "plain_rows_per_s": plain_rate,
            "index_s": index_seconds,
            "speedup_over_plain": chosen["rows_per_s"] / plain_rate,
            "log_prob_mean_abs_difference": error,
            "accuracy": accuracy,
            "beam_accuracy": beam_accuracy,
            "watched_log_likelihood": last.get("log_likelihood"),
            "train_s": train_seconds,
            "curve": curve,
        },
        {"held_out": len(test), "components": COMPONENTS, "epochs": len(model.history_)},
    )


if __name__ == "__main__":
    main()
