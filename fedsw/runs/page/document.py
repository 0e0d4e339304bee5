"""One file of HTML that shows a run, or several side by side: it needs no network, and reads without its script.

Texts with tables and figures (model cards, comparisons, plans, synthetic tables) become a page, or Markdown, too; and a
run's files become an entry for the OpenDP Deployments Registry, with questions where only a person knows.
"""

from __future__ import annotations

import functools
import html
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedsw._tools import files
from fedsw._tools.text import harmless, installed_version, json_text, measured, number, table, to_float, upward
from fedsw.experiment.load import unprotected
from fedsw.privacy.accounting.lifetime import total_epsilon
from fedsw.runs.accounts import cost_of_run
from fedsw.runs.page._content import article, shareable, verdict
from fedsw.runs.page.pictures import Picture, draw_runs, picture
from fedsw.runs.record import RunRecord, read_run
from fedsw.runs.report import facts
from fedsw.runs.report.facts import Facts
from fedsw.runs.report.progress import metric_name, ordered_metrics, scores
from fedsw.runs.run_files import PLAN, REGISTRY, REPORT, UNNAMED, found_json


def beside(named: Sequence[tuple[str, RunRecord]]) -> dict[str, Any]:
    """Runs side by side, under the names that they have on the page: settings that differ, and what came out."""
    names, records = zip(*named, strict=True)
    flat = [dict(_flat(facts.settings(record.experiment))) for record in records]
    settings = [
        (key, *(run.get(key, "default") for run in flat)) for key in sorted({key for run in flat for key in run})
    ]
    differ = [row for row in settings if len(set(row[1:])) > 1]
    metrics = dict.fromkeys(name for run in records for name in ordered_metrics(run.summary.get("held_out") or {}))
    called = records[0].names if len({(run.names.classes, run.names.positive) for run in records}) == 1 else UNNAMED
    columns = []
    for record in records:
        summary, measures = record.summary, scores(record.summary)
        column: list[tuple[str, object]] = [
            ("how it ended", summary.get("status", "not finished")),
            ("ε", upward(summary.get("epsilon"), 4)),
            ("δ", upward(summary.get("delta"))),
            ("trust model", record.experiment.privacy.trust),
            ("beside a constant", facts.gain(summary) or "–"),
        ]
        column += [(metric_name(run, called), measured(*measures.get(run, (None, None)))) for run in metrics]
        columns.append(column)
    rows = [(cells[0][0], *(cell for _, cell in cells)) for cells in zip(*columns, strict=True)]
    figure = draw_runs(named)
    says = "; ".join(f"{name}: {verdict(record)}" for name, record in named)
    return {
        "settings": Facts.of(("setting", *names), differ),
        "results": Facts.of(("", *names), rows),
        "figure": None if figure is None else picture(figure, name="beside", caption="Worth against ε.", says=says),
    }


def together(records: Sequence[RunRecord]) -> str:
    """Say in a sentence what runs cost together a record that is in all of them, at the smallest of their deltas."""
    whose = "Together, for a record that is in all of them"
    bare = {reason for record in records if (reason := unprotected(record.experiment)) is not None}
    if bare:
        return f"{whose}: ε = ∞, for {'; '.join(sorted(bare))}."
    deltas = [to_float(record.summary.get("delta")) or _planned_delta(record) for record in records]
    known = [delta for delta in deltas if delta is not None]
    if not known:
        return ""
    epsilon = total_epsilon([cost_of_run(record.directory) for record in records], min(known))
    names = {record.experiment.data.account for record in records} - {None}
    more = "".join(
        f"; `fedsw account show {name}` has all that count in data set {name}" for name in sorted(map(str, names))
    )
    return (
        f"{whose}: ε = {upward(epsilon, 4)} at δ = {upward(min(known))}, as if all had been planned ahead. Other runs "
        f"on the same records add to it{more}."
    )


def _planned_delta(record: RunRecord) -> float | None:
    return to_float(found_json(record.directory / PLAN).get("delta"))


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", json_text(value, indent=None)


class Page(str):
    """A page as HTML, which a notebook shows in a frame of its own."""

    def __repr__(self) -> str:
        return f"<a page of {len(self.encode()):,} bytes>"

    def _repr_html_(self) -> str:
        frame = "width: 100%; height: 40rem; border: 1px solid #767676"
        return f'<iframe title="page" style="{frame}" srcdoc="{html.escape(self)}"></iframe>'


@dataclass(frozen=True)
class WhatIfs:
    """A plan's forecast for other numbers of records, and other epsilons."""

    verdict: str
    table: Facts

    @classmethod
    def of_plan(cls, plan: Mapping[str, Any]) -> WhatIfs | None:
        """Read them off a plan as plain values (`fedsw plan --json`); None where it has no forecast."""
        forecast = plan.get("forecast")
        if not forecast:
            return None
        least = forecast["thresholds"]["feasible"]
        shares = {(case["records"], case["epsilon"]): float(case["kept"]) for case in forecast["what_ifs"]}
        epsilons = sorted({epsilon for _, epsilon in shares})

        def cell(share: float) -> str:
            return "a constant does as well" if share < least else f"{100 * min(1.0, share):.0f} %"

        rows = [
            (f"{records:,}", *(cell(shares[records, epsilon]) for epsilon in epsilons))
            for records in sorted({records for records, _ in shares})
        ]
        return cls(str(plan["verdict"]), Facts.of(("records", *(f"ε = {upward(case)}" for case in epsilons)), rows))


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
    What-ifs of the runs, in their order, are shown. ValueError if one is no run.
    """
    records = [read_run(directory) for directory in directories]
    path_written = directories[0] / REPORT if path is None else path
    files.replace(path_written, page(records, operator=operator, what_ifs=what_ifs).encode(), durable=False)
    return path_written


def page(records: Sequence[RunRecord], *, operator: bool = False, what_ifs: Sequence[WhatIfs | None] = ()) -> Page:
    """The page of one run or several."""
    names = [f"{record.directory.resolve().parent.name}/{record.directory.name}" for record in records]
    articles = [
        article(record, name=name, key=f"run{position}", operator=operator)
        for position, (name, record) in enumerate(zip(names, records, strict=True), start=1)
    ]
    shown = [(name, record if operator else shareable(record)) for name, record in zip(names, records, strict=True)]
    return render(
        "page.html",
        title=names[0] if len(names) == 1 else "Runs side by side",
        runs=[{**content, "what_ifs": forecast} for content, forecast in zip_longest(articles, what_ifs)],
        beside=beside(shown) if len(records) > 1 else None,
        together=together(records) if len(records) > 1 else "",
        operator=operator,
    )


def render(template: str, **values: object) -> Page:
    """A page from a template of this package, without control characters; texts in HTML are escaped."""
    file = _environment().get_template(template)
    return Page(file.render(style=_file("style.css"), script=_file("page.js"), version=installed_version(), **values))


def write_entry(directory: Path, path: Path | None = None) -> Path:
    """Write a run's entry as YAML, by default into its folder; returns where."""
    path_written = directory / REGISTRY if path is None else path
    files.replace(path_written, entry(read_run(directory)).encode(), durable=False)
    return path_written


def entry(record: RunRecord) -> str:
    """The entry of a run that has ended and has a guarantee, with every text quoted as JSON is, which YAML reads."""
    summary, experiment = record.summary, record.experiment
    _require_promise(record, to_float(summary.get("epsilon_of_reader")))
    columns = experiment.data.columns
    return render(
        "registry.yaml",
        experiment=experiment,
        summary=summary,
        guarantee=summary["guarantee"],
        model=experiment.privacy.model,
        description=facts.description(record),
        measured_on=facts.measured_on(summary),
        columns=[] if columns is None else [row[0] for row in facts.declared(columns).rows],
        epsilon=_yaml(float(summary["epsilon"])),
        delta=_yaml(float(summary["delta"])),
    )


def _require_promise(record: RunRecord, epsilon: float | None) -> None:
    summary, directory = record.summary, record.directory
    if not summary:
        raise ValueError(f"{directory} has not ended; `fedsw show {directory} progress` shows how far it is")
    reasons = {
        "it has no guarantee, or shows metrics of private records": epsilon is None or math.isinf(epsilon),
        "its epsilon is nominal: a seed makes its noise reproducible": bool(summary.get("nominal")),
        "its bound is stated by the user and not proven": summary["guarantee"].get("word") == "stated",
        "its accountant gives no guarantee": summary["guarantee"].get("accountant_is_guarantee") is False,
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"{directory} is not for a registry of deployments: {reason}")


def _yaml(value: float) -> str:
    """A number that every reader of YAML takes for one: 1.0e-06."""
    mantissa, mark, exponent = repr(value).partition("e")
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}{mark}{exponent}"


_BEGINS_HTML = re.compile(r"<(?=[A-Za-z/!?])")


def inert(text: object) -> str:
    """A text in Markdown that begins no HTML and loads no picture, whatever names it has in it; `Markup` as it is."""
    if isinstance(text, Markup):
        return text
    return _BEGINS_HTML.sub("&lt;", str(text)).replace("![", "!\\[")


@functools.cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("fedsw.runs.page", "templates"),
        autoescape=lambda name: str(name).endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else harmless(value),
    )
    made.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "sort_keys": True}  # YAML knows no halves of a letter
    made.filters |= {"harmless": harmless, "number": number, "upward": upward, "inert": inert}
    return made


@functools.cache
def _file(name: str) -> Markup:
    return Markup(resources.files("fedsw.runs.page").joinpath("templates", name).read_text(encoding="utf-8"))


class Strong(str):
    """A paragraph that nobody may overlook."""

    kind = "strong"


class Code(str):
    """A text that is shown as it is typed or written."""

    kind = "code"


@dataclass(frozen=True)
class Listed:
    """A table with its caption; with `sliders` as in `templates/macros.html`, which a page moves along its cells."""

    caption: str
    facts: Facts
    sliders: str = ""

    @classmethod
    def of(cls, caption: str, headings: Iterable[str], rows: Iterable[Iterable[object]]) -> Listed:
        """Make one of anything that can be written."""
        return cls(caption, Facts.of(headings, rows))


Part = str | Strong | Code | Listed | Picture


@dataclass(frozen=True)
class Section:
    """A part under a heading."""

    heading: str
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, heading: str, parts: Iterable[Part]) -> Section:
        """Make one of its parts; tables without rows and empty texts are left out."""
        return cls(heading, tuple(part for part in parts if (part.facts.rows if isinstance(part, Listed) else part)))


@dataclass(frozen=True)
class Document:
    """A text with tables and figures: its verdict, what a reader must know first, what begins it, and sections."""

    title: str
    verdict: str
    begins: tuple[Part, ...] = ()
    warnings: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()

    def page(self) -> Page:
        """Make the page: one file of HTML, which loads nothing."""
        return render("document.html", title=self.title, found=self._whole())

    def markdown(self) -> str:
        """Write it in Markdown, figures left out; runs of empty lines become one."""

        def markdown(headings: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
            return table([inert(cell) for cell in headings], [[inert(cell) for cell in row] for row in rows])

        text = render("document.md", title=self.title, found=self._whole(), markdown=markdown)
        return re.sub(r"\n{3,}", "\n\n", re.sub(r"[^\S\n]+$", "", text, flags=re.MULTILINE)).strip() + "\n"

    def _whole(self) -> Document:
        return replace(self, sections=tuple(section for section in self.sections if section.parts))
