"""What a run will take: time and memory, measured on made-up records of the same number and form."""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedsw.columns import Columns
from fedsw.data import DeclaredRecords
from fedsw.engines.settle import numbers_of, settled
from fedsw.experiment import Experiment, parse_experiment
from fedsw.experiment.sources import declared_columns

_WARM, _TIMED = 1, 4


@dataclass(frozen=True)
class Cost:
    """What a run takes in one process of this machine.

    Attributes:
        seconds: of all rounds, from what a few of them took on made-up records with all that a start takes.
        bytes: the most memory that this process had had after it.
    """

    seconds: float
    bytes: int
    how: str


def measured_cost(experiment: Experiment, sizes: Sequence[Mapping[str, int]]) -> Cost:
    """Time and memory of a run, by one of 4 rounds on made-up records.

    Nothing private goes into it but the sizes of the groups at each client, which are public.

    Args:
        sizes: records, or units, by group, for every client.
    """
    from fedsw.engines.driver import run

    together = {name: sum(each.get(name, 0) for each in sizes) for name in declared_columns(experiment).groups}
    experiment = settled(experiment, numbers_of(experiment, together))
    columns = declared_columns(experiment)
    records = [made_up(columns, by_group) for by_group in sizes]
    with tempfile.TemporaryDirectory() as folder:
        for rounds in (_WARM, _TIMED):  # the first one loads libraries
            found = run(_short(experiment, rounds, len(records)), data=records, runs=Path(folder))
    seconds, rounds = float(found.summary["seconds"]), experiment.training.rounds
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    how = f"{_TIMED} rounds on made-up records of these sizes took {seconds:.2g} s; {rounds} rounds are asked for"
    return Cost(seconds / _TIMED * rounds, peak, how)


def made_up(columns: Columns, by_group: Mapping[str, int]) -> DeclaredRecords:
    """Records of the declared form with uniform inputs and targets; as many of every group as are asked for.

    Where a unit is declared, each of them is one: a batch has one row of a unit, however many there are.
    """
    groups = torch.repeat_interleave(torch.arange(len(columns.groups)), torch.tensor([*by_group.values()]))
    generator, count = torch.Generator().manual_seed(0), len(groups)
    features = torch.rand((count, columns.inputs), generator=generator)
    if columns.targets:
        target = torch.rand((count, len(columns.targets)), generator=generator)
    else:
        target = torch.randint(0, len(columns.classes), (count,), generator=generator)
    places = torch.arange(count)
    unit = None if columns.unit is None else places
    return DeclaredRecords(features, groups, target, places, columns, "made-up", unit=unit)


def _short(experiment: Experiment, rounds: int, clients: int) -> Experiment:
    """The experiment on Python objects, with few rounds."""
    raw = experiment.model_dump(mode="json")
    raw["data"] |= {
        "source": "object",
        "data_dir": None,
        "held_out": None,
        "held_out_overlap": "refuse",
        "account": None,
    }
    raw["training"]["rounds"] = rounds
    raw["federation"]["clients"] = clients
    raw["metrics"] = []
    return parse_experiment(raw)
