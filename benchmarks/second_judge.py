"""A private classifier as a second judge of generated images, tried on USPS.

    python -m benchmarks.second_judge --data-dir DATA [--epsilon 1] [--seeds 3]

One budget of epsilon (delta = 1e-5, replacement), two ways. *Whole*: `sketch-mnist` on USPS has all of it (two clients,
600 pairs of waves, 250 steps). *Judged*: the sketch has SHARE of mu^2, and `image-classifier` the rest; both are Gaussian,
and squares of mu add up. Then of the images that are generated those are *kept* whose label the classifier says, too, or
all are *relabelled* by it. 5 000 of them teach a perceptron of width 100; a LeNet and that perceptron with shifts, noise and
softened labels, as `fedsw.learning.sketches.learnt.taught` gives lessons. Scores are of held-out images; rows that are in
benchmarks/results/second_judge.json already are not measured again. Noise is drawn by the seed: nominal.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor, nn
from torch.nn import functional as F

import fedsw
from benchmarks.machine import describe
from fedsw.data import Records
from fedsw.data.sources import load_dataset
from fedsw.federation.engines.driver import run
from fedsw.learning.models import mlp
from fedsw.learning.models.labelled import generate, proportions_of, seeded_generator
from fedsw.learning.sketches.learnt import Classifier, Lessons
from fedsw.learning.tasks.generated_samples import accuracy_of, classifier_accuracy
from fedsw.privacy.accounting.profiles import gaussian_profile

RESULT = Path(__file__).parent / "results" / "second_judge.json"
SHARE, DELTA, IMAGES = 0.7, 1e-5, 5000
_GENERATOR = ("federation.clients=2", "sketch.pairs=600", "sketch.generated=5000", "training.rounds=250")
_CLASSIFIER = ("federation.clients=1",)
_ALIKE = ("evaluate_every=100000", "federation.timeout=3600")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the seeds that are not there yet."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.second_judge")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = json.loads(RESULT.read_text())["rows"] if RESULT.is_file() else []
    for seed in range(1, asked.seeds + 1):
        if any((row["epsilon"], row["seed"]) == (asked.epsilon, seed) for row in rows):
            continue
        rows += measured(asked.epsilon, seed, f"data.data_dir={asked.data_dir}")
        print(json.dumps(rows[-4:]), flush=True)
        RESULT.write_text(json.dumps({"machine": describe(), "share": SHARE, "rows": rows}, indent=1) + "\n")


def parts_of(epsilon: float) -> tuple[float, float]:
    """The epsilons of two Gaussian releases, of SHARE of mu^2 and of the rest, that are epsilon together."""
    mu = brentq(lambda mu: float(gaussian_profile(np.asarray(epsilon), mu)) - DELTA, 1e-4, 50)
    first, second = (
        float(brentq(lambda each, part=part: float(gaussian_profile(np.asarray(each), part)) - DELTA, 1e-4, epsilon))
        for part in (mu * math.sqrt(SHARE), mu * math.sqrt(1 - SHARE))
    )
    return first, second


def measured(epsilon: float, seed: int, data_dir: str) -> list[dict[str, Any]]:
    """Scores of what images teach: of the whole budget, and of a part of it without and with the judge."""
    began = time.process_time()
    ours, judges = parts_of(epsilon)
    with tempfile.TemporaryDirectory() as folder:
        alike = ("data.source=usps", data_dir, f"seed={seed}", *_ALIKE)
        whole, part = (
            fedsw.load(run("sketch-mnist", *alike, *_GENERATOR, f"privacy.epsilon={each}", runs=folder).directory)
            for each in (epsilon, ours)
        )
        judge = fedsw.load(
            run("image-classifier", *alike, *_CLASSIFIER, f"privacy.epsilon={judges}", runs=folder).directory
        )
        tested = load_dataset(whole.experiment.record_source).test
    images, labels = _made(whole.model, IMAGES)
    found = {"whole": _taught(images, labels, tested)}
    images, labels = _made(part.model, 2 * IMAGES)
    says = judge.outputs(images.double()).argmax(dim=1)
    kept = says == labels
    found |= {
        "part": _taught(images[:IMAGES], labels[:IMAGES], tested),
        "kept": _taught(images[kept][:IMAGES], labels[kept][:IMAGES], tested),
        "relabelled": _taught(images[:IMAGES], says[:IMAGES], tested),
    }
    facts = {
        "epsilon": epsilon,
        "seed": seed,
        "judge": judge.summary["held_out"]["accuracy"],
        "agrees": round(float(kept.double().mean()), 4),
        "cpu_seconds": round(time.process_time() - began, 1),
    }
    return [{"images": name, **scores, **facts} for name, scores in found.items()]


def _made(model: nn.Module, many: int) -> tuple[Tensor, Tensor]:
    images, labels = generate(model, proportions_of(model), many)
    return images.float(), labels


def _taught(images: Tensor, labels: Tensor, tested: Records) -> dict[str, float]:
    features, target = tested.features.float(), tested.target
    networks = {
        "lenet": Classifier(images.shape[1], 10, 128),
        "shifted": mlp(images.shape[1], (100,), 10).float(),
    }
    scores = {"perceptron": classifier_accuracy(images, labels, features, target, epochs=5)}
    for name, network in networks.items():
        scores[name] = accuracy_of(_lessons(network, images, labels), features, target)
    return {name: round(score, 4) for name, score in scores.items()}


def _lessons(network: nn.Module, images: Tensor, labels: Tensor) -> nn.Module:
    """`taught`, of images that are there, for as many steps as three times the generator's."""
    lessons, side = Lessons(steps=750), math.isqrt(images.shape[1])
    optimizer = torch.optim.Adam(network.parameters(), lr=lessons.learning_rate)
    for step in range(lessons.steps):
        for group in optimizer.param_groups:
            group["lr"] = lessons.learning_rate * (1 + math.cos(math.pi * step / lessons.steps)) / 2
        random = seeded_generator(step, "lessons", 0)
        taken = torch.randint(len(images), (lessons.batch,), generator=random)
        rolled = torch.randint(-lessons.shifts, lessons.shifts + 1, (2,), generator=random).tolist()
        seen = torch.roll(images[taken].reshape(-1, side, side), rolled, dims=(1, 2)).flatten(1)
        seen = seen + lessons.noise * torch.randn(seen.shape, generator=random)
        loss = F.cross_entropy(network(seen), labels[taken], label_smoothing=lessons.smoothing)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimizer.step()
    return network.eval()


if __name__ == "__main__":
    main()
