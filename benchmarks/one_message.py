"""Bytes and processor minutes of one noised sketch of MNIST beside those of generators that are trained in rounds.

    python -m benchmarks.one_message --data-dir DATA [--only ROW ...] [--rounds 20]

Ten clients, each a site of its own, epsilon = 10. Every row is an ordinary run at the settings of its figure under
simulations/papers, with 25 rounds: the last 20 are measured, after warm-up, and what they leave of the run (start,
noise, the exchange of the sketch, held-out metrics) happens once. Both are extrapolated to the rounds of the figure. A
round of a sketch is a step of the generator, and sends nothing: 25 steps are taken on what a run of one step released.
Processor time is of the whole process, server and clients together, on one thread; wall time would be that of whoever
else uses the cores. Bytes are those of the payloads, as a run's summary has them. Rows that are in
benchmarks/results/one_message.json already are not measured again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.machine import describe, pace
from fedsw.experiment import load_experiment
from fedsw.experiment.load import find_experiment
from fedsw.federation.engines.driver import run
from fedsw.federation.server.from_sketch import settings_of
from fedsw.learning.sketches.fit import fit_generator
from fedsw.learning.tasks.measures import law_of_problem, sketcher_of
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.directory import RunDirectory
from fedsw.runs.observer import NoObserver
from fedsw.runs.releases import stored_sketch

RESULT = Path(__file__).parent / "results" / "one_message.json"
PAPERS = Path(__file__).parents[1] / "simulations" / "papers"
WARM = 5
BYTES = ("bytes_up", "bytes_down")
ALIKE = (
    "data.source=mnist",
    "privacy.epsilon=10.0",
    "federation.clients=10",
    "federation.sites=10",
    "evaluate_every=100000",
)
FEW = ("training.decay=0.0", "training.averaging=0.0")


@dataclass(frozen=True)
class Row:
    """A series of a figure, by the name of its file, and what is measured less of, outside training.

    `rounds` are the paper's, where the figure has fewer to fit a small machine.
    """

    figure: str
    series: str
    less: tuple[str, ...] = ()
    rounds: int | None = None


ROWS = {
    "sketch": Row("sketches/images", "best", ("sketch.generated=1000",)),
    "sketch-local": Row("sketches/images", "nobody trusted", ("sketch.generated=1000",)),
    "swae, as printed": Row("rll/table1", "shortened", FEW, rounds=5000),
    "swae, best": Row("rll/table1", "best", FEW),
    "DP-SWD, as printed": Row("rr/table2", "paper's method", FEW),
    "DP-SWD, best": Row("rr/table2", "best", FEW),
}


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    stored = json.loads(RESULT.read_text()) if RESULT.exists() else {"rows": {}}
    for name in asked.only:
        if name not in stored["rows"]:
            stored["rows"][name] = measured(ROWS[name], asked.data_dir, asked.rounds)
            stored["machine"], stored["clients"], stored["rounds"] = describe(), 10, asked.rounds
            print(name, json.dumps(stored["rows"][name]), flush=True)
        stored["rows"][name] = extrapolated(ROWS[name], stored["rows"][name])
        RESULT.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return 0


def measured(row: Row, data_dir: Path, more: int) -> dict[str, Any]:
    """What one row takes, once and in a round."""
    experiment, settings = of_figure(row)
    own = (*settings, *ALIKE, *row.less, f"data.data_dir={data_dir}")
    beat = pace()
    measure = _sketch if experiment.startswith("sketch") else _rounds
    measures = measure(experiment, own, more)
    found: dict[str, Any] = {"experiment": experiment, "settings": settings, "plain_loop_ms": beat}
    for name, (once, each) in measures.items():
        found[name] = {"once": once, "a_round": each}
    return found


def extrapolated(row: Row, found: dict[str, Any]) -> dict[str, Any]:
    """What was measured of a row, now or before, at the rounds that its figure has today."""
    experiment, settings = of_figure(row)
    planned = row.rounds or load_experiment(find_experiment(experiment), settings).training.rounds
    sums = {
        name: {**part, "planned": part["once"] + planned * part["a_round"]}
        for name, part in found.items()
        if isinstance(part, dict)
    }
    return {**found, "rounds": planned, **sums}


def of_figure(row: Row) -> tuple[str, list[str]]:
    """The experiment of a row's series, and its settings."""
    figure = tomllib.loads((PAPERS / f"{row.figure}.toml").read_text(encoding="utf-8"))
    (series,) = (each for each in figure["series"] if each["name"] == row.series)
    return series["experiment"], series.get("set", [])


class _Clock(NoObserver):
    """The processor's time and the bytes at the end of every round."""

    def __init__(self) -> None:
        self.ends: list[dict[str, float]] = []

    def round_done(self, record: dict[str, Any]) -> None:
        """Note one more round."""
        self.ends.append({"seconds": time.process_time(), **{name: record[name] for name in BYTES}})


def _rounds(experiment: str, settings: Sequence[str], more: int) -> dict[str, tuple[float, float]]:
    """What happens once, and in a round, of a run that goes on in rounds."""
    clock, began = _Clock(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        summary = run(
            experiment, *settings, f"training.rounds={WARM + more}", runs=Path(folder), observer=clock
        ).summary
    whole = {"seconds": time.process_time() - began, **{name: summary[name] for name in BYTES}}
    each = {name: (clock.ends[-1][name] - clock.ends[WARM - 1][name]) / more for name in whole}
    return {name: (whole[name] - (WARM + more) * each[name], each[name]) for name in whole}


def _sketch(experiment: str, settings: Sequence[str], more: int) -> dict[str, tuple[float, float]]:
    """The same of a run whose records leave once: its rounds are steps on what it released."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = run(experiment, *settings, "training.rounds=1", runs=Path(folder))
        once = time.process_time() - began
        problem = Problem.from_experiment(result.experiment)
        stored = stored_sketch(RunDirectory(result.directory), law_of_problem(problem))
    assert stored is not None
    ends = []
    fit_generator(
        stored.sketch,
        problem.build_model(),
        replace(settings_of(problem), steps=WARM + more),
        sketcher=sketcher_of(problem),
        observer=lambda progress: ends.append(time.process_time()),
        every=1,
    )
    each = (ends[-1] - ends[WARM - 1]) / more
    sent = {name: (float(result.summary[name]), 0.0) for name in BYTES}
    return {"seconds": (once - each, each), **sent}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_message")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=tuple(ROWS), default=list(ROWS), metavar="ROW")
    parser.add_argument("--rounds", type=int, default=20, help="measured after warm-up")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
