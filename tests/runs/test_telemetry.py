"""Laws of what can be watched: releasable numbers, and none that tells of a record, a count or a message's size."""

from __future__ import annotations

import json
import logging
import math
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from flwr.app import ArrayRecord

from fedsw._tools.settings import FederationError
from fedsw.federation.trust.central import rounds as central
from fedsw.runs import telemetry
from fedsw.runs.roll_call import Called
from fedsw.runs.telemetry import FIELDS, JsonLines, MetricsEndpoint, event
from tests.federations import Saboteur, counts_of, numbers, small

WRONG_SHAPE = "ValueError: outputs came with shape (987654, 1) of 3 records"


def lines(federation, run: str = "run1") -> list[dict]:
    return [json.loads(line) for line in (federation.folder / run / "log.jsonl").read_text().splitlines()]


def placed(tree, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every number of a tree, with its place."""
    if isinstance(tree, dict | list):
        for key, branch in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from placed(branch, (*place, str(key)))
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield place, float(tree)


def test_the_log_tells_the_course_of_a_run(federation):
    federation.run(small())
    logged = lines(federation)
    assert [line["event"] for line in logged] == ["run begins", *["round released"] * 4, "run ended"]
    assert [line["round"] for line in logged[1:5]] == [1, 2, 3, 4] and logged[-1]["status"] == "completed"
    assert all(set(line) <= FIELDS | {"time", "level", "event"} for line in logged)
    assert logged[-1]["ledger"] == 4 and logged[-1]["epsilon"] <= 1.0


def test_no_un_noised_number_count_or_clients_word_is_in_the_log_or_the_metrics(federation, monkeypatch):
    """Every number that a run's files hold is compared with the counts, norms and sizes of its messages.

    Among so many numbers two come within a millionth of each other by chance, once in 50 runs; what a file tells it
    tells in every run at the same place.
    """
    hidden: set[float] = set()
    release = central.release

    def spy(aggregate, plan, ledger):
        hidden.update((float(aggregate.vector.norm()), *map(float, aggregate.vector)))
        return release(aggregate, plan, ledger)

    def hook(message, context):
        kind, who = message.metadata.message_type, context.node_config["partition-id"]
        if kind == "train.outputs":
            counts = counts_of(message)
            hidden.update(float(count) for count in (*counts, sum(counts)) if count > 20)
            hidden.update(float(len(array.data)) for array in message.content["model"].values())
            if message.content["config"]["round"] == 2 and who == 2:
                raise ValueError(WRONG_SHAPE)

    def after(message, reply):
        if message.metadata.message_type.startswith("train"):
            array = reply.content["arrays"]
            hidden.update(float(len(each.data)) for each in array.values())
            hidden.update(map(float, numbers(next(iter(array.values()))).reshape(-1)))
        return reply

    monkeypatch.setattr(central, "release", spy)
    found: list[set[tuple[str, ...]]] = []
    for run in ("run1", "run2", "run3"):
        hidden.clear()
        federation.run(small("federation.min_clients=2"), app=Saboteur(hook, after))
        hidden.discard(0.0)
        assert len(hidden) > 300
        assert [line["client"] for line in lines(federation, run) if line["event"] == "client lost"] == [2]
        found.append(set())
        for name in ("log.jsonl", "metrics.jsonl"):
            text = (federation.folder / run / name).read_text()
            assert "shape" not in text and "records" not in text and "987654" not in text
            for place, value in placed([json.loads(line) for line in text.splitlines()]):
                if any(math.isclose(value, secret, rel_tol=1e-6) for secret in hidden):
                    found[-1].add((name, *place))
    assert not set.intersection(*found)


def test_a_field_that_is_not_releasable_cannot_be_logged(caplog):
    with pytest.raises(ValueError, match="counts.*may not be logged"):
        event("round released", counts=[3, 4])
    record = logging.LogRecord("fedsw.server", logging.INFO, "", 0, "norm %g", (3.25e-7,), None)
    record.fields = {"norm": 3.25e-7, "round": 2}
    assert "3.25e-07" not in JsonLines().format(record) and json.loads(JsonLines().format(record))["round"] == 2


def test_a_log_that_cannot_be_written_stops_nobody_and_fills_no_terminal(federation, monkeypatch, capsys):
    real = telemetry._LogFile.emit

    def full(self, record):
        self.stream = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115
        real(self, record)

    monkeypatch.setattr(telemetry._LogFile, "emit", full)
    monkeypatch.setattr(telemetry._LogFile, "close", lambda self: None)
    assert federation.run(small())["status"] == "completed"
    assert "Logging error" not in capsys.readouterr().err


def test_totals_of_bytes_do_not_depend_on_how_the_batch_fell_among_the_clients(federation):
    """Unseeded runs draw other counts; after every round the totals are the same, so nothing can be read from them."""
    splits, totals = set(), []
    for _ in range(2):

        def hook(message, context):
            if message.metadata.message_type == "train.outputs":
                config = message.content["config"]
                splits.add((federation.runs, config["round"], *counts_of(message)))

        federation.run(small("partition.scheme=dirichlet"), app=Saboteur(hook))
        metrics = (federation.folder / f"run{federation.runs}" / "metrics.jsonl").read_text().splitlines()
        totals.append([(json.loads(line)["bytes_up"], json.loads(line)["bytes_down"]) for line in metrics])
    assert totals[0] == totals[1] and len({each[0] for each in totals[0]}) == 4
    assert {split[1:] for split in splits if split[0] == 1} != {split[1:] for split in splits if split[0] == 2}


def test_totals_of_bytes_go_on_where_a_stopped_run_left_them(federation):
    def hook(message, context):
        if message.metadata.message_type == "train.outputs" and message.content["config"]["round"] == 3:
            raise OSError("gone")

    with pytest.raises(FederationError):
        federation.run(small(), app=Saboteur(hook))
    directory = federation.folder / "run1"
    summary = federation.run(small(), directory=directory, resume=True)
    up = [json.loads(line)["bytes_up"] for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert up == sorted(up) and summary["bytes_up"] == up[-1] and len(set(up)) == 4


def asked(endpoint: MetricsEndpoint, token: str | None) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{endpoint.port}/metrics")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=30) as reply:
        return reply.read().decode()


def test_the_endpoint_answers_whoever_has_its_token_alone_and_waits_for_nobody(monkeypatch):
    """Every user of a machine can open its ports; one that sends a letter a minute kept all others waiting."""
    with MetricsEndpoint(0) as one, MetricsEndpoint(0) as other:
        assert one.token != other.token and "fedsw_rounds" in asked(one, one.token)
        for wrong in (None, "", other.token):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                asked(one, wrong)
        with socket.create_connection(("127.0.0.1", one.port)) as slow:
            slow.sendall(b"G")
            assert "fedsw_rounds" in asked(one, one.token)
        with pytest.raises(OSError, match=f"--metrics-port {one.port} cannot be opened .*name another one, or 0"):
            MetricsEndpoint(one.port).__enter__()
    monkeypatch.setenv(telemetry.METRICS_TOKEN, "agreed")
    with MetricsEndpoint(0) as named:
        assert "fedsw_rounds" in asked(named, "agreed")


def test_the_endpoint_listens_for_other_machines_only_where_an_address_is_named(monkeypatch):
    """A second loopback address stands for another machine's side."""
    other = "127.0.0.2"
    with MetricsEndpoint(0) as endpoint, pytest.raises(ConnectionRefusedError):
        socket.create_connection((other, endpoint.port))
    monkeypatch.setenv(telemetry.METRICS_HOST, other)
    with MetricsEndpoint(0) as endpoint:
        socket.create_connection((other, endpoint.port)).close()


def test_the_endpoint_serves_the_releasable_numbers_of_the_last_round(federation):
    with MetricsEndpoint(0) as endpoint:
        federation.run(small(), observer=endpoint)
        text = asked(endpoint, endpoint.token)
    served = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    last = json.loads((federation.folder / "run1" / "metrics.jsonl").read_text().splitlines()[-1])
    names = {
        "round": "round", "epsilon_spent": "epsilon", "signal_to_noise": "snr", "clients_alive": "clients",
        "bytes_up": "bytes_up", "bytes_down": "bytes_down",
    }  # fmt: skip
    assert {name: float(served[f"fedsw_{name}"]) for name in names} == {
        name: pytest.approx(last[key], rel=1e-9) for name, key in names.items()
    }
    assert float(served["fedsw_finished"]) == 1 and float(served["fedsw_rounds"]) == 4
    assert not [name for name in served if "client_" in name and "created" not in name]
    times = [line for line in text.splitlines() if line.startswith("# HELP") and "seconds" in line.split()[2]]
    assert len(times) == 4 and all("for the operator only, not for publication" in line for line in times)
    assert 0 < float(served["fedsw_round_seconds"]) < float(served["fedsw_seconds_total"])


def test_the_endpoint_says_who_is_there_and_neither_why_one_is_not_nor_who_was(federation):
    away = Called(12, 1, "south.pub", "cd" * 32, "1.42.0", -3.5, "refused", "row 7 is forty-one")
    with MetricsEndpoint(0) as endpoint:
        endpoint.roll_called([Called(11, key="north.pub"), away])
        before = asked(endpoint, endpoint.token)
        endpoint.roll_called([Called(11, 0, "north.pub", state="greeted")])
        after = asked(endpoint, endpoint.token)
    assert 'fedsw_client{client="",key="north.pub",state="connected"} 1.0' in before
    assert 'fedsw_client{client="1",key="south.pub",state="refused"} 1.0' in before
    assert 'fedsw_client_clock_seconds{client="1",key="south.pub"} -3.5' in before and "cd" * 32 in before
    assert 'fedsw_client{client="0",key="north.pub",state="greeted"} 1.0' in after
    assert "south" not in after and "connected" not in after and "forty" not in before


@pytest.mark.parametrize("overrides", [(), ("partition.scheme=dirichlet", "privacy.sampling=stratified")])
def test_the_size_of_a_message_tells_nobody_how_many_records_a_client_was_asked_for(federation, overrides):
    """As Flower serialises them: for every client and kind one size in all rounds, whatever the counts."""
    sizes: dict[tuple[str, int], set[tuple[int, ...]]] = {}
    counts: dict[int, set[int]] = {}
    asked: dict[str, int] = {}

    def measure(kind, client, content):
        arrays = [array for record in content.values() if isinstance(record, ArrayRecord) for array in record.values()]
        parts = [part.deflate() for part in (*content.values(), *arrays)] + [array.data for array in arrays]
        sizes.setdefault((kind, client), set()).add(tuple(map(len, parts)))

    def hook(message, context):
        if message.metadata.message_type.startswith("train"):
            client = int(context.node_config["partition-id"])
            measure(message.metadata.message_type, client, message.content)
            if "counts" in message.content["arrays"]:
                counts.setdefault(client, set()).update(counts_of(message))
            asked[message.metadata.message_id] = client

    def after(message, reply):
        if message.metadata.message_type.startswith("train"):
            measure(f"{message.metadata.message_type} reply", asked[message.metadata.message_id], reply.content)
        return reply

    federation.run(small("training.rounds=9", *overrides), app=Saboteur(hook, after))
    assert len(sizes) == 12 and all(len(found) == 1 for found in sizes.values())
    if not overrides:
        assert all(len(found) > 2 for found in counts.values())
