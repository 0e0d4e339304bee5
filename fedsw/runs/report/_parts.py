"""The parts of documents: sentences of several kinds, tables and figures, under headings. A part knows no medium."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from fedsw.runs.report.figures import Picture


class FactTable(NamedTuple):
    """A table: headings, and rows of one text for each."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, headings: Iterable[str], rows: Iterable[Iterable[object]]) -> FactTable:
        """Make one of anything that can be written."""
        return cls(tuple(headings), tuple(tuple(map(str, row)) for row in rows))


class Strong(str):
    """A paragraph that a reader must see."""

    kind = "strong"


class Conclusion(str):
    """The sentence that a reader looks for: a verdict, a total."""

    kind = "verdict"


class Note(str):
    """How to read the rest."""

    kind = "note"


class Code(str):
    """A text that is shown verbatim."""

    kind = "code"


@dataclass(frozen=True)
class Listed:
    """A table with its caption; without headings it is a list of names and values.

    On a page `sliders` choose among its cells, or among rows, of which each ``says`` a sentence (`templates/page.js`);
    a ``folded`` table is opened by the reader. On a terminal columns of words are at the ``left``, by default the
    first, the others at the right, and ``whole`` ones are never wrapped.
    """

    caption: str
    facts: FactTable
    sliders: str = ""
    says: tuple[str, ...] = ()
    folded: bool = False
    left: tuple[str, ...] | None = None
    whole: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        caption: str,
        headings: Iterable[str],
        rows: Iterable[Iterable[object]],
        *,
        left: Iterable[str] | None = None,
        whole: Iterable[str] = (),
    ) -> Listed:
        """Make one of anything that can be written."""
        words = None if left is None else tuple(left)
        return cls(caption, FactTable.of(headings, rows), left=words, whole=tuple(whole))

    def __bool__(self) -> bool:
        return bool(self.facts.rows)


def named(rows: Iterable[tuple[str, object]], caption: str = "") -> Listed:
    """A list of names and values."""
    return Listed.of(caption, ("", ""), rows)


Part: TypeAlias = "str | Listed | Picture"


@dataclass(frozen=True)
class PageSection:
    """A part under a heading."""

    heading: str
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, heading: str, parts: Iterable[Part]) -> PageSection:
        """Make one of its parts; tables without rows and empty texts are left out."""
        return cls(heading, tuple(filter(None, parts)))


def sections(content: Iterable[tuple[str, Iterable[Part]]]) -> tuple[PageSection, ...]:
    """The parts under each heading; a heading without any is shown nowhere."""
    return tuple(PageSection.of(heading, parts) for heading, parts in content)


@dataclass(frozen=True)
class Content:
    """A text with tables and figures: warnings, a verdict, the parts that it `begins` with, sections, and documents.

    ``parts`` are documents under their own titles. All but the title may be empty.
    """

    title: str
    verdict: str = ""
    begins: tuple[Part, ...] = ()
    warnings: tuple[str, ...] = ()
    sections: tuple[PageSection, ...] = ()
    parts: tuple[Content, ...] = ()
