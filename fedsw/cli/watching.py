"""What a run may be watched by besides its progress: an endpoint, the structured log, services."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from fedsw.cli.options import echo

if TYPE_CHECKING:
    from fedsw.engines.driver import RunResult
    from fedsw.runs.observer import Observer


MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port", min=0, max=65535, help="Serve Prometheus metrics on this port of 127.0.0.1; 0 finds one."
    ),
]


class Service(StrEnum):
    """Where a run's releasable numbers may be logged, too."""

    MLFLOW = "mlflow"
    WANDB = "wandb"


Observe = Annotated[
    list[Service] | None,
    typer.Option("--observe", help="Log releasable numbers to MLflow or Weights & Biases, too; may be repeated."),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print the structured log to stderr, too.")]


def watched(
    start: Callable[[Observer], RunResult], *, port: int | None, verbose: bool, observe: Sequence[Service] = ()
) -> Callable[[Observer], RunResult]:
    """The same start, observed by whatever was asked for besides: services by name, and what follows.

    Args:
        port: of a Prometheus endpoint; None for none.
        verbose: print the structured log to stderr.
        observe: services that log the run, too.
    """

    def begin(observer: Observer) -> RunResult:
        from fedsw.observers import Observers
        from fedsw.runs.telemetry import MetricsEndpoint, logging_to_stderr

        more = [_service(name) for name in dict.fromkeys(observe)]
        with contextlib.ExitStack() as stack:
            if verbose:
                stack.enter_context(logging_to_stderr())
            if port is not None:
                endpoint = stack.enter_context(MetricsEndpoint(port))
                echo(f"metrics at http://127.0.0.1:{endpoint.port}/metrics", err=True)
                more.append(endpoint)
            return start(Observers(observer, *more) if more else observer)

    return begin


def _service(name: Service) -> Observer:
    from fedsw.observers import MlflowObserver, WandbObserver

    return MlflowObserver() if name is Service.MLFLOW else WandbObserver()
