"""The screen that commands print on: whatever is in a text, it moves no cursor and colours nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedsw.text import harmless


class Screen(Console):
    """A console for texts of strangers: brackets in them are no markup, and control characters are left out.

    What rich itself writes, colours and the place of a progress bar, stands apart from the texts and passes. A bar
    moves where stderr is a terminal alone: a notebook asks every program for colours (FORCE_COLOR), and keeps all that
    is written.
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
