"""Laws of going on: every engine has its own command, and it is the one that is printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from flwr.app import Context, RecordDict
from rich.console import Console

from fedsw._tools.settings import FederationError
from fedsw.cli.execution import execute
from fedsw.cli.options import RunStopped
from fedsw.cli.show import status_view
from fedsw.federation.engines import Engine
from fedsw.federation.engines.driver import resume
from fedsw.federation.server.app import job_from
from fedsw.runs.commands import command_for
from fedsw.runs.directory import RunDirectory
from fedsw.runs.report.run_documents import summary_screen
from fedsw.runs.status import read_status
from fedsw.runs.view import read_run
from tests.federations import small


def prepared(tmp_path: Path, engine: str) -> Path:
    RunDirectory(tmp_path / "run").write_config(small(), engine)
    return tmp_path / "run"


def shown(view: object) -> str:
    console = Console(width=300)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def submitted(**config: str | bool) -> Context:
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(config))


@pytest.mark.parametrize("engine", get_args(Engine))
def test_a_run_on_this_machine_goes_on_with_resume(tmp_path: Path, engine: str) -> None:
    directory = prepared(tmp_path, engine)
    assert command_for(directory) == f"fedsw resume {directory}"


@pytest.mark.parametrize(
    ("engine", "command"),
    [
        ("served", "fedsw server --certs DIR --resume {0}"),
        ("service", "flwr run APP fedsw --stream --run-config 'directory=\"{0}\" resume=true'"),
    ],
)
def test_a_run_on_other_machines_is_not_resumed_here_and_every_screen_says_how(tmp_path, engine, command) -> None:
    """Resumed here it would be split among simulated clients, which are charged and released for others."""
    directory = prepared(tmp_path, engine)
    remedy = command.format(directory.resolve())
    assert remedy in command_for(directory)
    before = sorted(directory.iterdir())
    with pytest.raises(ValueError, match="clients are on other machines") as refused:
        resume(directory)
    assert remedy in str(refused.value) and sorted(directory.iterdir()) == before
    assert remedy in shown(summary_screen(read_run(directory)))

    def start(observer):
        observer.started({"name": "small", "rounds": 4, "epsilon": 1.0, "directory": str(directory)})
        raise FederationError("too few")

    with pytest.raises(RunStopped) as stopped:
        execute(start, label="small", as_json=False, quiet=True)
    assert remedy in str(stopped.value)
    RunDirectory(directory).write_summary({"status": "failed: too few", "epsilon": 1.0})
    assert remedy in shown(summary_screen(read_run(directory))) and remedy in shown(status_view(read_status(directory)))


def test_a_run_that_is_submitted_to_a_server_is_recorded_as_its_service(tmp_path: Path) -> None:
    """Flower's simulation engine takes the same configuration, and its clients are simulated again."""
    asked = submitted(experiment="fair-classification", runs=str(tmp_path))
    assert job_from(asked, simulated=False).engine == "service"
    assert job_from(asked, simulated=True).engine == "flwr"
    directory = prepared(tmp_path, "service")
    job = job_from(submitted(directory=str(directory), resume=True), simulated=False)
    assert (job.engine, job.directory, job.resume) == ("service", directory, True)
    assert json.loads((directory / "config.json").read_text())["engine"] == "service"
