"""Public twins: records of the declared form and the same sizes, drawn from a public law. Trying on them is free."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedsw.experiment import Experiment, parse_experiment
from fedsw.experiment.sources import declared_columns
from fedsw.forecast.law import LAWS, drawn
from fedsw.forecast.schema import spread_evenly
from fedsw.tuning.candidates import Score, score_of

_HELD_OUT = 4000
_SEED = 1


def score_on_twins(sizes: Sequence[Mapping[str, int]], metric: str, sign: float) -> Score:
    """A score that trains on twins with the planned noise: no record is looked at, only the public sizes.

    The mean over the laws of `fedsw plan`: which of them the records are like is not known.

    Args:
        sizes: records by group, for every client.
        metric, sign: see `metric_of`.
    """

    def score(experiment: Experiment) -> float:
        from fedsw.engines.driver import run

        columns, ready = declared_columns(experiment), _on_objects(experiment, len(sizes))
        apart = spread_evenly(columns.groups, _HELD_OUT)
        scores = []
        for law in LAWS:
            twins = [drawn(columns, by_group, law, seed=client) for client, by_group in enumerate(sizes)]
            held_out = drawn(columns, apart, law, seed=len(sizes))
            with tempfile.TemporaryDirectory() as folder:
                found = run(ready, data=twins, held_out=held_out, runs=Path(folder))
            scores.append(score_of(found.summary, metric, sign))
        return sum(scores) / len(scores)

    return score


def _on_objects(experiment: Experiment, clients: int) -> Experiment:
    """The experiment on Python objects, outside every account; seeded, so that candidates meet the same draws."""
    raw = experiment.model_dump(mode="json")
    raw["data"] |= {
        "source": "object",
        "data_dir": None,
        "held_out": None,
        "held_out_to": "operator",
        "held_out_overlap": "allow",  # twins are nobody: equal rows give nothing away
        "account": None,
    }
    raw["federation"]["clients"], raw["seed"] = clients, _SEED
    return parse_experiment(raw)
