"""Arguments and options that several commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedsw.engines.driver import Engine

Name = Annotated[str, typer.Argument(metavar="EXPERIMENT")]
Settings = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, as in objective.alpha=0.75; may be repeated."),
]
Run = Annotated[str, typer.Argument(metavar="RUN")]
Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where runs are kept.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress; print only the run's directory.")]
Clients = Annotated[int | None, typer.Option(min=1, help="Number of clients.")]
Sites = Annotated[int | None, typer.Option(min=1, help="Processes that hold the clients; the engine's, if not given.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Reproducible sampling and noise; the ε is then nominal.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", metavar="DIR", help="Where data files are.")]
Epsilon = Annotated[float | None, typer.Option(help="The ε to guarantee; inf for no noise.")]
UnsafeMetrics = Annotated[
    bool, typer.Option("--unsafe-metrics", help="Record the training loss: ε is then ∞ for readers.")
]
Evaluate = Annotated[
    Literal["auto", "full"] | None,
    typer.Option("--evaluate", help="Measure on a fixed subsample of the held-out records (auto), or on all (full)."),
]
EngineName = Annotated[
    Engine, typer.Option("--engine", help="What carries the messages; `deployed` starts real client processes.")
]
Stock = Annotated[bool, typer.Option("--stock", help="Flower's own executors: a Python process for every message.")]
RUNS = Path("runs")
STATE = Path("client-state")
"""Where `fedsw client` keeps what must outlive it, if no --state-dir says so."""


def data_dir_setting(folder: Path) -> str:
    """The setting that `--data-dir` stands for, with the whole path."""
    return f"data.data_dir={json.dumps(str(folder.expanduser().resolve()), ensure_ascii=False)}"
