"""The page of one run, or of several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from fedsw.runs.report.content import article
from fedsw.runs.report.render import Page, render
from fedsw.runs.report.side_by_side import beside, together
from fedsw.runs.report.what_ifs import WhatIfs
from fedsw.runs.view import RunView, require_whole


def page(views: Sequence[RunView], *, operator: bool = False, what_ifs: Sequence[WhatIfs | None] = ()) -> Page:
    """Make the page of one run or several, of their whole views; ValueError for a view without its ledgers."""
    views = [require_whole(view) for view in views]
    names = [f"{view.directory.resolve().parent.name}/{view.directory.name}" for view in views]
    articles = [
        article(view, name=name, key=f"run{position}", operator=operator)
        for position, (name, view) in enumerate(zip(names, views, strict=True), start=1)
    ]
    shown = [(name, view if operator else view.shareable()) for name, view in zip(names, views, strict=True)]
    return render(
        "page.html",
        title=names[0] if len(names) == 1 else "Runs side by side",
        runs=[{**content, "what_ifs": forecast} for content, forecast in zip_longest(articles, what_ifs)],
        beside=beside(shown) if len(views) > 1 else None,
        together=together(views) if len(views) > 1 else "",
        operator=operator,
    )
