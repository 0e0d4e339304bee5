"""The private autoencoder on MNIST (RLL Section 6): what a classifier learns from its generated images.

    python -m benchmarks.autoencoder --data-dir DIR [--rounds 2000] [--run RUN]

Trains the shipped `swae-mnist` (or takes a finished run), then: 60 000 images decoded from the prior, labelled by their
nearest neighbours among the training codes; a perceptron of width 100 trained on them; its accuracy on the real test set.
The same on reconstructions of the training images, with their true labels. Labels come from private records by nearest
neighbours: both figures judge a generator and are outside the guarantee. Prints the figures, writes
benchmarks/results/autoencoder.json and docs/images/swae-mnist*.png.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.machine import describe
from fedsw.engines.driver import run
from fedsw.experiment import FULL_EVALUATION, load_experiment
from fedsw.experiment.sources import load_dataset
from fedsw.federation.trust.plan import sensitivities
from fedsw.models import ImageAutoencoder
from fedsw.randomness import Stream
from fedsw.report.plots import draw_run
from fedsw.runs.directory import RunDirectory
from fedsw.tasks.generation import classifier_accuracy, knn_labels, uniform_ball
from fedsw.tasks.problem import Problem
from fedsw.transport.sliced import project

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "autoencoder.json"
IMAGES = ROOT / "docs" / "images"
EXPERIMENT = ROOT / "simulations" / "experiments" / "swae-mnist.toml"
GENERATED = 60_000
SEEDS = 3


def main() -> None:
    """Train or read, judge, write."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data-dir")
    arguments.add_argument("--rounds", type=int, default=2000)
    arguments.add_argument("--run", type=Path, help="a finished run of swae-mnist")
    asked = arguments.parse_args()
    directory = asked.run or train(asked.rounds, asked.data_dir)
    stored = judge(directory, asked.data_dir)
    RESULT.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    draw_run(directory)
    for name in ("samples", "latent"):
        shutil.copy(directory / "plots" / f"{name}.png", IMAGES / f"swae-mnist-{name}.png")
    print(json.dumps({key: stored[key] for key in ("generated", "reconstructed", "sigma", "sigma_paper")}, indent=1))


def train(rounds: int, data_dir: str | None) -> Path:
    """The shipped experiment, longer, with the last tenth of the iterates averaged."""
    overrides = [f"training.rounds={rounds}", "training.averaging=0.1", "evaluate_every=250", FULL_EVALUATION]
    overrides += [f"data.data_dir={json.dumps(data_dir)}"] if data_dir else []
    return run(load_experiment(EXPERIMENT, overrides)).directory


def judge(directory: Path, data_dir: str | None) -> dict[str, Any]:
    """Accuracy on real test images of classifiers trained on generated and on reconstructed ones."""
    experiment, _ = RunDirectory(directory).read_config()
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    dataset = load_dataset(experiment, data_dir)
    task = Problem.from_experiment(experiment, data_dir)
    model = task.build_model()
    assert isinstance(model, ImageAutoencoder)
    model.load_state_dict(load_file(directory / "model.safetensors"))
    with torch.no_grad():
        codes = in_parts(model.encode, dataset.train.features)
        reference = project(codes.double(), experiment.clip.output)
        prior = uniform_ball(
            GENERATED, task.dimension, experiment.objective.prior_radius, Stream.seeded(0, "generated images")
        )
        generated = in_parts(model.images, prior.float())
        reconstructed = in_parts(model.images, codes)
    labels = knn_labels(prior, reference, dataset.train.target)
    test = (dataset.test.features, dataset.test.target)
    found = {
        "generated": [classifier_accuracy(generated, labels, *test, seed=seed) for seed in range(SEEDS)],
        "reconstructed": [
            classifier_accuracy(reconstructed, dataset.train.target, *test, seed=seed) for seed in range(SEEDS)
        ],
    }
    multiplier = summary["guarantee"]["noise_multiplier"]
    paper = experiment.model_copy(update={"privacy": experiment.privacy.model_copy(update={"bound": "paper"})})
    batch = [round(experiment.training.batch_fraction * len(dataset.train))]
    (bound,) = sensitivities(Problem.from_experiment(paper, data_dir), batch, 1 / task.dimension)
    return {
        **found,
        "sigma": multiplier * summary["guarantee"]["sensitivities"]["all"],
        "sigma_paper": multiplier * bound.value,
        "noise_multiplier": multiplier,
        "epsilon": summary["epsilon"],
        "delta": summary["delta"],
        "rounds": summary["rounds"],
        "clients": summary["clients"],
        "batch": batch[0],
        "held_out": summary["held_out"],
        "training_seconds": summary["seconds"],
        "training_date": summary["date"],
        "outside_the_guarantee": "labels by nearest neighbours among private codes; held-out metrics",
        "machine": describe(),
    }


def in_parts(function: Any, rows: Tensor, size: int = 2000) -> Tensor:
    """A function of rows, some thousands at a time."""
    return torch.cat([function(part) for part in torch.split(rows, size)])


if __name__ == "__main__":
    main()
