"""What the order p of a penalty W_p^p does to fairness at the tails: groups that differ in a shift and in one tail.

    python -m benchmarks.orders [--seeds 3] [--draw]

Prints a table, writes benchmarks/results/orders.json and draws docs/images/orders-tails.png; `--draw` draws what is
stored. A line is fitted to three features by steps of all records: squared errors clipped to C, outputs to M, features
(their Jacobians) to L, and noise for the movement that Theorem 7 allows at (3, 1e-5) over all steps. One group is shifted
in a feature, and a fiftieth of it lies far up in another. *Bulk* is the mean distance of the groups' quantiles of outputs at levels .1 to .9, *tail* at
.98 to .999.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.machine import describe
from fedsw._tools import text
from fedsw.mathematics.transport.sliced import cotangents, project
from fedsw.privacy.accounting.epsilons import gaussian_epsilon
from fedsw.privacy.sensitivity import Side, loss_sensitivity, swd_sensitivity
from fedsw.runs.report.figures import house_style, save

RESULT = Path(__file__).parent / "results" / "orders.json"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "orders-tails.png"
ORDERS, WEIGHTS = (2.0, 3.0, 4.0, 6.0), (0.0, 0.3, 0.6, 0.8, 0.9, 0.95, 0.98)
RECORDS, STEPS, RATE = 20_000, 300, 8.0
OUTPUT, JACOBIAN, LOSS = 0.5, 0.6, 0.2
EPSILON, DELTA = 3.0, 1e-5
BULK, TAIL = np.linspace(0.1, 0.9, 17), np.linspace(0.98, 0.999, 20)


def drawn(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features (n, 3), answers and groups (n,): group 1 is shifted in the second, and a fiftieth far up in the first."""
    draw = np.random.default_rng(seed)
    group = np.arange(RECORDS) % 2
    features = draw.normal(size=(RECORDS, 3)) / 16
    features[:, 1] += 0.1 * group
    features[(group == 1) & (draw.random(RECORDS) < 0.02), 0] = 0.45
    answers = features @ np.array([1.0, 1.0, 0.0]) + draw.normal(size=RECORDS) / 20
    return project(torch.from_numpy(features), JACOBIAN), torch.from_numpy(answers), torch.from_numpy(group)


def multiplier() -> float:
    """Noise over movement of one step of all that compose to the budget."""
    low, high = 1e-3, 10.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_epsilon(middle, DELTA) <= EPSILON else (low, middle)
    return float(STEPS**0.5 / low)


def measured(order: float, weight: float, seed: int, noise: float) -> dict[str, float]:
    """Squared error and the groups' distances in the bulk and in the upper tail, of one private fit."""
    features, answers, group = drawn(seed)
    parts, line = [features[group == each] for each in (0, 1)], torch.ones((1, 1), dtype=torch.float64)
    draws = torch.Generator().manual_seed(seed)
    side = Side(RECORDS // 2, OUTPUT, JACOBIAN)
    moved = (1 - weight) * loss_sensitivity(LOSS, RECORDS).value
    moved += weight * swd_sensitivity(side, side, bound="slice", order=order).value
    fitted, late = torch.zeros(3, dtype=torch.float64), list[Tensor]()
    for step in range(STEPS):
        pulls = 2 * (features @ fitted - answers)[:, None] * features
        pulls = pulls * (LOSS / pulls.norm(dim=1, keepdim=True)).clamp(max=1)
        outputs = [project((part @ fitted)[:, None], OUTPUT) for part in parts]
        penalty = sum(q.T @ part for q, part in zip(cotangents(*outputs, line, order=order), parts, strict=True))
        slope = (1 - weight) * pulls.mean(dim=0) + weight * penalty[0]
        fitted = fitted - RATE * (slope + moved * noise * torch.randn(3, generator=draws, dtype=torch.float64))
        late += [fitted] if step >= STEPS // 2 else []
    values, target = (features @ torch.stack(late).mean(dim=0)).numpy(), answers.numpy()
    low, high = (values[group.numpy() == each] for each in (0, 1))
    gaps = {
        name: float(np.abs(np.quantile(low, levels) - np.quantile(high, levels)).mean())
        for name, levels in (("bulk", BULK), ("tail", TAIL))
    }
    return {"error": float(((values - target) ** 2).mean()), **gaps}


def picture(rows: list[dict[str, Any]]) -> Figure:
    """The tail against the error, a line an order, without and with noise."""
    figure = Figure(figsize=(7.0, 2.8), layout="constrained")
    for axes, private in zip(figure.subplots(1, 2, sharey=True), (False, True), strict=True):
        for order in ORDERS:
            those = [row for row in rows if row["order"] == order and row["private"] == private]
            axes.plot(
                [row["error"] for row in those], [row["tail"] for row in those], marker="o", label=f"p = {order:g}"
            )
        budget = f"at ε = {text.upward(EPSILON)}" if private else "without noise"
        axes.set(xlabel="squared error", title=f"distance of the groups in the tail, {budget}", ylim=(0, 0.35))
        axes.set(xlim=(0, 0.018), xticks=[0, 0.005, 0.01, 0.015])
    axes.legend()
    return figure


def main() -> None:
    """Run, print, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draw", action="store_true", help="draw what is stored")
    asked = parser.parse_args()
    if not asked.draw:
        noise, rows = multiplier(), list[dict[str, Any]]()
        for order, weight, private in itertools.product(ORDERS, WEIGHTS, (False, True)):
            seeds = range(1, 1 + (asked.seeds if private else 1))
            found = [measured(order, weight, seed, noise * private) for seed in seeds]
            means = {name: float(np.mean([each[name] for each in found])) for name in found[0]}
            rows.append({"order": order, "alpha": weight, "private": private, **means})
            print(rows[-1], flush=True)
        stored = {"machine": describe(), "seeds": asked.seeds, "rows": rows}
        RESULT.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    with house_style():
        save(picture(json.loads(RESULT.read_text(encoding="utf-8"))["rows"]), PICTURE)


if __name__ == "__main__":
    main()
