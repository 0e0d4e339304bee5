"""An audit's finding, whichever of the three it was: one screen, one JSON, one figure; checks, and a ledger's rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsw._tools import files
from fedsw._tools.exits import Exit
from fedsw._tools.text import Short, downward, json_text, upward
from fedsw.audit.bounds import Attack
from fedsw.privacy.accounting import Step, epsilon
from fedsw.privacy.plan import calibrated
from fedsw.privacy.relations import Sampling
from fedsw.runs.report.document import Conclusion, Document, PageSection, Strong, named

if TYPE_CHECKING:
    from matplotlib.figure import Figure


How = Literal["attacked", "recomputed", "no verdict", "not attacked"]


@dataclass(frozen=True)
class AuditedPart:
    """Rows of one kind: what they cost together, what an audit did with them, and in words what it found, or why not.

    The ``square`` is mu^2 of the one Gaussian release that costs as much: of several parts they add up to that of the
    run, exactly where all records are in every release, else nearly. Rows of ``held_out`` records cost no others.
    """

    name: str
    square: float
    how: How
    words: str
    held_out: bool = False

    @property
    def passed(self) -> bool:
        """True if the audit speaks for these rows."""
        return self.how in ("attacked", "recomputed")


def square_of(steps: Mapping[Step, int], delta: float) -> float:
    """Return mu^2 of the one Gaussian release with the epsilon of these steps at delta."""
    if all(step.sampling_rate == 1.0 and step.slicing is None for step in steps):
        return sum(times * step.mu**2 for step, times in steps.items())
    spent = epsilon(dict(steps), delta)
    if math.isinf(spent):
        return math.inf
    multiplier, _ = calibrated(spent, None, delta=delta, rate=1.0, rounds=1, accountant="pld")
    return multiplier**-2


def rows_of(parts: Sequence[AuditedPart]) -> list[tuple[str, str]]:
    """Lines of the screen, one for every kind of row, with its share of mu^2."""
    return [
        (part.name, f"{part.how}{' ' + part.words if part.words else ''}{_share_of(part, parts)}") for part in parts
    ]


def spoken_for(parts: Sequence[AuditedPart]) -> float:
    """Return the part of the run's mu^2 that the audit speaks for; of kept records alone where it has no other rows."""
    counted = [part for part in parts if not part.held_out] or list(parts)
    whole = sum(part.square for part in counted)
    if not math.isfinite(whole) or whole <= 0:
        return 1.0 if all(part.passed for part in counted) else 0.0
    return sum(part.square for part in counted if part.passed) / whole


def said_of(parts: Sequence[AuditedPart]) -> str:
    """Say for which part of mu^2 an audit passed, and what is left; empty without rows."""
    if not parts:
        return ""
    left = [part.name for part in parts if not part.passed]
    rest = f"; not for {', '.join(left)}" if left else ""
    return f"this holds for {spoken_for(parts):.0%} of μ²{rest}"


def content_of(parts: Sequence[AuditedPart]) -> list[dict[str, Any]]:
    """The JSON of all parts."""
    return [
        {"rows": part.name, "how": part.how, "words": part.words, "squared_mu": part.square, "kept": part.held_out}
        for part in parts
    ]


def _share_of(part: AuditedPart, parts: Sequence[AuditedPart]) -> str:
    whole = sum(other.square for other in parts if not other.held_out)
    if part.held_out:
        return "; of kept records alone"
    return f"; {part.square / whole:.0%} of μ²" if 0 < whole < math.inf else ""


Kind = Literal["canary", "one-run", "record"]
Outcome = Literal["passed", "failed", "no verdict", "could not be read"]
EXIT_CODES: Mapping[Outcome, Exit] = {
    "passed": Exit.DONE,
    "failed": Exit.FAILED,
    "no verdict": Exit.NO_VERDICT,
    "could not be read": Exit.UNREAD,
}


@dataclass(frozen=True)
class Claim:
    """The plan's claim for the canary's cell: rate, sensitivity, sigma, rounds of a sampling, epsilon at delta."""

    rate: float
    sensitivity: float
    sigma: float
    rounds: int
    epsilon: float
    delta: float
    sampling: Sampling = "without-replacement"

    @property
    def mu(self) -> float:
        """Sensitivity / sigma of one round."""
        return self.sensitivity / self.sigma


@dataclass(frozen=True)
class AttackResult:
    """An attacker's results in the real ``rounds`` of both neighbours, ``present`` of them with the canary.

    ``shift`` is how far the canary moves the un-noised sum, in the round that showed least; ``attack`` the test of
    single releases with the canary in the batch; ``drawn`` (times, trials) that it was drawn, None if every record
    is; ``repeated`` releases made singly that equal an earlier one; ``scores`` of either neighbour in units of sigma.
    """

    shift: float
    rounds: int
    present: int
    attack: Attack
    drawn: tuple[int, int] | None
    repeated: int
    scores: tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, repr=False)
class Finding(Short):
    """The outcome of one audit.

    The ``outcome`` is "passed" where something was looked at that a broken guarantee would have shown in, and nothing
    contradicts it; "no verdict" where nothing was; "could not be read" where files are there and cannot be opened.
    ``shown`` is the largest epsilon that the attack supports, a lower bound, true with ``confidence``; for "record" the
    recomputed epsilon. ``rows`` are what the screen shows beside, in words; ``details`` everything measured, JSON only.
    """

    kind: Kind
    subject: str
    claimed: float
    delta: float
    shown: float
    confidence: float | None
    outcome: Outcome
    verdict: str
    rows: Sequence[tuple[str, str]] = ()
    details: dict[str, Any] = field(default_factory=dict)
    draw: Callable[[], Figure] | None = None

    @property
    def passed(self) -> bool:
        """True if nothing contradicts the claim, and something would have."""
        return self.outcome == "passed"

    @property
    def exit_code(self) -> Exit:
        """The exit code of `fedsw audit`."""
        return EXIT_CODES[self.outcome]

    def as_dict(self) -> dict[str, Any]:
        """The JSON that is kept and printed; infinity as "inf"."""
        return {
            "audit": self.kind,
            "subject": self.subject,
            "claimed_epsilon": self.claimed,
            "shown_epsilon": self.shown,
            "delta": self.delta,
            "confidence": self.confidence,
            "passed": self.passed,
            "outcome": self.outcome,
            "verdict": self.verdict,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **self.details,
        }

    def screen(self) -> Document:
        """One screen: claimed epsilon, shown epsilon with its confidence, verdict."""
        *facts, (name, verdict) = self._facts().items()
        said = Conclusion(verdict) if self.passed else Strong(verdict)
        return Document("", begins=(named(facts),), sections=(PageSection(name, (said,)),))

    def _facts(self) -> Mapping[str, str]:
        sure = "" if self.confidence is None else f", at confidence {self.confidence:.6g}"
        recomputed = self.confidence is None  # an attack has one
        return {
            "audit": f"{self.kind} of {self.subject}",
            "claimed ε": f"{upward(self.claimed)} at δ = {upward(self.delta)}",
            "recomputed ε" if recomputed else "shown ε": (upward if recomputed else downward)(self.shown) + sure,
            **dict(self.rows),
            "verdict": f"{self.outcome.upper()}  {self.verdict}",
        }

    def write(self, folder: Path) -> list[Path]:
        """Keep `finding.json`, and `finding.png` where there is a figure, in a folder; returns the files."""
        written = [files.new_folder(folder) / "finding.json"]
        files.replace(written[0], (json_text(self.as_dict()) + "\n").encode())
        if self.draw is not None:
            from fedsw.runs.report.figures import save

            written.append(save(self.draw(), folder / "finding.png"))
        return written


@dataclass(frozen=True)
class Check:
    """One line of the audit: ``passed`` is None if it could not be checked, and ``words`` say why.

    It is ``unread`` where a file is there and cannot be opened: that speaks neither for nor against the run.
    """

    name: str
    passed: bool | None
    words: str
    numbers: dict[str, Any] = field(default_factory=dict)
    unread: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The JSON that is kept."""
        return {"name": self.name, "passed": self.passed, "found": self.words, **self.numbers}

    @property
    def line(self) -> str:
        """The screen's line about it."""
        word = {True: "passed", False: "FAILED", None: "not checked"}[self.passed]
        return f"{'could not be read' if self.unread else word}: {self.words}"


@dataclass
class Faults:
    """Collects what is wrong, so that one fault hides no other; ``left`` says why a part of a check was not made."""

    faults: list[str] = field(default_factory=list)
    left: str = ""

    def require(self, holds: bool, fault: str) -> None:
        """Keep the words unless it holds."""
        if not holds:
            self.faults.append(fault)

    def check(self, name: str, well: str, **numbers: Any) -> Check:
        """Passed with `well` if nothing was wrong and nothing was left out."""
        few = "; ".join(self.faults[:3]) + (f"; and {len(self.faults) - 3} more" if len(self.faults) > 3 else "")
        passed = False if self.faults else None if self.left else True
        if self.faults:
            numbers["faults"] = self.faults
        return Check(name, passed, few or self.left or well, numbers)
