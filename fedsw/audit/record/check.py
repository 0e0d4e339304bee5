"""What one check of a run's folder found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fedsw.audit.record.folder import Folder, Unchecked


@dataclass(frozen=True)
class Check:
    """One line of the audit.

    Attributes:
        name: what was checked.
        passed: None where it could not be checked, and `found` says why.
        found: in words.
        numbers: what was measured, JSON types only.
    """

    name: str
    passed: bool | None
    found: str
    numbers: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The JSON that is kept."""
        return {"name": self.name, "passed": self.passed, "found": self.found, **self.numbers}

    @property
    def line(self) -> str:
        """What the screen says of it."""
        word = {True: "passed", False: "FAILED", None: "not checked"}[self.passed]
        return f"{word}: {self.found}"


@dataclass
class Faults:
    """Collects what is wrong, so that one fault hides no other.

    Attributes:
        found: what is wrong, in words.
        left: why a part of the check could not be made; without a fault, the check then counts as not made.
    """

    found: list[str] = field(default_factory=list)
    left: str = ""

    def require(self, holds: bool, fault: str) -> None:
        """Keep the words unless it holds."""
        if not holds:
            self.found.append(fault)

    def check(self, name: str, well: str, **numbers: Any) -> Check:
        """Passed with `well` if nothing was wrong and nothing was left out."""
        few = "; ".join(self.found[:3]) + (f"; and {len(self.found) - 3} more" if len(self.found) > 3 else "")
        passed = False if self.found else None if self.left else True
        if self.found:
            numbers["faults"] = self.found
        return Check(name, passed, few or self.left or well, numbers)


def made(name: str, of: Callable[[Folder], Check], folder: Folder) -> Check:
    """A check's outcome; what it cannot read counts as a failure, and stops no other check."""
    try:
        return of(folder)
    except ModuleNotFoundError as missing:
        return Check(name, None, f"needs {missing.name}, which is not installed (pip install 'fedsw[compare]')")
    except Unchecked as reason:
        return Check(name, None, str(reason))
    except Exception as fault:
        return Check(name, False, f"cannot be read: {type(fault).__name__}: {fault}")
