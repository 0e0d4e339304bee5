"""`fedsw report`: a page that shows a run to whoever opens it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsw.cli.options import RUNS, AllowModule, Json, Runs, echo
from fedsw.text import json_text

if TYPE_CHECKING:
    from fedsw.report.page.document import Document


def report_command(
    run: Annotated[list[str], typer.Argument(metavar="PATH...")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; the first run's folder.")
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="Times, traffic and all metrics, too: not for publication.")
    ] = False,
    what_ifs: Annotated[
        bool, typer.Option("--what-ifs", help="Forecast other ε and numbers of records, on public twins: a minute.")
    ] = False,
    registry: Annotated[
        bool, typer.Option("--registry", help="Write the entry for the OpenDP Deployments Registry (YAML) instead.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Serve a page of a run that goes on to this machine alone, until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of --follow; a free one if not given.")] = 0,
    allow_module: AllowModule = None,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Write a page (HTML) of runs, a comparison or a plan.

    Several runs stand side by side. Verdict, guarantee, what ε means for a person, budget, metrics with intervals,
    settings, and how to verify it. It needs no network, and shows nothing that the run's guarantee does not cover. PATH
    is a run's directory, or an experiment's name for its latest run; the directory of a comparison; or what `fedsw plan
    --json` printed, as a file .json. A synthetic table has its page beside it.
    """
    from fedsw import files
    from fedsw.report.page.page import write_page
    from fedsw.report.registry import write_entry
    from fedsw.runs.files import find_run

    if found := next(filter(None, map(_document, run)), None):
        if len(run) > 1 or registry or follow or operator or what_ifs:
            raise typer.BadParameter("a comparison or a plan has a page of its own: give it alone, with -o at most")
        document, place = found
        path = output or place
        files.replace(path, document.page().encode(), durable=False)
        echo(json_text({"report": str(path)}) if as_json else str(path))
        return
    folders = [find_run(each, runs) for each in run]
    if (registry or follow) and (len(folders) > 1 or registry == follow or operator or what_ifs):
        raise typer.BadParameter("--registry and --follow are for one run, each by itself")
    if follow:
        _follow(folders[0], port)
        return
    if registry:
        path = write_entry(folders[0], output)
        echo(json_text({"entry": str(path)}) if as_json else str(path))
        return
    plans = {folder: _plan(folder, tuple(allow_module or ())) for folder in folders} if what_ifs else {}
    path = write_page(folders, output, operator=operator, plans=plans)
    echo(json_text({"report": str(path)}) if as_json else str(path))


def _document(name: str) -> tuple[Document, Path] | None:
    """What is read of a comparison's folder or a plan's file, and where its page goes; None for the name of a run."""
    from fedsw.compare.grid import GRID
    from fedsw.runs.files import REPORT, read_json

    path = Path(name)
    if (path / GRID).is_file():
        from fedsw.compare.page import read_comparison

        return read_comparison(path).document(), path / REPORT
    if path.suffix == ".json" and path.is_file():
        from fedsw.planning.words import plan_document

        return plan_document(read_json(path) or {}), path.with_suffix(".html")
    return None


def _follow(folder: Path, port: int) -> None:
    from fedsw.report.page.live import server

    with server(folder, port) as serving:
        host, chosen = serving.server_address[:2]
        echo(f"http://{host!s}:{chosen}/ shows {folder} until Ctrl-C; only this machine can open it")
        serving.serve_forever()


def _plan(folder: Path, allow_modules: tuple[str, ...]) -> dict[str, Any]:
    """The plan of a run, from its settings and its public sizes."""
    from fedsw.planning.after_moments import sizes_of
    from fedsw.planning.plan import planned
    from fedsw.planning.words import as_plain

    experiment, by_group = sizes_of(folder, allow_modules)
    return as_plain(planned(experiment, by_group))
