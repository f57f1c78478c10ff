"""The setting of a measurement: package versions, hardware, memory of this process."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from extremax._version import __version__
from extremax.kernels.cpu import threads


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect results."""
    packages = {name: version(name) for name in ("torch", "numpy", "numba")}
    return {"extremax": __version__, "Python": platform.python_version(), **packages}


def machine(n_jobs: int | None) -> dict[str, Any]:
    """Return the CPU, the number of threads used, the memory in bytes and the system."""
    return {
        "cpu": _entry("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "threads": threads.resolve(n_jobs),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
    }


def forget_peak() -> None:
    """Reset the peak memory on Linux; on other systems it remains that of the whole process."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Return the peak memory of this process since `forget_peak`, in bytes."""
    peak = _entry("/proc/self/status", "VmHWM")
    if peak is not None:
        return int(peak.split()[0]) * 1024
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _entry(path: str, name: str) -> str | None:
    """Return the first value under a name in a file of Linux; None on other systems."""
    with suppress(OSError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return None
