"""`fedsw resume`: a run that stopped goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsw.cli.options import RUNS, AllowModule, ChargeLost, Json, Quiet, Run, Runs
from fedsw.cli.watching import MetricsPort, Observe, Verbose, watched

if TYPE_CHECKING:
    from fedsw.engines.driver import RunResult
    from fedsw.runs.observer import Observer


def resume_command(
    run: Run,
    charge_lost: ChargeLost = False,
    metrics_port: MetricsPort = None,
    observe: Observe = None,
    verbose: Verbose = False,
    allow_module: AllowModule = None,
    runs: Runs = RUNS,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run that stopped; what it has spent stays spent.

    RUN is the run's directory, or an experiment's name for its latest run. A folder that is older than what the
    clients of its run answered (a backup, a copy) is refused without --charge-lost.
    """
    from fedsw.cli.execution import execute
    from fedsw.runs.files import find_run

    directory = find_run(run, runs)

    def start(observer: Observer) -> RunResult:
        from fedsw.engines.driver import resume

        allowed = allow_module or ()
        return resume(directory, observer=observer, allow_modules=allowed, charge_lost=charge_lost)

    execute(
        watched(start, port=metrics_port, verbose=verbose, observe=observe or ()),
        label=directory.parent.name,
        as_json=as_json,
        quiet=quiet,
    )
