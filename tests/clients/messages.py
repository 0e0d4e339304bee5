"""What may travel, trust model by trust model: every array, metric and setting of every message, with its shape.

    r parameters, d dimension of the outputs, k directions, c cells, B bins of a table
    n records of the attempt's batch at the client, N records of the client, Nc of them in cell c
    P rows that the client's messages are filled up to: the most that it could be asked for

A text is `str`; a lone number is (); a list of numbers has a length. Whatever is not written here may not travel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsw.experiment import Experiment
from fedsw.federation.budgets.split import own_batch
from fedsw.tasks.problem import Problem

Shape = tuple[str | int, ...] | type
Record = Mapping[str, Shape]
Message = Mapping[str, Record]

_ASKED: Record = {"round": (), "attempt": ()}
_MODEL: Message = {"model": {"theta": ("r",)}}
_NONCE: Record = {"nonce": (2,)}  # drawn afresh, so that no record equals another
_SPENT: Record = {"epsilon": (), **_NONCE}

_GREETING: Message = {"config": {"experiment": str, "run": str}}
_PUBLIC: Record = {"partition-id": (), "sizes": ("c",), **_NONCE}
_HELLO: tuple[Message, Message] = (_GREETING, {"metrics": _PUBLIC})
_LOCAL_HELLO: tuple[Message, Message] = (_GREETING, {"metrics": {**_PUBLIC, **_SPENT}})
_TRUSTED: Mapping[str, tuple[Message, Message]] = {
    "query.hello": _HELLO,
    "train.outputs": (
        {**_MODEL, "config": {**_ASKED, "counts": ("c",), "rows": (), **_NONCE}},
        {"arrays": {"outputs": ("P", "d")}},
    ),
    "train.gradients": (
        {**_MODEL, "arrays": {"cotangents": ("P", "d")}, "config": {**_ASKED, "task-weight": (), **_NONCE}},
        {"arrays": {"contribution": ("r",)}},
    ),
}
TABLE: Mapping[str, Mapping[str, tuple[Message, Message]]] = {
    "central": _TRUSTED,
    "none": _TRUSTED,
    "local-gradient": {
        "query.hello": _LOCAL_HELLO,
        "train.tables": (
            {**_MODEL, "config": {**_ASKED, "sizes": ("c",), "records": ()}},
            {"arrays": {"noised": ("c", "k", "B")}, "metrics": {**_SPENT, "sigma": ()}},
        ),
        "train.local_gradients": (
            {**_MODEL, "arrays": {"tables": ("c", "k", "B")}, "config": {**_ASKED, "sizes": ("c",), "records": ()}},
            {"arrays": {"noised": ("r",)}, "metrics": {**_SPENT, "sigma": ()}},
        ),
    },
    "local-slices": {
        "query.hello": _LOCAL_HELLO,
        "train.slices": (
            {"config": {**_ASKED, "records": ()}},
            {"arrays": {"projections": ("n", "k")}, "metrics": {**_SPENT, "sigma": ()}},
        ),
    },
    "local-release": {
        "query.hello": _LOCAL_HELLO,
        "train.release": (
            {"config": {**_ASKED, "records": ()}},
            {"arrays": {"released": ("N", "d")}, "metrics": _SPENT},
        ),
    },
}
OWN_DIRECTIONS: Record = {"directions": ("d", "k")}
"""In the reply to train.slices where the privacy of slices rests on the client's own draw of directions."""
SEEDED_IDS: Callable[[int], Record] = lambda cells: {str(cell): (f"N{cell}",) for cell in range(cells)}  # noqa: E731
"""In the reply to query.hello of a seeded (nominal) run: the ids of the records of every cell."""
UNSAFE: Record = {"training-loss": (), "num-examples": (), **_NONCE}
"""In the reply to train.gradients where `unsafe_metrics` asks for it."""


class Inspector:
    """Compares messages with the table; `faults` says what they should not have carried."""

    def __init__(self, experiment: Experiment) -> None:
        self._task, self._experiment = Problem.from_experiment(experiment), experiment
        self._sizes: dict[int, list[int]] = {}
        self._batch: dict[int, int] = {}
        self._rows: dict[int, int] = {}
        self.kinds: set[str] = set()
        self.faults: list[str] = []

    def request(self, message: Any, context: Any) -> None:
        """A message on its way to a client."""
        client, kind = int(context.node_config["partition-id"]), message.metadata.message_type
        if kind not in self._table:
            self.faults.append(f"{kind} is no message of trust {self._experiment.privacy.trust}")
            return
        if kind == "train.outputs":
            self._rows[client] = message.content["config"]["rows"]
        self._compare(f"{kind} down", message.content, self._table[kind][0], client)

    def reply(self, message: Any, reply: Any, context: Any) -> None:
        """A client's answer."""
        client, kind = int(context.node_config["partition-id"]), message.metadata.message_type
        self.kinds.add(kind)
        if not reply.has_content():
            self.faults.append(f"{kind} up carries an error: {reply.error.reason}")
            return
        allowed = dict(self._table.get(kind, ({}, {}))[1])
        if kind == "query.hello":
            self._sizes[client] = [int(size) for size in reply.content["metrics"]["sizes"]]
            if self._experiment.seed is not None:
                allowed["arrays"] = SEEDED_IDS(len(self._sizes[client]))
        if kind == "train.gradients" and self._experiment.unsafe_metrics:
            allowed["metrics"] = UNSAFE
        if kind == "train.slices":
            if self._experiment.slicing.scheme == "iid":
                allowed["arrays"] = {**allowed["arrays"], **OWN_DIRECTIONS}
            self._batch[client] = own_batch(self._sizes[client], self._experiment.training.batch_fraction)[0]
        self._compare(f"{kind} up", reply.content, allowed, client)

    @property
    def _table(self) -> Mapping[str, tuple[Message, Message]]:
        return TABLE[self._experiment.privacy.trust]

    def _compare(self, where: str, content: RecordDict, allowed: Message, client: int) -> None:
        for name, record in content.items():
            for key, value in record.items():
                found = f"{where}: {name}[{key!r}]"
                if key not in allowed.get(name, {}):
                    self.faults.append(f"{found} is not in the table")
                    continue
                shape, wanted = _shape(record, value), self._numbers(allowed[name][key], client)
                if shape != wanted:
                    self.faults.append(f"{found} has shape {shape}, not {wanted}")
        for name, record in allowed.items():
            if missing := sorted(set(record) - set(content.get(name, {}))):
                self.faults.append(f"{where}: {name}[{missing[0]!r}] is in the table and did not come")

    def _numbers(self, shape: Shape, client: int) -> tuple[int, ...] | type:
        if not isinstance(shape, tuple):
            return shape
        task, sizes = self._task, self._sizes.get(client, [])
        known = {
            "r": task.parameters,
            "d": task.dimension,
            "k": task.directions(1, 0).shape[1],
            "c": len(task.objective.cells),
            "B": self._experiment.local.bins,
            "n": self._batch.get(client, -1),
            "P": self._rows.get(client, -1),
            "N": sum(sizes),
            **{f"N{cell}": size for cell, size in enumerate(sizes)},
        }
        return tuple(known[side] if isinstance(side, str) else side for side in shape)


def _shape(record: ArrayRecord | ConfigRecord | MetricRecord, value: Any) -> tuple[int, ...] | type:
    if isinstance(record, ArrayRecord):
        return tuple(value.shape)
    if isinstance(value, list):
        return (len(value),)
    return () if isinstance(value, int | float) else type(value)
