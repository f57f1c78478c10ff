"""The setting of a measurement: package versions, hardware, memory of this process."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect results."""
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
    """Return the CPU, the number of threads used, the memory in bytes and the system."""
    from extremax.kernels.cpu import threads

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu(),
        "threads": threads.resolve(n_jobs),
        "memory": memory,
        "system": f"{platform.system()} {platform.machine()}",
    }


def forget_peak() -> None:
    """Reset the peak memory on Linux; on other systems it remains that of the whole process."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Return the peak memory of this process since `forget_peak`, in bytes."""
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
