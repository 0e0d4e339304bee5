"""The ServerApp: one entry point for Flower's own commands and for `fedsw run`."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsw._tools.files import fresh_folder
from fedsw.experiment import ExperimentError, load_experiment
from fedsw.experiment.load import SHIPPED
from fedsw.federation import flower
from fedsw.federation.server.federation import Job, federate
from fedsw.runs.commands import SERVICE
from fedsw.runs.directory import RunDirectory
from fedsw.runs.run_files import report_run

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run configuration names (`flwr run . -c "experiment='fair-classification'"`)."""
    job = job_from(context, simulated=type(grid).__name__ == flower.SIMULATED)
    report_run(job.directory)
    federate(grid, job)


def app_for(job: Job) -> ServerApp:
    """The ServerApp for a job that was made in this process."""
    hosted = ServerApp()

    @hosted.main()
    def _main(grid: Grid, context: Context) -> None:
        federate(grid, job)

    return hosted


def job_from(context: Context, *, simulated: bool) -> Job:
    """The job behind a Flower run configuration.

    Keys: `experiment` (a shipped name or a TOML file), `set` (overrides, separated by ';') and `runs` (where to keep
    the run); or `directory`, a folder with everything in its config.json: one that `fedsw run` prepared, or with
    `resume` that of a run to go on with. `allow-modules` (separated by ',') are those that this config.json may name.

    Clients of Flower's simulation engine can be started again by `fedsw resume`; those of other machines must be met
    where they are.
    """
    config = context.run_config
    if prepared := str(config.get("directory", "")):
        allowed = [name.strip() for name in str(config.get("allow-modules", "")).split(",")]
        experiment, engine = RunDirectory(Path(prepared)).read_config(allowed)
        return Job(experiment, Path(prepared), engine, resume=bool(config.get("resume", False)))
    name = str(config.get("experiment", ""))
    path = Path(name) if name.endswith(".toml") else SHIPPED / "experiments" / f"{name}.toml"
    if not name:
        raise ExperimentError("the run configuration names no experiment; pass -c \"experiment='fair-classification'\"")
    overrides = [item for item in str(config.get("set", "")).split(";") if item.strip()]
    experiment = load_experiment(path, overrides)
    folder = fresh_folder(Path(str(config.get("runs", "runs"))) / experiment.name)
    return Job(experiment, folder, engine="flwr" if simulated else SERVICE)
