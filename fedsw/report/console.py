"""The screen that commands print on: whatever is in a text, it moves no cursor and colours nothing."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedsw.text import harmless


class Screen(Console):
    """A console for texts of strangers: brackets in them are no markup, and control characters are left out.

    What rich itself writes, colours and the place of a progress bar, stands apart from the texts and passes.
    """

    def __init__(self, *, stderr: bool = False, quiet: bool = False, highlight: bool = True) -> None:
        super().__init__(stderr=stderr, quiet=quiet, highlight=highlight, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The pieces of what is printed; those of text are harmless."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(harmless(piece.text, ""), piece.style)
