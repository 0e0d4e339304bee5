"""Laws of what is said where nothing is answered: short on both sides, without a path of the client's."""

from __future__ import annotations

import errno
import json
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from fedsw._tools.settings import FederationError
from fedsw._tools.text import MOST_SHOWN, shown
from fedsw.data import downloads as data_files
from fedsw.data import own_records as from_python
from fedsw.data.downloads import without_downloads
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.federation import client as handlers
from fedsw.federation import flower, messages, wire
from fedsw.federation.client import app as client_app
from fedsw.federation.engines.inprocess import InProcessGrid
from fedsw.federation.exchange.exchange import Traffic, content_of, exchange
from fedsw.federation.exchange.participants import greeting
from fedsw.federation.messages import Fault, Malformed, packed, unpacked
from fedsw.federation.node import replies as nodes
from fedsw.federation.node.replies import HIDDEN, WITHHELD, may_be_reported, reason_of
from fedsw.federation.node.simulated import ONE_PERSON
from fedsw.federation.server.federation import Job, federate
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.client_status import begun, note, participations
from fedsw.runs.directory import RunDirectory
from tests.federation.node.test_held_records import COLUMNS, LOCAL, SCHEMA, own, write
from tests.federation.node.test_limits_room import OWN, RUN, greeted
from tests.federations import Federation, Saboteur, small

SECRET = "the ward's secret folder"


def test_a_text_from_elsewhere_is_short_and_moves_no_cursor():
    assert shown("a\x1b[31mb\nc\u202ed") == "a [31mb c d"
    assert len(shown("x" * 10**6)) == MOST_SHOWN and shown("x" * 10**6).endswith("...")
    assert shown("ε ≤ 1/n") == "ε ≤ 1/n"


@pytest.mark.parametrize("local", [False, True])
def test_a_fault_of_any_length_leaves_as_a_short_one_and_is_shown_as_one(tmp_path, local):
    """What a client sends, and, should it send more, what the server shows."""
    long = "x" * 100_000
    sent: list[int] = []

    def hook(message, context):
        if message.metadata.message_type != messages.HELLO.kind:
            raise OSError(long)

    def after(message, reply):
        if reply.has_error():
            sent.append(len(str(reply.error.reason)))
            return Message(Error(reply.error.code, long), reply_to=message)  # another client's software
        return reply

    def answer(message, context):
        return after(message, handlers.refusing(message, context, lambda m, c: Saboteur(hook)(m, c)))

    settings = LOCAL if local else ()
    with pytest.raises(FederationError) as stopped:
        Federation(tmp_path).run(small(*settings, "privacy.epsilon=2.0", "privacy.delta=1e-4"), app=answer)
    assert sent and max(sent) <= MOST_SHOWN
    assert len(str(stopped.value)) < 5 * MOST_SHOWN


@pytest.mark.parametrize("kind", ["Quoting", "QuotingSettings"])
@pytest.mark.parametrize("trust", ["local-gradient", "distributed"])
@pytest.mark.parametrize("sites", [1, 3])
def test_what_an_own_task_says_of_a_record_stays_with_its_client(tmp_path, caplog, kind, trust, sites):
    settings = (
        f"objective.task=tests.learning.tasks.own:{kind}",
        f"privacy.trust={trust}",
        "federation.max_attempts=1",
    )
    asked = small(*settings, "privacy.epsilon=8.0", "training.rounds=1", f"federation.sites={sites}")
    with caplog.at_level(logging.ERROR, "fedsw.clients"), pytest.raises(FederationError) as stopped:
        Federation(tmp_path).run(asked)
    assert WITHHELD in str(stopped.value) and "odd record" not in str(stopped.value)
    assert "odd record [" in caplog.text, "its operator learns it"
    told = [path.name for path in tmp_path.rglob("*") if path.is_file() and b"odd record" in path.read_bytes()]
    assert not told


def test_a_trusted_server_reads_the_error_of_an_own_task(tmp_path):
    asked = small("objective.task=tests.learning.tasks.own:Quoting", "federation.max_attempts=1", "training.rounds=1")
    with pytest.raises(FederationError, match="odd record"):
        Federation(tmp_path).run(asked)


def test_words_of_fedsw_that_repeat_anothers_are_not_fedsws():
    def quoted() -> Exception:
        try:
            from_python.asked(lambda: [][1], 0, 1, what="data.source")
        except ValueError as fault:
            return fault
        raise AssertionError

    def refused() -> Exception:
        try:
            from_python.asked(lambda: lambda: None, 0, 1, what="data.source")
        except ExperimentError as fault:
            return fault
        raise AssertionError

    assert not may_be_reported(quoted()) and may_be_reported(refused())


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left on device"), "database or disk is full"])
def test_a_full_disk_is_told_to_the_client_s_operator_with_the_folder_and_what_to_do(fault, caplog):
    if isinstance(fault, str):
        fault = sqlite3.OperationalError(fault)
        fault.sqlite_errorcode = sqlite3.SQLITE_FULL
    told = {"state-dir": "/srv/fedsw/state", "own-data": 1, "partition-id": 0, "num-partitions": 1}

    def fails(*_):
        raise RuntimeError("its ledger could not be written") from fault

    flower.identify(1, 1)
    message = Message(RecordDict({}), 1, "train.sum")
    context = Context(run_id=1, node_id=1, node_config=told, state=RecordDict(), run_config={})
    reply = handlers.refusing(message, context, fails)
    assert reply.has_error() and "/srv/fedsw" not in reply.error.reason
    assert "Make room on the disk of state-dir /srv/fedsw/state; the server's next request is then" in caplog.text


def test_a_site_says_little_of_each_of_its_clients(tmp_path):
    found = packed({0: Fault("y" * 100_000, wire.APP_RAISED)})
    (refusal,) = unpacked(found, [0]).values()
    assert isinstance(refusal, Fault) and len(refusal.reason) == MOST_SHOWN


def test_an_error_of_the_network_is_shown_short():
    message = Message(RecordDict({}), 1, "query.hello")
    found = content_of(Message(Error(2, "z\n" * 5000), reply_to=message))
    assert isinstance(found, Fault) and len(found.reason) == MOST_SHOWN and "\n" not in found.reason


@pytest.mark.parametrize("name", ["../" * 9 + "a" * 5, "a" * 16, "a" * 33, "A" * 32, "", f"{RUN[:31]}/", f"{RUN}\n"])
def test_a_run_that_is_not_named_by_32_hex_digits_is_refused(tmp_path, name):
    reason = greeted(small(), tmp_path, run=name)
    assert "run came as" in reason and not list(tmp_path.iterdir())


def test_a_server_keeps_no_other_name_for_a_run(tmp_path):
    directory = RunDirectory(tmp_path)
    assert len(directory.name()) == 32 and directory.name() != directory.name()
    directory.keep_name(RUN)
    assert directory.name() == RUN
    directory.keep_name("../../etc")
    with pytest.raises(ValueError, match=r"run\.name is damaged: it holds '\.\./\.\./etc', and a run's name is 32 hex"):
        directory.name()
    with pytest.raises(Malformed, match="32 hexadecimal digits"):
        greeting(Problem.from_experiment(small()), "x" * 32)


def test_runs_whose_names_begin_alike_are_two_on_record(tmp_path):
    experiment = small()
    names = [RUN, RUN[:31] + "0"]
    for name in names:
        note(tmp_path, begun(experiment, name, (0,)), 1)
    assert sorted(part.run for part in participations(tmp_path)) == sorted(names)


def test_a_greeting_of_more_settings_than_any_experiment_has_is_refused_unread(tmp_path):
    reason = greeted(small(), tmp_path, written="[" * (2**22 + 1))
    assert "a text of 4194305 letters" in reason and len(reason) <= MOST_SHOWN


@pytest.fixture
def secret(tmp_path) -> Path:
    """A folder whose name nobody may learn, with a good table and a schema."""
    folder = tmp_path / SECRET
    write(folder / "ward 7.csv")
    (folder / "schema.toml").write_text(SCHEMA)
    return folder


def provoked(folder: Path) -> Iterator[tuple[Experiment, dict]]:
    """Experiments and nodes of which each is refused."""
    table, schema = {"data-path": str(folder / "ward 7.csv")}, {"schema": str(folder / "schema.toml")}
    broken, empty = folder / "broken schema.toml", folder / "empty"
    broken.write_text("[[")
    empty.mkdir()
    spoiled = write(folder / "spoiled.csv", spoiled="123.25")
    other = {**COLUMNS, "target": {"name": "outcome", "values": ["low", "high"]}}
    yield own(), {"data-path": str(folder / "nothing here.csv")}
    yield own(), {"data-dir": str(empty)}
    yield own(), {"data-dir": str(folder)}
    yield own(), {"data-path": str(spoiled)}
    yield own(*LOCAL), {"data-path": str(spoiled)}
    yield own(), {"data-path": str(folder)}
    yield own(columns=other), table
    yield own(), table | {"schema": str(broken)}
    yield own(), table | {"schema": str(folder / "no schema.toml")}
    yield parse_experiment(own().model_dump(), ["data.columns.target.values=['low', 'higher']"]), table | schema
    yield own(held_out=str(folder / "ward 7.csv")), table
    yield own(*LOCAL, "privacy={trust='local-gradient', epsilon=2.0}"), table | {"state-dir": str(spoiled)}
    yield parse_experiment({"name": "a", "data": {"source": "adult"}}), {"data-dir": str(folder)}
    yield (
        parse_experiment({"name": "a", "data": {"source": "files", "columns": COLUMNS}}),
        {"data-dir": str(folder / "no")},
    )
    yield small("model.kind=nowhere_at_all:build"), {"modules": "nowhere_at_all", **table}
    yield small("model.kind=secrets_of_ward:build"), {"modules": "secrets_of_ward", **table}


def test_no_refusal_names_a_path_of_the_client(secret, tmp_path, monkeypatch, caplog):
    (tmp_path / "lib" / SECRET).mkdir(parents=True)
    source = f"raise RuntimeError('no licence at {tmp_path}/lib/{SECRET}/key.pem')"
    (tmp_path / "lib" / "secrets_of_ward.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    monkeypatch.chdir(secret)
    count = 0
    for experiment, config in provoked(secret):
        nodes._nodes.clear()
        node = {"partition-id": 0, "num-partitions": 2, "own-data": 1, "trust": "any", **config}
        said = experiment.model_dump_json()
        reason = greeted(experiment, node.pop("state-dir", str(secret / "state")), node)
        for word in (SECRET, "ward 7", "nothing here", str(tmp_path), tmp_path.name, "broken", "no schema"):
            assert word not in reason or word in said, reason
        count += 1
    assert count >= 15


def test_the_whole_reason_is_in_the_clients_own_log(secret, caplog):
    with caplog.at_level(logging.ERROR, "fedsw.clients"):
        reason = greeted(own(), secret / "state", {**OWN, "data-path": str(secret / "nothing here.csv")})
    assert SECRET in caplog.text and "nothing here.csv" in caplog.text and HIDDEN in reason


@pytest.mark.parametrize(
    "path",
    ["/srv/ward", "/srv/ward/a b.csv", "~/records", "C/../../srv/ward/x.csv", "records/ward.csv", "/srv/w(1)/ä.csv"],
)
def test_a_path_is_hidden_wherever_it_stands_in_a_reason(path):
    config = {**OWN, "data-path": path}
    for text in (f"{path}: row 9 is bad", f"no file at '{path}'", f"({path})", f"{path}", f"[Errno 2] no: {path!r}."):
        found = reason_of(text, config)
        assert path not in found and HIDDEN in found
        assert reason_of(text, {"partition-id": 0, "num-partitions": 1}) == text, "an operator's own simulation"


def test_what_is_no_path_stays():
    text = "delta 0.9 is not below 1/n of 100 records; see https://example.org/a/b and/or --data-dir; epsilon/2, 4 / 5"
    assert reason_of(text, OWN) == text
    said = json.dumps({"data_dir": "/theirs"})
    assert reason_of("data.data_dir is '/theirs', the server's word", OWN, said=said).endswith("the server's word")
    assert "'/theirs'" in reason_of("data.data_dir is '/theirs'", OWN, said=said)


def test_a_greeting_never_makes_a_client_download(tmp_path, monkeypatch):
    """A simulation may, for its own operator; a node reads what lies in its folders, or was fetched there before."""
    import pooch

    monkeypatch.delenv("FEDSW_DATA", raising=False)
    monkeypatch.setenv(ONE_PERSON, "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = []
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache")

    def fetched(url, **_):
        asked.append(url)
        raise OSError("no network here")

    monkeypatch.setattr(pooch, "retrieve", fetched)
    experiment = parse_experiment({"name": "a", "data": {"source": "adult"}})
    for config in (OWN, {**OWN, "modules": "*"}):
        reason = greeted(experiment, tmp_path, config)
        assert "does not hold its files, and downloads nothing that a server names" in reason and "--data-dir" in reason
    assert asked == []
    assert "the download of" in greeted(experiment, tmp_path, {"partition-id": 0, "num-partitions": 1}) and asked


def test_files_that_were_fetched_before_are_read_if_they_are_what_they_should_be(tmp_path, monkeypatch):
    import hashlib

    import pooch

    monkeypatch.delenv("FEDSW_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path)
    source = data_files.Source("https://example.org/", {"a.csv": hashlib.sha256(b"x").hexdigest()})
    monkeypatch.setattr(data_files, "DOWNLOADS", {"toy": source})
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "a.csv").write_bytes(b"x")
    with without_downloads():
        assert data_files.find_data("toy") == tmp_path / "toy"
        (tmp_path / "toy" / "a.csv").write_bytes(b"y")
        with pytest.raises(FileNotFoundError, match="puts a.csv in a folder"):
            data_files.find_data("toy")


def test_a_client_without_a_choice_takes_part_in_nothing(tmp_path):
    bare = {key: value for key, value in OWN.items() if key != "trust"}
    assert "has not said what it takes part in; `fedsw client --init`" in greeted(small(), tmp_path, bare)
    for choice in ({"trust": "any"}, {"trust": "central"}, {"max-epsilon": "2.0"}):
        grid = InProcessGrid(client_app, [{**bare, "num-partitions": 1, "state-dir": str(tmp_path), **choice}])
        experiment = small("federation.clients=1", "training.rounds=1", "privacy.delta=1e-5")
        try:
            folder = tmp_path / str(choice)
            assert federate(grid, Job(experiment, folder))["status"] == "completed"
        finally:
            grid.close()


def test_a_record_of_settings_is_no_text(tmp_path):
    grid = InProcessGrid(client_app, [{**OWN, "state-dir": str(tmp_path)}])
    try:
        (node,) = grid.get_node_ids()
        content = RecordDict({"config": ConfigRecord({"experiment": 7, "run": RUN})})
        kind, traffic = messages.HELLO.kind, Traffic()
        (reply,) = exchange(grid, kind, {node: content}, group="hello", timeout=20.0, traffic=traffic).values()
        assert isinstance(reply, Fault) and "experiment came as 7; expected a text" in reply.reason
    finally:
        grid.close()
