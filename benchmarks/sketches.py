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
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from fedsw.data._image_sets import MNIST_SIDE, mnist
from fedsw.data.records import Dataset
from fedsw.learning.models.labelled import ImageGenerator
from fedsw.learning.sketches._parts import GaussianKernel
from fedsw.learning.sketches.fit import FitSettings, Progress, fit_generator, generate, sketch_distance
from fedsw.learning.sketches.sketch_law import Law, Sketcher
from fedsw.learning.tasks.generated_samples import classifier_accuracy
from simulations.papers.computed.labels import BANDWIDTHS, released

DELTA = 1e-5
GENERATED, EPOCHS = 60_000, 5


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
    sketch = released(data.train, sketcher, epsilon=epsilon, delta=DELTA, seed=seed)  # nominal: the images are public
    sketched = time.perf_counter()
    settings = FitSettings(asked.steps, asked.batch, seed, asked.learning_rate, asked.fraction)
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
        "accuracy": round(
            classifier_accuracy(images, labels, data.test.features, data.test.target, epochs=EPOCHS, seed=seed), 4
        ),
        "distance": sketch_distance(sketch, images[:4000], labels[:4000], sketcher=sketcher),
        "sketch_seconds": round(sketched - began, 1),
        "training_seconds": round(trained - sketched, 1),
        "bytes": sketch.value.numel() * 8,
    }


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
