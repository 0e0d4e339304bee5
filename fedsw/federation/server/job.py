"""What a server is to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedsw.accounting.selection import Selection
from fedsw.experiment import Experiment
from fedsw.runs.evaluation import Metric
from fedsw.runs.observer import NoObserver, Observer


@dataclass(frozen=True)
class Job:
    """What to run and where to keep it.

    `selection` is what the run costs where it is one of several of which only the best is shown.
    """

    experiment: Experiment
    directory: Path
    engine: str = "inprocess"
    observer: Observer = field(default_factory=NoObserver)
    resume: bool = False
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    selection: Selection | None = None
