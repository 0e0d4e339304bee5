"""Laws of what hides the records of a client that noises for itself: noise everywhere, a batch for every attempt."""

from __future__ import annotations

import pytest
import torch

from fedsw._tools.randomness import Stream
from fedsw.federation.node import own_ledger as account
from fedsw.federation.node import replies as nodes
from fedsw.federation.node.node import Node
from fedsw.federation.trust.local_gradient.noising import Request
from fedsw.federation.trust.sketch.sketch_once import SketchSum
from fedsw.federation.trust.sums_once import MomentSum, TallySum
from fedsw.learning.models import flatten
from fedsw.learning.objectives import histograms as tables
from fedsw.learning.tasks.objective import ClippedObjective
from tests.federation.node import releases
from tests.federation.sketch_runs import sketched
from tests.federation.trust.test_local_gradient_client import both_answers, node_of, request_to
from tests.federations import small
from tests.noises import require_gaussian
from tests.runs.kept_runs import LOCAL, kept_run
from tests.runs.kept_runs import tables as write_tables


def no_counts(outputs, holder, holders, theta, radius, bins):
    return torch.zeros((holders, theta.shape[1], bins)).double()


@pytest.mark.parametrize("seed", [(), ("seed=3",)], ids=["secret", "seeded"])
def test_an_attempt_whose_contribution_was_never_asked_for_leaves_nothing_of_its_batch(tmp_path, seed):
    """The table of attempt 0 is out, and the server begins anew: another sample, by another key."""
    node, place, state = node_of("training.rounds=8", *seed), tmp_path / "client-0.sqlite", {}
    keys, batches = [], []
    for attempt in range(4):
        releases.table(node, place, flatten(node.model), request_to(node, 1, attempt), state)
        keys.append(bytes(state["key"]))
        batches.append(frozenset(node.batch.records.ids.tolist()))
    assert len(set(keys)) == len(set(batches)) == 4


@pytest.mark.parametrize("seed", [(), ("seed=3",)], ids=["secret", "seeded"])
def test_every_count_and_every_coordinate_of_both_answers_has_noise_of_its_own(tmp_path, monkeypatch, seed):
    """A client with no noise but what it is given: it answers zeros, and what leaves it is the noise."""
    node, state = node_of("training.rounds=30", "local.bins=16", *seed), {}
    monkeypatch.setattr(tables, "histograms_by", no_counts)
    monkeypatch.setattr(
        ClippedObjective, "contributions", lambda *a: (torch.zeros((1, node.task.parameters)).double(), 0.0)
    )
    answers = []
    with account.held_open(tmp_path):
        for round_ in range(1, 31):
            answers.append(both_answers(node, tmp_path / "client-0.sqlite", request_to(node, round_), state))
    tables_, contributions = ([each[part] for each in answers] for part in (0, 1))
    for part in (tables_, contributions):
        require_gaussian(torch.stack([each.value.reshape(-1) for each in part]), part[0].sigma)
    assert all(each.sigma > 0 for each in tables_ + contributions)


def test_a_table_and_the_contribution_of_its_attempt_share_no_noise(tmp_path, monkeypatch):
    """Of one shape here, so that noise of one key would be the same noise."""
    whole, state, together = node_of("seed=3", "training.rounds=30", "local.bins=17"), {}, []
    node = Node(whole.task, whole.records, (whole.cells[0], whole.cells[1][:0]), whole.model)
    monkeypatch.setattr(tables, "histograms_by", no_counts)
    monkeypatch.setattr(
        ClippedObjective, "contributions", lambda *a: (torch.zeros((1, node.task.parameters)).double(), 0.0)
    )
    with account.held_open(tmp_path):
        for round_ in range(1, 31):
            request = Request(round_, 0, (60, 60), 600)
            table, contribution = both_answers(node, tmp_path / "client-0.sqlite", request, state)
            assert table.value[0].shape == (1, 17) and contribution.value.shape == (17,)
            noise = [table.value[0, 0] / table.sigma, contribution.value / contribution.sigma]
            together.append(torch.cat(noise))
    require_gaussian(torch.stack(together), 1.0)


def test_without_a_seed_noise_follows_from_nothing_that_the_server_knows(tmp_path, monkeypatch):
    """The same request to the same client, twice; and no stream that a number reproduces is ever made."""
    node, found = node_of(), []
    monkeypatch.setattr(tables, "histograms_by", no_counts)
    monkeypatch.setattr(Stream, "seeded", lambda *known: pytest.fail(f"a stream of {known} is reproducible"))
    for name in ("first", "second"):
        answers = both_answers(node, tmp_path / name / "client-0.sqlite", request_to(node), {})
        found.append((answers[0].value / answers[0].sigma).reshape(-1))
    require_gaussian(torch.stack(found), 1.0)


@pytest.mark.parametrize("name", ["moments", "tally", "sketch"])
def test_without_a_seed_the_noise_of_sums_follows_from_nothing_that_the_server_knows(tmp_path, monkeypatch, name):
    """Whoever knows the stream has the exact sums: two ledgers, the same request, and noises that share nothing."""
    chosen = {
        "moments": lambda: small("privacy.trust=local-gradient", "privacy.delta=1e-5", "privacy.moments=0.3"),
        "tally": lambda: kept_run(write_tables(tmp_path / "data", 40, 60, 80), *LOCAL),
        "sketch": lambda: sketched("privacy.trust=sketch-local"),
    }[name]()
    node = nodes.join(chosen.model_dump_json(), "run", 1, {"partition-id": 0, "num-partitions": 3})
    theta = torch.zeros(node.task.parameters, dtype=torch.float64)
    kind, round_ = {"moments": (MomentSum, 0), "tally": (TallySum, 3), "sketch": (SketchSum, 1)}[name]
    total = kind.at(node.task, round_, torch.zeros(0) if name == "sketch" else theta)
    monkeypatch.setattr(Stream, "seeded", lambda *known: pytest.fail(f"a stream of {known} is reproducible"))
    monkeypatch.setattr(kind, "steps", lambda total, *rest: torch.zeros(total.shape, dtype=torch.int64))
    drawn = []
    for name_ in ("first", "second", "third"):
        released = releases.summed(total, node, tmp_path / name_ / "client-0.sqlite", round_, 0, 600)
        drawn.append(released.value.reshape(-1) / released.sigma)
    require_gaussian(torch.stack(drawn), 1.0)


def test_seeded_clients_of_other_names_share_no_noise(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "histograms_by", no_counts)
    drawn = []
    for name in range(6):
        node = node_of("seed=3")
        place = tmp_path / f"client-{name}.sqlite"
        answer = releases.table(node, place, flatten(node.model), request_to(node), {})
        drawn.append(answer.value.reshape(-1) / answer.sigma)
    require_gaussian(torch.stack(drawn), 1.0)
