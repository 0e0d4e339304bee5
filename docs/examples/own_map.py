"""A feature map of one's own: a sketch that sees records through public thresholds, of which it is smooth nowhere.

    python docs/examples/own_map.py

A sketch is a sum of cosines and sines, bounded whatever they look at; so a map has nothing to prove. It treats every
row by itself and depends on public numbers alone: on settings, and on the public stream that it is given.

In an experiment, with this folder on PYTHONPATH: `sketch.map = "own_map:Thresholds"`, and
`sketch.map_arguments = { each = 4 }`.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import fedsw
from fedsw.privacy import Stream


@dataclass(frozen=True)
class Thresholds:
    """How far every feature is beyond each of some public thresholds: features (n, p) to (n, p * each)."""

    each: int = 3

    def width(self, features: int) -> int:
        """p * each."""
        return features * self.each

    def built(self, features: int, stream: Stream) -> nn.Module:
        """The map; its thresholds are drawn from the public stream."""
        return _Beyond(torch.from_numpy(stream.normals(features * self.each)).reshape(features, self.each))


class _Beyond(nn.Module):
    def __init__(self, thresholds: Tensor) -> None:
        super().__init__()
        self.thresholds: Tensor
        self.register_buffer("thresholds", thresholds)

    def forward(self, rows: Tensor) -> Tensor:
        return (rows.unsqueeze(2) - self.thresholds).relu().flatten(1)


SETTINGS = {
    "name": "own-map",
    "data": {"source": "ring", "records": 600, "test_records": 200},
    "objective": {"task": "synthesis", "penalty": "distribution-matching"},
    "model": {"kind": "vector-generator", "hidden": [16]},
    "privacy": {"trust": "sketch", "epsilon": 4.0, "delta": 1e-4},
    "sketch": {
        "bandwidths": [0.3, 1.0],
        "pairs": 40,
        "map": f"{__name__}:Thresholds",
        "map_arguments": {"each": 4},
        "labels": False,
    },
    "training": {"rounds": 20},
    "federation": {"clients": 2},
}


def main() -> float:
    """The distance of generated points to held-out ones, sliced Wasserstein."""
    with tempfile.TemporaryDirectory() as folder:
        summary = fedsw.run(SETTINGS, runs=Path(folder)).summary
    distance: float = summary["held_out"]["sw2"]
    print(f"{summary['sketch']['coordinates']} numbers left once, at epsilon {summary['epsilon']:.3g}")
    print(f"generated points are {distance:.3f} from held-out ones")
    return distance


if __name__ == "__main__":
    main()
