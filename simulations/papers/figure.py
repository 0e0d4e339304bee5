"""A figure or table of a paper as its file describes it: runs or a computation, a drawing, and the paper's values."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from fedsw._tools.section import Arguments, PositiveInt, Section
from fedsw._tools.settings import explain_all, read_setting
from fedsw._tools.text import nearest
from fedsw.experiment import ExperimentError

PAPERS = Path(__file__).parent / "settings"
"""A file for each figure, in a folder for each paper."""

Value = float | str
FunctionName = Annotated[str, Field(pattern=r"^[a-z_0-9]+\.[a-z_0-9]+$")]
"""A file and a function in it: "curves.losses" is `losses` in `curves.py`."""
ARGUMENTS = "arguments."
"""How a key of `over` begins that is an argument of a baseline."""


class Where(Section):
    """What holds at one point of a series: settings (without privacy the papers do not clip, for example), or seeds."""

    at: dict[str, Value]
    set: tuple[str, ...] = ()
    seeds: PositiveInt | None = None

    @field_validator("set")
    @classmethod
    def _readable(cls, settings: tuple[str, ...]) -> tuple[str, ...]:
        return _readable(settings)


class Series(Section):
    """Runs of one experiment with the same settings, over a grid.

    Attributes:
        name: the column of the table: "paper's settings" (every one that it prints), "shortened" (the same but for
            fewer rounds or passes), "paper's method" (its bound, clip and accountant at other settings), "best" (ours
            at equal epsilon), or another with a name of its own.
        what: one line about it.
        experiment: a shipped experiment.
        set: settings of every run.
        over: values of a setting, or of a baseline's argument ("arguments.radius"), by its key; runs are at every
            combination.
        where: more settings at some points.
        seeds: runs at every point, with other initialisation, partition, directions and draw of synthetic records.
        measures: what is measured on each run beside its held-out metrics, functions of `simulations.papers.measures`.
        baseline, arguments: a baseline of `baselines.run_baseline` that trains in place of a run, and its arguments.
    """

    name: str
    what: str = ""
    experiment: str
    set: tuple[str, ...] = ()
    over: dict[str, tuple[Value, ...]] = {}
    where: tuple[Where, ...] = ()
    seeds: PositiveInt = 1
    measures: tuple[FunctionName, ...] = ()
    baseline: str | None = None
    arguments: Arguments = {}

    @field_validator("set")
    @classmethod
    def _readable(cls, settings: tuple[str, ...]) -> tuple[str, ...]:
        return _readable(settings)

    @model_validator(mode="after")
    def _points_are_points(self) -> Series:
        if self.baseline is None and (self.arguments or any(key.startswith(ARGUMENTS) for key in self.over)):
            raise ValueError(f"series {self.name!r} has arguments and no baseline that takes them")
        known = {short(key): values for key, values in self.over.items()}
        for where in self.where:
            for key, value in where.at.items():
                if key not in known or value not in known[key]:
                    raise ValueError(f"series {self.name!r}: `where` names {key} = {value}, which `over` does not have")
        return self


class Beside(Section):
    """Numbers of no run, for comparison: a column of the table.

    Attributes:
        name: the column.
        what: one line about it.
        compute: a function of `simulations.papers.computed`, called with `settings` at each of the values of `over`.
        settings: of every call.
        over: values of an argument, by its name; where the runs' points have that name, what is computed is for those
            of that value.
    """

    name: str
    what: str
    compute: FunctionName
    settings: Arguments = {}
    over: dict[str, tuple[Value, ...]]


class Row(Section):
    """A line of the figure's table: what the paper prints, and what ours shall reach.

    Attributes:
        metric: the value of a cell, averaged over seeds, at the point `at`.
        paper: the printed value; words where the paper has no number.
        within: how far a series of the paper's method may be from the paper.
        goal: what "best" shall reach.
        note: why a goal is missed, after it was.
    """

    what: str
    metric: str
    at: dict[str, Value] = {}
    paper: Value | None = None
    within: float | None = None
    goal: float | None = None
    better: Literal["higher", "lower"] = "higher"
    note: str = ""


class Quick(Section):
    """How the figure is made in seconds, to see that it can be: fewer rounds and points, not to be looked at.

    `set` is for every series, `of` for the series that it names.
    """

    set: tuple[str, ...] = ()
    of: dict[str, tuple[str, ...]] = {}
    over: dict[str, tuple[Value, ...]] = {}
    settings: Arguments = {}

    @field_validator("set")
    @classmethod
    def _readable(cls, settings: tuple[str, ...]) -> tuple[str, ...]:
        return _readable(settings)


class Figure(Section):
    """One figure or table.

    Attributes:
        source: where it is in which paper.
        caption: what a reader sees, with the paper's value.
        runs_of: another figure, whose series and quick settings are this one's too: no run is made twice.
        only: the points of the series that the figure shows, by their values; all of them if there are none.
        measures: what is measured on each run beside what the series name.
        series: the runs; none for what is computed.
        beside: what is computed to compare them with.
        compute: a function of `simulations.papers.computed`, called with `settings`.
        nominal: whether the computation seeds sampling or noise, so that its epsilon protects nobody.
        by_case: whether each of `settings.cases` is computed, stored and resumed by itself.
        derive: a function of `simulations.papers.derived`: numbers that several runs make together, for the rows.
        draw: a function of `simulations.papers.drawn`; None for a table without a picture.
        rows: the table.
        small: whether it is as `smallest` makes it, without some points of its rows.
    """

    id: str
    source: str
    title: str
    caption: str
    runs_of: str | None = None
    only: dict[str, Value] = {}
    measures: tuple[FunctionName, ...] = ()
    series: tuple[Series, ...] = ()
    beside: tuple[Beside, ...] = ()
    compute: FunctionName | None = None
    nominal: bool = False
    by_case: bool = False
    settings: Arguments = {}
    derive: FunctionName | None = None
    draw: FunctionName | None = None
    rows: tuple[Row, ...] = ()
    quick: Quick = Quick()
    small: bool = False

    @model_validator(mode="after")
    def _has_results(self) -> Figure:
        if (self.compute is None) == (not self.series):
            raise ValueError("a figure has either `series` of runs or a function in `compute`")
        known = {(short(key), each) for series in self.series for key, values in series.over.items() for each in values}
        for key, value in self.only.items():
            if (key, value) not in known:
                raise ValueError(f"`only` names {key} = {value}, which no series has")
        if len(set(self.columns)) < len(self.columns):
            raise ValueError("two series have the same name; each is a column of its own")
        if unknown := sorted(self.quick.of.keys() - {series.name for series in self.series}):
            raise ValueError(f"`quick.of` names {', '.join(unknown)}; series are {', '.join(self.columns)}")
        return self

    @property
    def paper(self) -> str:
        """The short name of its paper."""
        return self.id.partition("/")[0]

    @property
    def columns(self) -> list[str]:
        """Names of the series, then of what stands beside them."""
        return [*(each.name for each in self.series), *(each.name for each in self.beside)]

    def smallest(self) -> Figure:
        """The figure as `--quick` makes it."""
        quick = self.quick
        series = tuple(
            each.model_copy(
                update={
                    "set": (*each.set, *quick.set, *quick.of.get(each.name, ())),
                    "over": {key: quick.over.get(short(key), values[:1]) for key, values in each.over.items()},
                    "where": (),
                    "seeds": 1,
                }
            )
            for each in self.series
        )
        settings = {**self.settings, **quick.settings}
        beside = tuple(
            each.model_copy(
                update={
                    "over": {key: quick.over.get(key, values[:1]) for key, values in each.over.items()},
                    "settings": {key: quick.settings.get(key, value) for key, value in each.settings.items()},
                }
            )
            for each in self.beside
        )
        return self.model_copy(update={"series": series, "beside": beside, "settings": settings, "small": True})


def figures() -> dict[str, Path]:
    """The files of all figures by name, "rll/fig13", in the order of the papers' folders."""
    found = sorted(PAPERS.glob("*/*.toml"), key=lambda path: (path.parent.name, _natural(path.stem)))
    return {f"{path.parent.name}/{path.stem}": path for path in found}


def load_figure(name: str) -> Figure:
    """The figure of that name.

    Raises:
        ExperimentError: if there is none, naming the nearest; or if its file is not valid, naming the key.
    """
    known = figures()
    if name not in known:
        raise ExperimentError(f"no figure {name!r}; {nearest(name, list(known))}`--list` shows all")
    try:
        raw = tomllib.loads(known[name].read_text(encoding="utf-8"))
        if raw.get("runs_of") in known:
            shared = tomllib.loads(known[raw["runs_of"]].read_text(encoding="utf-8"))
            raw = {"series": shared.get("series", ()), "quick": shared.get("quick", {}), **raw}
        return Figure.model_validate({"id": name, **raw})
    except ValidationError as fault:
        raise ExperimentError(f"{known[name]}: " + "\n".join(explain_all(fault.errors(), Figure))) from None
    except ValueError as fault:
        raise ExperimentError(f"{known[name]} is not valid TOML: {fault}") from None


def chosen(patterns: Iterable[str]) -> list[Figure]:
    """The figures that patterns name: "rll/fig13", "rll/*", "rll".

    Raises:
        ExperimentError: if a pattern names none.
    """
    names: dict[str, None] = {}
    for pattern in patterns:
        whole = f"{pattern}/*" if pattern in {name.partition("/")[0] for name in figures()} else pattern
        found = [name for name in figures() if fnmatch.fnmatch(name, whole)]
        names |= dict.fromkeys(found or [load_figure(pattern).id])
    return [load_figure(name) for name in names]


def short(key: str) -> str:
    """The name of a setting in points and axes: its last word."""
    return key.rpartition(".")[2]


def _readable(settings: tuple[str, ...]) -> tuple[str, ...]:
    for setting in settings:
        read_setting(setting)
    return settings


def _natural(stem: str) -> tuple[Any, ...]:
    """fig2 before fig12, tables after figures."""
    letters = stem.rstrip("0123456789")
    return (letters, int(stem[len(letters) :] or 0))
