"""A million records of 20 columns: an additive model's round against the linear one's, and the histograms of all columns.

Processor seconds of all threads. A round takes all records, and there are as many of them as `preset = "auto"` takes; the
least of several runs counts, after one on few records, divided by the rounds: placing records in their columns, once, and
moments, where they come first, are part of it. Histograms are the sum that `describe` noises, of columns and of columns by class, of records that
are in memory, without what is made of them; reading a table is in `million`.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.performance.comparing import Row
from fedsw.data import DeclaredRecords
from fedsw.desk.own_data.description import as_description
from fedsw.desk.own_data.rehearsal import made_up, on_objects
from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation.engines.driver import run
from fedsw.learning.tasks.measures import sketch_of_records
from fedsw.learning.tasks.problem import Problem

_COLUMNS, _CLIENTS, _SMALL, _ROUNDS, _TURNS = 20, 4, 2_000, 50, 2
_MOST_TIMES, _MOST_SECONDS = 2.0, 1.0


def measure(quick: bool) -> Iterator[Row]:
    """Rows of the additive model and of the histograms."""
    records, turns = (20_000, 1) if quick else (1_000_000, _TURNS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield _additive(records, turns, moments=0.0)
        yield _additive(records, turns, moments=0.2)
        yield _histograms(records, turns)


def _additive(records: int, turns: int, *, moments: float) -> Row:
    kinds: dict[str, dict[str, Any]] = {"linear": {"kind": "logistic"}, "additive": {"kind": "additive", "knots": 5}}
    experiments = {name: _experiment(model, moments) for name, model in kinds.items()}
    for experiment in experiments.values():
        _rounds(experiment, _SMALL)
    seconds = [{name: _rounds(each, records) for name, each in experiments.items()} for _ in range(turns)]
    least = {name: min(turn[name] for turn in seconds) for name in kinds}
    ratio = least["additive"] / least["linear"]
    spread = ", ".join(f"{name} {least[name]:.3g} to {max(turn[name] for turn in seconds):.3g}" for name in kinds)
    return {
        "what": f"a round of an additive model of 5 knots, {'after moments, ' if moments else ''}{records} records of "
        f"{_COLUMNS} columns",
        "against": "the linear model's round",
        "ours": least["additive"],
        "other": least["linear"],
        "ratio": ratio,
        "goal": f"<= {_MOST_TIMES:g} times the processor time",
        "met": ratio <= _MOST_TIMES,
        "spread": spread,
        "note": f"of {_ROUNDS} rounds, with all that comes before the first one",
    }


def _histograms(records: int, turns: int) -> Row:
    problem = Problem.from_experiment(as_description(_experiment({"kind": "logistic"}, 0.0)))
    sketch_of_records(problem, _made_up(problem.experiment, _SMALL, client=0))
    held, seconds = _made_up(problem.experiment, records, client=0), []
    for _ in range(turns):
        began = time.process_time()
        sketch_of_records(problem, held)
        seconds.append(time.process_time() - began)
    return {
        "what": f"histograms of all columns, {records} records of {_COLUMNS} columns",
        "against": "a second",
        "ours": min(seconds),
        "other": None,
        "ratio": min(seconds),
        "goal": f"<= {_MOST_SECONDS:g} s",
        "met": min(seconds) <= _MOST_SECONDS,
        "spread": f"{min(seconds):.3g} to {max(seconds):.3g}",
        "note": "",
    }


def _experiment(model: dict[str, Any], moments: float) -> Experiment:
    columns = {
        "features": [{"name": f"number{place}", "low": -5, "high": 5} for place in range(_COLUMNS)],
        "sensitive": {"name": "sex", "values": ["f", "m"]},
        "target": {"name": "ill", "values": ["no", "yes"]},
    }
    return parse_experiment(
        {
            "name": "columns",
            "data": {"source": "files", "columns": columns},
            "model": model,
            "objective": {"alpha": 0.0},
            "training": {"rounds": _ROUNDS, "batch_fraction": 1.0},
            "federation": {"clients": _CLIENTS},
            "privacy": {"epsilon": 1.0, "moments": moments},
        }
    )


def _made_up(experiment: Experiment, records: int, *, client: int) -> DeclaredRecords:
    columns = experiment.data.columns
    if columns is None:
        raise TypeError("the experiment declares no columns")
    return made_up(columns, dict.fromkeys(columns.groups, records // len(columns.groups)), seed=client)


def _rounds(experiment: Experiment, records: int) -> float:
    """Processor seconds of a round."""
    parts = [_made_up(experiment, records // _CLIENTS, client=client) for client in range(_CLIENTS)]
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        run(on_objects(experiment, _ROUNDS, _CLIENTS), data=parts, runs=Path(folder), observer=clock)
    return (clock.last - clock.began) / _ROUNDS


class _Clock:
    """An observer that notes the processor time when rounds begin and end."""

    began = last = 0.0

    def started(self, plan: dict[str, object]) -> None:
        """The time."""
        self.began = self.last = time.process_time()

    def round_done(self, record: dict[str, object]) -> None:
        """The time."""
        self.last = time.process_time()

    def finished(self, summary: dict[str, object]) -> None:
        """Nothing."""
