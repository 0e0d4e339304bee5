"""Laws of a client whose messages are answered by processes that know nothing of each other: one noise a charge.

Flower's own executors (`--stock`) start a process for every message and hand it the node's state; one that answered and
whose state was never stored leaves the next with the state of before.
"""

from __future__ import annotations

import copy
import secrets
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict

from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation import flower, messages
from fedsw.federation.client import app as client_app
from fedsw.federation.engines import inprocess
from fedsw.federation.messages import Broadcast, Terms
from fedsw.federation.messages.table import Greeting, LocalGradientAsked, Release, ReleaseAsked, SlicesAsked, TableAsked
from fedsw.federation.node.simulated import ANY_MODULE, ONE_PERSON
from fedsw.learning.models import flatten
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import Ledger
from tests.federation.sketch_runs import sketched
from tests.federation.test_local_slices import FLOW, RELEASE, SLICES
from tests.federation.test_local_slices import experiment as of_shape
from tests.federations import small
from tests.laws.runs.test_histograms_first import SETTINGS as HISTOGRAMS
from tests.runs.kept_runs import LOCAL, kept_run, tables

GRADIENT = small("privacy.trust=local-gradient", "privacy.epsilon=8.0", "data.records=1200", "federation.clients=2")
ALONE = small("privacy.trust=local-gradient", "objective.alpha=0", "privacy.epsilon=8.0", "federation.clients=2")
SKETCH = sketched("privacy.trust=sketch-local", "federation.clients=2")
MOMENTS = small("privacy.trust=local-gradient", "privacy.epsilon=8.0", "privacy.moments=0.2", "federation.clients=2")
SCORES = small("privacy.trust=local-gradient", "privacy.epsilon=8.0", "thresholds.share=0.2", "federation.clients=2")
TWO = "federation.clients=2"
RUNS = {
    "two exchanges": GRADIENT,
    "one exchange": ALONE,
    "slices": of_shape(SLICES, TWO),
    "a flow": of_shape(FLOW, TWO),
    "a flow of one release": of_shape(FLOW, "local.algorithm=flow-one-release", TWO),
    "records": of_shape(RELEASE, TWO),
    "moments": MOMENTS,
    "histograms": parse_experiment(HISTOGRAMS, ("privacy.trust=local-gradient", TWO)),
    "scores": SCORES,
    "a tally of kept records": None,
    "a sketch": SKETCH,
}
ONCE = {"a flow of one release", "records", "moments", "histograms", "scores", "a tally of kept records", "a sketch"}


@pytest.fixture(autouse=True)
def started_by_one_person(monkeypatch):
    monkeypatch.setenv(ONE_PERSON, "1")


class Stock:
    """A real node: each message gets a copy of the state, which is kept only if somebody says so."""

    def __init__(self, experiment: Experiment, place: Path) -> None:
        self.task, self.place = Problem.from_experiment(experiment), place
        config = {"partition-id": 0, "num-partitions": 2, "state-dir": str(place), "modules": ANY_MODULE}
        self.run = secrets.randbits(60)  # nodes are remembered by it
        self.context = Context(self.run, 1234, config, RecordDict(), {})
        settings = experiment.model_dump_json(exclude={"metrics"})
        assert self.ask(messages.HELLO, Greeting(settings, f"{self.run:032x}")) is None
        self.terms = Terms.of(self.task)
        self.theta = Broadcast.of(flatten(self.task.build_model()), self.terms)

    def ask(self, exchange: Any, asked: Any, *, kept: bool = True) -> str | None:
        """Why a process of its own answers nothing; None if it answers."""
        inprocess.identify(self.run)
        message = Message(messages.encode(asked, Terms.of(self.task)), 1234, exchange.kind, ttl=60.0)
        flower.number(message, "m")
        context = copy.deepcopy(self.context)
        reply = client_app(message, context)
        if kept:
            self.context = context
        return None if reply.has_content() else str(reply.error.reason)

    def charges(self) -> list[tuple[int, int]]:
        with Ledger.open(self.place / "client-0.sqlite", read_only=True) as ledger:
            return [(entry.round, entry.attempt) for entry in ledger.entries()]


def requests(node: Stock, attempt: int = 0) -> list[tuple[Any, Any]]:
    """The exchanges of an attempt."""
    trust, settings = node.task.experiment.privacy.trust, node.task.experiment

    def once(exchange, round_, records, **more):
        return exchange, exchange.down(round=round_, attempt=attempt, records=records, **more)

    if trust == "sketch-local":
        return [once(messages.SKETCH, 1, 600, learnt=None)]
    if trust == "local-release":
        return [(messages.RELEASE, ReleaseAsked(1, attempt, 600))]
    if trust == "local-slices":
        return [(messages.SLICES, SlicesAsked(1, attempt, 600, None))]
    if settings.privacy.histograms:
        return [once(messages.NOISY_HISTOGRAMS, 0, 600)]
    if settings.privacy.moments:
        return [once(messages.NOISY_MOMENTS, 0, 600)]
    if settings.thresholds.share:
        return [once(messages.NOISY_SCORES, 6, 600, theta=node.theta)]
    if settings.data.held_out_released:
        return [once(messages.NOISY_TALLY, 3, 120, theta=node.theta, cut=None)]
    cells = len(node.task.objective.cells)
    sizes = (120,) * cells
    if settings.objective.alpha == 0:
        return [(messages.LOCAL_GRADIENTS, LocalGradientAsked(node.theta, 1, attempt, None, sizes, 1200))]
    table = torch.zeros((cells, settings.slicing.directions, settings.local.bins))
    return [
        (messages.TABLES, TableAsked(node.theta, 1, attempt, sizes, 1200)),
        (
            messages.LOCAL_GRADIENTS,
            LocalGradientAsked(node.theta, 1, attempt, Broadcast.of(table, node.terms), sizes, 1200),
        ),
    ]


@pytest.mark.parametrize("name", list(RUNS))
def test_a_process_without_the_state_of_the_one_before_answers_no_attempt_again(name, tmp_path):
    """Two answers would be two noises for one charge: their mean has less than what the charge is for."""
    node = Stock(RUNS[name] or kept_run(tables(tmp_path / "data", 60, 60), *LOCAL, clients=2), tmp_path / "state")
    attempts = (0,) if name in ONCE else (0, 1)
    for attempt in attempts:
        *first, (kind, last) = requests(node, attempt)
        for each, asked in first:
            assert node.ask(each, asked) is None
            assert _says_already(node.ask(each, asked, kept=False))
        assert node.ask(kind, last, kept=False) is None
        charged = node.charges()
        assert _says_already(node.ask(kind, last))
        for each, asked in first:
            assert _says_already(node.ask(each, asked))
        assert node.charges() == charged
    assert set(node.charges()) == {(last.round, attempt) for attempt in attempts}


def test_every_exchange_in_which_a_client_pays_is_here(tmp_path):
    kept = kept_run(tables(tmp_path / "data", 60, 60), *LOCAL, clients=2)
    nodes = [Stock(each or kept, tmp_path / name) for name, each in RUNS.items()]
    asked = {kind.kind for node in nodes for kind, _ in requests(node)}
    paid = {each.kind for each in messages.EXCHANGES if issubclass(each.up, Release)}
    assert asked == paid


def _says_already(why: str | None) -> bool:
    return why is not None and why.startswith(("AlreadySpent", "AlreadyAnswered", "BudgetExhausted"))
