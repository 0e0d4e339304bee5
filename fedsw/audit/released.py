"""The released path of one data set: a federation in this process with real rounds, draws and releases."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from numpy.typing import NDArray

from fedsw.accounting import Ledger
from fedsw.audit.neighbours import Neighbours, staged
from fedsw.engines.inprocess import InProcessGrid, node_configs
from fedsw.experiment import Experiment
from fedsw.federation.client.app import app as client_app
from fedsw.federation.exchange.availability import Availability
from fedsw.federation.exchange.cohort import gather, whole
from fedsw.federation.exchange.exchange import Traffic
from fedsw.federation.exchange.spending import Spending
from fedsw.federation.node.node import Node, batch_key, join
from fedsw.federation.trust.central import server as central
from fedsw.federation.trust.central.rounds import Aggregate, Rounds
from fedsw.federation.trust.plan import draw, make_plan
from fedsw.models import flatten
from fedsw.runs.files import LEDGER
from fedsw.tasks.problem import Problem

_NUMBERS = 2**21  # of one release of many copies


class Released:
    """One data set behind the real apps: ServerApp and ClientApp code, messages, and a throw-away ledger.

    A context manager. Its rounds are all at the initial model, which nothing released moves.

    Args:
        experiment: of trust `central`, without a seed: sampling and noise are drawn for real.
        neighbours: whose records the clients hold; None for the experiment's own, to learn sizes from.
        canary: which of the two data sets.
        folder: for the ledger.
    """

    def __init__(self, experiment: Experiment, neighbours: Neighbours | None, folder: Path, *, canary: bool) -> None:
        folder.mkdir(parents=True)
        clients = experiment.federation.clients
        alone = experiment.federation.model_copy(update={"sites": clients})
        experiment = experiment.model_copy(update={"federation": alone})
        self._configs = node_configs(clients, folder)
        self._grid = InProcessGrid(client_app, self._configs)
        self._name = folder.name
        try:
            with staged(neighbours, canary=canary):
                self.task = Problem.from_experiment(experiment)
                traffic = Traffic()
                self.sites = gather(self._grid, self.task, self._name, traffic)
                self.plan = make_plan(self.task, self.sites)
                self._theta = flatten(self.task.build_model())
                availability = Availability(self._grid, self.task, self.sites, self._name, traffic, Spending())
                self._attempts = Counter[int]()
                self._rounds = Rounds(self._grid, self.plan, self.sites, availability, traffic, self._begin)
            self._ledger = Ledger.create(
                folder / LEDGER,
                groups=self.task.objective.cells,
                delta=self.plan.delta,
                epsilon=math.inf,
                accountant=experiment.privacy.accountant,
                nominal=False,
            )
        except BaseException:
            self._grid.close()
            raise

    @property
    def sigma(self) -> float:
        """What the plan says of the noise's standard deviation."""
        return self.plan.multiplier * max(bound.value for bound in self.plan.sensitivities)

    def sum(self, round_: int) -> Aggregate:
        """The un-noised sum of one real round, both exchanges, at a fresh attempt."""
        return self._rounds.run(round_, self._theta)

    def release(self, aggregate: Aggregate, count: int) -> Iterator[NDArray[np.float64]]:
        """`count` independent releases of a sum by `trust.central.server.release`, in parts (n, r), each call charged.

        Noise is drawn coordinate by coordinate, so one release of a vector that holds the sum many times over has the
        law of as many releases of it.
        """
        while count > 0:
            copies = min(count, max(1, _NUMBERS // aggregate.vector.numel()))
            yield self._release(aggregate, copies)
            count -= copies

    def release_singly(self, aggregate: Aggregate, count: int) -> Iterator[NDArray[np.float64]]:
        """The same in parts (1, r), with one call and one row of the ledger for each."""
        for _ in range(count):
            yield self._release(aggregate, 1)

    def times_drawn(self, neighbours: Neighbours, trials: int) -> int:
        """In how many of so many draws, by server and client, the canary is in the batch."""
        place = [int(site.clients[0]) for site in self.sites].index(neighbours.client)
        node = self._node(neighbours.client)
        canary = node.records.ids[node.units.all_rows(node.cells[neighbours.cell][:1])]
        found = 0
        for trial in range(trials):
            counts = draw(self.plan, whole(self.sites), round_=1, attempt=trial).counts[place]
            records = node.draw(batch_key(self.task, 1, trial), counts)
            found += int(torch.isin(records.ids, canary).any())
        return found

    def holder(self, cell: int) -> int:
        """The client with most records of a cell."""
        return int(max(self.sites, key=lambda site: int(site.sizes[0, cell])).clients[0])

    def __enter__(self) -> Released:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._ledger.close()
        self._grid.close()

    def _node(self, client: int) -> Node:
        """The client's node, as its first message made it."""
        found = self.task.experiment.model_dump_json()
        return join(found, self._name, self._grid.run_id, self._configs[client])

    def _begin(self, round_: int) -> int:
        self._attempts[round_] += 1
        return self._attempts[round_]

    def _release(self, aggregate: Aggregate, copies: int) -> NDArray[np.float64]:
        size = aggregate.vector.numel()
        many = dataclasses.replace(
            aggregate, vector=aggregate.vector.repeat(copies), attempt=self._begin(aggregate.round)
        )
        released = central.release(many, self.plan, self._ledger).value
        return torch.as_tensor(released).reshape(copies, size).numpy()
