"""One file of HTML that shows a run, or several side by side: it needs no network, and reads without its script."""

from __future__ import annotations

import functools
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedsw import files
from fedsw.report.facts import Facts
from fedsw.report.page.content import Article, article, shareable
from fedsw.report.page.side_by_side import beside
from fedsw.runs.files import REPORT
from fedsw.runs.record import RunRecord, read_run
from fedsw.text import harmless, upward
from fedsw.version import installed_version


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
        """Of a plan as plain values (`fedsw plan --json`); None where it has no forecast."""
        forecast = plan.get("forecast")
        if not forecast:
            return None
        least = forecast["thresholds"]["feasible"]
        kept = {(each["records"], each["epsilon"]): float(each["kept"]) for each in forecast["what_ifs"]}
        epsilons = sorted({epsilon for _, epsilon in kept})

        def cell(share: float) -> str:
            return "a constant does as well" if share < least else f"{100 * min(1.0, share):.0f} %"

        rows = [
            (f"{records:,}", *(cell(kept[records, epsilon]) for epsilon in epsilons))
            for records in sorted({records for records, _ in kept})
        ]
        return cls(str(plan["verdict"]), Facts.of(("records", *(f"ε = {upward(each)}" for each in epsilons)), rows))


def write_page(
    directories: Sequence[Path],
    path: Path | None = None,
    *,
    operator: bool = False,
    plans: Mapping[Path, Mapping[str, Any]] | None = None,
) -> Path:
    """Write the page of one run or several; returns where: by default into the first one's folder.

    Guarantee: what a page shows is computed from what the runs released, and from public numbers; with `operator` it
    shows times and traffic, too, and metrics that the guarantee does not cover, and says so first.

    Args:
        plans: the plan of a run by its folder, as plain values, whose what-ifs are shown.

    Raises:
        ValueError: if one is no run. LedgerDamaged, LedgerReplaced: if a ledger is not what it was.
    """
    records = [read_run(directory) for directory in directories]
    what_ifs = [WhatIfs.of_plan((plans or {}).get(each, {})) for each in directories]
    place = directories[0] / REPORT if path is None else path
    files.replace(place, page(records, operator=operator, what_ifs=what_ifs).encode(), durable=False)
    return place


def page(records: Sequence[RunRecord], *, operator: bool = False, what_ifs: Sequence[WhatIfs | None] = ()) -> Page:
    """The page of one run or several."""
    names = [f"{record.directory.resolve().parent.name}/{record.directory.name}" for record in records]
    articles = [
        article(record, name=name, key=f"run{place}", operator=operator)
        for place, (name, record) in enumerate(zip(names, records, strict=True), start=1)
    ]
    shown = [(name, record if operator else shareable(record)) for name, record in zip(names, records, strict=True)]
    return render(
        "page.html",
        title=names[0] if len(names) == 1 else "Runs side by side",
        runs=[_with(each, found) for each, found in zip(articles, [*what_ifs, *[None] * len(articles)], strict=False)],
        beside=beside(shown) if len(records) > 1 else None,
        operator=operator,
    )


def _with(each: Article, what_ifs: WhatIfs | None) -> dict[str, Any]:
    return {**vars(each), "what_ifs": what_ifs}


def render(template: str, **values: object) -> Page:
    """A page from a template of this package, without control characters; texts of all but Markdown are escaped."""
    found = _environment().get_template(template)
    return Page(found.render(style=_file("style.css"), script=_file("page.js"), version=installed_version(), **values))


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("fedsw.report.page", "templates"),
        autoescape=lambda name: not str(name).endswith(".md"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else harmless(value),
    )


@functools.cache
def _file(name: str) -> Markup:
    return Markup(resources.files("fedsw.report.page").joinpath("templates", name).read_text(encoding="utf-8"))
