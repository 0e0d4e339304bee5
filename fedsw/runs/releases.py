"""Store what clients release once, as it arrives, so that no client is asked for it again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from fedsw._tools import files
from fedsw.learning.moments.beside_rounds import histograms_of, moments_layout
from fedsw.learning.moments.column_counts import Histograms
from fedsw.learning.moments.released_moments import Moments
from fedsw.learning.sketches.noised import NoisedSketch
from fedsw.learning.sketches.sketch_law import Law
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.directory import RunDirectory
from fedsw.runs.run_files import RunFile, read_as

_REPORTED = "round and epsilon"


class Releases:
    """The releases of a run's clients, a file for each in a folder; a resumed run reads what was paid for before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reported: dict[int, tuple[int, float]] = {}
        for client in sorted(int(path.stem.removeprefix("client-")) for path in folder.glob("client-*.safetensors")):
            with safe_open(self._file(client), framework="pt") as file:
                round_, epsilon = file.get_tensor(_REPORTED).tolist()
            self._reported[client] = int(round_), float(epsilon)

    @property
    def clients(self) -> Collection[int]:
        """The clients with a release on file."""
        return self._reported.keys()

    def keep(self, client: int, arrays: Mapping[str, Tensor], round_: int, epsilon: float) -> None:
        """Put a release on disk atomically: arrays of any shape, by name, and its ledger's epsilon."""
        self._folder.mkdir(exist_ok=True, mode=files.PRIVATE_FOLDER)
        copies = {name: array.clone().contiguous() for name, array in arrays.items()}  # a file holds no shared tensors
        reported = torch.tensor([round_, epsilon], dtype=torch.float64)
        files.replace(self._file(client), save({**copies, _REPORTED: reported}))
        self._reported[client] = (round_, epsilon)

    def read(self) -> list[Mapping[str, Tensor]]:
        """The arrays of every release, of any shape, in client order."""
        rows = [load_file(self._file(client)) for client in sorted(self._reported)]
        return [{name: array for name, array in arrays.items() if name != _REPORTED} for arrays in rows]

    def rounds(self) -> set[int]:
        """The rounds that asked for them."""
        return {round_ for round_, _ in self._reported.values()}

    def epsilons(self) -> dict[int, float]:
        """The epsilon that each client's ledger had spent with its release."""
        return {client: epsilon for client, (_, epsilon) in self._reported.items()}

    def _file(self, client: int) -> Path:
        return self._folder / f"client-{client}.safetensors"


# Names of the tensors in the files of a sketch; FACTS is one of five numbers, in this order.
WEIGHTS = "weights"
VALUE, FACTS = "sketch", "sigma, records, clients, attempt and epsilon"


@dataclass(frozen=True)
class StoredSketch:
    """A released sketch, its number of clients and its attempt; all of it is releasable.

    `spent` is the run's epsilon after it, of the worst client if each has its own guarantee.
    """

    sketch: NoisedSketch
    clients: int
    attempt: int
    spent: float


def of_stage(name: str, number: int) -> str:
    """The name of a stage's file; the first stage has the plain name."""
    stem, dot, ending = name.partition(".")
    return name if number == 1 else f"{stem}-{number}{dot}{ending}"


def keep(directory: RunDirectory, stored: StoredSketch, number: int = 1, learnt: int = 0) -> None:
    """Put the sketch of a stage on disk atomically; a generator that learnt from another one is removed.

    `learnt` is the number of the generator's steps in earlier stages.
    """
    (directory.path / of_stage(RunFile.GENERATOR, number)).unlink(missing_ok=True)
    directory.cut_metrics(through=learnt)
    sketch = stored.sketch
    facts = [sketch.sigma, float(sketch.records), float(stored.clients), float(stored.attempt), stored.spent]
    content = {VALUE: sketch.value.cpu().contiguous(), FACTS: torch.tensor(facts, dtype=torch.float64)}
    files.replace(directory.path / of_stage(RunFile.SKETCH, number), save(content))


def keep_classifier(directory: RunDirectory, number: int, weights: Tensor) -> None:
    """Put the weights (z,) of a stage's classifier on disk, before any client is asked to sketch through it."""
    files.replace(directory.path / of_stage(RunFile.CLASSIFIER, number), save({WEIGHTS: weights.contiguous()}))


def stored_classifier(directory: RunDirectory, number: int) -> Tensor | None:
    """The weights (z,) of a stage's classifier; None before there are any."""
    path = directory.path / of_stage(RunFile.CLASSIFIER, number)
    return load_file(path)[WEIGHTS] if path.exists() else None


def stored_sketch(directory: RunDirectory, law: Law, number: int = 1) -> StoredSketch | None:
    """The sketch that a run has released in a stage; None if it has released none."""
    path = directory.path / of_stage(RunFile.SKETCH, number)
    if not path.exists():
        return None
    tensors = load_file(path)
    sigma, records, clients, attempt, spent = tensors[FACTS].tolist()
    return StoredSketch(
        NoisedSketch(law, tensors[VALUE], sigma, int(records)), int(clients), int(attempt), float(spent)
    )


def kept_histograms(task: Problem, directory: RunDirectory) -> Histograms | None:
    """The released histograms of a run's columns; None before their release."""

    def made(content: Mapping[str, Any]) -> Histograms:
        counts, values = histograms_of(task), np.array(content["values"], dtype=np.float64)
        if counts is None or values.shape != (len(counts.columns), counts.width):
            raise ValueError(f"its values are of shape {values.shape}")
        return Histograms(counts, values, float(content["sigma"]), sum(content["records"]))

    return read_as(directory.path / RunFile.HISTOGRAMS, made)


def kept_moments(task: Problem, directory: RunDirectory) -> Moments | None:
    """The released moments of a run; None before their release."""

    def made(content: Mapping[str, Any]) -> Moments:
        layout, values = moments_layout(task), torch.tensor(content["values"], dtype=torch.float64)
        if layout is None or tuple(values.shape) != (layout.cells, layout.width):
            raise ValueError(f"its values are of shape {tuple(values.shape)}")
        records = tuple(int(count) for count in content["records"])
        return Moments(layout, values, float(content["sigma"]), records, task.experiment.privacy.hides_sizes)

    return read_as(directory.path / RunFile.MOMENTS, made)
