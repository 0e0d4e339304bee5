"""A node at work: its batch, its outputs, its clipped contribution."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsw.clipping import Tape, Term, UnsupportedModule, clipped_sum, record
from fedsw.clipping.clip import Mode
from fedsw.data import BadRecords, Records
from fedsw.experiment import Experiment, ExperimentError, resolve_delta
from fedsw.federation.node.limits import (
    require_delta,
    require_limits,
    require_modules,
    require_own_folder,
    withholds_records,
)
from fedsw.federation.node.partition import node_records, require_agreement
from fedsw.randomness import KEY_BYTES, Stream, smallest_keys
from fedsw.subnormal import flushing_to_zero
from fedsw.tasks.problem import Problem

_log = logging.getLogger("fedsw.clients")

_MOST_NODES_KEPT = 256
_nodes: OrderedDict[tuple[int, int], Node] = OrderedDict()


@dataclass(frozen=True)
class Batch:
    """One attempt's records at one node, in the order of the task's cells, under the model they were met with."""

    round: int
    attempt: int
    records: Records
    model: nn.Module
    tape: Tape | None
    outputs: Tensor | None = None


@dataclass
class Node:
    """A node's records by cell, its task, and the batch between the two exchanges of an attempt.

    `run` is the server's name for the run, which it keeps when it is resumed; a ledger is for one of them.
    """

    task: Problem
    records: Records
    cells: tuple[NDArray[np.int64], ...]
    model: nn.Module
    run: str = ""
    batch: Batch | None = field(default=None)

    @property
    def sizes(self) -> list[int]:
        """Number of this node's records in each cell; public."""
        return [len(cell) for cell in self.cells]

    @property
    def ids(self) -> list[NDArray[np.int64]]:
        """Global record ids (n_j,) in each cell j; shared in seeded runs only."""
        ids = self.records.ids.numpy()
        return [ids[cell] for cell in self.cells]

    def delta(self, federation: int) -> float:
        """The guarantee's delta where the federation has that many records, and never fewer than this node alone."""
        return resolve_delta(self.task.experiment.privacy.delta, records=max(federation, len(self.records)))

    def draw(self, key: bytes, counts: Sequence[int]) -> Records:
        """A uniform sample without replacement of the asked count of every cell, decided by `key` alone.

        In a seeded run keys belong to global record ids, so that under the shared key the clients' samples fit
        together; in a private one the key is this node's alone, and so are the numbers of its records.
        """
        if len(counts) != len(self.cells):
            raise ValueError(f"{len(counts)} counts came for {len(self.cells)} groups")
        if self.task.experiment.seed is None:
            stream = Stream(key)
            keys = [stream.words(size) for size in self.sizes]
        else:
            ids = self.records.ids.numpy()
            words = Stream(key).words(int(ids.max()) + 1)
            keys = [words[ids[cell]] for cell in self.cells]
        pairs = zip(self.cells, keys, counts, strict=True)
        chosen = [cell[smallest_keys(own, count)] for cell, own, count in pairs]
        return self.records.take(np.concatenate(chosen))

    @flushing_to_zero
    def forward(self, theta: Tensor, records: Records, round_: int, attempt: int) -> tuple[Batch, Tensor]:
        """Run the model on a batch; returns it with the projected outputs (n_c, d) that may be sent."""
        model = self.task.prepared(self.model, theta)
        chunks = list(self.task.chunks(records))
        if len(chunks) == 1:
            given = self.task.given(records)
            tape = record(model, given.features)
            outputs = self.task.heads(tape.raw, given)
            self.batch = Batch(round_, attempt, records, model, tape, outputs)
            return self.batch, self.task.inside(outputs)
        self.batch = Batch(round_, attempt, records, model, None)
        pieces = map(self.task.given, chunks)
        parts = [self.task.projected(record(model, piece.features).raw, piece) for piece in pieces]
        return self.batch, torch.cat(parts) if parts else self.task.no_outputs()

    @flushing_to_zero
    def contribution(self, batch: Batch, cotangents: Tensor, task_weight: float) -> tuple[Tensor, float]:
        """Sum over the batch of clipped Jacobian^T cotangent + weighted clipped loss gradient, flat float64.

        Guarantee: its l2 norm is at most L * sum ||q_i|| + n_c * task_weight * C, whatever the records hold.
        Returns it with the mean un-noised task loss for the unsafe metrics; 0 without them, and for an empty batch.
        """
        clip, mode = self.task.clip, self.task.experiment.clip.mode
        total: Tensor | None = None
        loss, start = 0.0, 0
        for chunk in self.task.chunks(batch.records):
            given = self.task.given(chunk)
            tape = batch.tape or record(batch.model, given.features)
            losses = self.task.losses(tape.raw, given)
            weights = torch.full((len(chunk),), task_weight, dtype=torch.float64, device=losses.device)
            part = cotangents if chunk is batch.records else cotangents[start : start + len(chunk)]
            terms = []
            if self.task.objective.alpha > 0:
                heads = self.task.heads(tape.raw, given) if batch.outputs is None else batch.outputs
                terms += self._pulled(heads, part.to(losses.device), mode)
            if task_weight > 0:
                terms.append(Term(losses, weights, clip.loss, "spectral"))
            found = clipped_sum(tape, terms).cpu()
            total = found if total is None else total + found
            if self.task.experiment.unsafe_metrics:
                loss += float(losses.detach().sum())
            start += len(chunk)
        if total is None:
            total = torch.zeros(self.task.parameters, dtype=torch.float64)
        return total, loss / max(1, start)

    def _pulled(self, heads: Tensor, cotangents: Tensor, mode: Mode) -> list[Term]:
        """A term for every penalty, each with its own clip."""
        compared = self.task.compared
        if len(compared) == 1:
            return [Term(heads, cotangents, compared[0].clip.jacobian, mode)]
        return [Term(heads[:, e.columns], cotangents[:, e.columns], e.clip.jacobian, mode) for e in compared]


def join(experiment_json: str, run: str, run_id: int, node_config: Mapping[str, Any]) -> Node:
    """This node in a run: loaded and validated on the first message, remembered while the process runs.

    Args:
        run: the server's name for the run.
        run_id: Flower's number for it, another one when the run is resumed.
    """
    key = (run_id, int(node_config.get("partition-id", 0)))
    if key not in _nodes:
        _nodes[key] = _load(experiment_json, run, node_config, client=key[1])
        while len(_nodes) > _MOST_NODES_KEPT:
            _nodes.popitem(last=False)
    _nodes.move_to_end(key)
    return _nodes[key]


def _load(experiment_json: str, run: str, node_config: Mapping[str, Any], *, client: int) -> Node:
    """What the operator agrees to is settled before a file is opened.

    A server that is not trusted does not learn what is wrong with a record: an error that quotes it goes to the log.
    """
    experiment = Experiment.model_validate_json(experiment_json)
    require_limits(experiment, node_config)
    require_own_folder(experiment, node_config)
    require_agreement(experiment.data.columns, node_config)
    require_modules(experiment, node_config)
    torch.set_num_threads(experiment.federation.threads)
    try:
        task = Problem.from_json(experiment_json, node_config.get("data-dir"))
        records = node_records(task, node_config)
    except (ExperimentError, UnsupportedModule, FileNotFoundError):
        raise  # of settings, and of where files are
    except Exception as fault:
        if not withholds_records(experiment, node_config):
            raise
        _log.error("%s", fault)
        known = isinstance(fault, BadRecords)
        why = "do not fit the declared columns; its own log says where" if known else "cannot be used; see its own log"
        raise ValueError(f"client {client}'s records {why}") from None
    require_delta(experiment, node_config, records=len(records))
    return Node(task, records, task.cells_of(records), task.build_model(), run)


def batch_key(task: Problem, round_: int, attempt: int) -> bytes:
    """The key of an attempt's sample: fresh from the operating system, or derived from the seed in a nominal run."""
    seed = task.experiment.seed
    if seed is None:
        return os.urandom(KEY_BYTES)
    return task.seeded_batch_key(round_, attempt)
