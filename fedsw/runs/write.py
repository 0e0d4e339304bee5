"""Write what is made of runs: their page, their card, their entry for a registry, their pictures."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path

from fedsw._tools import files
from fedsw._tools.text import to_float
from fedsw.runs.recovery import require_remembered
from fedsw.runs.report import facts
from fedsw.runs.report.figures import save
from fedsw.runs.report.plots import PICTURES, draw_metrics, draw_privacy, pictures_of
from fedsw.runs.report.render import written
from fedsw.runs.report.run_documents import WhatIfs, card, page
from fedsw.runs.run_files import RunFile
from fedsw.runs.view import RunView, read_run, read_whole_run, with_shapes


def write_page(
    directories: Sequence[Path],
    path: Path | None = None,
    *,
    operator: bool = False,
    what_ifs: Sequence[WhatIfs | None] = (),
) -> Path:
    """Write the page of one run or several; returns where: by default into the first one's folder.

    Guarantee: what a page shows is computed from what the runs released, and from public numbers; with `operator` it
    shows times and traffic, too, and metrics that the guarantee does not cover, and says so first.
    What-ifs of the runs, in their order, are shown. ValueError if one is not a run.
    """
    views = [read_whole_run(directory) for directory in directories]
    target = directories[0] / RunFile.REPORT if path is None else path
    files.replace(target, page(views, operator=operator, what_ifs=what_ifs).encode(), durable=False)
    return target


def write_card(directory: Path, path: Path | None = None) -> Path:
    """Write the card of a run, by default in Markdown into its folder, as a page if the path ends in .html.

    Raises:
        ValueError: if it is not a run, or has not ended. LedgerReplaced: if its ledger is older than its summary.
    """
    view = with_shapes(read_run(directory))
    require_remembered(directory, missing_ok=True)
    if not view.summary:
        raise ValueError(
            f"{directory} has not ended, and there is nothing yet that a card could say; `fedsw show {directory} "
            "progress` shows how far it is"
        )
    target = directory / RunFile.CARD if path is None else path
    document = card(view)
    files.replace(target, (document.page() if target.suffix == ".html" else document.markdown()).encode())
    return target


def write_entry(directory: Path, path: Path | None = None) -> Path:
    """Write a run's entry as YAML, by default into its folder; returns where."""
    target = directory / RunFile.REGISTRY if path is None else path
    files.replace(target, entry(read_run(directory)).encode(), durable=False)
    return target


def draw_run(directory: Path, allow_modules: Collection[str] = ()) -> list[Path]:
    """Draw what a run's files allow into its plots/ folder; returns the files written.

    Works for runs that stopped early or were resumed: a figure without its data is left out. Modules that are
    allowed may say which pictures a custom task has.
    """
    view = read_run(directory)
    drawn = {"metrics": draw_metrics(view), "privacy": draw_privacy(view)}
    drawn |= {name: PICTURES.get(name).draw(view) for name in pictures_of(view, allow_modules)}
    return [save(figure, directory / "plots" / f"{name}.png") for name, figure in drawn.items() if figure is not None]


def entry(view: RunView) -> str:
    """The entry of a run that has ended and has a guarantee, with every text quoted as JSON is, which YAML reads."""
    summary, experiment, directory = view.summary, view.experiment, view.directory
    if not summary:
        raise ValueError(f"{directory} has not ended; `fedsw show {directory} progress` shows how far it is")
    reader = to_float(summary.get("epsilon_of_reader"))
    reasons = {
        "it has no guarantee, or shows metrics of private records": reader is None or math.isinf(reader),
        "its epsilon is nominal: a seed makes its noise reproducible": bool(summary.get("nominal")),
        "its bound is stated by the user and not proven": summary["guarantee"].get("word") == "stated",
        "its accountant gives no guarantee": summary["guarantee"].get("accountant_is_guarantee") is False,
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"{directory} is not for a registry of deployments: {reason}")
    columns = experiment.data.columns
    return written(
        "registry.yaml",
        experiment=experiment,
        summary=summary,
        guarantee=summary["guarantee"],
        model=experiment.privacy.model,
        description=facts.description(view),
        measured_on=facts.measured_on(view),
        columns=[] if columns is None else [row[0] for row in facts.declared(columns).rows],
        epsilon=_yaml(float(summary["epsilon"])),
        delta=_yaml(float(summary["delta"])),
    )


def _yaml(value: float) -> str:
    """A number that every reader of YAML takes for one: 1.0e-06."""
    mantissa, mark, exponent = repr(value).partition("e")
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}{mark}{exponent}"
