"""What a server is to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedsw.experiment import Experiment
from fedsw.runs.observer import NoObserver, Observer
from fedsw.runs.own_metrics import Metric


@dataclass(frozen=True)
class Job:
    """What to run and where to keep it."""

    experiment: Experiment
    directory: Path
    engine: str = "inprocess"
    observer: Observer = field(default_factory=NoObserver)
    resume: bool = False
    metrics: Mapping[str, Metric] = field(default_factory=dict)
