"""A step of a generator that learns from a sketch, on one thread, against a plain step of the same network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.performance.timing import in_turns, repeated, spread, timed
from fedsw.learning.models.labelled import ImageGenerator
from fedsw.learning.sketches.fit import FitSettings, fit_generator
from fedsw.learning.sketches.noised import NoisedSketch
from fedsw.learning.sketches.parts import GaussianKernel
from fedsw.learning.sketches.sketch_law import Law

MOST = 0.06
"""Seconds that a step of 200 images may take."""

_SIDE, _CELLS, _STEPS = 28, 10, 10


def measure(quick: bool) -> Iterator[dict[str, Any]]:
    """See `benchmarks.performance.rows`."""
    for pairs in (40,) if quick else (2000, 4800):
        for fraction in (1.0, 0.5):
            yield _row(pairs, fraction, batch=20 if quick else 200, turns=1 if quick else 5)


def _row(pairs: int, fraction: float, *, batch: int, turns: int) -> dict[str, Any]:
    law = Law(_SIDE**2, (GaussianKernel((1.5, 2.5, 4.0, 7.0), pairs),), classes=_CELLS)
    sketcher = law.drawn()
    values = torch.zeros(law.cells, sketcher.coordinates + 1, dtype=torch.float64)
    values[:, -1] = 6000.0
    sketch, settings = NoisedSketch(law, values, 1.0, 60_000), FitSettings(_STEPS, batch, fraction=fraction)
    network, target = ImageGenerator(_SIDE, _CELLS), torch.zeros(batch, _SIDE**2)
    optimiser = torch.optim.Adam(network.parameters())
    cells = torch.arange(batch) % _CELLS

    def plain() -> None:
        optimiser.zero_grad()
        torch.autograd.backward(F.mse_loss(network(torch.randn(batch, network.latent), cells), target))
        optimiser.step()

    def fit() -> None:
        fit_generator(sketch, ImageGenerator(_SIDE, _CELLS), settings, sketcher=sketcher, every=_STEPS)

    taken = in_turns({"ours": timed(fit), "other": repeated(plain)}, turns=turns, threads=1)
    ours, other = taken["ours"].median / _STEPS, taken["other"].median
    looked = "all" if fraction == 1 else f"{fraction:.0%}"
    return {
        "what": f"a step of {batch} images, {looked} of {pairs} waves, 1 thread",
        "against": "a plain step of the same network",
        "ours": ours,
        "other": other,
        "ratio": ours / other,
        "goal": f"ours at most {1000 * MOST:.0f} ms",
        "met": None if batch < 200 else ours <= MOST,
        "spread": spread(**taken),
        "note": f"{other / ours:.0%} of it is the network's own convolutions, there and back; the rest looks at the waves",
    }
