"""Sites with rosters and keys of their own, asked by a server that may say anything to any of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict

from fedsw.federation import flower, messages
from fedsw.federation.client import app
from fedsw.federation.engines import inprocess
from fedsw.federation.messages import Broadcast, Terms
from fedsw.federation.messages.table import Greeting, MaskedSumAsked, MaskedTableAsked, ReadyAsked
from fedsw.federation.node.roster import KEY_FILE, Roster, RosterSite, read_mask_key, write_mask_key
from fedsw.federation.trust.distributed import ranked
from fedsw.federation.trust.distributed.attempt_cost import attempt_of
from fedsw.federation.trust.distributed.members import Cohort, Party
from fedsw.federation.trust.distributed.once import agreed_sum
from fedsw.federation.trust.sketch.sketch_once import SketchSum, stage_with
from fedsw.learning.models import flatten
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import Ledger
from tests.federation.sketch_runs import sketched
from tests.federations import small

RUN = "a77ac4ed" * 4
_RUNS = itertools.count(20_000)


class Refused(Exception):
    """What a site said instead of numbers."""


def experiment_of(*overrides: str, clients: int = 4):
    trust = ("privacy.trust=distributed", "privacy.epsilon=8.0", f"federation.clients={clients}", "local.bins=8")
    return small(*trust, *overrides)


def masked(*overrides: str):
    """A small run on a sketch."""
    return sketched("privacy.trust=distributed", *overrides)


@dataclass
class Sites:
    """A federation of sites of one client each.

    Attributes:
        listed: of how many sites, the first ones, every roster has the keys; all of them if None.
        real: whether the sites have rosters and keys in files, or are simulated.
    """

    folder: Path
    experiment: object = field(default_factory=experiment_of)
    colluding: int = 1
    listed: int | None = None
    real: bool = True
    extra: int = 0

    def __post_init__(self) -> None:
        self.count = self.experiment.federation.clients
        self.task = Problem.from_experiment(self.experiment)
        self.theta = flatten(self.task.build_model())
        self.keys, roster = [], Roster()
        for site in range(self.count):
            key = read_mask_key(write_mask_key(self.folder / f"site{site}"))
            self.keys.append(key)
            if self.listed is None or site < self.listed:
                roster = roster.with_member(RosterSite(name=f"site {site}", key=key.public.hex()))
        self.roster = self.folder / "roster.toml"
        self.roster.write_text(roster.text())
        self.run_id = next(_RUNS)
        self.contexts = [self.context(site) for site in range(self.count)]
        self.sizes = [self.greet(site) for site in range(self.count)]
        self.records = sum(map(sum, self.sizes))

    def context(self, site: int) -> Context:
        config = {"partition-id": site, "num-partitions": self.count, "state-dir": str(self.folder / f"site{site}")}
        if self.real:
            config |= {
                "roster": str(self.roster),
                "colluding": self.colluding,
                "mask-key": str(self.folder / f"site{site}" / KEY_FILE),
            }
        return Context(self.run_id, 100 + site, config, RecordDict(), {})

    def _ask(self, exchange, site: int, content, terms: Terms):
        inprocess.identify(self.run_id)
        asked = Message(messages.encode(content, terms), 100 + site, exchange.kind, ttl=60.0)
        flower.number(asked, f"m{next(_RUNS)}")
        reply = app(asked, self.contexts[site])
        if not reply.has_content():
            raise Refused(reply.error.reason)
        return messages.decode(exchange.up, reply.content, terms)

    def greet(self, site: int) -> list[int]:
        greeting = Greeting(self.experiment.model_dump_json(exclude={"metrics"}), RUN)
        return self._ask(messages.HELLO, site, greeting, Terms.of(self.task)).sizes[0].tolist()

    def ready(self, site: int, round_: int = 1, attempt: int = 0) -> Party:
        said = self._ask(messages.READY, site, ReadyAsked(round_, attempt), Terms.of(self.task))
        return Party(site=site, key=said.key, nonce=said.fresh, clients=[site], sizes=[self.sizes[site]])

    def cohort(self, round_: int = 1, attempt: int = 0, sites: Sequence[int] | None = None) -> Cohort:
        parties = [self.ready(site, round_, attempt) for site in (range(self.count) if sites is None else sites)]
        return Cohort(records=self.records, parties=parties)

    def table(self, site: int, cohort: Cohort, round_: int = 1, attempt: int = 0, theta=None):
        """A site's part (y,) of the masked sum of tables, mod 2^64."""
        terms = Terms.of(self.task, S=1)
        model = Broadcast.of(self.theta if theta is None else theta, terms)
        asked = MaskedTableAsked(model, round_, attempt, cohort.model_dump_json())
        return self._ask(messages.MASKED_TABLES, site, asked, terms).values.numpy().view(np.uint64)

    def contribution(self, site: int, cohort: Cohort, table=None, round_: int = 1, attempt: int = 0):
        """A site's part (r,) of the masked sum of contributions, mod 2^64; for slot means of zero."""
        length = self.length(round_, attempt)
        terms = Terms.of(self.task, S=1, x=length)
        if self.task.objective.alpha > 0 and table is None:
            table = torch.zeros(length, dtype=torch.float64)
        sent = None if table is None else Broadcast.of(table, terms)
        asked = MaskedSumAsked(Broadcast.of(self.theta, terms), round_, attempt, sent, cohort.model_dump_json())
        return self._ask(messages.MASKED_SUM, site, asked, terms).values.numpy().view(np.uint64)

    def sketch(self, site: int, cohort: Cohort, weights=None, stage: int = 1, attempt: int = 0):
        """A site's part (y,) of the masked sum of a stage, mod 2^64."""
        sent = None
        if self.experiment.sketch.stages:
            sent = Broadcast.exact(torch.zeros_like(weights) if stage == 1 else weights)
        asked = messages.MASKED_SKETCH.down(round=stage, attempt=attempt, learnt=sent, cohort=cohort.model_dump_json())
        terms = Terms.of(self.task, S=1)
        return self._ask(messages.MASKED_SKETCH, site, asked, terms).values.numpy().view(np.uint64)

    def sketch_sum(self, cohort: Cohort, weights=None, stage: int = 1):
        """What all sites work out of an attempt at a stage."""
        weights = torch.zeros(0) if weights is None else weights
        return agreed_sum(SketchSum(self.task, stage_with(stage, weights)), cohort)

    def directions(self, round_: int, attempt: int):
        return self.task.clipped.directions(round_, attempt)

    def length(self, round_: int = 1, attempt: int = 0) -> int:
        """Numbers of all tables."""
        return ranked.length_of(self.task, self.directions(round_, attempt), self.experiment.local.bins)

    def attempt(self, cohort: Cohort, round_: int = 1, attempt: int = 0):
        return attempt_of(self.task, cohort, self.directions(round_, attempt))

    def ledger(self, site: int) -> Path:
        return self.folder / f"site{site}" / f"client-{site}.sqlite"

    def charged(self, site: int) -> list[tuple[int, int]]:
        """The attempts that a site's ledger has."""
        if not self.ledger(site).exists():
            return []
        with Ledger.open(self.ledger(site), read_only=True) as ledger:
            return [(entry.round, entry.attempt) for entry in ledger.entries()]
