"""`fedsw audit`: an experiment or a finished run under attack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsw._tools.files import fresh_folder
from fedsw.cli import options
from fedsw.cli._modules import audit_canary, audit_one_run, audit_record, experiments, run_files, run_folder
from fedsw.cli.options import answer_made, changes_of, found

if TYPE_CHECKING:
    from collections.abc import Collection

    from fedsw.audit.finding import Finding
    from fedsw.experiment import Experiment

Trials = Annotated[int | None, typer.Option(min=100, help="Releases that --canary draws, of each neighbour.")]
Folder = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Where findings are kept.")]


def audit_command(
    target: Annotated[str, typer.Argument(metavar="EXPERIMENT|RUN")],
    settings: options.Settings = None,
    canary: Annotated[
        bool,
        typer.Option(
            "--canary", help="Attack the releases on the worst neighbours of the experiment's bound (empirical ε)."
        ),
    ] = False,
    one_run: Annotated[
        int | None,
        typer.Option(
            "--one-run", min=1, metavar="K", help="Membership inference on one real training run with K canaries."
        ),
    ] = None,
    trials: Trials = None,
    unsafe_finding: Annotated[
        bool,
        typer.Option(
            "--unsafe-finding", help="Let --one-run attack your records: the finding's ε is then ∞ for readers."
        ),
    ] = False,
    epsilon: options.Epsilon = None,
    overrides: options.Set = None,
    data_dir: options.DataDir = None,
    output: Folder = Path("audits"),
    allow_module: options.AllowModule = None,
    runs: options.Runs = options.RUNS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Attack a guarantee by membership inference, or check a run.

    With --canary or --one-run the target is an experiment (settings may follow it), or a run's folder: its settings
    are attacked; without either it is a run's folder, or an experiment's name for its latest run: its files are
    checked by recomputation.
    """
    if canary and one_run is not None:
        raise typer.BadParameter("give --canary or --one-run, not both")
    attacked = canary or one_run is not None
    changed = settings or overrides or epsilon is not None or data_dir is not None
    if not attacked and (changed or trials is not None):
        raise typer.BadParameter("a run's folder is audited as it is; settings belong to --canary and --one-run")
    if trials is not None and not canary:
        raise typer.BadParameter("--trials belongs to --canary")
    if unsafe_finding and one_run is None:
        raise typer.BadParameter("--unsafe-finding belongs to --one-run")

    if attacked and allow_module and not run_files.is_run(Path(target)):
        raise typer.BadParameter("--allow-module is about a run's folder; an experiment file names its modules itself")
    changes = changes_of(settings, overrides, epsilon=epsilon, data_dir=data_dir)
    show = not (quiet or as_json)
    if attacked:
        experiment = _experiment(target, changes, allow_module or ())
        finding = _attack(experiment, one_run, trials, show=show, unsafe=unsafe_finding)
    else:
        finding = audit_record.audit(found(target, runs), allow_module or ())
    name = Path(target).stem if attacked else Path(finding.subject).name
    files = finding.write(fresh_folder(output / f"{name}-{finding.kind}"))
    content = {**finding.as_dict(), "files": [str(path) for path in files]}
    answer_made(content, finding.screen, files[0].parent, files, as_json=as_json, quiet=quiet)
    if finding.exit_code:
        raise typer.Exit(finding.exit_code)


def _experiment(target: str, changes: list[str], modules: Collection[str]) -> Experiment:
    """The experiment that a file or a name says, or the settings of a run's folder, with changes."""
    if not run_files.is_run(Path(target)):
        return experiments.load_experiment(target, changes)

    stored, _ = run_folder.RunDirectory(Path(target)).read_config(modules)
    return experiments.parse_experiment(stored.model_dump(mode="json"), changes)


def _attack(experiment: Experiment, one_run: int | None, trials: int | None, *, show: bool, unsafe: bool) -> Finding:
    if one_run is not None:
        return audit_one_run.audit(experiment, canaries=one_run, show=show, unsafe=unsafe)

    return audit_canary.audit(experiment, trials=trials, show=show)
