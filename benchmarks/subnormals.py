"""What subnormal numbers in a batch cost a client, with and without what fedsw does against them.

    python -m benchmarks.subnormals [--turns 60] [--batch 10]

A client's work of a round (forward pass, clipped contribution) on 28x28 autoencoders, one of convolutions and one of
dense layers, for an ordinary batch, for the same with one subnormal feature, and with subnormal features only. Three ways: `unprotected`; `processor`, where the
processor flushes them to zero; `shipped`, where the table has lost them besides. The turns are interleaved, and times
are of processor time, of all threads; the area under the curve (AUC) says how well one measurement tells the batch with
one subnormal feature from the ordinary one: 0.5 is not at all. What it costs is a matter of the processor, so that a few
operations alone are measured, too. Writes benchmarks/results/subnormals.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.machine import describe
from fedsw._tools.subnormal import flushing_to_zero
from fedsw.data import Records
from fedsw.experiment import parse_experiment
from fedsw.federation.node.node import Node
from fedsw.learning.models import flatten
from fedsw.learning.tasks.problem import Problem

RESULT = Path(__file__).parent / "results" / "subnormals.json"
SMALL = 1e-40
BATCHES = ("ordinary", "one feature", "all features")
WAYS = ("unprotected", "processor", "shipped")
EXPERIMENT: dict[str, Any] = {
    "name": "subnormals",
    "data": {"source": "files", "columns": {"features": [{"name": "pixel", "count": 784, "low": 0.0, "high": 1.0}]}},
    "objective": {"task": "autoencoder", "penalty": "prior-matching", "alpha": 0.1},
    "clip": {"output": 1.5, "jacobian": 6**0.5, "loss": 1.0},
    "training": {"rounds": 1, "batch_fraction": 0.01},
    "federation": {"clients": 1},
    "privacy": {"trust": "none"},
}


def batches(count: int, *, keep: bool) -> dict[str, Records]:
    """The three batches; `keep` puts back the features that a table loses when it is loaded."""
    drawn = torch.Generator().manual_seed(0)
    ordinary = torch.rand((count, 784), generator=drawn)
    one, all_ = ordinary.clone(), torch.full_like(ordinary, SMALL)
    one[0, 406] = SMALL
    numbers = torch.arange(count)
    made = {}
    for name, features in zip(BATCHES, (ordinary, one, all_), strict=True):
        records = Records(features, torch.zeros_like(numbers), torch.zeros_like(numbers), numbers)
        if keep:
            object.__setattr__(records, "features", features)
        made[name] = records
    return made


MODELS: dict[str, dict[str, Any]] = {
    "convolutions": {"kind": "image-autoencoder", "latent": 6},
    "dense": {"kind": "encoder-decoder", "hidden": [128], "latent": 6},
}
OPERATIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "quotient": (lambda x: x / 3.0, 0.5, SMALL),
    "square root": (torch.sqrt, 0.5, SMALL),
    "softplus": (functional.softplus, -1.0, -95.0),
    "cross-entropy": (lambda x: functional.binary_cross_entropy_with_logits(x, torch.zeros_like(x)), -1.0, -95.0),
    "exponential": (torch.exp, -1.0, -95.0),
    "logarithm": (torch.log, 0.5, SMALL),
}
"""Each with an ordinary argument, and with one for which a number in it is subnormal."""


def works(count: int, model_kind: str) -> dict[tuple[str, str], Callable[[], Any]]:
    """A client's work of a round, by way and batch."""
    task = Problem.from_experiment(parse_experiment({**EXPERIMENT, "model": MODELS[model_kind]}))
    model = task.build_model()
    theta, pull = flatten(model), torch.full((count, task.dimension), 1 / count, dtype=torch.float64)
    forward, contribution = Node.forward, Node.contribution

    def work(records: Records, *, flushing: bool) -> Callable[[], Any]:
        node = Node(task, records, task.cells_of(records), model)

        def run() -> None:
            first = forward if flushing else forward.__wrapped__  # type: ignore[attr-defined]
            second = contribution if flushing else contribution.__wrapped__  # type: ignore[attr-defined]
            batch, _ = first(node, theta, records, 1, 0)
            second(node, batch, pull, 1 / count)

        return run

    raw, loaded = batches(count, keep=True), batches(count, keep=False)
    return {
        (way, name): work((loaded if way == "shipped" else raw)[name], flushing=way != "unprotected")
        for way in WAYS
        for name in BATCHES
    }


def measure(threads: int, turns: int, count: int) -> list[dict[str, Any]]:
    """For each model, interleaved processor times of every way and batch, and what they show."""
    torch.set_num_threads(threads)
    rows = [{"model": kind, **_measured(works(count, kind), turns)} for kind in MODELS]
    return [{"threads": threads, "turns": turns, "batch": count, **row} for row in rows]


def operations(turns: int, count: int = 100_000) -> dict[str, dict[str, float]]:
    """How many times as long each operation takes where a number is subnormal, unprotected and flushed; one thread."""
    torch.set_num_threads(1)
    found = {}
    for name, (operation, ordinary, small) in OPERATIONS.items():
        times: dict[str, list[float]] = {"ordinary": [], "unprotected": [], "flushed": []}

        def after_a_product(values: torch.Tensor, operation: Callable[..., Any] = operation) -> None:
            operation(values * 1.0)

        usual, rare = torch.full((count,), ordinary), torch.full((count,), small)
        asked = (
            ("ordinary", after_a_product, usual),
            ("unprotected", after_a_product, rare),
            ("flushed", flushing_to_zero(after_a_product), rare),
        )
        for _ in range(turns):
            for way, run, values in asked:
                began = time.process_time()
                run(values)
                times[way].append(time.process_time() - began)
        plain = statistics.median(times["ordinary"])
        found[name] = {way: statistics.median(times[way]) / plain for way in ("unprotected", "flushed")}
    return found


def _measured(asked: dict[tuple[str, str], Callable[[], Any]], turns: int) -> dict[str, Any]:
    times: dict[tuple[str, str], list[float]] = {each: [] for each in asked}
    for run in asked.values():
        run()
    order = list(asked)
    shuffle = random.Random(0)
    for _ in range(turns):
        shuffle.shuffle(order)
        for each in order:
            began = time.process_time()
            asked[each]()
            times[each].append(time.process_time() - began)
    rows = {}
    for way in WAYS:
        plain, one, all_ = (times[way, name] for name in BATCHES)
        rows[way] = {
            "milliseconds": statistics.median(plain) * 1e3,
            "one_feature_ratio": statistics.median(one) / statistics.median(plain),
            "one_feature_auc": auc(plain, one),
            "all_features_ratio": statistics.median(all_) / statistics.median(plain),
        }
    return {"ways": rows}


def auc(without: Sequence[float], with_: Sequence[float]) -> float:
    """Probability that a time with is longer than a time without, ties counted half."""
    wins = sum((more > less) + 0.5 * (more == less) for more in with_ for less in without)
    return wins / (len(with_) * len(without))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--threads", type=int, help="measure in this process and print JSON (used by the benchmark)")
    asked = parser.parse_args()
    if asked.threads:
        print(json.dumps(measure(asked.threads, asked.turns, asked.batch)))
        return
    rows = []
    for threads in (1, 2):
        command = [sys.executable, "-m", "benchmarks.subnormals", "--threads", str(threads)]
        command += ["--turns", str(asked.turns), "--batch", str(asked.batch)]
        done = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, capture_output=True, text=True, check=True
        )
        rows += json.loads(done.stdout)
    alone = operations(asked.turns)
    stored = {"machine": describe(), "runs": rows, "operations": alone}
    RESULT.write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")
    for name, ratios in alone.items():
        print(f"{name:>12s}: {ratios['unprotected']:6.1f}x unprotected, {ratios['flushed']:5.2f}x flushed")
    print(f"{'model':>12s} threads {'way':>12s} {'ms':>8s} {'one feature':>12s} {'AUC':>6s} {'all features':>13s}")
    for row in rows:
        for way, found in row["ways"].items():
            print(
                f"{row['model']:>12s} {row['threads']:7d} {way:>12s} {found['milliseconds']:8.1f} {found['one_feature_ratio']:11.3f}x "
                f"{found['one_feature_auc']:6.2f} {found['all_features_ratio']:12.2f}x"
            )


if __name__ == "__main__":
    main()
