"""`python -m simulations.papers FIGURE...`: the papers' figures and tables, run, measured and drawn."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedsw._tools.text import json_text
from fedsw.cli.options import RUNS, DataDir, Json, Quiet, Runs, invoke, split_debug

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulations.papers.figure import Figure
    from simulations.papers.study import Study

Names = Annotated[list[str] | None, typer.Argument(metavar="[FIGURE]...", help="rll/fig13, 'rll/*', rll.")]
List = Annotated[bool, typer.Option("--list", help="Show the figures and what is missing of each; run nothing.")]
All = Annotated[bool, typer.Option("--all", help="Every figure of every paper.")]
QuickRun = Annotated[bool, typer.Option("--quick", help="All small, on stand-ins for data: to see that it runs.")]
DrawOnly = Annotated[bool, typer.Option("--draw", help="Draw and write from what is stored; run nothing.")]
Stale = Annotated[bool, typer.Option("--stale", help="Plan all stored runs again; exit 1 if one comes out otherwise.")]
Renew = Annotated[bool, typer.Option("--renew", help="As --stale, and make anew those that come out otherwise.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="At most so many seeds of each point.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at a time; as many as there are cores if not given.")]
Device = Annotated[str, typer.Option(metavar="cpu|cuda", help="What runs compute on; each result names it.")]
Results = Annotated[Path | None, typer.Option(metavar="DIR", help="Where results are kept, as JSON.")]
Pages = Annotated[Path | None, typer.Option(metavar="DIR", help="Where pages and pictures are written.")]

COMMITTED = Path(__file__).parent / "results"
_PAGES = Path(__file__).parents[2] / "docs" / "papers"


def reproduce_command(
    names: Names = None,
    all_: All = False,
    list_: List = False,
    quick: QuickRun = False,
    draw: DrawOnly = False,
    stale: Stale = False,
    renew: Renew = False,
    seeds: Seeds = None,
    data_dir: DataDir = None,
    jobs: Jobs = None,
    device: Device = "cpu",
    runs: Runs = RUNS,
    results: Results = None,
    pages: Pages = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make the papers' figures: ordinary runs, a picture and a table.

    What is stored is not run again; a run that stopped goes on. Pages, with the paper's values beside ours, are
    written under docs/papers. With --quick all is small, data sets are stand-ins unless --data-dir names others, and
    everything is written below --runs. --stale runs and writes nothing: rules and bounds change, and it says of every
    stored run, of all papers if no figure is named, whether today's plan it as they did.
    """
    from simulations.papers.figure import chosen, figures
    from simulations.papers.stand_ins import write_stand_ins

    if not (names or all_ or list_ or stale):
        raise typer.BadParameter("name a figure, as `rll/fig13` or `rll`, or give --all, --list or --stale")
    if stale and (quick or draw or renew or list_):
        raise typer.BadParameter("--stale runs nothing: give it without --quick, --draw, --renew and --list")
    asked = chosen(names or list(figures()))
    store = results or COMMITTED
    if device not in ("cpu", "cuda"):
        raise typer.BadParameter(f"--device is {device!r}; choose cpu or cuda")
    if quick:
        asked, store = [figure.smallest() for figure in asked], (results or runs / "papers-quick" / "results")
        if not (draw or list_):
            data_dir = data_dir or write_stand_ins(runs / "papers-quick" / "data")
        os.environ["FEDSW_CACHE"] = str((runs / "papers-quick" / "cache").resolve())  # no map of stand-ins elsewhere
    if data_dir is not None:
        os.environ["FEDSW_DATA"] = str(data_dir.expanduser().resolve())  # for the processes that run, too
    if list_:
        _show([_study(store, figure, seeds) for figure in asked], as_json=as_json)
        return
    if stale:
        raise typer.Exit(0 if _show_plans(asked, store, seeds, as_json=as_json, quiet=quiet) else 1)
    failed: list[tuple[str, str]] = []
    if not draw:
        folder = runs / ("papers-quick" if quick else "papers")
        failed = _make(asked, store, folder, seeds, jobs=jobs, device=device, quiet=quiet or as_json, renew=renew)
    studies = [_study(store, figure, seeds) for figure in asked]
    where = pages or (runs / "papers-quick" / "pages" if quick else _PAGES)
    written = _write(studies, store, where, some=seeds is not None)
    if as_json:
        listed = [_listed(study) for study in studies]
        typer.echo(json_text({"figures": listed, "failed": dict(failed), "files": written}))
    else:
        _show(studies, as_json=False)
        Console().print("\n".join(written), style="cyan", highlight=False, soft_wrap=True)
    for key, fault in failed:
        typer.echo(f"{key}: {fault}", err=True)
    if failed:
        raise typer.Exit(1)


def _make(
    asked: Sequence[Figure],
    store: Path,
    runs: Path,
    seeds: int | None,
    *,
    jobs: int | None,
    device: str,
    quiet: bool,
    renew: bool,
) -> list[tuple[str, str]]:
    """Make what is missing, or what is planned otherwise today; returns what failed, with the reasons."""
    from fedsw.desk.run_grid import GridProgress
    from fedsw.federation.engines.pool import cores, run_all
    from simulations.papers.replanned import planned_again
    from simulations.papers.store import read
    from simulations.papers.work import fail, make, missing, pieces_of, reads_results, without_data

    pieces = pieces_of(asked, seeds=seeds)
    waiting = missing(store, pieces)
    if renew:
        changed = planned_again(store, pieces).otherwise
        for key, words in changed.items():
            typer.echo(f"{key}: {'; '.join(words)}", err=True)
        waiting = [piece for piece in pieces if piece.key in changed]
    absent = without_data(waiting)
    waiting = [piece for piece in waiting if piece.key not in absent]
    label = "reproduce " + " ".join(dict.fromkeys(figure.id for figure in asked[:3])) + (" …" if len(asked) > 3 else "")
    with GridProgress(label=label, cells=len(pieces), done=len(pieces) - len(waiting), quiet=quiet) as progress:
        for after in (False, True):  # what is computed from results comes after them
            run_all(
                [piece for piece in waiting if reads_results(piece) is after],
                functools.partial(make, runs, store, device=device, anew=renew),
                jobs=jobs or cores(),
                watcher=progress,
                failed=functools.partial(fail, store),
            )
    found = [(piece.key, read(store, piece.key)) for piece in waiting]
    failed = [(key, stored.fault) for key, stored in found if stored is not None and stored.fault is not None]
    return [*failed, *absent.items()]


def _show_plans(asked: Sequence[Figure], store: Path, seeds: int | None, *, as_json: bool, quiet: bool) -> bool:
    """Plan the stored runs of figures again and show, paper by paper, what comes of it; whether all is as it was."""
    from rich.table import Table

    from simulations.papers.replanned import PlanProgress, Replanned, planned_again, planned_runs
    from simulations.papers.work import pieces_of

    papers = dict.fromkeys(figure.paper for figure in asked)
    pieces = {name: pieces_of([each for each in asked if each.paper == name], seeds=seeds) for name in papers}
    found = dict[str, Replanned]()
    with PlanProgress(sum(len(planned_runs(store, each)) for each in pieces.values()), quiet=quiet or as_json) as bar:
        for paper, those in pieces.items():
            found[paper] = planned_again(store, those, bar.seen)
    sound = all(each.sound for each in found.values())
    if as_json:
        listed = {
            paper: {"stored": each.stored, "same": each.same, "unplanned": each.unplanned, "otherwise": each.otherwise}
            | {"absent": each.absent}
            for paper, each in found.items()
        }
        typer.echo(json_text({"papers": listed, "sound": sound}))
        return sound
    view = Table("paper", "stored", "planned as it was", "otherwise", "data not here", "no plan of ours", box=None)
    for paper, each in found.items():
        numbers = (each.stored, each.same, len(each.otherwise), len(each.absent), each.unplanned)
        view.add_row(paper, *map(str, numbers))
    Console().print(view)
    for each in found.values():
        for key, words in each.otherwise.items():
            typer.echo(f"{key}: {'; '.join(words)}", err=True)
        for reason in dict.fromkeys(each.absent.values()):
            typer.echo(reason, err=True)
    return sound


def _study(store: Path, figure: Figure, seeds: int | None) -> Study:
    from simulations.papers.study import read_study

    return read_study(store, figure, seeds=seeds)


def _write(studies: Sequence[Study], store: Path, where: Path, *, some: bool) -> list[str]:
    """Draw the studies; write the page of every paper among them whole, from all that is stored, and the settings.

    With ``some`` seeds alone a picture of a seed whose arrays are not stored is left out, and named.
    """
    from simulations.papers.compared import write_settings
    from simulations.papers.figure import chosen, figures
    from simulations.papers.page import write_page
    from simulations.papers.pictures import contact_sheet, draw, draw_claims, pictures_of
    from simulations.papers.study import NotStored, read_study

    images, written = where / "images", list[Path]()
    for study in studies:
        try:
            written += draw(study, images)
        except NotStored as fault:
            if not some:
                raise
            typer.echo(f"{study.figure.id}: not drawn: {fault}", err=True)
    drawn = {study.figure.id: study for study in studies}
    known = [drawn.get(figure.id) or read_study(store, figure) for figure in chosen(figures())]
    written += [draw_claims(images / "claims.png"), write_settings(known, where / "settings.md")]
    for paper in dict.fromkeys(study.figure.paper for study in studies):
        every = [study for study in known if study.figure.paper == paper]
        pictures = [(path.stem, path) for study in every for path in pictures_of(images, study.figure.id)]
        sheet = contact_sheet(pictures, where / "sheets" / f"{paper}.png")
        written += [sheet] if sheet is not None else []
        written.append(write_page(paper, every, images, where / f"{paper}.md"))
    return [str(path) for path in written]


def _show(studies: Sequence[Study], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json_text([_listed(study) for study in studies]))
        return
    from rich.table import Table

    view = Table("figure", "what", "results", "missing", box=None)
    for study in studies:
        view.add_row(study.figure.id, study.figure.title, str(len(study.results)), str(study.absent or "–"))
    Console().print(view)


def _listed(study: Study) -> dict[str, Any]:
    from simulations.papers.page import BEST, METHOD, PRINTED, SHORTENED
    from simulations.papers.study import measured

    rows = [
        {"what": row.what, "paper": row.paper, "goal": row.goal}
        | {
            series: None if (found := measured(study, row, series)) is None else found.mean
            for series in (PRINTED, SHORTENED, METHOD, BEST)
        }
        for row in study.figure.rows
    ]
    figure = study.figure
    return {
        "id": figure.id, "source": figure.source, "title": figure.title, "results": len(study.results),
        "missing": study.absent, "rows": rows,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0 done, 1 something failed, 2 bad input."""
    app = typer.Typer(add_completion=False)
    app.command("reproduce")(reproduce_command)
    debug, rest = split_debug(sys.argv[1:] if arguments is None else arguments)
    return invoke(app, rest, debug=debug)


if __name__ == "__main__":
    sys.exit(main())
