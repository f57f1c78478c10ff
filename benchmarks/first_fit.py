"""How long does a newcomer wait for kernels to compile?

Every part runs in a process of its own, with an empty cache of kernels and one thread. Figures are
CPU seconds; those of the clock stand beside them, and what is compiled.

first_fit_dense        the first fit of 500 rows, imports of torch and numba included
first_fit_dense_large  compilation alone, in a fit of 100,000 rows of 20,000 classes
first_fit_text         the first fit of 2,000 texts
first_fit_text_large   compilation alone, in a fit of 30,000 texts of 3,000 classes
first_predict          `extremax predict` of one text from the shell, from start to end
import_s               seconds of `import extremax`, by the clock

    python benchmarks/first_fit.py [--functions]

``--functions`` lists what each function took to compile, others that it calls not included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import finish, say

from extremax import ExtremeClassifier


def dense() -> Callable[[], Any]:
    random = np.random.default_rng(0)
    x = random.standard_normal((500, 16), np.float32)
    return lambda: ExtremeClassifier(n_jobs=1, random_state=0).fit(x, np.arange(500) % 20)


def dense_large() -> Callable[[], Any]:
    random = np.random.default_rng(0)
    x = random.standard_normal((100_000, 32), np.float32)
    y = np.arange(100_000) % 20_000
    return lambda: ExtremeClassifier(n_jobs=1, random_state=0).fit(x, y)


def texts(n: int, n_classes: int) -> tuple[list[str], list[str]]:
    random = np.random.default_rng(0)
    labels = random.integers(n_classes, size=n)
    words = np.stack([labels % 50, labels // 50, *random.integers(300, size=(3, n))], 1)
    rows = [" ".join(f"{'abcde'[i]}{w}" for i, w in enumerate(row)) for row in words]
    return rows, labels.astype(str).tolist()


def text() -> Callable[[], Any]:
    x, y = texts(2_000, 100)
    return lambda: ExtremeClassifier(n_jobs=1, random_state=0).fit(x, y)


def text_large() -> Callable[[], Any]:
    x, y = texts(30_000, 3_000)
    return lambda: ExtremeClassifier(n_jobs=1, random_state=0).fit(x, y)


PARTS: dict[str, Callable[[], Callable[[], Any]]] = {
    "dense": dense, "text": text, "dense_large": dense_large, "text_large": text_large,
}  # fmt: skip


def measured(name: str) -> dict[str, Any]:
    """In this process: CPU seconds and those of the clock of one fit, and of its compilation."""
    call, compiled = PARTS[name](), listened()
    start, clock = time.process_time(), time.perf_counter()
    call()
    return {
        "cpu_s": time.process_time() - start,
        "wall_s": time.perf_counter() - clock,
        "compile_s": sum(compiled.values()),
        "n_functions": len(compiled),
        "functions": dict(sorted(compiled.items(), key=lambda item: -item[1])),
    }


def listened() -> dict[str, float]:
    """CPU seconds that numba compiles each function from now on, without those that it calls."""
    from numba.core import event

    taken: dict[str, float] = defaultdict(float)
    stack: list[list[float]] = []

    class Listener(event.Listener):
        def on_start(self, event: Any) -> None:
            stack.append([time.process_time(), 0.0])

        def on_end(self, event: Any) -> None:
            start, inner = stack.pop()
            seconds = time.process_time() - start
            function = event.data["dispatcher"].py_func
            taken[f"{function.__module__}.{function.__name__}"] += seconds - inner
            if stack:
                stack[-1][1] += seconds

    event.register("numba:compile", Listener())
    return taken


def in_a_process(arguments: list[str], cache: Path) -> tuple[str, float, float]:
    """What a Python process prints, its CPU seconds and those of the clock."""
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    before, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True
    )
    wall = time.perf_counter() - clock
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{arguments} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, cpu, wall


def predicted(folder: Path) -> dict[str, float]:
    """`extremax predict` of one text, with a model that this process trains."""
    x, y = texts(30_000, 3_000)
    ExtremeClassifier(random_state=0, epochs=1).fit(x, y).save(folder / "model")
    (folder / "new.txt").write_text(x[0] + "\n", encoding="utf-8")
    command = ["-m", "extremax", "predict", str(folder / "model"), str(folder / "new.txt")]
    _, cpu, wall = in_a_process(command, folder / "cache")
    _, warm, _ = in_a_process(command, folder / "cache")
    return {"cpu_s": cpu, "wall_s": wall, "warm_cpu_s": warm}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out the large fit")
    parser.add_argument("--functions", action="store_true", help="what each function took")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        print(json.dumps(measured(given.part)))
        return
    given.busy_before = os.getloadavg()[0]
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in PARTS:
            if given.quick and name.endswith("large"):
                continue
            output, _, _ = in_a_process([__file__, "--part", name], Path(folder) / name)
            found = figures[name] = json.loads(output.splitlines()[-1])
            functions = found.pop("functions")
            say(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in found.items()))
            if given.functions:
                for function, seconds in functions.items():
                    say(f"{seconds:8.2f}  {function}")
        figures["predict"] = predicted(Path(folder))
        lines = (
            "import time\nt = time.perf_counter()\nimport extremax\nprint(time.perf_counter() - t)"
        )
        imports = [float(in_a_process(["-c", lines], Path(folder))[0]) for _ in range(3)]
    headline = {
        "first_fit_dense": figures["dense"]["cpu_s"],
        "first_fit_text": figures["text"]["cpu_s"],
        "first_predict": figures["predict"]["cpu_s"],
        "import_s": min(imports),
    }
    for name in ("dense_large", "text_large"):
        if name in figures:
            headline[f"first_fit_{name}"] = figures[name]["compile_s"]
    finish(given, headline, figures)


if __name__ == "__main__":
    main()
