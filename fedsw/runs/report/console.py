"""The screen that commands print on, and its tables: whatever is in a text, it moves no cursor and colours nothing."""

from __future__ import annotations

import copy
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from fedsw._tools.text import harmless
from fedsw.runs.report._parts import Content, Listed, Part


class Screen(Console):
    """A console for texts of strangers: brackets in them are not markup, and control characters are left out.

    What rich itself writes passes. A bar moves where stderr is a terminal only: a notebook asks every program for
    colours (FORCE_COLOR), and keeps all that is written.
    """

    def __init__(self, *, stderr: bool = False, quiet: bool = False, highlight: bool = True) -> None:
        terminal = False if stderr and not sys.stderr.isatty() else None
        super().__init__(
            stderr=stderr, quiet=quiet, highlight=highlight, markup=False, emoji=False, force_terminal=terminal
        )

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The pieces of what is printed; those of text are harmless."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(harmless(piece.text, ""), piece.style)


_LONGEST_NUMBER = 24
"""Columns at the right hold an interval at most; what is longer may be wrapped."""


def table_of(
    headings: Sequence[str],
    rows: Iterable[Iterable[str]],
    *,
    left: Collection[str] | None = None,
    whole: Collection[str] = (),
    **look: Any,
) -> Table:
    """A table under headings: words are wrapped where they do not fit, and numbers where nothing else gives way.

    Columns of words are at the ``left``, the first by default, the others at the right; ``whole`` ones are never
    wrapped. What is too wide comes in parts. The look is that of `rich.table.Table`.
    """
    words = headings[:1] if left is None else left
    table, lines = _Parted(box=box.SIMPLE_HEAD, **look), [tuple(row) for row in rows]
    for column, heading in enumerate(headings):
        cells, at_left = [line[column] for line in lines], heading in words
        one_word = all(" " not in cell and "\n" not in cell for cell in (heading, *cells))
        unbroken = heading in whole
        needed = max(cell_len(line) for cell in (heading, *cells) for line in cell.splitlines() or [""])
        number = not at_left and needed <= _LONGEST_NUMBER
        table.add_column(
            heading,
            justify="left" if at_left else "right",
            no_wrap=unbroken or one_word or number,
            min_width=needed if unbroken or number else None,
        )
    for line in lines:
        table.add_row(*line)
    return table


class _Parted(Table):
    """A table that is shown in parts, each with the first column, where it is too wide: no number is cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first, *others = self.columns
        parts = [[first]]
        for column in others:
            if len(parts[-1]) > 1 and self._least(console, options, [*parts[-1], column]) > options.max_width:
                parts.append([first])
            parts[-1].append(column)
        for part in parts:
            if self._least(console, options, part) > options.max_width:
                part = [
                    replace(column, min_width=None, no_wrap=column.no_wrap and not column.min_width) for column in part
                ]
            yield from super(_Parted, self._of(part)).__rich_console__(console, options)

    def _least(self, console: Console, options: ConsoleOptions, columns: list[Column]) -> int:
        return self._of(columns).__rich_measure__(console, options.update(max_width=10**4)).minimum

    def _of(self, columns: list[Column]) -> _Parted:
        table = copy.copy(self)
        table.columns = [replace(column, _index=index) for index, column in enumerate(columns)]
        return table


def named_rows(rows: Iterable[Sequence[RenderableType]]) -> Table:
    """Names, and what stands beside each of them."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


_STYLES = {"strong": "bold red", "verdict": "bold", "note": "dim", "code": "cyan"}
_BESIDE = 16
"""Most letters of headings that stand at the left of what is under them."""


def shown(document: Content) -> RenderableType:
    """A document on a terminal, without its figures.

    Short headings stand beside what is under them, with a frame where there is a title; longer ones above it.
    """
    first = [Text(f"! {warning}", style=_STYLES["strong"]) for warning in document.warnings]
    begins = [Text(document.verdict, style="bold")] if document.verdict else []
    text = [*begins, *_parts(document.begins)]
    sections = [section for section in document.sections if section.parts]
    if sections and max(len(section.heading) for section in sections) <= _BESIDE:
        rows = [(section.heading, Group(*_parts(section.parts))) for section in sections]
        grid = Group(*text, named_rows([("WARNING", Group(*first)), *rows] if first else rows))
        return Panel(grid, title=Text(document.title), title_align="left") if document.title else grid
    head = [Text(document.title, style="bold")] if document.title else []
    for section in sections:
        text += [Text(section.heading, style="bold"), *_parts(section.parts)]
    return Group(*head, *first, *text, *map(shown, document.parts))


def as_text(document: Content) -> str:
    """A document as text of a hundred columns at most, without colours."""
    screen = Screen()
    lines = screen.render_lines(shown(document), screen.options.update_width(100), pad=False)
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in lines)


def _parts(parts: Iterable[Part]) -> Iterator[RenderableType]:
    for part in parts:
        if isinstance(part, Listed) and part:
            headings, rows = part.facts
            plain = not any(headings)
            yield (
                named_rows(rows)
                if plain
                else table_of(headings, rows, left=part.left, whole=part.whole, pad_edge=False)
            )
        elif isinstance(part, str) and part:
            yield Text(part, style=_STYLES.get(getattr(part, "kind", ""), ""))
