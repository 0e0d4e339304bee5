"""Generators trained on one noised sketch of MNIST: what a perceptron learns from their labelled images.

    python -m benchmarks.sketches --data-dir DATA [--epsilon 10 1] [--steps 1600] [--batch 300] [--fraction 1]
                                  [--pairs 4800] [--seeds 1] [--json FILE]

Prints a table, and writes JSON where it is asked to. For each epsilon: one release of a sketch of all 60 000 images with
their labels (delta = 1e-5; a record's replacement, label included; trust model `sketch`), a convolutional class-conditional
generator trained on it, a perceptron of width 100 trained on 60 000 generated images and tested on the 10 000 held-out
real ones. Random frequencies of a Gaussian kernel with bandwidths 1.5, 2.5, 4 and 7 on pixels.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import describe
from fedsw.accounting import Ledger
from fedsw.data.images import MNIST_SIDE, mnist
from fedsw.data.records import Dataset
from fedsw.models import mlp
from fedsw.models.conditional import ImageGenerator
from fedsw.single.generators import Progress, Settings, fit_generator, generate, sketch_distance
from fedsw.single.sketching import plan_sketch, release_sketch
from fedsw.transport.noised_sketches import NoisedSketch
from fedsw.transport.sketch_parts import GaussianKernel
from fedsw.transport.sketches import Law, Sketcher

BANDWIDTHS = (1.5, 2.5, 4.0, 7.0)
DELTA = 1e-5
GENERATED, EPOCHS, CLASSIFIED = 60_000, 5, 256


def main(arguments: Sequence[str] | None = None) -> int:
    """One row for each epsilon and seed."""
    asked = _parser().parse_args(arguments)
    data = mnist(asked.data_dir)
    rows = []
    for seed in range(asked.seeds):
        law = Law(MNIST_SIDE**2, (GaussianKernel(BANDWIDTHS, asked.pairs),), classes=10, seed=seed)
        sketcher = law.drawn()
        for epsilon in asked.epsilon:
            row = _row(data, sketcher, epsilon, asked, seed)
            print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
            rows.append(row)
    if asked.json:
        asked.json.write_text(json.dumps({"machine": describe(), "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


def _row(data: Dataset, sketcher: Sketcher, epsilon: float, asked: argparse.Namespace, seed: int) -> dict[str, Any]:
    began = time.perf_counter()
    sketch = _released(data, sketcher, epsilon, seed)
    sketched = time.perf_counter()
    settings = Settings(asked.steps, asked.batch, seed, asked.learning_rate, asked.fraction)
    network = ImageGenerator(MNIST_SIDE, 10, seed=seed)
    fit_generator(sketch, network, settings, sketcher=sketcher, observer=_show)
    trained = time.perf_counter()
    images, labels = generate(network, sketch.proportions, GENERATED, seed=seed)
    return {
        "epsilon": epsilon,
        "seed": seed,
        "pairs": asked.pairs,
        "steps": asked.steps,
        "batch": asked.batch,
        "fraction": asked.fraction,
        "sigma": round(sketch.sigma, 4),
        "accuracy": round(_accuracy(images, labels, data.test.features, data.test.target, seed), 4),
        "distance": sketch_distance(sketch, images[:4000], labels[:4000], sketcher=sketcher),
        "sketch_seconds": round(sketched - began, 1),
        "training_seconds": round(trained - sketched, 1),
        "bytes": sketch.value.numel() * 8,
    }


def _released(data: Dataset, sketcher: Sketcher, epsilon: float, seed: int) -> NoisedSketch:
    """One release; its noise is seeded, so that a row can be repeated (epsilon is nominal: the images are public)."""
    records = data.train
    plan = plan_sketch(sketcher.law, records=len(records), epsilon=epsilon, delta=DELTA, seed=seed)
    with tempfile.TemporaryDirectory() as folder, Ledger.create(Path(folder) / "ledger.sqlite", plan) as ledger:
        return release_sketch(sketcher, records.features, records.target, plan, ledger)


def _accuracy(images: Tensor, labels: Tensor, held_out: Tensor, target: Tensor, seed: int) -> float:
    """Of a perceptron of width 100, trained on generated images, on real ones."""
    model = mlp(images.shape[1], (100,), 10, seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(images), generator=generator).split(CLASSIFIED):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        return float((model(held_out).argmax(dim=1) == target).float().mean())


def _show(progress: Progress) -> None:
    print(f"step {progress.step}: squared distance {progress.distance:.3g}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sketches")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[10.0, 1.0])
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--batch", type=int, default=300)
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--pairs", type=int, default=4800)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to leave the rows")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
