"""Particle flows that follow noised slices: five Gaussians in the plane under growing noise.

    python -m benchmarks.flow [--seeds 3] [--records 10000] [--particles 3000] [--steps 60]

Prints a table and writes benchmarks/results/flow.json. SW2 is the root of the mean over 100 directions of W2^2 between
the particles and 50000 fresh samples; a mode is covered if at least half of its share of the particles lies within
three standard deviations of its centre. "fresh" releases new slices at every step (SPF, Algorithm 1), "stored" reads
random parts of one release (Algorithm 2); "no dummy" leaves out the particles' own noise. Epsilon is what all
releases of a row cost every record against everybody (replace-one, delta = 1e-5, no sampling): at the noise of
SPF's picture it is no protection, the table is about shapes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import describe
from fedsw._tools.randomness import Stream
from fedsw.data._synthetic import gaussians, mode_centres
from fedsw.mathematics.transport.flow import Slices, draw_stored, flow_step
from fedsw.mathematics.transport.sliced import sliced_w2
from fedsw.privacy.accounting import Charge
from fedsw.privacy.accounting.epsilons import gaussian_epsilon
from fedsw.privacy.release import NoLedger, Part, pay, release_paid
from fedsw.privacy.slices import DirectionStream, fresh_slices, unprotected_slices

RESULT = Path(__file__).parent / "results" / "flow.json"
MODES, CIRCLE, STD = 5, 1.5, 0.15
RADIUS = CIRCLE + 5 * STD  # of the ball that records are projected onto; public
PER_STEP, STORED, STEP = 20, 200, 1.0  # directions of a step and of the store (whole blocks of 2), h
DELTA = 1e-5
FRESH = 50_000


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    algorithm: str
    sigma: float
    dummy: bool = True


ROWS = [Row(algorithm, sigma) for algorithm in ("fresh", "stored") for sigma in (0.0, 0.5, 1.0)] + [
    Row(algorithm, 1.0, dummy=False) for algorithm in ("fresh", "stored")
]


def flow(row: Row, records: Tensor, *, particles: int, steps: int, seed: int) -> Tensor:
    """Where a flow's particles end, (particles, 2)."""
    directions = DirectionStream(Stream.seeded(seed, "directions"))
    noise, public = Stream.seeded(seed, "noise"), Stream.seeded(seed, "public")

    def release(k: int) -> Slices:
        if row.sigma == 0:
            return unprotected_slices(records, directions.draw(2, k))
        slices = fresh_slices(records, radius=RADIUS, k=k, scheme="orthogonal", directions_stream=directions)
        part = Part("slices", 2 * RADIUS, row.sigma)
        paid = pay(NoLedger(), 1, 0, [Charge("records", 1.0, 2 * RADIUS)], row.sigma, [part])
        return slices.released(release_paid(slices.bounded, paid, part.name, noise))

    store = [release(STORED)] if row.algorithm == "stored" else []
    points = torch.from_numpy(public.normals(2 * particles)).reshape(particles, 2)
    for _ in range(steps):
        slices = draw_stored(store, PER_STEP, stream=public) if store else [release(PER_STEP)]
        points = flow_step(points, slices, step=STEP, diffusion=0.0, dummy=row.dummy, stream=public)
    return points


def judge(points: Tensor, fresh: Tensor) -> dict[str, float]:
    """SW2 to fresh samples, modes covered, and the share of the particles within three deviations of a mode."""
    theta = DirectionStream(Stream.seeded(0, "judge")).draw(2, 100)
    near = torch.cdist(points, mode_centres(MODES, radius=CIRCLE)) < 3 * STD
    shares = near.to(torch.float64).mean(dim=0)
    return {
        "sw2": math.sqrt(float(sliced_w2(points, fresh, theta))),
        "modes": int((shares >= 0.5 / MODES).sum()),
        "in_modes": float(shares.sum()),
    }


def epsilon(row: Row, steps: int) -> float:
    """Cost of a row's releases: Gaussian mechanisms with mu = diameter sqrt(k/2) / sigma, squares added."""
    if row.sigma == 0:
        return math.inf
    directions = STORED if row.algorithm == "stored" else PER_STEP * steps
    return gaussian_epsilon(2 * RADIUS * math.sqrt(directions / 2) / row.sigma, DELTA)


def measure(row: Row, *, seeds: int, records: int, particles: int, steps: int) -> dict[str, Any]:
    found, began = [], time.process_time()
    for seed in range(seeds):
        data = gaussians(records, FRESH, modes=MODES, radius=CIRCLE, std=STD, seed=seed)
        points = flow(row, data.train.features.double(), particles=particles, steps=steps, seed=seed)
        found.append(judge(points, data.test.features.double()))
    result: dict[str, Any] = {"algorithm": row.algorithm, "sigma": row.sigma, "dummy": row.dummy}
    for name in ("sw2", "modes", "in_modes"):
        values = [run[name] for run in found]
        result[name] = {"mean": statistics.mean(values), "sd": statistics.stdev(values) if seeds > 1 else 0.0}
    cost = epsilon(row, steps)
    return result | {
        "epsilon": "inf" if math.isinf(cost) else cost,
        "cpu_seconds_per_run": (time.process_time() - began) / seeds,
    }


def show(result: dict[str, Any]) -> str:
    name = result["algorithm"] + ("" if result["dummy"] else ", no dummy")
    sw2, modes, share = (result[key] for key in ("sw2", "modes", "in_modes"))
    cost = float(result["epsilon"])
    return (
        f"{name:17} {result['sigma']:5.1f} {sw2['mean']:8.3f} +- {sw2['sd']:.3f} {modes['mean']:8.1f} +- {modes['sd']:.1f}"
        f" {share['mean']:8.3f} +- {share['sd']:.3f} {cost:9.0f} {result['cpu_seconds_per_run']:6.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--particles", type=int, default=3_000)
    parser.add_argument("--steps", type=int, default=60)
    asked = vars(parser.parse_args())
    settings = {"circle": CIRCLE, "std": STD, "radius": RADIUS, "directions_per_step": PER_STEP, "stored": STORED}
    print(f"{'slices':17} sigma      SW2            modes covered   share in modes      epsilon  cpu s/run", flush=True)
    rows = []
    for row in ROWS:
        rows.append(measure(row, **asked))
        print(show(rows[-1]), flush=True)
    RESULT.parent.mkdir(exist_ok=True)
    result = {"machine": describe(), **asked, **settings, "step": STEP, "delta": DELTA, "rows": rows}
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
