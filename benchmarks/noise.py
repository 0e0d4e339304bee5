"""How fast private noise is, on one core, and what its parts cost.

    python -m benchmarks.noise [--size 4194304] [--repeats 15]

Parts: the ChaCha20 keystream, 53-bit uniforms, the Box-Muller transform of words that are there; whole: normals, and
noise on a grid (what a release uses), beside the generators of torch and numpy that are fast and not secure. One
thread; nanoseconds of processor time a number, so that a shared machine does not count against them (wall-clock times
are stored beside), the best of the repeats. Writes benchmarks/results/noise.json and prints a table.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe
from fedsw._tools.randomness import BLOCK, Stream, box_muller
from fedsw.privacy.mechanisms import exact_normals, noised

RESULT = Path(__file__).parent / "results" / "noise.json"


def measure(work: Callable[[], object], size: int, repeats: int) -> dict[str, float]:
    """Best processor and wall-clock nanoseconds a number, and millions of numbers a second of processor time."""
    processor, wall = [], []
    for _ in range(repeats):
        began, started = time.perf_counter(), time.thread_time()
        work()
        processor.append(time.thread_time() - started)
        wall.append(time.perf_counter() - began)
    best = 1e9 * min(processor) / size
    return {
        "ns": round(best, 3),
        "wall_ns": round(1e9 * min(wall) / size, 3),
        "millions_a_second": round(1e3 / best, 3),
    }


def rows(size: int, repeats: int) -> dict[str, dict[str, float]]:
    stream, rng = Stream.secure(), np.random.default_rng()
    words, block = stream.words(BLOCK), np.empty(BLOCK)
    vector = torch.zeros(size, dtype=torch.float64)
    pair = [stream.words(4).tolist() for _ in range(2)]

    def transform() -> None:
        for _ in range(size // BLOCK):
            box_muller(words, block)

    return {
        "keystream (words)": measure(lambda: stream.words(size), size, repeats),
        "uniforms": measure(lambda: stream.uniforms(size), size, repeats),
        "transform of words": measure(transform, size // BLOCK * BLOCK, repeats),
        "normals": measure(lambda: stream.normals(size), size, repeats),
        "noise on a grid": measure(lambda: noised(vector, 1.0, stream), size, repeats),
        "torch.randn, float64": measure(lambda: torch.randn(size, dtype=torch.float64), size, repeats),
        "torch.randn, float32": measure(lambda: torch.randn(size), size, repeats),
        "numpy standard_normal": measure(lambda: rng.standard_normal(size), size, repeats),
        "one doubtful pair, in 120 digits": measure(lambda: exact_normals(*pair), 1, repeats),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=2**22)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measured = rows(options.size, options.repeats)
    RESULT.write_text(json.dumps({"machine": describe(), "size": options.size, "rows": measured}, indent=1) + "\n")
    table = Table("", "ns a number", "wall ns", "million/s")
    for name, row in measured.items():
        table.add_row(name, f"{row['ns']:.2f}", f"{row['wall_ns']:.2f}", f"{row['millions_a_second']:.4g}")
    Console().print(table)


if __name__ == "__main__":
    main()
