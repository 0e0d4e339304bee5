"""What a measurement was taken on."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import sys
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


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
