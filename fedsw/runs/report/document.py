"""Documents: what is said of a run, of several, of a plan, as sentences, tables and figures under headings.

A document shows itself on a terminal (`rich` asks for that), in a notebook, as a page and in Markdown, each by its own
renderer: `console` and `render`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

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

    from fedsw.runs.report.render import Page

__all__ = [
    "Code", "Conclusion", "Document", "FactTable", "Listed", "Note", "PageSection", "Part", "Strong", "named",
    "sections",
]  # fmt: skip


@dataclass(frozen=True)
class Document(Content):
    """A document that shows itself."""

    def page(self) -> Page:
        """Make the page: one file of HTML, which loads nothing."""
        from fedsw.runs.report.render import page_of  # a screen waits for no templates

        return page_of(self)

    def markdown(self) -> str:
        """Write it in Markdown, figures left out."""
        from fedsw.runs.report.render import markdown_of

        return markdown_of(self)

    def _repr_html_(self) -> str:
        return self.page()._repr_html_()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from fedsw.runs.report.console import shown

        yield shown(self)
