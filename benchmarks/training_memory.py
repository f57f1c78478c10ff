"""Peak memory of a real fit, relative to the parts that must be in memory.

The data are created in another process and read from files, so that the peak is that of
``ExtremeClassifier.fit`` with one copy of the data. ``peak_over_parts`` counts the whole process,
including the interpreter and libraries. ``row_peak_share`` is the peak with an accumulator of
Adagrad per row of weights over that with one per weight, ``row_head_share`` the same for head and
accumulators alone. The peak is also measured for torch's sparse Adagrad, over the steps of a
fortieth of an epoch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

EPOCHS = 2


def megabytes(field: str) -> float:
    """Return VmRSS (current) or VmHWM (peak) of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"/proc/self/status has no {field}; this benchmark needs Linux")


def make(folder: str, rows: int, classes: int, features: int) -> None:
    import numpy as np

    from extremax.data.synthetic import clustered

    X, y = clustered(rows, classes, features)
    np.save(f"{folder}/X.npy", X)
    np.save(f"{folder}/y.npy", y)


def measure_ours(folder: str, accumulators: str) -> dict[str, float]:
    import numpy as np

    from extremax import ExtremeClassifier

    phases = {"imported": megabytes("VmRSS")}
    X, y = np.load(f"{folder}/X.npy"), np.load(f"{folder}/y.npy")
    phases["data read"] = megabytes("VmRSS")

    def note(record: dict) -> None:
        phases[f"peak by the end of epoch {record['epoch']}"] = megabytes("VmHWM")
        phases[f"held after epoch {record['epoch']}"] = megabytes("VmRSS")

    model = ExtremeClassifier(epochs=EPOCHS, accumulators=accumulators, random_state=0)
    model.fit(X, y, callback=note)
    head = sum(v.numel() * v.element_size() for v in model.model_.head.state().values()) / 1e6
    data = (X.nbytes + y.nbytes) / 1e6
    return {"peak": megabytes("VmHWM"), "head and accumulators": head, "data": data, **phases}


def measure_torch(folder: str) -> dict[str, float]:
    import numpy as np
    from _common import TorchStep

    X, y = np.load(f"{folder}/X.npy"), np.load(f"{folder}/y.npy")
    step = TorchStep(X, y, int(y.max()) + 1)
    step.run(max(3, len(y) // 4096 // 40), 4096)
    return {"peak": megabytes("VmHWM")}


def in_process(*args: object) -> dict[str, float]:
    """Run a part of this script in its own process; its last line is JSON."""
    command = [sys.executable, __file__, "--part", *map(str, args)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return json.loads(lines[-1])


def part(name: str, folder: str, *more: str) -> None:
    if name == "make":
        make(folder, *map(int, more))
        print("{}")
    else:
        print(json.dumps({"ours": measure_ours, "torch": measure_torch}[name](folder, *more)))


def main() -> None:
    if sys.argv[1:2] == ["--part"]:
        return part(*sys.argv[2:])
    from _common import arguments, finish, say

    given = arguments(__doc__, {"rows": 120_000, "classes": 60_000})
    with tempfile.TemporaryDirectory(prefix="extremax-bench-") as folder:
        in_process("make", folder, given.rows, given.classes, given.features)
        ours = in_process("ours", folder, "weight")
        by_row = in_process("ours", folder, "row")
        theirs = in_process("torch", folder)
    parts = ours["head and accumulators"] + ours["data"]
    ratio = ours["peak"] / parts
    row_shares = {
        f"row_{name}_share": by_row[key] / ours[key]
        for name, key in (("peak", "peak"), ("head", "head and accumulators"))
    }
    for name, size in ours.items():
        say(f"{name}: {size:,.0f} MB")
    say(f"peak over head, accumulators and data ({parts:,.0f} MB): {ratio:.3f}")
    say(
        f"with an accumulator per row: peak {by_row['peak']:,.0f} MB, head and accumulators "
        f"{by_row['head and accumulators']:,.0f} MB"
    )
    say(f"torch's sparse Adagrad: peak {theirs['peak']:,.0f} MB, {theirs['peak'] / parts:.3f}")
    finish(
        given,
        {"peak_over_parts": ratio, **row_shares},
        {
            "peak_mb": ours["peak"],
            "row_peak_mb": by_row["peak"],
            "parts_mb": parts,
            "without_imports": (ours["peak"] - ours["imported"]) / parts,
            "torch_peak_mb": theirs["peak"],
            "torch_peak_over_parts": theirs["peak"] / parts,
            "phases_mb": ours,
        },
        {"epochs": EPOCHS},
    )


if __name__ == "__main__":
    main()
