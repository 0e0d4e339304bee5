"""Documents: a verdict, warnings and sections of texts, tables and figures, which become a page or Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fedsw._tools.text import table
from fedsw.runs.report.facts import FactTable
from fedsw.runs.report.picture import Picture
from fedsw.runs.report.render import Page, inert, render


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
    facts: FactTable
    sliders: str = ""

    @classmethod
    def of(cls, caption: str, headings: Iterable[str], rows: Iterable[Iterable[object]]) -> Listed:
        """Make one of anything that can be written."""
        return cls(caption, FactTable.of(headings, rows))


Part = str | Strong | Code | Listed | Picture


@dataclass(frozen=True)
class PageSection:
    """A part under a heading."""

    heading: str
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, heading: str, parts: Iterable[Part]) -> PageSection:
        """Make one of its parts; tables without rows and empty texts are left out."""
        return cls(heading, tuple(part for part in parts if (part.facts.rows if isinstance(part, Listed) else part)))


@dataclass(frozen=True)
class Document:
    """A text with tables and figures: its verdict, what a reader must know first, what begins it, and sections."""

    title: str
    verdict: str
    begins: tuple[Part, ...] = ()
    warnings: tuple[str, ...] = ()
    sections: tuple[PageSection, ...] = ()

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
