"""A small run of everything that has messages of its own, looked at from all sides while it is made, once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation.client import app as client_app
from fedsw.federation.messages import Message
from tests.federation.messages.inspector import Inspector, exchanges_of
from tests.federation.node.transport import Transport
from tests.federation.sketch_runs import LOCAL, SKETCH
from tests.federations import SMALL, Federation
from tests.laws.runs.test_histograms_first import SETTINGS as HISTOGRAMS
from tests.runs.kept_runs import CLASSES, NUMBERS

GENERATION: dict[str, Any] = {
    **SMALL,
    "data": {"source": "gaussians", "records": 300, "test_records": 100},
    "model": {"kind": "generator", "latent": 2, "hidden": [4]},
    "objective": {"task": "generation", "penalty": "distribution-matching", "alpha": 1.0},
    "slicing": {"directions": 4},
}
KEPT: dict[str, Any] = {
    **SMALL,
    "data": {
        "source": "tests.runs.kept_runs:everybody",
        "columns": CLASSES,
        "held_out_fraction": 0.25,
        "held_out_to": "everybody",
    },
}
KEPT_NUMBERS: dict[str, Any] = {
    **KEPT,
    "data": {**KEPT["data"], "columns": NUMBERS},
    "objective": {"task": "regression"},
}
PRESET: dict[str, Any] = {**SMALL, "clip": {}, "training": {"preset": "auto"}}
OWN = "data.records=30000"  # the default: records of one's own are as many as they are
SMALLEST = ("training.rounds=2", "data.records=300", "federation.clients=2")
NOISE = "privacy.noise_multiplier=2"
MOMENTS = "privacy.moments=0.2"
THRESHOLDS = "thresholds.share=0.2"
STAGES = "sketch.stages=[{parts=[{kind='moments', columns=[0, 1], radius=3.0}]}]"
RUNS = {
    "central": (SMALL, ("privacy.trust=central", NOISE)),
    "central, seeded": (SMALL, ("privacy.trust=central", NOISE, "seed=3")),
    "central, unsafe metrics": (SMALL, ("privacy.trust=central", NOISE, "unsafe_metrics=true")),
    "central, equality of odds": (SMALL, ("privacy.trust=central", NOISE, "objective.penalty=equality-of-odds")),
    "central, no penalty": (SMALL, ("privacy.trust=central", NOISE, "objective.alpha=0.0", "unsafe_metrics=true")),
    "none": (SMALL, ("privacy.trust=none",)),
    "distributed": (SMALL, ("privacy.trust=distributed", NOISE)),
    "distributed, no penalty": (SMALL, ("privacy.trust=distributed", NOISE, "objective.alpha=0.0")),
    "distributed, a sketch": (SKETCH, ("privacy.trust=distributed", STAGES)),
    "local-gradient": (SMALL, ("privacy.trust=local-gradient", NOISE)),
    "local-slices": (GENERATION, ("privacy.trust=local-slices", NOISE)),
    "local-slices, own directions": (GENERATION, ("privacy.trust=local-slices", NOISE, "slicing.scheme=iid")),
    "local-release": (GENERATION, ("privacy.trust=local-release", "privacy.epsilon=10")),
    "sketch": (SKETCH, ()),
    "sketch-local": (SKETCH, (LOCAL,)),
    "sketch, stages": (SKETCH, (STAGES,)),
    "sketch-local, stages": (SKETCH, (LOCAL, STAGES)),
    "central, moments": (SMALL, ("privacy.trust=central", NOISE, MOMENTS)),
    "central, moments, no penalty": (SMALL, ("privacy.trust=central", NOISE, MOMENTS, "objective.alpha=0.0")),
    "distributed, moments": (SMALL, ("privacy.trust=distributed", NOISE, MOMENTS)),
    "local-gradient, moments": (SMALL, ("privacy.trust=local-gradient", NOISE, MOMENTS)),
    "central, histograms": (HISTOGRAMS, ("privacy.trust=central", OWN)),
    "distributed, histograms": (HISTOGRAMS, ("privacy.trust=distributed", OWN)),
    "local-gradient, histograms": (HISTOGRAMS, ("privacy.trust=local-gradient", OWN)),
    "central, a preset": (PRESET, ("privacy.trust=central", NOISE, "privacy.moments=0", "calibration.share=0")),
    "local-gradient, a preset": (
        PRESET,
        ("privacy.trust=local-gradient", NOISE, "privacy.moments=0", "calibration.share=0"),
    ),
    "central, kept records released": (KEPT, ("privacy.trust=central", NOISE, OWN)),
    "distributed, kept records released": (KEPT, ("privacy.trust=distributed", NOISE, OWN)),
    "local-gradient, kept records released": (KEPT, ("privacy.trust=local-gradient", NOISE, OWN)),
    "central, kept numbers released": (KEPT_NUMBERS, ("privacy.trust=central", NOISE, OWN)),
    "distributed, kept numbers released": (KEPT_NUMBERS, ("privacy.trust=distributed", NOISE, OWN)),
    "local-gradient, kept numbers released": (KEPT_NUMBERS, ("privacy.trust=local-gradient", NOISE, OWN)),
    "central, thresholds": (SMALL, ("privacy.trust=central", NOISE, THRESHOLDS)),
    "distributed, thresholds": (SMALL, ("privacy.trust=distributed", NOISE, THRESHOLDS)),
    "local-gradient, thresholds": (SMALL, ("privacy.trust=local-gradient", NOISE, THRESHOLDS)),
}


class Watched:
    """The ClientApp with watchers at its door, which see every request and reply; `leak` may spoil what leaves."""

    def __init__(self, *watchers: Any, leak=None) -> None:
        self._watchers, self._leak = watchers, leak

    def __call__(self, message, context):
        for each in self._watchers:
            each.request(message, context)
        reply = client_app(message, context)
        if self._leak is not None and message.metadata.message_type != "query.hello":
            self._leak(reply)
        for each in self._watchers:
            each.reply(message, reply, context)
        return reply


class Kept:
    """One message of every kind and direction, as it was when it came."""

    def __init__(self, experiment: Experiment) -> None:
        self._known = exchanges_of(experiment)
        self.first: dict[type[Message], RecordDict] = {}

    def request(self, message: Any, context: Any) -> None:
        self._keep(self._known[message.metadata.message_type].down, message.content)

    def reply(self, message: Any, reply: Any, context: Any) -> None:
        self._keep(self._known[message.metadata.message_type].up, reply.content)

    def _keep(self, kind: type[Message], content: RecordDict) -> None:
        copy = RecordDict({name: type(record)(dict(record)) for name, record in content.items()})
        self.first.setdefault(kind, copy)


@dataclass(frozen=True)
class WatchedRun:
    """What was seen of a run."""

    experiment: Experiment
    inspector: Inspector
    transport: Transport
    kept: Kept


_MADE: dict[str, WatchedRun] = {}


def watched_run(name: str, folder: Path) -> WatchedRun:
    """What was seen of a run of `RUNS`, which is made in the folder where no test before has made it.

    It has a roll call, as runs of real processes have.
    """
    if name not in _MADE:
        raw, overrides = RUNS[name]
        chosen = parse_experiment(raw, (*SMALLEST, *overrides))
        seen = WatchedRun(chosen, Inspector(chosen), Transport(), Kept(chosen))
        Federation(folder).run(chosen, engine="deployed", app=Watched(seen.inspector, seen.transport, seen.kept))
        _MADE[name] = seen
    return _MADE[name]
