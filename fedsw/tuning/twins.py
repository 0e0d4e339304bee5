"""Public twins: records of the declared form and the same sizes, drawn from a public law. Trying on them is free."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from fedsw.columns import Columns
from fedsw.data import DeclaredRecords
from fedsw.experiment import Experiment, parse_experiment
from fedsw.experiment.sources import declared_columns
from fedsw.tuning.candidates import Score, score_of

_HELD_OUT = 4000
_STRENGTH = 3.0
_SEED = 1


def score_on_twins(sizes: Sequence[Mapping[str, int]], metric: str, sign: float) -> Score:
    """A score that trains on twins with the planned noise: no record is looked at, only the public sizes.

    Args:
        sizes: records by group, for every client.
        metric, sign: see `metric_of`.
    """

    def score(experiment: Experiment) -> float:
        from fedsw.engines.driver import run

        columns = declared_columns(experiment)
        twins = [twin(columns, by_group, seed) for seed, by_group in enumerate(sizes)]
        apart = {group: _HELD_OUT // len(columns.groups) for group in columns.groups}
        with tempfile.TemporaryDirectory() as folder:
            ready = _on_objects(experiment, len(sizes))
            found = run(ready, data=twins, held_out=twin(columns, apart, len(sizes)), runs=Path(folder))
        return score_of(found.summary, metric, sign)

    return score


def twin(columns: Columns, by_group: Mapping[str, int], seed: int) -> DeclaredRecords:
    """Records with uniform inputs, whose target follows a linear law that is the same for every seed, and is public."""
    groups = torch.repeat_interleave(torch.arange(len(columns.groups)), torch.tensor([*by_group.values()]))
    law, own = torch.Generator().manual_seed(_SEED), torch.Generator().manual_seed(_SEED + 1 + seed)
    weights = torch.randn((columns.inputs, max(len(columns.classes), len(columns.targets), 1)), generator=law)
    shifts = torch.randn((len(columns.groups), weights.shape[1]), generator=law) / 2
    features = torch.rand((len(groups), columns.inputs), generator=own)
    signal = (features - 0.5) @ weights * (_STRENGTH / columns.inputs**0.5) + shifts[groups]
    if columns.targets:
        target = torch.sigmoid(signal + 0.3 * torch.randn(signal.shape, generator=own))
    else:
        gumbel = -torch.log(-torch.log(torch.rand(signal.shape, generator=own).clamp(1e-6, 1 - 1e-6)))
        target = (2 * signal + gumbel).argmax(dim=1)
    return DeclaredRecords(features, groups, target, torch.arange(len(groups)), columns, "twin")


def _on_objects(experiment: Experiment, clients: int) -> Experiment:
    """The experiment on Python objects, outside every account; seeded, so that candidates meet the same draws."""
    raw = experiment.model_dump(mode="json")
    raw["data"] |= {
        "source": "object",
        "data_dir": None,
        "held_out": None,
        "held_out_overlap": "refuse",
        "account": None,
    }
    raw["federation"]["clients"], raw["seed"] = clients, _SEED
    return parse_experiment(raw)
