"""The sketch that a run released: it is stored as soon as it is there, since nothing pays for a second one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from safetensors.torch import load_file, save

from fedsw import files
from fedsw.runs.directory import RunDirectory
from fedsw.runs.files import GENERATOR, SKETCH
from fedsw.transport.noised_sketches import NoisedSketch
from fedsw.transport.sketches import Law

VALUE, FACTS = "sketch", "sigma, records, clients, attempt and epsilon"


@dataclass(frozen=True)
class StoredSketch:
    """A released sketch with how it came about; all of it is releasable.

    Attributes:
        sketch: noised numbers (cells, F + 1).
        clients: how many are in it.
        attempt: that released it.
        spent: epsilon that had been spent with it, of the worst client where each has its own guarantee.
    """

    sketch: NoisedSketch
    clients: int
    attempt: int
    spent: float


def keep(directory: RunDirectory, stored: StoredSketch) -> None:
    """Put a sketch on disk, whole or not at all; what was learnt from another one is removed."""
    (directory.path / GENERATOR).unlink(missing_ok=True)
    directory.read_metrics(through=0)
    sketch = stored.sketch
    facts = [sketch.sigma, float(sketch.records), float(stored.clients), float(stored.attempt), stored.spent]
    content = {VALUE: sketch.value.cpu().contiguous(), FACTS: torch.tensor(facts, dtype=torch.float64)}
    files.replace(directory.path / SKETCH, save(content))


def stored_sketch(directory: RunDirectory, law: Law) -> StoredSketch | None:
    """The sketch that a run has released; None if it has released none.

    Raises:
        ValueError: if it is of another law.
    """
    path = directory.path / SKETCH
    if not path.exists():
        return None
    found = load_file(path)
    sigma, records, clients, attempt, spent = found[FACTS].tolist()
    return StoredSketch(NoisedSketch(law, found[VALUE], sigma, int(records)), int(clients), int(attempt), float(spent))
