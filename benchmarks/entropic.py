"""Generators from privatised points: the entropic loss that undoes the noise against plain W_2, by sample size.

    OMP_NUM_THREADS=1 python -m benchmarks.entropic [--seeds 3] [--fresh]

Points of a mixture of three normal laws in the plane are released with N(0, I) noise. A mixture of affine maps is
trained on them with W_{2, 2 sigma^2} and with plain W_2, alike in everything else, and its W_2 distance to the clean law
is measured on 2000 low-discrepancy points of each ("floor": between two such sets of the clean law). Writes
benchmarks/results/entropic.json after every run and goes on where it was interrupted; `--fresh` starts over.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import describe
from fedsw._tools.randomness import Stream
from fedsw.mathematics.transport.entropic import EntropicMatching, entropic_loss, plain_loss

RESULT = Path(__file__).parent / "results" / "entropic.json"
SIZES = (1250, 2500, 5000, 10_000, 20_000)
SIGMA = 1.0
SETTINGS = {
    "sigma": SIGMA,
    "parts": 100,
    "points_per_part": 2,
    "batch": 640,
    "steps": 250,
    "rate": 0.1,
    "evaluation": 2000,
}
WEIGHTS = (0.5, 0.3, 0.2)
CENTRES = ((-2.0, -1.0), (2.0, -1.0), (0.0, 2.5))
DEVIATIONS = ((0.8, 0.2), (0.2, 0.8), (0.4, 0.4))

LOSSES: dict[str, Callable[[Tensor, Tensor], EntropicMatching]] = {
    "entropic": lambda generated, released: entropic_loss(generated, released, order=2, scale=SIGMA, tolerance=1e-3),
    "plain": lambda generated, released: plain_loss(generated, released, order=2),
}


class Parts(torch.nn.Module):
    """Equally likely affine maps of a normal latent: (parts * points, 2) latents to as many points."""

    def __init__(self, starts: Tensor) -> None:
        super().__init__()
        self.shift = torch.nn.Parameter(starts.clone())
        self.map = torch.nn.Parameter(0.5 * torch.eye(2, dtype=starts.dtype).repeat(len(starts), 1, 1))

    def forward(self, latent: Tensor) -> Tensor:
        """Points of every part, part by part."""
        parts = latent.reshape(len(self.shift), -1, 2)
        return (self.shift.unsqueeze(1) + parts @ self.map.transpose(1, 2)).reshape(-1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fresh", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    stored = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() and not asked.fresh else {}
    rows: list[dict[str, Any]] = stored.get("runs", []) if stored.get("settings") == SETTINGS else []
    done = {(row["n"], row["seed"]) for row in rows}
    for n in reversed(SIZES):
        for seed in range(asked.seeds):
            if (n, seed) not in done:
                rows.append(one_run(n, seed))
                RESULT.parent.mkdir(exist_ok=True)
                result = {"machine": describe(), "settings": SETTINGS, "summary": summary(rows), "runs": rows}
                RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    show(rows)


def one_run(n: int, seed: int) -> dict[str, Any]:
    """Errors of both losses on the same n released points."""
    released = clean_sample(n, seed) + gaussian(n, Stream.seeded(seed, "noise", n))
    clean = clean_grid(seed, 0)
    row: dict[str, Any] = {"n": n, "seed": seed, "floor": distance(clean, clean_grid(seed, 1))}
    row["released"] = distance(clean, clean_grid(seed, 1) + gaussian(2000, Stream.seeded(seed, "shown")))
    for name, loss in LOSSES.items():
        began = time.process_time()
        generator, worst = train(loss, released, seed)
        with torch.no_grad():
            row[name] = distance(generator(latents(SETTINGS["evaluation"] // SETTINGS["parts"], seed)), clean)
        row[f"{name}_seconds"] = time.process_time() - began
        row[f"{name}_marginal_error"] = worst
    print(
        f"n {n}, seed {seed}: entropic {row['entropic']:.3f}, plain {row['plain']:.3f}, floor {row['floor']:.3f}",
        flush=True,
    )
    return row


def train(loss: Callable[[Tensor, Tensor], EntropicMatching], released: Tensor, seed: int) -> tuple[Parts, float]:
    """A generator after SETTINGS["steps"] minibatches, and the largest marginal error of their plans."""
    draws = torch.Generator().manual_seed(seed)
    generator = Parts(released[torch.randperm(len(released), generator=draws)[: SETTINGS["parts"]]])
    optimiser = torch.optim.Adam(generator.parameters(), lr=SETTINGS["rate"], betas=(0.9, 0.99))
    order, worst = torch.empty(0, dtype=torch.int64), 0.0
    for step in range(SETTINGS["steps"]):
        optimiser.param_groups[0]["lr"] = SETTINGS["rate"] * min(1.0, 2 * (1 - step / SETTINGS["steps"]))
        if len(order) < SETTINGS["batch"]:
            order = torch.randperm(len(released), generator=draws)
        batch, order = order[: SETTINGS["batch"]], order[SETTINGS["batch"] :]
        scramble = int(torch.randint(2**31, (1,), generator=draws))
        matching = loss(generator(latents(SETTINGS["points_per_part"], scramble)), released[batch])
        optimiser.zero_grad()
        matching.loss.backward()
        optimiser.step()
        worst = max(worst, matching.marginal_error)
    return generator, worst


def latents(points: int, seed: int) -> Tensor:
    """Scrambled low-discrepancy normal latents, the same number for every part, part by part."""
    return (
        normals(points * SETTINGS["parts"], seed).reshape(points, SETTINGS["parts"], 2).transpose(0, 1).reshape(-1, 2)
    )


def normals(count: int, seed: int) -> Tensor:
    uniform = torch.quasirandom.SobolEngine(2, scramble=True, seed=seed).draw(count, dtype=torch.float64)
    return torch.special.ndtri(uniform.clamp(1e-6, 1 - 1e-6))


def clean_sample(n: int, seed: int) -> Tensor:
    """n independent points of the mixture."""
    rng = np.random.default_rng([seed, n])
    part = rng.choice(len(WEIGHTS), size=n, p=WEIGHTS)
    return torch.from_numpy(np.array(CENTRES)[part] + np.array(DEVIATIONS)[part] * rng.standard_normal((n, 2)))


def clean_grid(seed: int, which: int) -> Tensor:
    """A low-discrepancy set of the mixture, its parts in proportion."""
    sets = []
    for part, weight in enumerate(WEIGHTS):
        centre, deviation = (torch.tensor(values[part], dtype=torch.float64) for values in (CENTRES, DEVIATIONS))
        points = normals(round(weight * SETTINGS["evaluation"]), 1000 + 100 * seed + 10 * which + part)
        sets.append(centre + deviation * points)
    return torch.cat(sets)


def gaussian(n: int, stream: Stream) -> Tensor:
    """Noise of the releases, (n, 2): an experiment with its denoising, nobody's protection."""
    return SIGMA * torch.from_numpy(stream.normals(2 * n)).reshape(n, 2)


def distance(x: Tensor, y: Tensor) -> float:
    """Exact W_2 between two sets of points."""
    return math.sqrt(float(plain_loss(x, y, order=2).loss))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean errors by size, the slope of log entropic error on log n, and the ratio to plain W_2 at the largest size."""
    sizes = sorted({row["n"] for row in rows})
    means = {name: [statistics.mean(row[name] for row in rows if row["n"] == n) for n in sizes] for name in LOSSES}
    slopes = {
        name: float(np.polyfit(np.log(sizes), np.log(errors), 1)[0]) if len(sizes) > 1 else None
        for name, errors in means.items()
    }
    return {"sizes": sizes, "mean": means, "slope": slopes, "ratio": means["entropic"][-1] / means["plain"][-1]}


def show(rows: list[dict[str, Any]]) -> None:
    found = summary(rows)
    print(f"{'n':>6} {'entropic':>9} {'plain':>9}")
    for n, ours, plain in zip(found["sizes"], found["mean"]["entropic"], found["mean"]["plain"], strict=True):
        print(f"{n:>6} {ours:>9.3f} {plain:>9.3f}")
    print(
        f"slope of log error on log n: entropic {found['slope']['entropic']:.3f}, plain {found['slope']['plain']:.3f}"
    )
    print(f"entropic / plain at n = {found['sizes'][-1]}: {found['ratio']:.2f}")


if __name__ == "__main__":
    main()
