"""The page of one run, or of several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from fedsw.runs.report.document import Document, Strong
from fedsw.runs.report.render import Page
from fedsw.runs.report.run_documents import article
from fedsw.runs.report.side_by_side import beside, together
from fedsw.runs.report.what_ifs import WhatIfs
from fedsw.runs.view import RunView, require_whole

_BANNER = (
    "For the operator only: this page has times, traffic and the machine, and everything that was measured. It is not "
    "for publication."
)


def page(views: Sequence[RunView], *, operator: bool = False, what_ifs: Sequence[WhatIfs | None] = ()) -> Page:
    """Make the page of one run or several, of their whole views; ValueError for a view without its ledgers."""
    named = [(f"{view.directory.resolve().parent.name}/{view.directory.name}", require_whole(view)) for view in views]
    articles = [
        article(view, name=name, key=f"run{position}", operator=operator, what_ifs=forecast)
        for position, ((name, view), forecast) in enumerate(zip_longest(named, what_ifs), start=1)
    ]
    whole, banner = articles[0], [_BANNER] if operator else []
    if len(articles) > 1:
        shown = [(name, view if operator else view.shareable()) for name, view in named]
        whole = Document(
            "Runs side by side",
            begins=(f"{len(views)} runs side by side. Each has its own part below.", Strong(together(views))),
            sections=beside(shown),
            parts=tuple(articles),
        )
    return replace(whole, warnings=(*banner, *whole.warnings)).page()
