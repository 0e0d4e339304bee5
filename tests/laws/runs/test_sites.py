"""Laws of sites: one process with many clients samples, clips, charges and loses as many processes with one each."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from scipy import stats

from fedsw._tools.randomness import Stream
from fedsw._tools.settings import FederationError
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.federation.exchange.participants import Present, Site
from fedsw.federation.messages import Fault, Malformed, addressed, opened, packed, unpacked
from fedsw.federation.node.held_records import clients_of, held_records, sampled
from fedsw.federation.node.node import Node
from fedsw.federation.trust.round_plan import draw, make_plan
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import Ledger
from tests.federation.node.test_held_records import own, write
from tests.federations import Saboteur, small
from tests.laws.runs.test_matching_runs import AUTOENCODER, GENERATOR

EOO = ("objective.penalty=equality-of-odds",)


def _model(federation, *overrides: str, base=None, **job):
    """The released model of a run and its summary."""
    experiment = small(*overrides) if base is None else parse_experiment(base, overrides)
    summary = federation.run(experiment, **job)
    directory = federation.folder / f"run{federation.runs}"
    model = load_file(directory / "model.safetensors")
    return torch.cat([part.flatten() for part in model.values()]), summary, directory


@pytest.mark.parametrize(
    ("base", "overrides", "numbers"),
    [
        (None, ("training.precision=float64",), (1, 2, 4)),
        (None, ("training.precision=float64", *EOO, "partition.scheme=dirichlet"), (1, 4)),
        (None, ("training.precision=float64", "privacy.sampling=stratified"), (2,)),
        (None, ("training.precision=float64", "training.micro_batch=16"), (2,)),
        (None, ("training.precision=float64", "objective.alpha=0.0", "model.kind=mlp", "model.hidden=[5]"), (2,)),
        (AUTOENCODER, ("training.precision=float64",), (4,)),
        (GENERATOR, ("training.precision=float64",), (1,)),
    ],
)
def test_a_site_of_many_clients_ends_at_the_parameters_of_one_process_a_client(federation, base, overrides, numbers):
    """Seeded, so that batches and noise are the same; sums have another order."""
    common = ("seed=5", "federation.clients=6", "training.rounds=2", *overrides)
    alone, apart, _ = _model(federation, *common, base=base)
    for sites in numbers:
        together, summary, _ = _model(federation, *common, f"federation.sites={sites}", base=base)
        assert float((together - alone).abs().max()) <= 1e-9
        assert summary["epsilon_spent"] == apart["epsilon_spent"] and summary["clients"] == 6


@pytest.mark.parametrize("clients", [1, 5, 60])
@given(seed=st.integers(0, 10**6))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_every_client_gives_exactly_its_count_of_its_own_records_and_none_twice(clients, seed):
    """One by one up to 16 clients that are asked for any, sorted together above."""
    chance = np.random.default_rng(seed)
    sizes = chance.integers(0, 10, clients)
    counts = chance.integers(0, sizes + 1)
    starts = np.append(0, np.cumsum(sizes))
    stream = Stream.seeded(seed, "keys")
    places = sampled(starts, counts, lambda asked: stream.words(len(asked)))
    assert len(set(places.tolist())) == len(places) == counts.sum()
    owner = np.searchsorted(starts, places, side="right") - 1
    assert np.bincount(owner, minlength=clients).tolist() == counts.tolist()
    assert (np.diff(owner) >= 0).all(), "client after client"


@pytest.mark.parametrize("clients", [3, 40])
def test_every_record_of_a_client_is_equally_likely_and_clients_are_independent(clients):
    """One by one up to 16 clients, sorted together above."""
    starts, counts, stream = 7 * np.arange(clients + 1), np.full(clients, 2), Stream.seeded(1, "keys")
    draws = [sampled(starts, counts, lambda asked: stream.words(len(asked))) for _ in range(3000)]
    hits = np.bincount(np.concatenate(draws), minlength=7 * clients).reshape(clients, 7)
    assert all(stats.chisquare(row).pvalue > 1e-4 / clients for row in hits)
    pairs = Counter((draw[0], draw[2]) for draw in np.stack(draws) - np.repeat(starts[:-1], 2))
    expected = {pair: 3000 * _least(pair[0]) * _least(pair[1]) for pair in np.ndindex(6, 6)}
    chance = stats.chisquare([pairs[pair] for pair in expected], list(expected.values()))
    assert chance.pvalue > 1e-4


def _least(value: int) -> float:
    """How likely the smaller of two different numbers from 0 to 6 is this one."""
    return (6 - value) / 21


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "group"])
def test_sites_hold_every_record_of_every_client_once_whatever_their_number(scheme):
    experiment = small("federation.clients=7", f"partition.scheme={scheme}")
    task = Problem.from_experiment(experiment)
    single = [held_records(task, {"partition-id": c, "num-partitions": 7}).records.ids.tolist() for c in range(7)]
    for sites in (1, 2, 3):
        found: dict[int, list[int]] = {}
        for site in range(sites):
            held = held_records(task, {"partition-id": site, "num-partitions": sites})
            for place, client in enumerate(held.clients.tolist()):
                found[client] = held.records.ids.numpy()[held.owner == place].tolist()
        assert [found[client] for client in range(7)] == single


@pytest.mark.parametrize(("nodes", "clients"), [(1, 10), (3, 10), (10, 10), (12, 10)])
def test_every_client_is_on_one_node(nodes, clients):
    experiment = small(f"federation.clients={clients}")
    found = [clients_of(experiment, {"partition-id": n, "num-partitions": nodes}) for n in range(nodes)]
    assert [client for own, _ in found for client in own] == list(range(max(nodes, clients)))
    assert {total for _, total in found} == {max(nodes, clients)}


def test_no_part_of_everybodys_records_is_left_out_without_a_word():
    """Two nodes started as two of three held two thirds of the records, and nobody said so."""
    task = Problem.from_experiment(small("federation.clients=2"))
    with pytest.raises(
        ExperimentError, match="one of 3 .*those of 1 left out. Start every node with --num-partitions 2"
    ):
        held_records(task, {"partition-id": 0, "num-partitions": 3})
    with pytest.raises(ExperimentError, match="left out"):
        held_records(task, {"partition-id": 0, "num-partitions": 3, "own-data": 1, "trust": "any"})


def test_counts_of_clients_that_are_away_are_0_and_the_rates_are_those_of_the_others():
    task = Problem.from_experiment(small())
    sizes = np.array([[30, 10], [50, 20], [20, 30]])
    site = Site(1, np.arange(3), sizes, None, None)
    plan = make_plan(task, [site])
    drawn = draw(plan, [Present(site, np.array([True, False, True]))], round_=1, attempt=0)
    (counts,) = drawn.counts
    assert counts[1].tolist() == [0, 0] and tuple(counts.sum(axis=0)) == drawn.batch == (10, 8)
    assert drawn.rates == (10 / 50, 8 / 40)


def test_a_client_that_is_lost_between_the_exchanges_takes_its_rows_with_it_whatever_process_it_is_in(federation):
    """Drop-outs are drawn publicly by client: one site and one process a client lose the same terms."""
    common = ("seed=5", "training.precision=float64", "federation.clients=6", "federation.min_clients=2")
    common = (*common, "federation.drop_out=0.3", "training.rounds=5")
    alone, _, first = _model(federation, *common)
    together, _, second = _model(federation, *common, "federation.sites=2")
    whole, _, _ = _model(federation, *(each for each in common if "drop_out" not in each))
    assert float((together - alone).abs().max()) <= 1e-9 < float((whole - alone).abs().max())
    lines = [[json.loads(line)["clients"] for line in (run / "metrics.jsonl").open()] for run in (first, second)]
    assert lines[0] == lines[1] and min(lines[0]) < 6
    with (
        Ledger.open(second / "ledger.sqlite", read_only=True) as ledger,
        Ledger.open(first / "ledger.sqlite", read_only=True) as other,
    ):
        assert ledger.entries() == other.entries()


def test_without_its_lost_clients_a_site_contributes_what_a_site_of_the_others_would():
    experiment = small("federation.clients=5", "training.precision=float64")
    task = Problem.from_experiment(experiment)
    node = Node.of(task, held_records(task, {"partition-id": 0, "num-partitions": 1}), "")
    counts = np.minimum(node.held, 9)
    records = node.draw(bytes(32), counts)
    theta = torch.zeros(task.parameters, dtype=torch.float64) + 0.1
    batch, outputs = node.forward(theta, records, 1, 0)
    cotangents = torch.randn(len(records), outputs.shape[1], dtype=torch.float64)
    left, own = node.without(batch, counts, cotangents, np.array([1, 4]))
    there = np.isin(node.records.ids.numpy(), left.records.ids.numpy())
    owner = held_records(task, {"partition-id": 0, "num-partitions": 1}).owner
    assert set(owner[there]) == {0, 2, 3} and len(left.records) == counts[[0, 2, 3]].sum()
    total, _ = node.task.clipped.contribution(left, own, 0.01)
    rows = torch.isin(records.ids, left.records.ids)
    batch, _ = node.forward(theta, records, 1, 0)
    masked, _ = node.task.clipped.contribution(batch, cotangents * rows[:, None], 0.0)
    expected, _ = node.task.clipped.contribution(node.forward(theta, left.records, 1, 0)[0], own, 0.0)
    assert torch.allclose(masked, expected, atol=1e-12) and not torch.allclose(total, expected, atol=1e-6)


def test_a_site_whose_sum_weighs_more_than_its_clients_may_together_is_lost(federation):
    def after(message, reply):
        if message.metadata.message_type == "train.gradients" and message.metadata.dst_node_id == 1001:
            from tests.federations import array, numbers

            vector = numbers(reply.content["arrays"]["contribution"])
            reply.content["arrays"]["contribution"] = array(np.full_like(vector, 1e6))
        return reply

    with pytest.raises(FederationError, match="The site of clients 3 to 5: .*above its clip bound"):
        federation.run(
            small("federation.clients=6", "federation.sites=2", "federation.max_attempts=1"), app=Saboteur(after=after)
        )


@pytest.mark.parametrize("lost", [[3], [1, 0], [0, 0]])
def test_a_site_that_names_lost_clients_which_it_has_not_is_lost_itself(federation, lost):
    def after(message, reply):
        if message.metadata.message_type == "train.gradients":
            from tests.federations import array

            reply.content["arrays"]["lost"] = array(np.array(lost))
        return reply

    with pytest.raises(FederationError, match="its lost clients are none of its clients"):
        federation.run(small("federation.sites=1", "federation.max_attempts=1"), app=Saboteur(after=after))


def test_a_site_that_is_lost_and_comes_back_takes_part_again_with_all_of_its_clients(federation):
    asked = []

    def hook(message, context):
        kind = message.metadata.message_type
        if kind == "train.outputs" and context.node_config["partition-id"] == 1:
            asked.append(message.content["config"]["round"])
            if asked == [1, 2]:
                raise OSError("gone")

    settings_ = ("federation.clients=6", "federation.sites=2", "federation.min_clients=3", "privacy.epsilon=2.0")
    directory = federation.folder / "run1"
    summary = federation.run(small(*settings_), app=Saboteur(hook))
    clients = [json.loads(line)["clients"] for line in (directory / "metrics.jsonl").open()]
    assert summary["status"] == "completed" and clients == [6, 3, 6, 6] and asked == [1, 2, 3, 4]


def test_an_envelope_gives_back_what_was_packed_and_nothing_that_was_not_asked():
    answers = {
        0: RecordDict({"metrics": MetricRecord({"epsilon": 1.0})}),
        3: Fault("spent", 1001),
        12: RecordDict({"arrays": ArrayRecord(), "metrics": MetricRecord({"epsilon": 2.0})}),
    }
    found = unpacked(packed(answers), [0, 3, 5])
    assert found[0] == answers[0] and found[3] == answers[3] and 12 not in found
    assert isinstance(found[5], Fault) and found[5].reason == "its node sent no answer of it"
    content, positions = opened(addressed(RecordDict({"config": ConfigRecord({"round": 1})}), [1, 4]), 5)
    assert positions == [1, 4] and set(content) == {"config"} and content["config"]["round"] == 1


@pytest.mark.parametrize("positions", [[5], [1, 1], [2, 1], [-1], [0.0], [], "01", [True]])
def test_a_request_that_names_clients_which_a_node_has_not_is_refused(positions):
    content = RecordDict({"clients": ConfigRecord({"positions": positions})})
    with pytest.raises(Malformed, match="for which of this node's 5 clients"):
        opened(content, 5)
    with pytest.raises(Malformed, match="for which of this node's 5 clients"):
        opened(RecordDict(), 5)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("federation.sites=5",), "federation.sites is 5, above federation.clients = 3"),
        (("federation.drop_out=0.1",), r"drop_out is 0.1, and without federation.min_clients a round needs all 3"),
        (
            ("federation.drop_out=0.1", "federation.min_clients=1", "privacy.trust=local-gradient"),
            "a local trust model",
        ),
        (("federation.drop_out=1.0", "federation.min_clients=1"), "drop_out"),
    ],
)
def test_a_federation_that_does_not_fit_together_is_refused_when_it_is_loaded(overrides, words):
    with pytest.raises(ExperimentError, match=words):
        small(*overrides)


def test_nodes_that_hold_other_clients_than_the_experiment_has_are_refused(federation):
    from fedsw.federation.client import app
    from fedsw.federation.engines.inprocess import InProcessGrid, node_configs
    from fedsw.federation.server.federation import Job, federate

    grid = InProcessGrid(app, node_configs(4, federation.folder)[:2])
    try:
        with pytest.raises(FederationError, match="2 nodes hold 3 clients together; federation.clients is 6"):
            federate(grid, Job(small("federation.clients=6", "federation.sites=2"), federation.folder / "run"))
    finally:
        grid.close()
    assert not (federation.folder / "run" / "ledger.sqlite").exists()


def test_a_node_of_somebodys_own_holds_one_client_unless_its_operator_says_otherwise():
    experiment = small("federation.clients=10")
    node = {"partition-id": 1, "num-partitions": 2, "own-data": 1, "trust": "any"}
    assert clients_of(experiment, node) == (range(1, 2), 2)
    assert clients_of(experiment, {**node, "num-clients": 10}) == (range(5, 10), 10)
    with pytest.raises(ExperimentError, match="federation.clients is 10, and this node takes part in .* of 20"):
        clients_of(experiment, {**node, "num-clients": 20})


def test_a_node_of_several_clients_reads_a_folder_for_each_and_never_one_file_for_all(tmp_path):
    experiment, folder = own(), tmp_path / "data"
    node = {"partition-id": 1, "num-partitions": 2, "own-data": 1, "trust": "any", "num-clients": 4}
    experiment = experiment.model_copy(
        update={"federation": experiment.federation.model_copy(update={"clients": 4, "sites": 2})}
    )
    task = Problem.from_experiment(experiment)
    for client in (2, 3):
        write(folder / str(client) / "train.csv", 10 + client, seed=client)
    held = held_records(task, {**node, "data-dir": str(folder)})
    assert np.bincount(held.owner).tolist() == [12, 13] and held.clients.tolist() == [2, 3]
    assert len(set(held.records.ids.tolist())) == 25
    with pytest.raises(ExperimentError, match="holds several clients, 2 among them, and its data-path"):
        held_records(task, {**node, "data-path": str(folder / "2" / "train.csv")})


def test_a_bad_record_of_a_site_is_refused_by_its_clients_number(federation, monkeypatch):
    from fedsw.federation.node import held_records as partition

    genuine = partition.with_substitutes

    def spoilt(records):
        records = genuine(records.take(np.arange(len(records))))
        records.features[7, 0] = float("nan")
        return records

    whose = held_records(Problem.from_experiment(small()), {"partition-id": 0, "num-partitions": 1}).owner[7]
    monkeypatch.setattr(partition, "with_substitutes", spoilt)
    with pytest.raises(FederationError, match=rf"client {whose}: row \d+, column features"):
        federation.run(small("federation.sites=1"))
    assert not (federation.folder / "run1" / "ledger.sqlite").exists()
