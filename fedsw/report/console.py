"""The screen that commands print on, and its tables: whatever is in a text, it moves no cursor and colours nothing."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from fedsw.text import harmless


class Screen(Console):
    """A console for texts of strangers: brackets in them are no markup, and control characters are left out.

    What rich itself writes passes. A bar moves where stderr is a terminal alone: a notebook asks every program for
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


def table_of(
    headings: Sequence[str],
    rows: Iterable[Iterable[str]],
    *,
    left: Collection[str] | None = None,
    whole: Collection[str] = (),
    **look: Any,
) -> Table:
    """A table under headings, in which columns are at the right; what does not fit is wrapped.

    Columns of words are at the ``left``, the first by default; ``whole`` ones are not wrapped, and cut where nothing
    else gives way. The look is that of `rich.table.Table`.
    """
    table, words = Table(box=box.SIMPLE_HEAD, **look), headings[:1] if left is None else left
    for heading in headings:
        table.add_column(heading, justify="left" if heading in words else "right", no_wrap=heading in whole)
    for row in rows:
        table.add_row(*row)
    return table


def named_rows(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Names, and what stands beside each of them."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
