"""Where figures were measured: versions, the machine, the memory of this process."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any


def versions() -> dict[str, str]:
    import numba
    import numpy
    import torch

    from extremax._version import __version__

    return {
        "extremax": __version__,
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "numba": numba.__version__,
    }


def machine(n_jobs: int | None) -> dict[str, Any]:
    from extremax.kernels.cpu import threads

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu(),
        "threads": threads.resolve(n_jobs),
        "memory": memory,
        "system": f"{platform.system()} {platform.machine()}",
    }


def forget_peak() -> None:
    """Begin anew to watch for the peak; where the system cannot, the peak is that of all time."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Bytes that this process held at most since `forget_peak`."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
