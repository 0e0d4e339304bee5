"""All that is stored of the papers, planned again: what today's rules and bounds plan as it was, and what otherwise."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsw.runs.progress import Display
from simulations.papers import plans
from simulations.papers.cells import Computation
from simulations.papers.store import read
from simulations.papers.work import Piece


@dataclass(frozen=True)
class Replanned:
    """The stored results of some figures, by what planning them again says.

    Attributes:
        same: how many runs are planned today as they were.
        otherwise: by key, what is another number today, or why there is no plan.
        absent: by key, where data were looked for; the run is stored and was not planned.
        unplanned: computations and baselines, whose noise no plan of ours has.
    """

    same: int
    otherwise: Mapping[str, Sequence[str]]
    absent: Mapping[str, str]
    unplanned: int

    @property
    def stored(self) -> int:
        """How many results there are."""
        return self.same + len(self.otherwise) + len(self.absent) + self.unplanned

    @property
    def sound(self) -> bool:
        """Whether every stored run could be planned again, and is planned as it was."""
        return not self.otherwise and not self.absent


def planned_again(
    results: Path, pieces: Sequence[Piece], seen: Callable[[bool], None] = lambda same: None
) -> Replanned:
    """Plan every stored run of the pieces by today's rules; nothing is run, and no private record is learnt from.

    Args:
        seen: told after each run whether its plan is the same; `planned_runs` says how many there are.
    """
    runs = planned_runs(results, pieces)
    same, otherwise, absent = 0, dict[str, list[str]](), dict[str, str]()
    for piece in runs:
        try:
            words = _differences(results, piece)
        except (FileNotFoundError, ModuleNotFoundError) as fault:
            absent[piece.key] = str(fault)
            seen(False)
            continue
        same += not words
        otherwise |= {piece.key: words} if words else {}
        seen(not words)
    known = sum(read(results, piece.key) is not None for piece in pieces)
    return Replanned(same, otherwise, absent, known - len(runs))


def planned_runs(results: Path, pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces that are stored runs with a plan of ours: no computations, no baselines, no faults."""
    return [piece for piece in pieces if _has_plan(results, piece)]


def _has_plan(results: Path, piece: Piece) -> bool:
    result = read(results, piece.key)
    if result is None or isinstance(piece.what, Computation) or piece.what.baseline:
        return False
    return plans.stored(result) is not None


def _differences(results: Path, piece: Piece) -> list[str]:
    """A phrase for every number that is another one today; for a run that cannot be planned today, why.

    Raises:
        FileNotFoundError, ModuleNotFoundError: saying where its data were looked for, if they are not here.
    """
    result = read(results, piece.key)
    assert result is not None and not isinstance(piece.what, Computation)
    then = plans.stored(result)
    assert then is not None
    try:
        with warnings.catch_warnings(action="ignore"):
            now = plans.planned(piece.what.experiment)
    except (FileNotFoundError, ModuleNotFoundError):
        raise
    except Exception as fault:
        return [f"no plan today: {type(fault).__name__}: {fault}"]
    return list(plans.differences(then, now))


class PlanProgress(Display):
    """A bar over stored runs, of how many a plan was made."""

    def __init__(self, runs: int, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._otherwise = 0
        self._task = self._bar.add_task("plan again", total=runs, state="")

    def seen(self, same: bool) -> None:
        """Count a run."""
        self._otherwise += not same
        self._bar.update(self._task, advance=1, state=f"{self._otherwise} otherwise" if self._otherwise else "")
