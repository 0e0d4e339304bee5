"""Shared parts of the verbs: options, printed answers, and errors and signals that end a command."""

from __future__ import annotations

import codecs
import contextlib
import errno
import functools
import importlib
import importlib.util
import io
import os
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import typer
from rich.console import RenderableType
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandFunctionType

from fedsw._tools.exits import Exit, of_signal
from fedsw._tools.files import PART, same_file
from fedsw._tools.later import imported_later
from fedsw._tools.text import SPELT, harmless, installed_version, json_text
from fedsw.federation.engines import Engine
from fedsw.runs.report.console import Screen

if TYPE_CHECKING:
    from fedsw import experiment as experiments
    from fedsw.experiment import load as experiment_files
    from fedsw.runs import run_files as run_files
    from fedsw.runs.report.answer import Answer

# not from `fedsw.cli._modules`: that names `execution`, which takes its parts from here
globals().update(imported_later(__spec__))

Name = Annotated[str, typer.Argument(metavar="EXPERIMENT")]
Settings = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, as in objective.alpha=0.75; may be repeated."),
]
Run = Annotated[str, typer.Argument(metavar="RUN")]
Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where runs are kept.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]
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
Trust = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The server is trusted (sketch), or no party is (distributed, sketch-local)."),
]
Accounts = Annotated[
    Path | None, typer.Option("--accounts", metavar="DIR", help="Where accounts are kept. [$FEDSW_ACCOUNTS]")
]
OtherPeople = Annotated[
    bool,
    typer.Option("--other-people", help="I confirm that duplicates of rows in --data-dir belong to different people."),
]
AllowModule = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-module", metavar="NAME", help="A module that the stored settings may name; its code runs. Repeatable."
    ),
]
ChargeLost = Annotated[
    bool,
    typer.Option(
        "--charge-lost",
        help="After restoring a backup: charge the attempts that it lacks and clients remember, then resume.",
    ),
]
GoOn = Annotated[
    bool,
    typer.Option(
        "--go-on",
        help="If the checkpoint lacks released rounds: release and charge them once more.",
    ),
]
Spreadsheet = Annotated[
    bool,
    typer.Option(
        "--spreadsheet", help="Write an apostrophe before texts that a spreadsheet would run as a formula (= + - @)."
    ),
]
MomentsAlone = Annotated[
    bool,
    typer.Option(
        "--moments-alone",
        help="Stop once moments are released, also if the run breaks off before; `plan --after-moments` then says "
        "whether to go on.",
    ),
]
RUNS = Path("runs")
STATE = Path("client-state")
"""Default --state-dir of `fedsw client`."""


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print a text without control characters: it may come from a received folder."""
    typer.echo(harmless(text), err=err, nl=nl)


def found(name: str, runs: Path) -> Path:
    """The folder of a verb's run, printed if it was given by name."""
    directory = run_files.find_run(name, runs)
    if directory != Path(name).expanduser():
        echo(f"fedsw: the run is {directory}", err=True)
    return directory


def require_writable(*outputs: Path, force: bool, read: Iterable[Path] = ()) -> None:
    """Refuse to overwrite an existing file without `force`, and in any case one that the verb reads.

    Raises:
        ExperimentError: naming the file, before anything is read or spent.
    """
    inputs = [path.expanduser() for path in read]
    for output in outputs:
        if (same := next((path for path in inputs if same_file(output, path)), None)) is not None:
            raise experiments.ExperimentError(
                f"{output} is {same}, which is read here, and would be lost; -o names another file"
            )
        if output.is_file() and not force:
            raise experiments.ExperimentError(
                f"{output} is there already; --force writes over it, -o names another file"
            )


_FORMATS: dict[str, tuple[str, tuple[str, ...]]] = {
    "the table": ("CSV", (".csv", ".tsv", ".txt")),
    "the table of predictions": ("CSV, between commas", (".csv", ".txt")),
    "the picture": ("PNG", (".png",)),
    "the page": ("HTML", (".html", ".htm")),
    "the card": ("Markdown or HTML", (".md", ".html")),
}
Made = Literal["the table", "the table of predictions", "the picture", "the page", "the card"]


def require_format(output: Path, what: Made) -> None:
    """Refuse a file name with another format's ending; it may have none.

    Raises:
        ExperimentError: naming the file, before anything is read or spent.
    """
    written, ends = _FORMATS[what]
    if (end := output.suffix.lower()) and end not in ends:
        raise experiments.ExperimentError(
            f"{output} ends with {end}, and {what} is written as {written}: name a file that ends with {ends[0]}"
        )


def files_of_run(directory: Path) -> list[Path]:
    """A run's own files, which no output may replace; its card, page and registry entry are made anew."""
    made = (run_files.RunFile.CARD, run_files.RunFile.REGISTRY, run_files.RunFile.REPORT)
    return [path for path in directory.rglob("*") if path.is_file() and path.name not in made]


def echo_json(content: object, *, indent: int | None = 2) -> None:
    """Print JSON, in ASCII if the encoding of the standard output lacks other letters."""
    encoding = codecs.lookup(getattr(sys.stdout, "encoding", None) or "utf-8").name
    echo(json_text(content, indent=indent, ascii_only=not encoding.startswith("utf")))


def answer(content: object, view: Callable[[], RenderableType], *, as_json: bool, highlight: bool = False) -> None:
    """Print a command's answer: the content as JSON, or `view`'s rendering for a person."""
    if as_json:
        echo_json(content)
    else:
        Screen(highlight=highlight).print(view())


def say(answered: Answer, *, as_json: bool, highlight: bool = False) -> None:
    """Print the `Answer` of a command's Python function."""
    answer(answered.content, answered.view, as_json=as_json, highlight=highlight)


def answer_made(
    content: Mapping[str, object],
    view: Callable[[], RenderableType],
    folder: Path,
    paths: Iterable[object],
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Print a command's output files: content as JSON, with `quiet` only their folder, or a view and their names."""
    if as_json:
        echo_json(content)
    elif quiet:
        echo(folder)
    else:
        Screen().print(view())
        Screen().print("\n".join(map(str, paths)), style="cyan", highlight=False, soft_wrap=True)


def changes_of(
    settings: Sequence[str] | None,
    overrides: Sequence[str] | None = None,
    *,
    epsilon: float | None = None,
    clients: int | None = None,
    seed: int | None = None,
    data_dir: Path | None = None,
) -> list[str]:
    """The settings that a verb's command line changes; the last one wins, so that options follow KEY=VALUE."""
    changes = [*(overrides or ()), *(settings or ())]
    changes += [f"privacy.epsilon={epsilon!r}"] if epsilon is not None else []
    changes += [f"federation.clients={clients}"] if clients is not None else []
    changes += [f"seed={seed}"] if seed is not None else []
    if data_dir is not None:
        changes += experiment_files.in_folder(data_dir)
    return changes


def in_parts(name: str) -> None:
    """Let modules of the package `name` be imported without its `__init__`, which runs when a name of it is first used.

    A missing attribute is the module of that name, or else a name that `__init__` defines, so that later uses of the
    package in this process are complete. Nothing happens if it is imported already, or not installed. Only for a
    command's own process: another thread could see the package while its `__init__` runs.
    """
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return
    loader, package = spec.loader, importlib.util.module_from_spec(spec)

    def missed(wanted: str) -> object:
        if importlib.util.find_spec(f"{name}.{wanted}") is not None:
            return importlib.import_module(f"{name}.{wanted}")
        if package.__dict__.pop("__getattr__", None) is None:
            raise AttributeError(f"module {name!r} has no attribute {wanted!r}")
        loader.exec_module(package)
        return getattr(package, wanted)

    package.__dict__["__getattr__"] = missed
    sys.modules[name] = package


_EXTRAS = {
    **dict.fromkeys(("flwr", "ray", "matplotlib", "safetensors", "sklearn", "h5py", "psutil", "pywt"), "app"),
    "prometheus_client": "app",
    **dict.fromkeys(("dp_accounting", "opacus"), "compare"),
    "flwr_datasets": "datasets",
    "mlflow": "mlflow",
    "pyarrow": "tables",
    "wandb": "wandb",
}
"""The extra of fedsw that installs a module."""
_LONGEST_PATH = 80
_INTERRUPTED = of_signal(signal.SIGINT)

_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room, or write to another disk"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "name a place that can be written to"),
}
"""Remedy by the error number of a file that cannot be written or opened."""


class RunStopped(RuntimeError):
    """A run that had begun, and did not end or could not be shown.

    The message says what was kept and how to resume; the exit code tells whether budget was spent.
    """

    def __init__(self, words: str, exit_code: Exit) -> None:
        super().__init__(words)
        self.exit_code = exit_code


class RunInterrupted(Exception):
    """A signal ended a command, which has printed what was kept and how to resume."""


def split_debug(arguments: Sequence[str]) -> tuple[bool, list[str]]:
    """Take --debug out of a command line, wherever it stands before '--'; returns whether it did, and the rest."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    before = [word for word in words[:end] if word != "--debug"]
    return len(before) < end, [*before, *words[end:]]


class _OnceEach(click.Command):
    """A command line that rejects a repeated option with one value, where click would take the last."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command`; UsageError, naming the option, where one is given twice."""
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        for option in order:
            if not isinstance(option, click.Option) or order.count(option) == 1:
                continue
            # A list may be repeated, and a flag without an opposite.
            if not (option.multiple or (option.is_flag and not option.secondary_opts)):
                names = "/".join([*option.opts, *option.secondary_opts])
                raise click.UsageError(
                    f"{names} is given {order.count(option)} times and takes one value; leave the others out", ctx
                )
        return super().parse_args(ctx, args)


class _Verb(_OnceEach, TyperCommand):
    """A verb of the command line."""


class _Group(_OnceEach, TyperGroup):
    """A verb with subcommands."""


class Verbs(typer.Typer):
    """A typer application with `_OnceEach` commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=_Group, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[CommandFunctionType], CommandFunctionType]:
        """See `typer.Typer.command`."""
        return super().command(name, cls=_Verb, **options)


def new_group() -> typer.Typer:
    """A typer application with the options every fedsw command line has."""
    group = Verbs(
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

    The exit code is one of `Exit`, or that of the signal which interrupted it. Letters that a stream's encoding lacks
    are spelt.
    """
    if sys.stdout is None:  # the parent process closed it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    code: int | None = None
    try:
        with _ending_on_signals() as came, _any_letter():
            code = _invoked(group, arguments, debug=debug)
    except (Exception, KeyboardInterrupt):
        if code is None:  # of --debug; else all was shown, and only the streams' settings could not be restored
            raise
    return of_signal(came[0]) if came else code


@contextmanager
def _any_letter() -> Iterator[None]:
    """Spell letters that the standard streams' encoding lacks, which would otherwise be errors."""
    streams = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, io.TextIOWrapper)]
    before = [(stream, stream.errors) for stream in streams]
    for stream in streams:
        stream.reconfigure(errors=SPELT)
    try:
        yield
    finally:
        for stream, errors in before:
            with contextlib.suppress(OSError, ValueError):  # the pipe may be closed
                stream.reconfigure(errors=errors)


_command_of = functools.cache(typer.main.get_command)
"""The command of an application, made once: that takes longer than many commands."""


def _invoked(group: typer.Typer, arguments: Sequence[str], *, debug: bool) -> int:
    try:
        with _short_warnings():
            code = _command_of(group)(args=list(arguments), prog_name="fedsw", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        give_up_output()
        return Exit.FAILED
    except RunInterrupted:
        return _INTERRUPTED
    except (KeyboardInterrupt, click.Abort):
        code = _INTERRUPTED
    except Exception as fault:
        code = report_fault(fault, debug=debug)
        if modules := getattr(fault, "modules", ()):  # refused code: print the command that allows it
            more = [word for name in modules for word in ("--allow-module", name)]
            echo(f"fedsw: the command is then: fedsw {shlex.join([*arguments, *more])}", err=True)
        return code
    if code == _INTERRUPTED:  # typer's code for an interruption
        echo("fedsw: interrupted", err=True)
    return code if isinstance(code, int) else 0


def report_fault(fault: Exception, *, debug: bool) -> int:
    """Print `fault` in one message and return the exit code it stands for; raise it again if `debug`."""
    if debug:
        raise fault
    if isinstance(fault, click.exceptions.NoArgsIsHelpError):
        echo(fault.format_message())
        return Exit.REFUSED
    if isinstance(fault, click.ClickException):
        where = getattr(fault, "ctx", None)
        path = where.command_path if where is not None else "fedsw"
        echo(f"{path}: {fault.format_message()} (`{path} --help` shows the usage)", err=True)
        return Exit.REFUSED
    if isinstance(fault, ModuleNotFoundError) and (extra := _EXTRAS.get(str(fault.name).split(".")[0])):
        echo(f"fedsw: {fault.name} is not installed; pip install '.[{extra}]' in fedsw's checkout brings it", err=True)
        return Exit.REFUSED
    if isinstance(fault, OSError) and fault.errno == errno.ENAMETOOLONG:
        fault = ValueError(
            f"the path {_short(fault.filename)} is too long for this file system: a name in it has at most 255 bytes, "
            "and all of it 4096; give a shorter one"
        )
    bad_input = isinstance(fault, ValueError | FileNotFoundError)
    plain = bad_input or isinstance(fault, OSError) or type(fault).__module__.startswith(__package__.partition(".")[0])
    echo(f"fedsw: {of_system(fault)}" if plain else f"fedsw: {type(fault).__name__}: {fault}", err=True)
    if not plain:
        echo("fedsw: --debug shows where it happened", err=True)
    if isinstance(fault, RunStopped):
        return fault.exit_code
    return Exit.REFUSED if bad_input else Exit.FAILED


def of_system(fault: BaseException) -> str:
    """An error in words: of the system with the file's final name and a remedy, others unchanged."""
    if not isinstance(fault, OSError) or fault.errno is None or fault.strerror is None:
        return str(fault)
    name = f"{str(fault.filename).removesuffix(PART)}: " if fault.filename else ""
    remedy = _REMEDIES.get(fault.errno)
    if fault.errno in (errno.EACCES, errno.EPERM) and fault.filename and os.path.lexists(fault.filename):
        remedy = "this user may not open it: let its owner allow that, or name another"
    return f"{name}{fault.strerror}" + (f"; {remedy}" if remedy else "")


@contextmanager
def _ending_on_signals() -> Iterator[list[int]]:
    """Treat SIGTERM and SIGHUP as Ctrl-C, so that the command ends in order; yields a list of the one that came.

    A signal that the caller ignores, as nohup does, stays ignored; a second one does not disturb the end. One that
    comes where Python can only print what is raised, as in a `__del__`, would be lost: it comes again.
    """
    came: list[int] = []
    shown = sys.unraisablehook

    def interrupt(number: int, frame: Any) -> None:
        if not came:
            came.append(number)
            raise KeyboardInterrupt

    def again(lost: Any) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            # Not at once, and not from here: it would meet the same place, which can only print it.
            threading.Timer(0.1, os.kill, (os.getpid(), came.pop() if came else signal.SIGINT)).start()
        else:
            shown(lost)

    ours = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, interrupt) for number in ours if signal.getsignal(number) is signal.SIG_DFL}
    try:
        sys.unraisablehook = again
        yield came
    finally:
        sys.unraisablehook = shown
        for number, handler in before.items():
            signal.signal(number, handler)


def give_up_output() -> None:
    """Redirect a closed standard output to nowhere, so that Python's last flush does not fail either."""
    with contextlib.suppress(OSError, ValueError):  # a stream that is not a file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextmanager
def _short_warnings() -> Iterator[None]:
    def show(message: Warning | str, *_: object, **__: object) -> None:
        echo(f"fedsw: warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _short(path: object) -> str:
    text = repr(path)
    return text if len(text) <= _LONGEST_PATH else f"{text[: _LONGEST_PATH // 2]}...{text[-_LONGEST_PATH // 2 :]}"


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"fedsw {installed_version()}")
        raise typer.Exit


def _common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> Any:
    """Private learning with sliced-Wasserstein objectives across Flower clients."""
