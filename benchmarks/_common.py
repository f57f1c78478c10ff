"""Shared by the benchmark scripts: arguments, problems, clocks, and the JSON line at the end."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

import extremax
from extremax.features import Encoder
from extremax.heads import LinearHead
from extremax.kernels.cpu import threads
from extremax.labels import ClassLabels, LabelIndex
from extremax.model import Model
from extremax.noise import Noise, UniformNoise
from extremax.objectives import NegativeSampling, Objective
from extremax.prediction import Blend
from extremax.random import Stream
from extremax.rows import as_rows
from extremax.training.data import Examples
from extremax.training.loop import Trainer
from extremax.training.state import Settings

# The size of Amazon-670K as Bamler & Mandt 2020 use it, with features of 512 dimensions.
FULL = {"rows": 490_449, "classes": 213_874, "features": 512}


def arguments(
    description: str, quick: dict[str, int], argv: list[str] | None = None
) -> argparse.Namespace:
    """Parse ``--quick`` and the sizes, whose defaults are those of the full or quick problem."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, under a minute")
    for name, size in FULL.items():
        parser.add_argument(
            f"--{name}", type=int, help=f"{size:,}, with --quick {quick.get(name, size):,}"
        )
    given = parser.parse_args(argv)
    for name, size in FULL.items():
        if getattr(given, name) is None:
            setattr(given, name, quick.get(name, size) if given.quick else size)
    given.busy_before = os.getloadavg()[0]
    return given


def say(text: str) -> None:
    print(text, flush=True)


def finish(
    given: argparse.Namespace,
    headline: dict[str, float],
    figures: dict[str, Any],
    sizes: dict[str, Any] | None = None,
    data: str = "synthetic",
) -> NoReturn:
    """Print the JSON line: the headline figures at the top level, the rest under ``figures``."""
    script = Path(sys.argv[0]).stem
    result = {
        "benchmark": script,
        "quick": given.quick,
        "data": data,
        **headline,
        "figures": figures,
        "sizes": {name: getattr(given, name) for name in FULL if hasattr(given, name)}
        | (sizes or {}),
        "versions": versions(),
        "machine": machine() | {"load_before": given.busy_before},
        "command": shlex.join(["python", f"benchmarks/{script}.py", *sys.argv[1:]]),
    }
    print(json.dumps(rounded(result)), flush=True)
    sys.exit(0)


def rounded(value: Any) -> Any:
    """Round all floats to four significant digits."""
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(v) for v in value]
    return float(f"{value:.4g}") if isinstance(value, (float, np.floating)) else value


def versions() -> dict[str, str]:
    import numba

    return {
        "extremax": extremax.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "numba": numba.__version__,
    }


def machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_name(),
        "threads": threads.available(),
        "memory_gb": round(memory / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def held_out_rows(labels: np.ndarray, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, at most n held-out rows); the first row of each class is for training."""
    first = np.zeros(len(labels), bool)
    first[np.unique(labels, return_index=True)[1]] = True
    others = np.flatnonzero(~first)
    out = np.sort(np.random.default_rng(seed).permutation(others)[:n])
    return np.setdiff1d(np.arange(len(labels)), out), out


def model_of(head: LinearHead, noise: Noise, objective: Objective) -> Model:
    """A model of dense rows whose labels are class numbers."""
    labels = ClassLabels(LabelIndex(np.arange(head.n_classes)))
    model = Model(Encoder(), labels, head, noise, objective, Blend.start(objective, noise))
    model.attach()
    return model


class DenseStep:
    """The step of the training loop on dense features, with one uniform negative by default."""

    def __init__(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        n_classes: int,
        *,
        noise: Noise | None = None,
        n_negatives: int = 1,
        batch_size: int = 512,
        accumulators: str = "weight",
    ) -> None:
        if noise is None:
            noise = UniformNoise().fit(features, labels, n_classes)
        # Write all weights once, so that the step does not pay for the first touch of each page.
        head = LinearHead(n_classes, features.shape[1], 1.0, accumulators=accumulators)
        head.weight.fill_(0.0)
        self.batch_size, self.n_rows = batch_size, len(labels)
        examples = Examples(as_rows(features), labels)
        examples.keep_context(noise)
        self.trainer = Trainer(
            model=model_of(head, noise, NegativeSampling()),
            examples=examples,
            settings=Settings(
                n_negatives=n_negatives,
                learning_rate=0.3,
                schedule="constant",
                epochs=1,
                batch_size=batch_size,
                max_seconds=None,
                patience=1,
            ),
            seed=0,
        )
        self._calls = 0

    def run(self, n_batches: int | None = None) -> int:
        """Train on ``n_batches`` batches of random rows, or for one epoch if None; return the
        number of examples."""
        self._calls += 1
        order = np.random.default_rng(self._calls).permutation(self.n_rows)
        key = Stream.of(0, self._calls, rows=order[:0]).key
        rows = order if n_batches is None else order[: n_batches * self.batch_size]
        n_steps = -(-len(rows) // self.batch_size)
        self.trainer.train(rows, key, np.full(n_steps, 0.3))
        return len(rows)


class TorchStep:
    """The usual torch code: sparse embeddings for weights and biases, Adagrad."""

    def __init__(self, features: np.ndarray, labels: np.ndarray, n_classes: int) -> None:
        warnings.filterwarnings("ignore", "Sparse invariant checks")
        self.features, self.labels = torch.from_numpy(features), torch.from_numpy(labels)
        self.n_classes = n_classes
        self.weight = torch.nn.Embedding(n_classes, features.shape[1], sparse=True)
        self.bias = torch.nn.Embedding(n_classes, 1, sparse=True)
        torch.nn.init.zeros_(self.weight.weight)
        torch.nn.init.zeros_(self.bias.weight)
        parameters = [self.weight.weight, self.bias.weight]
        self.optimizer = torch.optim.Adagrad(parameters, lr=0.01, initial_accumulator_value=1.0)
        self.log_q = -float(np.log(n_classes))
        self.generator = torch.Generator().manual_seed(0)

    def run(self, n_batches: int, batch_size: int) -> int:
        order = torch.randperm(len(self.labels), generator=self.generator)
        done = 0
        for i in range(n_batches):
            start = i * batch_size % len(order)
            rows = order[start : start + batch_size]
            self._step(rows)
            done += len(rows)
        return done

    def _step(self, rows: torch.Tensor) -> None:
        drawn = torch.randint(self.n_classes, (len(rows), 1), generator=self.generator)
        classes = torch.cat([self.labels[rows][:, None], drawn], 1)
        x = self.features[rows]
        scores = (self.weight(classes) * x[:, None]).sum(2) + self.bias(classes)[:, :, 0]
        signed = torch.cat([-scores[:, :1], scores[:, 1:]], 1)
        losses = torch.nn.functional.softplus(signed) + 1e-5 * (scores + self.log_q) ** 2
        self.optimizer.zero_grad()
        losses.sum().backward()
        self.optimizer.step()
