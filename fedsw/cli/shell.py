"""What every fedsw command line shares: global options, exit codes and one-line errors."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TextIO

import click
import typer

_EXTRAS = {
    **dict.fromkeys(("flwr", "ray", "matplotlib", "safetensors", "sklearn", "h5py", "psutil", "pywt"), "app"),
    "prometheus_client": "app",
    **dict.fromkeys(("dp_accounting", "opacus"), "compare"),
    "flwr_datasets": "datasets",
    "mlflow": "mlflow",
    "pyarrow": "tables",
    "wandb": "wandb",
}
"""Which extra of fedsw brings a module."""


class RunStopped(RuntimeError):
    """A run that had begun and could not end; the message says what was kept and how to go on."""


def split_debug(arguments: Sequence[str]) -> tuple[bool, list[str]]:
    """Take --debug out of a command line, wherever it stands before '--'; returns whether it did, and the rest."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    before = [word for word in words[:end] if word != "--debug"]
    return len(before) < end, [*before, *words[end:]]


def new_group() -> typer.Typer:
    """A typer application with the options every fedsw command line has."""
    group = typer.Typer(
        name="fedsw",
        help="Private learning with sliced-Wasserstein objectives across Flower clients.",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    group.callback()(_common)
    return group


def invoke(group: typer.Typer, arguments: Sequence[str], *, debug: bool) -> int:
    """Run one command line of `group`; errors become one short message on stderr unless `debug`.

    Returns:
        0 if done, 2 for bad input (a ValueError, a missing file), 1 for whatever else failed, 130 if interrupted.
    """
    try:
        with _short_warnings():
            code = group(args=list(arguments), prog_name="fedsw", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as fault:
        return report_fault(fault, debug=debug)
    return code if isinstance(code, int) else 0


def report_fault(fault: Exception, *, debug: bool) -> int:
    """Print `fault` in one message and return the exit code it stands for; raise it again if `debug`."""
    if debug:
        raise fault
    if isinstance(fault, click.exceptions.NoArgsIsHelpError):
        print(fault.format_message())
        return 2
    if isinstance(fault, click.ClickException):
        where = getattr(fault, "ctx", None)
        path = where.command_path if where is not None else "fedsw"
        print(f"{path}: {fault.format_message()} (`{path} --help` shows the usage)", file=sys.stderr)
        return 2
    if isinstance(fault, ModuleNotFoundError) and (extra := _EXTRAS.get(str(fault.name).split(".")[0])):
        print(f"fedsw: {fault.name} is not installed; pip install 'fedsw[{extra}]' brings it", file=sys.stderr)
        return 2
    bad_input = isinstance(fault, ValueError | FileNotFoundError)
    plain = bad_input or isinstance(fault, RunStopped | OSError)
    print(f"fedsw: {fault}" if plain else f"fedsw: {type(fault).__name__}: {fault}", file=sys.stderr)
    if not plain:
        print("fedsw: --debug shows where it happened", file=sys.stderr)
    return 2 if bad_input else 1


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C meanwhile, so that what was started is stopped in order."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _short_warnings() -> Iterator[None]:
    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        print(f"fedsw: warning: {message}", file=file or sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _show_version(asked: bool) -> None:
    if asked:
        from fedsw import __version__

        print(f"fedsw {__version__}")
        raise typer.Exit


def _common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> Any:
    """Private learning with sliced-Wasserstein objectives across Flower clients."""
