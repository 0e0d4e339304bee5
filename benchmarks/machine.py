"""What a measurement was taken on."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import statistics
import sys
import time
from pathlib import Path


def describe() -> dict[str, object]:
    """Processor, cores, versions and date, for a benchmark's JSON."""
    packages = ("torch", "numpy", "flwr", "ray", "POT")
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "load": os.getloadavg()[0],
        "python": f"{platform.python_version()} ({sys.base_prefix}, {platform.python_compiler()})",
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def pace(turns: int = 60) -> float:
    """Milliseconds, in the median, of a plain loop that does the same whatever is measured here.

    Where it changes between two runs, so did the machine: the processor's clock, or who else uses its cores.
    """
    times = []
    for _ in range(turns):
        began, total = time.perf_counter(), 0
        for number in range(200_000):
            total += number * number
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
