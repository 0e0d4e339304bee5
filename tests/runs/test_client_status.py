"""Laws of a client's own side: what it took part in and spent is what happened, is said once, and is never sent."""

from __future__ import annotations

import email.utils
import importlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import httpx
import pytest
from fastapi import HTTPException
from flwr.app import Message
from flwr.supercore.error import ApiErrorCode, FlowerError

from fedsw.cli.app import main
from fedsw.experiment import parse_experiment
from fedsw.federation.deploy import executor, serving
from fedsw.federation.deploy.executor import REFUSAL, NodeLoop
from fedsw.federation.deploy.serving import RunNotices
from fedsw.federation.engines import inprocess
from fedsw.federation.engines.driver import run
from fedsw.federation.node.simulated import ONE_PERSON
from fedsw.runs.client_status import MOST_REFUSED, begun, note, participations, read_client_status

RAW = {
    "name": "own",
    "data": {"records": 60, "test_records": 40},
    "training": {"rounds": 3, "batch_fraction": 0.5},
    "federation": {"clients": 2},
}


@pytest.fixture
def state(tmp_path, monkeypatch):
    """The state folder of every node, which are configured as those of real processes are."""
    made, folder = inprocess.node_configs, tmp_path / "state"

    def configured(nodes: int, ledgers: Path) -> list[dict[str, int | str]]:
        return [
            {**config, "state-dir": str(folder), "modules": "*", "num-clients": 2} for config in made(nodes, ledgers)
        ]

    monkeypatch.setattr(inprocess, "node_configs", configured)
    monkeypatch.setenv(ONE_PERSON, "1")
    return folder


def after(folder: Path, rounds: range, trust: str = "central", name: str = "a run") -> None:
    experiment = parse_experiment({**RAW, "privacy": {"trust": trust, "epsilon": 1.0, "delta": 1e-4}})
    part = begun(experiment, name, (0,))
    note(folder, part, None)
    for round_ in rounds:
        note(folder, part, round_)


def test_rounds_that_were_answered_are_counted_once_and_survive_the_process(tmp_path):
    for rounds, answered, over in ((range(0), 0, False), (range(1, 3), 2, False), (range(2, 4), 3, True)):
        after(tmp_path, rounds)  # each time as a new process would
        (found,) = participations(tmp_path)
        assert (found.answered, found.over) == (answered, over)


def test_two_runs_are_two_and_a_damaged_file_hides_no_other(tmp_path):
    after(tmp_path, range(1, 4), name="one")
    after(tmp_path, range(1, 2), name="two")
    (tmp_path / "run-three.json").write_text("{")
    assert [part.run for part in participations(tmp_path)] == ["one", "two"]


def test_a_beginning_and_an_end_are_said_once(tmp_path):
    after(tmp_path, range(1, 4), name="before")
    news = RunNotices(tmp_path)
    assert news.fresh() == [] and news.all_over
    after(tmp_path, range(1, 3), name="now")
    (said,) = news.fresh()
    assert said.startswith("takes part in the run 'own': trust central, ε = 1 at δ = 0.0001") and not news.all_over
    assert news.fresh() == []
    after(tmp_path, range(3, 4), name="now")
    (said,) = news.fresh()
    assert "is over here: answered in 3 of 3 rounds; the server's ledger accounts for it" in said
    assert news.fresh() == [] and news.all_over


def test_a_greeting_that_was_refused_is_said_once_and_shown_and_so_is_the_next_that_is_not(tmp_path, capsys):
    experiment, news = parse_experiment(RAW), RunNotices(tmp_path)
    refused = begun(experiment, "a run", (0,), refused="ValueError: not with these")
    for _ in range(2):
        note(tmp_path, refused, None)
    (said,) = news.fresh()
    assert said == "was greeted in the run 'own', and does not take part: ValueError: not with these"
    assert news.fresh() == [] and not news.all_over
    assert main(["show", str(tmp_path), "client"]) == 0
    assert "greeted, not taken: ValueError: not with these" in " ".join(capsys.readouterr().out.split())
    note(tmp_path, begun(experiment, "a run", (0,)), None)
    (said,) = news.fresh()
    assert said.startswith("takes part in the run 'own'") and news.fresh() == []
    assert main(["show", str(tmp_path), "client", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["state"] == "greeted", "nobody has asked it anything"
    note(tmp_path, begun(experiment, "a run", (0,)), 1)
    assert main(["show", str(tmp_path), "client", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["state"] == "taking part"


def test_refusals_fill_no_disk(tmp_path):
    for number in range(MOST_REFUSED + 3):
        note(tmp_path, begun(parse_experiment(RAW), f"{number:032x}", (0,), refused="no"), None)
    assert len(list(tmp_path.glob("run-*.json"))) == MOST_REFUSED
    note(tmp_path, begun(parse_experiment(RAW), "f" * 32, (0,)), None)
    assert len(list(tmp_path.glob("run-*.json"))) == MOST_REFUSED + 1, "one that it takes part in is on record"


def test_a_real_node_writes_what_it_took_part_in_and_a_simulated_one_does_not(state, tmp_path, monkeypatch):
    run({**RAW, "seed": 1}, runs=tmp_path / "runs")
    (found,) = participations(state)
    assert (found.name, found.answered, found.over, found.clients) == ("own", 3, True, (0, 1)) and found.nominal
    monkeypatch.undo()
    simulated = run({**RAW, "seed": 1}, runs=tmp_path / "runs").directory
    assert not list(simulated.rglob("run-*.json"))


def test_a_client_s_ledger_says_what_it_reported(state, tmp_path, capsys):
    asked = {
        **RAW,
        "privacy": {"trust": "local-gradient", "epsilon": 2.0, "delta": 1e-4},
        "model": {"kind": "logistic"},
    }
    reported = run(asked, runs=tmp_path / "runs").summary["epsilon_spent_by_client"]
    found = read_client_status(state)
    assert {str(ledger.client): ledger.epsilon for ledger in found.ledgers} == pytest.approx(reported, rel=1e-9)
    assert all(0 < ledger.epsilon <= 2.0 and ledger.rounds == 3 for ledger in found.ledgers)
    assert main(["show", str(state), "client", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["runs"][0]["answered"] == 3 and plain["runs"][0]["state"] == "over"
    assert main(["show", str(state), "client"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "answered in 3 of 3 rounds" in shown and "client 1's own ledger: ε = " in shown and "over" in shown


def test_an_operator_sees_what_it_chose_with_every_run(tmp_path, monkeypatch, capsys):
    """`modules` is "" on a node of somebody's own, which takes part in what its operator wrote."""
    made = inprocess.node_configs
    for choice, words in (("any", "whatever the server asks (trust any)"), ("central", "trust central")):
        own = {"state-dir": str(tmp_path / choice), "modules": "", "num-clients": 2, "trust": choice, "own-data": 1}
        monkeypatch.setattr(
            inprocess, "node_configs", lambda nodes, ledgers, own=own: [each | own for each in made(nodes, ledgers)]
        )
        run(RAW, runs=tmp_path / "runs")
        assert [part.agreed for part in participations(tmp_path / choice)] == [words]
        assert main(["show", str(tmp_path / choice), "client"]) == 0
        assert f"this client takes part in {words}" in " ".join(capsys.readouterr().out.split())


def test_a_folder_that_is_no_client_s_says_which_one_to_give(tmp_path, capsys):
    assert main(["show", str(tmp_path), "client"]) == 2
    assert "give the --state-dir of `fedsw client`" in capsys.readouterr().err
    assert main(["show", str(tmp_path), "client", "--watch"]) == 2
    assert "--watch follows a run at its server" in capsys.readouterr().err


def test_a_server_that_stays_away_is_said_once(tmp_path, monkeypatch):
    said: list[str] = []
    faults = iter(["refused"] * 3 + ["timed out"] * 9)
    monkeypatch.setattr(serving, "probe", lambda *_: next(faults))
    monkeypatch.setattr(serving.time, "sleep", Mock(side_effect=[*[None] * 5, KeyboardInterrupt]))
    node = SimpleNamespace(superlink="localhost:1", authority=tmp_path, state_dir=None)
    with pytest.raises(KeyboardInterrupt):
        serving.keep_connected(node, tmp_path / "home", stock=False, say=said.append)
    assert [line.split("(")[1].split(")")[0] for line in said] == ["refused", "timed out"]


def test_a_node_whose_server_is_gone_says_so_once_and_that_it_is_back(monkeypatch, caplog):
    import httpx

    monkeypatch.setattr("fedsw.federation.deploy.executor.time.sleep", lambda seconds: None)
    turns = iter([httpx.ConnectError("refused")] * 50 + [None] + [httpx.ConnectError("refused")] * 50)

    def take() -> Message | None:
        try:
            found = next(turns)
        except StopIteration:
            raise KeyboardInterrupt from None
        if found is not None:
            raise found
        return None

    node = NodeLoop(None, 1, {}, None, None)
    monkeypatch.setattr(node, "_take", take)
    with pytest.raises(KeyboardInterrupt):
        node.run()
    assert [record.getMessage().split(":")[0] for record in caplog.records if record.name == "flwr"] == [
        "the SuperLink is out of reach",
        "the SuperLink is back",
        "the SuperLink is out of reach",
    ]


def ended(why: str) -> Callable[..., SimpleNamespace]:
    """In place of `Processes.start`: a supernode's process that wrote why it ends, and has ended."""

    def start(processes, name, command, environment=None):
        Path(processes._environment[REFUSAL]).write_text(why, encoding="utf-8")
        return SimpleNamespace(wait=lambda seconds=None: 1)

    return start


def test_why_a_server_does_not_take_a_node_is_said_in_words_and_once(tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(serving, "probe", lambda *_: None)
    monkeypatch.setattr(serving, "supernode_command", lambda *_, **__: [])
    monkeypatch.setattr(serving.time, "sleep", Mock(side_effect=[*[None] * 3, KeyboardInterrupt]))
    monkeypatch.setattr(serving.Processes, "start", ended("the server does not take this node: it is a stranger"))
    node = SimpleNamespace(superlink="localhost:1", authority=tmp_path, state_dir=None)
    with pytest.raises(KeyboardInterrupt):
        serving.keep_connected(node, tmp_path / "home", stock=False, say=said.append)
    assert said == ["the server does not take this node: it is a stranger; an attempt follows every 10 s"]


def answer_of(seconds: float, status: int = 401, **content: str) -> httpx.Response:
    """What a server answers whose clock differs by so many seconds from this machine's."""
    date = email.utils.formatdate(time.time() + seconds, usegmt=True)
    return httpx.Response(status, headers={"date": date}, json=content)


def test_a_clock_that_is_wrong_is_said_to_be():
    """Five minutes ahead were HTTP 401, and that a bundle was not loaded."""
    for seconds, words in (
        (-300, "30[01] s ahead of the server's"),
        (-10, "1[01] s ahead of"),
        (400, "(399|400) s behind the"),
    ):
        said = executor.words_of_refusal(answer_of(seconds, detail="Invalid SuperNode authentication"))
        assert re.search(words, said) and "set the clocks" in said
    known = executor.words_of_refusal(answer_of(0, 403, detail="it does not know this key"))
    assert known == "the server does not take this node: it does not know this key"
    assert executor.words_of_refusal(httpx.Response(500)) == "the server does not take this node: HTTP 500"


def test_a_key_that_nobody_admitted_and_one_in_use_get_different_errors():
    superlink = importlib.import_module("fedsw.federation.deploy.superlink")
    asked, known = SimpleNamespace(public_key=b"key"), SimpleNamespace(get_node_id_by_public_key=lambda key: 7)
    unknown = SimpleNamespace(get_node_id_by_public_key=lambda key: None)

    def used(request, state):
        raise FlowerError(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED, "in use")

    for activate, state, status, words in (
        (used, unknown, 403, "does not know this key"),
        (used, known, 409, "its key is in use"),
    ):
        with pytest.raises(HTTPException) as refused:
            superlink._activated(activate, asked, state)
        assert refused.value.status_code == status and words in str(refused.value.detail)
    assert superlink._activated(lambda request, state: "taken", asked, known) == "taken"


def test_a_signature_from_before_a_stall_is_refused_once_and_the_node_goes_on(monkeypatch):
    monkeypatch.setattr("fedsw.federation.deploy.executor.time.sleep", lambda seconds: None)
    refused = httpx.HTTPStatusError("401", request=httpx.Request("POST", "https://a"), response=answer_of(0))
    turns = iter([refused, refused, None, refused, refused, refused])

    def take() -> Message | None:
        if (found := next(turns)) is not None:
            raise found
        return None

    node = NodeLoop(None, 1, {}, None, None)
    monkeypatch.setattr(node, "_take", take)
    with pytest.raises(SystemExit, match="no longer knows this node"):
        node.run()
    assert next(turns, "over") == "over"
