"""A node at work: its batch, its outputs, its clipped contribution; `replies` makes it of a client's records."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsw._tools.randomness import KEY_BYTES, Stream
from fedsw.data import Records
from fedsw.data.units import Units
from fedsw.experiment import resolve_delta
from fedsw.federation.node.held_records import Held, cells_of_units, sampled
from fedsw.learning.moments.preparation import Preparation
from fedsw.learning.tasks.objective import ForwardPass
from fedsw.learning.tasks.problem import Problem


@dataclass
class Node:
    """A process with the records of one client or of many, by cell, its task, and the batch between two exchanges.

    With several clients it is a site. What is drawn, and counted, are units (`fedsw.data.units`): where none is
    declared, every record is one.

    Attributes:
        cells: numbers of the units of every cell, client after client.
        run: the server's name for the run, which it keeps when it is resumed; a ledger is for one of them.
        clients: numbers of its clients in the federation, (S,), ascending.
        starts: for every cell, where each client's places begin, and the end: (S + 1,).
        held_out: the records that its clients keep out of training, where something of them is released.
        settings: the experiment as the server sent it.
        digest: that of its records under the key of its state folder, once it was taken.
    """

    task: Problem
    records: Records
    cells: tuple[NDArray[np.int64], ...]
    model: nn.Module
    run: str = ""
    clients: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    starts: tuple[NDArray[np.int64], ...] = ()
    batch: ForwardPass | None = field(default=None)
    held_out: Node | None = field(default=None)
    settings: str = ""
    digest: bytes | None = None

    def __post_init__(self) -> None:
        """Let one client hold all records where ``starts`` name no others, and number the units by client."""
        self._work_on(self.task.of_holder())
        self.starts = self.starts or tuple(np.array([0, len(cell)]) for cell in self.cells)
        self.units = Units.of(self.records)
        owner = np.zeros(len(self.units), dtype=np.int64)
        for cell, starts in zip(self.cells, self.starts, strict=True):
            owner[cell] = np.repeat(self._places, np.diff(starts))
        self.units = self.units.of_clients(owner, self.clients, self.task.experiment.federation.clients)
        self._alone: dict[int, Node] = {}
        self._readied: tuple[Problem, Records] | None = None

    @classmethod
    def of(cls, task: Problem, held: Held, run: str) -> Node:
        """The node of some clients' records."""
        cells, owner = cells_of_units(task, held.records), held.owner[Units.of(held.records).firsts]
        count, owners = len(held.clients), [owner[cell] for cell in cells]
        if count > 1:
            cells = tuple(cell[np.argsort(owner, kind="stable")] for cell, owner in zip(cells, owners, strict=True))
        starts = tuple(np.append(0, np.cumsum(np.bincount(owner, minlength=count))) for owner in owners)
        return cls(task, held.records, cells, task.build_model(), run, held.clients, starts)

    def under(self, task: Problem) -> Node:
        """The same clients and records under a task that differs in what `training.preset` chose only."""
        held_out = None if self.held_out is None else self.held_out.under(task)
        return replace(self, task=task, model=task.build_model(), batch=None, held_out=held_out)

    @property
    def sizes(self) -> list[int]:
        """Number of this node's units in each cell; public."""
        return [len(cell) for cell in self.cells]

    @functools.cached_property
    def held(self) -> NDArray[np.int64]:
        """Number of each client's units in each cell, (S, c); public."""
        return np.stack([np.diff(starts) for starts in self.starts], axis=1)

    @functools.cached_property
    def by_group(self) -> NDArray[np.int64]:
        """Number of each client's units in each group, (S, groups); public."""
        group = self.records.sensitive.numpy()[self.units.firsts]
        groups = len(self.task.groups)
        return np.stack([np.bincount(group[self.units_of(position)], minlength=groups) for position in self._places])

    @property
    def _places(self) -> range:
        return range(len(self.clients))

    @property
    def ids(self) -> list[NDArray[np.int64]]:
        """Global ids (n_j,) of the units in each cell j, client after client; shared in seeded runs only."""
        return [self.units.ids[cell] for cell in self.cells]

    def delta(self, federation: int, units: int | None = None) -> float:
        """The guarantee's delta, by the federation's units: at least as many as this node or one of its clients has."""
        records = max(federation, len(self.units) if units is None else units)
        return resolve_delta(self.task.experiment.privacy.delta, records=records)

    def alone(self, position: int) -> Node:
        """One of its clients as a node of its own, with a copy of its records, made when first asked for."""
        if len(self.clients) == 1:
            return self
        if position not in self._alone:
            records = self.records.take(np.sort(self.units.all_rows(self.units_of(position))))
            number, model = self.clients[position : position + 1], self.task.build_model()
            held_out = None if self.held_out is None else self.held_out.alone(position)
            cells = cells_of_units(self.task, records)
            self._alone[position] = Node(self.task, records, cells, model, self.run, number, held_out=held_out)
        if self._alone[position].task is not self.task:
            self._alone[position]._work_on(self.task)
        return self._alone[position]

    def prepare(self, vector: Tensor) -> None:
        """Let features go through a flat `Preparation`, a public map, before the model, and clip in its scale.

        Kept records stay as they are: what is measured on them is the model for features as they are.
        """
        known = self.task.preparation
        if known is None or not torch.equal(known.flat(), vector):
            self._work_on(self.task.under(Preparation.of_flat(vector, self.task.features)))
            self.batch = None

    def _work_on(self, task: Problem) -> None:
        self.task = task
        if task.places:  # the layer has the preparation in it
            self.model = task.build_model()

    def own_stream(self, round_: int, attempt: int, purpose: str) -> Stream:
        """This client's secret randomness of one purpose; reproducible only in a seeded (nominal) run."""
        seed = self.task.experiment.seed
        if seed is None:
            return Stream.secure()
        first = int(self.units.ids.min())  # a client's number in the seeded run: the least id of its records, or units
        return Stream.seeded(seed, purpose, first, round_, attempt)

    def units_of(self, position: int) -> NDArray[np.int64]:
        """Numbers (k,) of one client's units, cell by cell."""
        cells = zip(self.cells, self.starts, strict=True)
        return np.concatenate([cell[starts[position] : starts[position + 1]] for cell, starts in cells])

    def lost(self, round_: int, attempt: int) -> NDArray[np.int64]:
        """Positions (L,) of its clients that are lost between the exchanges of an attempt; public.

        Where drop-outs are simulated each client is, with the probability `federation.drop_out`, whatever process it
        is in.
        """
        experiment = self.task.experiment
        if experiment.federation.drop_out == 0:
            return np.empty(0, dtype=np.int64)
        stream = Stream.seeded(experiment.partition.seed, "drop-outs", round_, attempt)
        drawn = stream.uniforms(int(self.clients[-1]) + 1)[self.clients]
        return np.flatnonzero(drawn < experiment.federation.drop_out)

    def draw(self, key: bytes, counts: Sequence[int] | NDArray[np.int64]) -> Records:
        """A uniform sample without replacement of the asked count of every client and cell, decided by `key` only.

        Units are drawn, and of each of them one of its rows. In a seeded run keys belong to global ids, so that under
        the shared key the clients' samples fit together; in a private one the key is this node's only, and so are the
        numbers of its records.

        Counts are by client and cell, (S, c), as is the order of the records.

        Raises:
            ValueError: if a count is missing, or beyond what a client holds.
        """
        wanted = np.asarray(counts, dtype=np.int64)
        if wanted.ndim == 1 and len(self.clients) == 1:
            wanted = wanted[None, :]
        if wanted.shape != self.held.shape:
            raise ValueError(f"{wanted.shape[-1]} counts came for {len(self.cells)} groups")
        if bool((wrong := (wanted < 0) | (wanted > self.held)).any()):
            client, group = (int(index) for index in np.argwhere(wrong)[0])
            raise ValueError(
                f"{wanted[client, group]} records asked from {self.held[client, group]}; a sample without replacement "
                "cannot exceed its group"
            )
        stream, ids = Stream(key), self.units.ids
        words = stream.words(int(ids.max()) + 1) if self.seeded else None
        chosen = []
        for cell, starts, count in zip(self.cells, self.starts, wanted.T, strict=True):

            def keys(places: NDArray[np.int64], cell: NDArray[np.int64] = cell) -> NDArray[np.uint64]:
                return stream.words(len(places)) if words is None else words[ids[cell[places]]]

            chosen.append(cell[sampled(starts, count, keys)])
        return self.rows_of(np.concatenate(chosen), stream)

    @property
    def seeded(self) -> bool:
        """True if draws are reproducible: the run's guarantee is then nominal."""
        return self.task.experiment.seed is not None

    def rows_of(self, units: NDArray[np.int64], stream: Stream) -> Records:
        """A row of each of some units (k,), drawn anew, by a stream that follows from the one that decided on them.

        Without a declared unit, these records.
        """
        return self.taken.take(self.units.one_row_each(units, stream.child("rows"), seeded=self.seeded))

    def everybody(self, stream: Stream) -> Records:
        """A row of every unit, drawn anew, in the order of the units; without a declared unit, all records."""
        return self.rows_of(np.arange(len(self.units)), stream) if self.units.declared else self.taken

    @property
    def taken(self) -> Records:
        """The records that batches are drawn from: where it costs much, they are coded once and prepared once.

        Codes are forgotten when they were prepared, so that there is one copy of them beside the records.
        """
        if not self.task.ready:
            return self.records
        if self._readied is None or self._readied[0] is not self.task:
            before, self._readied = self._readied, None
            if before is None or before[0].preparation is not None:
                records = self.task.readied(self.records)
            else:
                records = self.task.prepared_codes(before[1])
            self._readied = self.task, records
        return self._readied[1]

    def without(
        self, batch: ForwardPass, counts: NDArray[np.int64], cotangents: Tensor, lost: NDArray[np.int64]
    ) -> tuple[ForwardPass, Tensor]:
        """The batch and its cotangents (n, d) without the rows of the clients that are lost; counts (S, c) as drawn."""
        if len(lost) == 0:
            return batch, cotangents
        present = np.ones(len(self.clients), dtype=bool)
        present[lost] = False
        rows = np.flatnonzero(np.concatenate([np.repeat(present, column) for column in counts.T]))
        left = ForwardPass(batch.round, batch.attempt, batch.records.take(rows), batch.model)
        return left, cotangents[torch.from_numpy(rows)]

    def forward(self, theta: Tensor, records: Records, round_: int, attempt: int) -> tuple[ForwardPass, Tensor]:
        """Run the model on a batch; returns it with the projected outputs (n_c, d) that may be sent."""
        model = self.task.prepared(self.model, theta)
        self.batch = self.task.clipped.forward(model, records, round_, attempt)
        return self.batch, self._sent(self.batch)

    def at_hand(self, theta: Tensor, records: Records, round_: int, attempt: int) -> tuple[ForwardPass, Tensor]:
        """As `forward`, without another pass if the attempt's batch is still in memory; theta (r,)."""
        batch = self.batch
        if batch is None or batch.tape is None or (batch.round, batch.attempt) != (round_, attempt):
            return self.forward(theta, records, round_, attempt)
        if not torch.equal(batch.records.ids, records.ids):
            return self.forward(theta, records, round_, attempt)
        return batch, self._sent(batch)

    def _sent(self, batch: ForwardPass) -> Tensor:
        """The outputs (n, columns) as they travel: on the host, in the precision of the model."""
        return self.task.clipped.outputs(batch).to(self.task.dtype).cpu()


def batch_key(task: Problem, round_: int, attempt: int) -> bytes:
    """The key of an attempt's sample: fresh from the operating system, or derived from the seed in a nominal run."""
    seed = task.experiment.seed
    if seed is None:
        return os.urandom(KEY_BYTES)
    return task.seeded_batch_key(round_, attempt)
