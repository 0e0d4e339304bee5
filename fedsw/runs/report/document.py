"""Documents: what is said of a run, of several, of a plan, as sentences, tables and figures under headings.

A document shows itself on a terminal (`rich` asks for that), in a notebook, as a page and in Markdown, each by its own
renderer: `console` and `render`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsw._tools.later import imported_later
from fedsw.runs.report._parts import (
    Code,
    Conclusion,
    Content,
    FactTable,
    Listed,
    Note,
    PageSection,
    Part,
    Strong,
    named,
    sections,
)  # fmt: skip

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

    from fedsw.runs.report import console as terminal
    from fedsw.runs.report import render as render
    from fedsw.runs.report.render import Page

globals().update(imported_later(__spec__))  # a screen waits for no templates

__all__ = [
    "Code", "Conclusion", "Document", "FactTable", "Listed", "Note", "PageSection", "Part", "Strong", "named",
    "sections",
]  # fmt: skip


@dataclass(frozen=True)
class Document(Content):
    """A document that shows itself."""

    def page(self) -> Page:
        """Make the page: one file of HTML, which loads nothing."""
        return render.page_of(self)

    def markdown(self) -> str:
        """Write it in Markdown, figures left out."""
        return render.markdown_of(self)

    def _repr_html_(self) -> str:
        return self.page()._repr_html_()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield terminal.shown(self)
