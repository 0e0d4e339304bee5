"""Laws of a client that sends noised slices or a release: charged first, noised whole, never the same batch twice."""

from __future__ import annotations

import pytest
import torch
from flwr.app import Context, RecordDict

from fedsw._tools.randomness import Stream
from fedsw.experiment import parse_experiment
from fedsw.federation.messages.table import Release, ReleaseAsked, SlicesAsked
from fedsw.federation.node import own_ledger as account
from fedsw.federation.node.held_records import held_records
from fedsw.federation.node.node import Node
from fedsw.federation.node.replies import each_pays
from fedsw.federation.trust.local_release.released_records import release_due, release_of, released_records
from fedsw.federation.trust.local_slices import noised_slices as local_slices
from fedsw.federation.trust.local_slices.noised_slices import released_slices, slices_due
from fedsw.learning.models import flatten
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy import release as door
from tests.federation.node import releases
from tests.federation.test_local_slices import RELEASE, SLICES
from tests.noises import require_gaussian, require_laplace

DRAWS = 30
SHARED, OWN = "slicing.directions=4", "slicing.directions=3"  # whole blocks of R^2, and not


def _node(base: dict, *overrides: str) -> Node:
    task = Problem.from_experiment(parse_experiment(base, ("data.records=60", "federation.clients=2", *overrides)))
    records = held_records(task, {"partition-id": 0, "num-partitions": 2}).records
    return Node(task, records, task.cells_of(records), task.build_model())


def _slices(node: Node, place, round_: int, attempt: int = 0):
    return releases.slices(node, place, flatten(node.model), round_, attempt, 60)


@pytest.mark.parametrize("seed", [(), ("seed=3",)], ids=["secret", "seeded"])
@pytest.mark.parametrize("directions", [SHARED, OWN], ids=["shared directions", "directions of its own"])
def test_every_projection_of_every_row_has_noise_of_its_own(tmp_path, monkeypatch, seed, directions):
    node = _node(SLICES, directions, f"training.rounds={DRAWS}", *seed)
    monkeypatch.setattr(local_slices, "_features", lambda node, theta, records: torch.zeros((len(records), 2)))
    with account.held_open(tmp_path):
        sent = [_slices(node, tmp_path / "client-0.sqlite", round_) for round_ in range(1, DRAWS + 1)]
    require_gaussian(torch.stack([slices.projections.reshape(-1) for slices in sent]), sent[0].sigma)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_every_number_of_a_release_has_noise_of_its_own(tmp_path, monkeypatch, mechanism):
    node = _node(RELEASE, f"local.mechanism={mechanism}", "local.norm=" + ("l1" if mechanism == "laplace" else "l2"))
    monkeypatch.setattr(Problem, "inputs", lambda self, records: torch.zeros((len(records), 2)))
    released = []
    for number in range(DRAWS):
        released.append(releases.records(node, tmp_path / f"client-{number}.sqlite", 1, 0, 60).released.reshape(-1))
    scale = release_of(node.task.experiment, node.delta(60)).scale
    (require_laplace if mechanism == "laplace" else require_gaussian)(torch.stack(released), scale)


@pytest.mark.parametrize("seed", [(), ("seed=3",)], ids=["secret", "seeded"])
def test_every_attempt_has_a_batch_in_an_order_of_its_own(tmp_path, monkeypatch, seed):
    """Twelve of 30 records in some order: two attempts agree with a chance of 1 in 10^16."""
    node, batches = _node(SLICES, "training.rounds=6", "training.batch_fraction=0.4", *seed), []
    features = local_slices._features

    def keep(node, theta, records):
        batches.append(tuple(records.ids.tolist()))
        return features(node, theta, records)

    monkeypatch.setattr(local_slices, "_features", keep)
    for round_ in (1, 2, 3):
        for attempt in (0, 1):
            _slices(node, tmp_path / "client-0.sqlite", round_, attempt)
    assert len(set(batches)) == 6 and all(len(set(batch)) == len(batch) == 12 for batch in batches)
    assert any(list(batch) != sorted(batch) for batch in batches)


def test_without_a_seed_nothing_of_a_client_follows_from_what_the_server_knows(tmp_path, monkeypatch):
    """Public directions are reproducible, and nothing else is; the same request twice has no noise in common."""
    seeded = Stream.seeded

    def public(seed, *purpose):
        assert purpose[0] == "directions", f"a stream of {purpose} is reproducible"
        return seeded(seed, *purpose)

    nodes_ = [_node(SLICES, OWN), _node(SLICES, SHARED), _node(RELEASE)]
    monkeypatch.setattr(Stream, "seeded", public)
    monkeypatch.setattr(local_slices, "_features", lambda node, theta, records: torch.zeros((len(records), 2)))
    for number, node in enumerate(nodes_[:2]):
        sent = [_slices(node, tmp_path / f"{number}-{i}.sqlite", 1) for i in range(2)]
        assert not torch.isclose(sent[0].projections, sent[1].projections, rtol=0, atol=0).all()
        if number == 0:
            assert not torch.isclose(sent[0].directions, sent[1].directions).any()
    released = [releases.records(nodes_[2], tmp_path / f"r{i}.sqlite", 1, 0, 60).released for i in range(2)]
    assert not torch.equal(*released)


@pytest.mark.parametrize("base", [SLICES, RELEASE], ids=["slices", "release"])
def test_the_charge_is_on_disk_before_the_noise_is_drawn(tmp_path, monkeypatch, base):
    order, node = [], _node(base)
    spend, stream = door.spend_together, Node.own_stream
    context = Context(1, 1, {"state-dir": str(tmp_path)}, RecordDict(), {})

    def drawn(node, round_, attempt, purpose):
        if purpose.endswith("noise"):
            order.append("noise")
        return stream(node, round_, attempt, purpose)

    monkeypatch.setattr(door, "spend_together", lambda *a: (spend(*a), order.append("charge"))[0])
    monkeypatch.setattr(Node, "own_stream", drawn)
    if base is SLICES:
        found = each_pays(slices_due, released_slices)(node, SlicesAsked(1, 0, 60, None), [0], context)
    else:
        found = each_pays(release_due, released_records)(node, ReleaseAsked(1, 0, 60), [0], context)
    assert isinstance(found[0], Release)
    assert order == ["charge", "noise"]
