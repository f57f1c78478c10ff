"""Fits of `ExtremeClassifier` on a GPU against two cores of the same machine.

Dense titles (yso-finna-en, 512 features), sessions (diginetica, 256 features) and sparse titles,
with defaults, on encoded rows. Kernels are compiled before the clock starts, and the seconds that
the noise takes to fit, on the CPU in both cases, are left out and told apart.

fit_over_two_cores   seconds on two cores over those on the GPU, the smaller of both dense data
worst_accuracy_z     accuracy on the GPU less that on two cores, on test rows, in standard errors of
worst_loglik_z       the difference (of the same rows); the largest in size, and the same for log p

``--large``: a run on synthetic embeddings of 10⁷ classes, 256 features and 5·10⁶ examples that are
streamed from a memory map, and how near it comes to the best possible accuracy.

    python benchmarks/gpu_fit.py --data DIR [--only yso-finna-en] [--large]

Without DIR, or with ``--quick``: a small synthetic problem.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import finish, say
from _real import features_of

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.devices import missing
from extremax.noise import Noise

DENSE = "yso-finna-en", "diginetica"
#: As a share of all examples, the test rows of the large run; noise of its rows, unit vectors.
LARGE = {"classes": 10_000_000, "features": 256, "rows": 5_000_000}
SPREAD = 0.25


class NoiseClock:
    """Seconds that noises take to fit."""

    def __enter__(self) -> NoiseClock:
        self.seconds, self._fit = 0.0, Noise.fit
        fit = self._fit

        def timed(noise: Noise, *arguments: Any, **more: Any) -> Noise:
            start = time.perf_counter()
            fitted = fit(noise, *arguments, **more)
            self.seconds += time.perf_counter() - start
            return fitted

        Noise.fit = timed  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Noise.fit = self._fit  # type: ignore[method-assign]


def measured(name: str, task: tuple[Any, ...], **parameters: Any) -> tuple[dict[str, float], Any]:
    """Figures of a fit, and the outcome of every test row."""
    x, y, test, truth = task
    model = ExtremeClassifier(random_state=0, **parameters)
    with NoiseClock() as noise:
        start = time.perf_counter()
        model.fit(x, y)
        seconds = time.perf_counter() - start
    found = model.outcomes(test, truth)
    right = np.asarray(found.correct, np.float64)
    log_p = np.asarray(found.log_prob, np.float64)
    figures = {
        "seconds": seconds - noise.seconds,
        "noise_seconds": noise.seconds,
        "accuracy": float(right.mean()),
        "loglik": float(log_p[np.isfinite(log_p)].mean()),
    }
    say(
        f"{name}: accuracy {figures['accuracy']:.2%}, log-likelihood {figures['loglik']:.3f}, "
        f"{figures['seconds']:.1f} s, noise {noise.seconds:.1f} s"
    )
    return figures, (right, log_p)


def compared(task: tuple[Any, ...], n_warm: int = 6_000) -> dict[str, Any]:
    """A GPU against two cores."""
    few = task[0][:n_warm], task[1][:n_warm], task[2][:500], task[3][:500]
    for device in ("cuda", "cpu"):
        # With an objective, so that little data takes the kernels of much.
        ExtremeClassifier("sampled_softmax", random_state=0, epochs=1, device=device).fit(*few[:2])
    gpu, gpu_rows = measured("GPU", task, device="cuda")
    cpu, cpu_rows = measured("two cores", task, n_jobs=2)
    z = []
    for ours, theirs in zip(gpu_rows, cpu_rows, strict=True):
        gap = (ours - theirs)[np.isfinite(ours) & np.isfinite(theirs)]
        z.append(float(gap.mean() / max(gap.std() / np.sqrt(len(gap)), 1e-12)))
    return {
        "fit_over_two_cores": cpu["seconds"] / gpu["seconds"],
        "accuracy_z": z[0],
        "loglik_z": z[1],
        "gpu": gpu,
        "two cores": cpu,
    }


def sparse_task(data: Path) -> tuple[Any, ...]:
    """Sparse titles, as in `text_peers`."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from text_peers import yso

    train, test = (yso(data / "yso-finna-en" / f"{part}.tsv.xz") for part in ("train", "test"))
    vectorizer = TfidfVectorizer(min_df=5, dtype=np.float32)
    x = vectorizer.fit_transform(train.documents)
    return x, np.array(train.single), vectorizer.transform(test.documents), np.array(test.single)


def large(sizes: dict[str, int]) -> dict[str, float]:
    """Rows are the unit vector of their class plus noise; the nearest class vector is the best
    possible answer."""
    generator = torch.Generator("cuda").manual_seed(0)
    n, width = sizes["rows"], sizes["features"]
    centers = torch.randn((sizes["classes"], width), generator=generator, device="cuda")
    centers /= centers.norm(dim=1, keepdim=True)
    # A tenth of the classes have half of the examples, so that the others are rare.
    y = (torch.rand(n, generator=generator, device="cuda") ** 2 * sizes["classes"]).long()
    with tempfile.TemporaryDirectory() as folder:
        x = np.lib.format.open_memmap(f"{folder}/x.npy", "w+", np.float32, (n, width))
        for start in range(0, n, 1 << 18):
            part = centers[y[start : start + (1 << 18)]]
            noise = torch.randn(part.shape, generator=generator, device="cuda")
            x[start : start + len(part)] = (part + SPREAD * noise).cpu().numpy()
        x.flush()
        labels, n_test = y.cpu().numpy(), n // 100
        rows = torch.from_numpy(x[-n_test:]).cuda()
        best = torch.cat([(part @ centers.T).argmax(1) for part in rows.split(64)])
        # A class that training never saw cannot be answered.
        seen = torch.from_numpy(np.isin(labels[-n_test:], labels[:-n_test])).cuda()
        possible = float(((best == y[-n_test:]) & seen).double().mean())
        del centers, rows, best, y
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        train = np.load(f"{folder}/x.npy", mmap_mode="r")[:-n_test]
        test = np.array(x[-n_test:])
        model = ExtremeClassifier(
            "negative_sampling", "frequency", n_negatives=8, epochs=2, batch_size=8192,
            device="cuda", random_state=0, validation_fraction=0.002,
        )  # fmt: skip
        start_time = time.perf_counter()
        model.fit(train, labels[:-n_test])
        seconds = time.perf_counter() - start_time
        found = model.predict_topk(test, 1, search="exact").labels[:, 0]
    figures = {
        "examples_per_s": model.history_[-1]["examples"] / model.history_[-1]["seconds"],
        "fit_seconds": seconds,
        "peak_gpu_gb": torch.cuda.max_memory_allocated() / 1e9,
        "accuracy": float((found == labels[-n_test:]).mean()),
        "possible_accuracy": possible,
    }
    say(", ".join(f"{key} {value:,.4g}" for key, value in figures.items()))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small synthetic problem")
    parser.add_argument("--data", type=Path, help="folder with yso-finna-en and diginetica")
    parser.add_argument("--only", nargs="*", choices=[*DENSE, "text"], default=[*DENSE, "text"])
    parser.add_argument("--large", action="store_true", help="also the run on 10⁷ classes")
    given = parser.parse_args()
    given.busy_before = os.getloadavg()[0]
    if missing() is not None:
        raise SystemExit(f"gpu_fit needs a GPU, and {missing()}")
    figures: dict[str, Any] = {}
    data = None if given.quick else given.data
    if data is None:
        x, y = clustered(60_000, 3_000, 64, seed=0)
        figures["synthetic"] = compared((x[:50_000], y[:50_000], x[50_000:], y[50_000:]))
    else:
        for name in given.only:
            say(name)
            task = sparse_task(data) if name == "text" else tuple(features_of(name, data))
            figures[name] = compared(task)
    dense = {name: found for name, found in figures.items() if name != "text"}
    headline = {}
    if dense:
        headline["fit_over_two_cores"] = min(f["fit_over_two_cores"] for f in dense.values())
    for key in ("accuracy_z", "loglik_z") if figures else ():
        headline[f"worst_{key}"] = max((f[key] for f in figures.values()), key=abs)
    if given.large:
        figures["large"] = large(LARGE)
    finish(given, headline, figures, data="synthetic" if data is None else ", ".join(given.only))


if __name__ == "__main__":
    main()
