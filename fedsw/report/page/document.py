"""A text with tables and figures, as a page or as Markdown: model cards, comparisons, plans, synthetic tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fedsw.markdown import table
from fedsw.report.facts import Facts
from fedsw.report.page.page import Page, render
from fedsw.report.page.svg import Picture


class Strong(str):
    """A paragraph that nobody may overlook."""

    kind = "strong"


class Code(str):
    """What is shown as it is typed or written."""

    kind = "code"


@dataclass(frozen=True)
class Listed:
    """A table with its caption; with `sliders` as in `templates/macros.html`, which a page moves along its cells."""

    caption: str
    facts: Facts
    sliders: str = ""


Part = str | Strong | Code | Listed | Picture


@dataclass(frozen=True)
class Section:
    """A part under a heading."""

    heading: str
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, heading: str, parts: Iterable[Part]) -> Section:
        """Of its parts; tables without rows and empty texts are left out."""
        return cls(heading, tuple(each for each in parts if (each.facts.rows if isinstance(each, Listed) else each)))


@dataclass(frozen=True)
class Document:
    """A text with tables and figures.

    Attributes:
        verdict: what it comes to, before everything else; may be empty.
        begins: what stands before the first heading.
        warnings: what a reader must know first.
        sections: the rest; one without parts is left out.
    """

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
        text = render("document.md", title=self.title, found=self._whole(), markdown=table)
        return "\n".join(_closed_up(text.splitlines())).strip() + "\n"

    def _whole(self) -> Document:
        sections = tuple(each for each in self.sections if each.parts)
        return Document(self.title, self.verdict, self.begins, self.warnings, sections)


def _closed_up(lines: Iterable[str]) -> Iterator[str]:
    before = ""
    for line in lines:
        if line.strip() or before:
            yield line.rstrip()
        before = line.strip()
