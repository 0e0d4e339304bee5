"""What a measurement was taken on."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def describe() -> dict[str, object]:
    """Processor, cores, GPU if torch is offered one, versions and date, for a benchmark's JSON."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "load": os.getloadavg()[0],
        "python": f"{platform.python_version()} ({sys.base_prefix}, {platform.python_compiler()})",
        "versions": _versions("torch", "numpy", "flwr", "ray", "POT"),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **_gpu(),
    }


def words(machine: Mapping[str, Any]) -> str:
    """What `describe` gave, but the date and the load, in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    gpu = f", {machine['gpu']['name']}" if "gpu" in machine else ""
    cores = f"{machine['processor']}, {machine['cores']} cores{gpu}, OMP_NUM_THREADS {machine['threads']}"
    return f"{cores}; Python {machine['python'].split()[0]}, {versions}"


def _versions(*packages: str) -> dict[str, str]:
    """Of the packages that are installed."""
    found = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _gpu() -> dict[str, dict[str, object]]:
    if not torch.cuda.is_available():
        return {}
    bytes_ = torch.cuda.get_device_properties(0).total_memory
    return {"gpu": {"name": torch.cuda.get_device_name(), "memory_bytes": bytes_, "cuda": torch.version.cuda}}


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
