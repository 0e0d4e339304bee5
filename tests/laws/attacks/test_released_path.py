"""What one record moves through the server's own rounds, with real messages: within the bound, and near it.

Clients answer with outputs that an adversary chose. Fixed Jacobians of norm L that add up everything the replacement
changes turn the cotangents that arrive into a gradient (`tests.adversary`): its movement is what is measured.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from torch import Tensor

from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation import messages, wire
from fedsw.federation.client import app as client_app
from fedsw.federation.trust.central import rounds as central
from fedsw.federation.trust.central.rounds import Aggregate
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.sensitivity import SLACK
from tests.federations import Federation, array_record, counts_of, numbers, small
from tests.laws.runs.test_matching_runs import GENERATOR

RECORDS = 40
ALL_OF_THEM = ("training.batch_fraction=1.0", "training.rounds=1", f"data.records={RECORDS}", "federation.clients=2")
FREE = ("privacy.epsilon=inf", "privacy.noise_multiplier=1.0")


class Puppets:
    """Clients with chosen outputs, cell by cell in client order; they keep the cotangents that they are sent."""

    def __init__(self, task: Problem, outputs: Sequence[Tensor]) -> None:
        self._task, self._outputs = task, outputs
        self._given, self._counts = [0] * len(outputs), []
        self._pieces: list[list[Tensor]] = [[] for _ in outputs]

    def __call__(self, message, context):
        kind, content = message.metadata.message_type, message.content
        if kind == messages.OUTPUTS.kind:
            return self._reply(message, "outputs", self._own(message))
        if kind == messages.GRADIENTS.kind:
            array = content["arrays"]["cotangents"]
            rows = torch.from_numpy(numbers(array)).double()
            counts = self._counts.pop(0)
            for cell, part in enumerate(torch.split(rows[: sum(counts)], counts)):
                self._pieces[cell].append(part)
            return self._reply(message, "contribution", torch.zeros(self._task.parameters, dtype=torch.float64))
        return client_app(message, context)

    @property
    def cotangents(self) -> list[Tensor]:
        """Of every cell's records."""
        return [torch.cat(pieces) for pieces in self._pieces]

    def _own(self, message) -> Tensor:
        counts, parts = counts_of(message), []
        for cell, count in enumerate(counts):
            start = self._given[cell]
            parts.append(self._outputs[cell][start : start + count])
            self._given[cell] += count
        self._counts.append(counts)
        return wire.padded(torch.cat(parts).to(self._task.dtype), int(message.content["config"]["rows"]))

    def _reply(self, message, name: str, values: Tensor) -> Message:
        record: ArrayRecord = array_record(name, values)
        if name == "contribution":
            record["lost"] = array_record("lost", torch.zeros(0, dtype=torch.int64))["lost"]
        return Message(RecordDict({"arrays": record}), reply_to=message)


def _run(folder, monkeypatch, experiment: Experiment, outputs: Sequence[Tensor]) -> tuple[Aggregate, Puppets]:
    seen: list[Aggregate] = []
    release = central.release
    with monkeypatch.context() as patch:
        patch.setattr(central, "release", lambda a, plan, ledger: (seen.append(a), release(a, plan, ledger))[1])
        puppets = Puppets(Problem.from_experiment(experiment), outputs)
        Federation(folder).run(experiment, app=puppets)
    return seen[0], puppets


THREE = (
    "objective.task=representation",
    "model.kind=encoder-decoder",
    "model.hidden=[8]",
    "model.latent=3",
    "slicing.directions=6",
)


def _levels(seed: int) -> tuple[Tensor, Tensor, float]:
    """Outputs of both groups and what the first record of the first becomes; the first two are the worst known."""
    ones = torch.ones((RECORDS, 1), dtype=torch.float64)
    if seed == 0:  # all others far away, the record stays and its Jacobian turns round: Theorem 5 is attained
        own = -ones
        own[0] = 1.0
        return own, -ones, 1.0
    if seed == 1:  # groups that nearly agree, and one record that leaves: a common scale would leap
        return 0.05 * ones, 0.0 * ones, 1.0
    if seed == 2:  # one record holds the largest gap, and gives it up
        own = 0.05 * ones
        own[0] = -1.0
        return own, 0.0 * ones, 0.05
    generator = torch.Generator().manual_seed(seed)
    own, other = (2 * torch.rand((2, RECORDS, 1), generator=generator, dtype=torch.float64) - 1) * 1.5
    return own, other, float(4 * torch.rand((), generator=generator) - 2)


@pytest.mark.parametrize(
    ("cell", "d", "seed"),
    [*((0, 1, seed) for seed in range(6)), (1, 1, 0), (1, 1, 3), (0, 3, 0), (0, 3, 2), (0, 3, 3)],
)
def test_no_record_moves_what_the_rounds_send_by_more_than_its_bound(tmp_path, monkeypatch, seed, cell, d):
    """In more than one dimension the outputs lie on a line through the middle of the ball."""
    chosen = ("objective.alpha=1.0", "clip.output=1.0", "clip.jacobian=1.0", *ALL_OF_THEM, *FREE)
    experiment = small(*chosen, *(THREE if d == 3 else ()))
    line = torch.tensor([[1.0]] if d == 1 else [[2 / 3, -2 / 3, 1 / 3]], dtype=torch.float64)
    own, other, becomes = _levels(seed)
    own, other = own * line, other * line
    replaced = own.clone()
    replaced[0] = becomes * line
    found = []
    for name, chosen in (("before", own), ("after", replaced)):
        by_cell = (chosen, other) if cell == 0 else (other, chosen)
        found.append(_run(tmp_path / name, monkeypatch, experiment, by_cell))
    (aggregate, before), (_, after) = found
    bound = aggregate.sensitivities[cell].value
    moved = 0.0
    for index, (q, p) in enumerate(zip(before.cotangents, after.cotangents, strict=True)):
        gaps = torch.linalg.vector_norm(q - p, dim=1)
        if index == cell:
            gaps[0] = torch.linalg.vector_norm(q[0]) + torch.linalg.vector_norm(p[0])
        moved += float(gaps.sum())
    assert 0 < moved <= bound
    if seed == 0 and d == 1:
        assert moved == pytest.approx(bound / SLACK, rel=1e-6)


def test_a_client_reads_others_outputs_off_its_own_cotangents_so_the_sentence_trusts_clients(tmp_path, monkeypatch):
    """What a client is sent of the other group's outputs is protected by its promise to keep it, nothing else."""
    alike = ("training.batch_size=16", "training.rounds=1", f"data.records={RECORDS}", "federation.clients=2")
    experiment = small("objective.alpha=1.0", "clip.output=1.0", "clip.jacobian=1.0", *alike, *FREE)
    own, other, _ = _levels(4)
    aggregate, puppets = _run(tmp_path, monkeypatch, experiment, (own, other))
    assert tuple(aggregate.draw.batch) == (16, 16)
    mine, theirs = own[:16].clamp(-1.0, 1.0), other[:16].clamp(-1.0, 1.0)
    read = mine - puppets.cotangents[0] * 16 / 2
    torch.testing.assert_close(read.sort(dim=0)[0], theirs.sort(dim=0)[0], rtol=0, atol=1e-6)
    summary = json.loads((tmp_path / "run1" / "summary.json").read_text())
    assert "server and clients are trusted to follow the protocol" in summary["guarantee"]["against"]


@pytest.mark.parametrize("seed", range(4))
def test_no_record_moves_a_generators_gradient_by_more_than_its_bound(tmp_path, monkeypatch, seed):
    """The server's own side: the un-noised sum itself, of a seeded run, with a record gone to the other end."""
    chosen = ("seed=3", "clip.output=1.0", "clip.jacobian=0.05", *ALL_OF_THEM, *FREE)
    experiment = parse_experiment(GENERATOR, chosen)
    corner = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    own = {
        0: -corner.repeat(RECORDS, 1),
        1: torch.zeros((RECORDS, 2), dtype=torch.float64),
        2: 0.02 * corner.repeat(RECORDS, 1),
        3: torch.randn((RECORDS, 2), generator=torch.Generator().manual_seed(1), dtype=torch.float64),
    }[seed]
    replaced = own.clone()
    replaced[0] = corner
    (before, _), (after, _) = (
        _run(tmp_path / name, monkeypatch, experiment, [outputs])
        for name, outputs in (("before", own), ("after", replaced))
    )
    moved = float(torch.linalg.vector_norm(before.vector - after.vector))
    bound = before.sensitivities[0].value
    assert (0.3 if seed == 0 else 0.0) * bound < moved <= bound
