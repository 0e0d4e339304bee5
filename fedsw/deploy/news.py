"""What a client says to its operator while it runs: that a run began here, and that it is over; each of them once."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from fedsw.federation.node.participation import Participation, participations
from fedsw.report.client_status import words_of_run


class News:
    """Sentences about the runs in a state folder, each said once; what is there already is not said again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._said = {part.run: part.over for part in participations(folder)}

    @property
    def all_over(self) -> bool:
        """Whether there was a run here, and every one is over."""
        return bool(self._said) and all(self._said.values())

    def fresh(self) -> list[str]:
        """What happened since the last look."""
        found: list[str] = []
        for part in participations(self._folder):
            before = self._said.get(part.run)
            if before is None:
                about = self._words(part)[0]
                found.append(f"takes part in the run {part.name!r}: {about}, {part.rounds} rounds")
            if part.over and not before:
                rest = self._words(part)[1:]
                found.append(
                    f"the run {part.name!r} is over here: {'; '.join(rest)}. This client waits for the next run; "
                    "Ctrl-C stops it"
                )
            self._said[part.run] = part.over
        return found

    def _words(self, part: Participation) -> list[str]:
        """A run in sentences; a ledger that cannot be read is one of them, and stops nothing here."""
        try:
            return list(words_of_run(part, self._folder))
        except (ValueError, OSError, sqlite3.Error) as fault:
            return [f"trust {part.trust}", f"its ledger cannot be read: {fault}"]
