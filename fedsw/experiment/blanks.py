"""Blanks of a drafted experiment: what is asked of its operator, and which lines still lack it."""

from __future__ import annotations

from pathlib import Path

from fedsw.settings import ExperimentError

BLANK = "FILL IN"
"""The text that stands where a public bound, category or kind is asked for."""

_MOST_SHOWN = 6


def require_filled(path: Path, text: str) -> None:
    """Refuse an experiment file that has blanks left.

    Raises:
        ExperimentError: naming the file and the lines, with what stands there.
    """
    lines = [
        (row, line) for row, line in enumerate(text.splitlines(), start=1) if f'"{BLANK}"' in line.partition("#")[0]
    ]
    if not lines:
        return
    shown = "".join(f"\n  line {row}: {line.partition('#')[0].strip()}" for row, line in lines[:_MOST_SHOWN])
    more = f"\n  and {len(lines) - _MOST_SHOWN} more" if len(lines) > _MOST_SHOWN else ""
    raise ExperimentError(
        f'{path} has blanks: write public bounds, categories or kinds in place of "{BLANK}", from a code book '
        f"or a law, not from the records:{shown}{more}"
    )
