"""What part of a run its held-out metrics take, by default, for every shipped experiment whose data is at hand.

Each runs in a process of its own with one thread, for as many rounds as two evaluations lie apart, and its parts are
timed: rounds, evaluations on the way, the last one with its files. The part is that of the evaluations in whole runs of
the planned length, (evaluations * one + last + first) / (rounds * one + evaluations). Starting is not counted.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.performance.comparing import Row, figure

_ROOT = Path(__file__).parents[2]
_LEAST_ROUNDS = 3
_MOST_ROUNDS = 12
_SECONDS = 600


def measure(quick: bool) -> list[Row]:
    """A row for every shipped experiment: the part of its time that evaluations take."""
    names = ("fair-classification",) if quick else _shipped()
    return [_row(name, _LEAST_ROUNDS if quick else _MOST_ROUNDS) for name in names]


def _shipped() -> tuple[str, ...]:
    from fedsw.experiment.load import shipped

    return tuple(sorted(shipped()))


def _row(name: str, rounds: int) -> Row:
    command = [sys.executable, "-m", "benchmarks.performance.evaluation", name, str(rounds)]
    ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=_SECONDS)
    what, against = f"evaluation's part of {name}", "the whole run's rounds and evaluations"
    if ended.returncode:
        why = (ended.stderr.strip().splitlines() or ["no reason"])[-1]
        return figure(what, against, float("nan"), goal="< 5 %", met=False, note=f"did not run: {why}")
    found = json.loads(ended.stdout.strip().splitlines()[-1])
    spread = (
        f"a round {found['round']:.3g} s, an evaluation {found['evaluation']:.3g} s, the last {found['last']:.3g} s"
    )
    note = f"{spread}; {found['on']}"
    return figure(what, against, found["part"], goal="< 0.05", met=found["part"] < 0.05, spread=spread, note=note)


def time_run(name: str, rounds: int) -> dict[str, object]:
    """Seconds of a round and of an evaluation of one experiment, and the part in a run of its planned length."""
    import tempfile
    import time

    import torch

    from fedsw.experiment import load_experiment
    from fedsw.experiment.load import find_experiment
    from fedsw.federation.engines.driver import run
    from fedsw.runs.evaluation.evaluator import Evaluator

    torch.set_num_threads(1)
    spent: dict[str, list[float]] = {"metrics": [], "write_outputs": [], "__init__": []}
    for method, times in spent.items():
        setattr(Evaluator, method, _timed(getattr(Evaluator, method), times))
    planned = load_experiment(find_experiment(name))
    experiment = load_experiment(find_experiment(name), [f"training.rounds={rounds}", f"evaluate_every={rounds - 1}"])
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        result = run(experiment, runs=Path(folder), observer=clock)
        whole = time.perf_counter() - began
    gaps = [after - before for before, after in zip(clock.times[:-2], clock.times[1:-1], strict=True)]
    one, each = statistics.median(gaps), statistics.median(spent["metrics"])
    last, length = spent["write_outputs"][0], planned.training.rounds
    evaluations = -(-length // planned.evaluate_every) * each + last
    return {
        "round": one, "evaluation": each, "last": last, "first": spent["__init__"][0], "whole": whole,
        "part": evaluations / (evaluations + length * one), "on": str(result.summary["held_out_measured_on"]),
    }  # fmt: skip


class _Clock:
    """An observer that writes down when rounds ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def started(self, plan: dict[str, object]) -> None:
        """Nothing."""

    def round_done(self, record: dict[str, object]) -> None:
        """The time."""
        import time

        self.times.append(time.perf_counter())

    def finished(self, summary: dict[str, object]) -> None:
        """Nothing."""


def _timed(function, times):  # type: ignore[no-untyped-def]
    import time

    def timed(*args, **kwargs):  # type: ignore[no-untyped-def]
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            times.append(time.perf_counter() - began)

    return timed


if __name__ == "__main__":
    print(json.dumps(time_run(sys.argv[1], int(sys.argv[2]))))
