"""When a calibrated model gives way to the class shares: what every threshold of the evidence costs, on simulated counts.

    python -m benchmarks.rivals.shares_alone [--seeds 2]

Logits of records of two or three classes are drawn, with a signal or without, with noise and a bias such as private
training leaves; their counts get the noise of the preset's share at epsilon .5, 1 and 3. For each threshold the table
has the mean log loss and accuracy over those of the class shares by the same counts, and how often the model stays, of
models without and with a signal. `fedsw.learning.tasks.calibration.TELLS` was chosen here. *With kept* is what the
model's log loss would change by if counts of a fifth of all records, kept out of training, were calibrated with, too: at
most, since they join the others as one sum with the least noise that any weights of both give.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.machine import describe
from benchmarks.rivals import page
from fedsw.learning.tasks import calibration
from fedsw.learning.tasks.calibration import LogitCalibration, calibration_of
from fedsw.learning.tasks.score_counts import COARSE, ScoreCounts
from fedsw.learning.tasks.tally import SCORED, Counts
from fedsw.privacy.mechanisms import gaussian_sigma

RECORDS, EPSILONS, DELTA = (300, 1000, 3000, 10_000), (0.5, 1.0, 3.0), 1e-5
THRESHOLDS = (-math.inf, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0)
LAWS = tuple(itertools.product((2, 3), ((0.0, 0.0), (0.5, 1.0), (1.0, 1.0), (1.0, 3.0), (2.0, 3.0)), (0.5, 3.0, 6.0)))
"""Classes; the signal's strength, and how much of it is in the model; the noise in the model's logits."""
LEANS = ((0.0, 0.0), (1.0, 1.0), (2.0, 0.0), (1.0, -2.0))
"""How unlike the classes' numbers are, and how far the model leans to one of them beside."""
DRAWN = 40_000
Array = NDArray[np.float64]


def drawn(
    classes: int, law: tuple[float, float], noise: float, lean: tuple[float, float], seed: int
) -> tuple[Array, NDArray[np.int64]]:
    """Logits (n, classes) of a private model, and classes (n,)."""
    draw, slope = np.random.default_rng(seed), np.linspace(-0.5, 0.5, classes)
    signal = draw.normal(size=(DRAWN, classes))
    target = (law[0] * signal + lean[0] * 2 * slope + draw.gumbel(size=signal.shape)).argmax(axis=1)
    logits = law[1] * signal + 2 * slope * (lean[0] + lean[1]) + noise / math.sqrt(2) * draw.normal(size=signal.shape)
    return logits, target


def losses(logits: Array, target: NDArray[np.int64]) -> tuple[float, float]:
    """Log loss and accuracy of logits (n, classes)."""
    top = logits.max(axis=1, keepdims=True)
    normal = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    return -float(normal[np.arange(len(target)), target].mean()), float((logits.argmax(axis=1) == target).mean())


def applied(found: LogitCalibration, logits: Array) -> Array:
    """Logits (n, classes) after calibration; of two classes the first one's is 0."""
    if logits.shape[1] > 2:
        return found.scale * logits + np.array(found.shift)
    one = found.scale * (logits[:, 1] - logits[:, 0]) + found.shift[0]
    return np.stack([np.zeros_like(one), one], axis=1)


def rows(seeds: int) -> list[dict[str, float]]:
    """Evidence, and what model and class shares reach, for each law, number of records, epsilon and seed."""
    found = []
    for number, ((classes, law, noise), lean) in enumerate(itertools.product(LAWS, LEANS)):
        logits, target = drawn(classes, law, noise, lean, number)
        counts = ScoreCounts(1, 1 if classes == 2 else None, COARSE, classes)
        chances = torch.from_numpy(logits).softmax(dim=1)
        places = counts.places(chances[:, 1:] if classes == 2 else chances, torch.from_numpy(target)).numpy()
        for records, epsilon, seed in itertools.product(RECORDS, EPSILONS, range(seeds)):
            draw = np.random.default_rng([number, records, int(10 * epsilon), seed])
            one = gaussian_sigma(epsilon, DELTA, 1.0)
            sigma = counts.moved * one / math.sqrt(0.1 if epsilon < 3 else 0.05)
            values = np.bincount(places[draw.integers(0, DRAWN, records)].reshape(-1), minlength=counts.width)
            noise = draw.normal(size=counts.width)
            noised = (values + sigma * noise)[None]
            ends = []
            for threshold in (-math.inf, math.inf):
                with mock.patch.object(calibration, "TELLS", threshold):
                    calibrated = calibration_of(counts, noised, sigma, float(records))
                ends.append(losses(applied(calibrated, logits), target))
            (loss, right), (loss_of_shares, right_of_shares) = ends
            evidence = calibrated.evidence
            values += np.bincount(places[draw.integers(0, DRAWN, records // 4)].reshape(-1), minlength=counts.width)
            noise_of_kept = Counts(1, classes).moved * one / SCORED / (records / 4)  # of a share, as `sigma / records`
            of_both = 1.25 * records / math.hypot(records / sigma, 1 / noise_of_kept)
            with mock.patch.object(calibration, "TELLS", -math.inf):
                calibrated = calibration_of(counts, (values + of_both * noise)[None], of_both, 1.25 * records)
            with_kept = losses(applied(calibrated, logits), target)[0]
            found.append(
                {
                    "classes": classes, "signal": law[0], "records": records, "epsilon": epsilon,
                    "evidence": evidence, "loss": loss - loss_of_shares, "right": right - right_of_shares,
                    "with_kept": with_kept - loss,
                }
            )  # fmt: skip
    return found


def table(measured: list[dict[str, float]]) -> list[dict[str, float]]:
    """Means by classes, epsilon, signal or none, and threshold."""
    lines = []
    for classes, epsilon, signal, threshold in itertools.product((2, 3), EPSILONS, (False, True), THRESHOLDS):
        of = [
            row for row in measured if (row["classes"], row["epsilon"], row["signal"] > 0) == (classes, epsilon, signal)
        ]
        stays = np.array([row["evidence"] >= threshold for row in of])
        loss, right = (np.where(stays, [row[name] for row in of], 0.0) for name in ("loss", "right"))
        lines.append(
            {
                "classes": classes, "epsilon": epsilon, "signal": float(signal), "threshold": threshold,
                "stays": float(stays.mean()), "log_loss": float(loss.mean()), "accuracy": float(right.mean()),
                "standard_error": float(right.std() / math.sqrt(len(of))),
                "with_kept": float(np.mean([row["with_kept"] for row in of])),
            }
        )  # fmt: skip
    return lines


def main() -> None:
    """Simulate, store and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    seeds = parser.parse_args().seeds
    lines = table(rows(seeds))
    for line in lines:
        print(" ".join(f"{name} {value:+.4g}" for name, value in line.items()))
    content = {"machine": describe(), "seeds": seeds, "rows": lines}
    (page.FOLDER / "shares_alone.json").write_text(json.dumps(content, indent=1).replace("-Infinity", "null") + "\n")


if __name__ == "__main__":
    main()
