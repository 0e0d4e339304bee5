"""Laws of where the processor flushes: where a client computes on its records, and not where noise or a ledger is."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

import fedsw.federation.trust.central.rounds
import fedsw.federation.trust.local_gradient.noising
import fedsw.federation.trust.local_slices.noised_slices
import fedsw.learning.tasks.objective
from fedsw._tools.subnormal import flushes
from fedsw.experiment import parse_experiment
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy import release as door
from fedsw.privacy.accounting import Ledger
from fedsw.privacy.mechanisms import MECHANISMS
from tests.federation.node.runs import RUNS
from tests.federations import Federation
from tests.noises import replace_noise

COMPUTED = {
    "central": {"record", "clipped_sum"},
    "none": {"record", "clipped_sum"},
    "local-gradient": {"record", "clipped_sum", "projected"},
    "local-slices": set(),  # features as they are, in float64
    "local-release": {"inputs"},
}
PROTECTED = {
    "central": {"noised", "spend"},
    "none": set(),
    "local-gradient": {"noised", "spend"},
    "local-slices": {"noised", "spend"},
    "local-release": {"noised", "spend"},
}


def all_threads_flush() -> bool:
    return int((torch.full((2**20,), 1e-30) * 1e-10 != 0).sum()) == 0


class Watch:
    """Whether the processor flushed, in all threads or in none, when one of the named functions was called."""

    def __init__(self, monkeypatch) -> None:
        self.seen: dict[str, set[bool]] = defaultdict(set)
        self._monkeypatch = monkeypatch

    def at(self, owner, attribute: str, name: str) -> None:
        self._monkeypatch.setattr(owner, attribute, self.watching(getattr(owner, attribute), name))

    def watching(self, called, name: str):
        def watching(*arguments, **settings):
            on = flushes()
            assert all_threads_flush() == on
            self.seen[name].add(on)
            return called(*arguments, **settings)

        return watching


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["central", "none", "local-gradient", "local-slices", "local-release"])
def test_clients_compute_with_flushing_and_protect_without(tmp_path, monkeypatch, name, threads):
    raw, overrides = RUNS[name]
    asked = ("training.rounds=2", "data.records=240", "federation.clients=2", f"federation.threads={threads}")
    watch = Watch(monkeypatch)
    watch.at(fedsw.learning.tasks.objective, "record", "record")
    watch.at(fedsw.learning.tasks.objective, "clipped_sum", "clipped_sum")
    watch.at(Ledger, "spend", "spend")
    watch.at(door, "spend_together", "spend")
    for name_of_noise, mechanism in MECHANISMS.items():
        replace_noise(monkeypatch, watch.watching(mechanism.noised, "noised"), name_of_noise)
    if name == "local-gradient":
        watch.at(fedsw.learning.tasks.objective.ClippedObjective, "in_balls", "projected")
    if name == "local-release":
        watch.at(Problem, "inputs", "inputs")
    before = torch.get_num_threads()
    try:
        Federation(tmp_path).run(parse_experiment(raw, (*asked, *overrides)))
    finally:
        torch.set_num_threads(before)
    assert not flushes()
    assert {each: watch.seen[each] for each in PROTECTED[name]} == {each: {False} for each in PROTECTED[name]}
    assert all(True in watch.seen[each] for each in COMPUTED[name]), watch.seen
    for each in ("record", "clipped_sum"):
        assert watch.seen[each] <= {True}
