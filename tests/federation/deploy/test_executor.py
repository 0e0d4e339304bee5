"""A warm client answers as Flower's would: the right version's code, the run's own state, and never silence."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.cli.build import build_fab_from_files

from fedsw.federation import flower
from fedsw.federation.deploy.apps import load_client_app
from fedsw.federation.deploy.executor import NodeLoop, Worker, beaten
from fedsw.federation.engines import inprocess

PYPROJECT = """
[project]
name = "tiny"
version = "0.1.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fedsw"
[tool.flwr.app.components]
serverapp = "tinyapp.app:app"
clientapp = "tinyapp.app:app"
[tool.flwr.app.config]
setting = "default"
"""
APP = """
import os, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from tinyapp.version import VERSION
app = ClientApp()
@app.query("tell")
def tell(message, context):
    what = message.content["ask"]["what"]
    seen = int(context.state["seen"]["times"]) + 1 if "seen" in context.state else 1
    context.state["seen"] = ConfigRecord({"times": seen})
    if what == "raise": raise ZeroDivisionError("the client's own fault")
    if what == "die": os._exit(7)
    if what == "hang": time.sleep(600)
    config = {"version": VERSION, "pid": os.getpid(), "seen": seen, "part": context.node_config["partition-id"],
              "setting": context.run_config["setting"], "key": int("FEDSW_TEST_KEY" in os.environ)}
    return Message(RecordDict({"answer": ConfigRecord(config)}), reply_to=message)
"""


def bundle(version: str) -> Any:
    """A bundle with an app that tells its version."""
    import hashlib

    files = {
        "pyproject.toml": PYPROJECT.encode(),
        "tinyapp/__init__.py": b'"""Tiny."""\n',
        "tinyapp/version.py": f"VERSION = {version!r}\n".encode(),
        "tinyapp/app.py": APP.encode(),
    }
    content, _ = build_fab_from_files(files)
    return SimpleNamespace(content=content, hash_str=hashlib.sha256(content).hexdigest())


ONE, TWO = bundle("one"), bundle("two")
BUNDLES = {1: ONE, 2: TWO, 3: ONE, 4: ONE, 5: ONE}


class Host:
    """A node with its replies caught before they leave."""

    def __init__(self) -> None:
        self.replies: list[Message] = []
        self.node = NodeLoop(
            None,
            1234,
            {"partition-id": 4},
            lambda run_id: SimpleNamespace(
                fab_hash=run_id, series_id=run_id, override_config={"setting": f"of {run_id}"}
            ),
            lambda fab_hash, run_id: BUNDLES[run_id],
        )
        self.node._give = lambda reply, seconds: self.replies.append(reply)  # type: ignore[method-assign]

    def ask(self, run_id: int, what: str = "tell", ttl: float = 120.0) -> Any:
        inprocess.identify(run_id)
        message = Message(RecordDict({"ask": ConfigRecord({"what": what})}), 1234, "query.tell", ttl=ttl)
        flower.number(message, f"m{len(self.replies)}")
        self.node._answer(message)
        reply = self.replies[-1]
        assert reply.metadata.reply_to_message_id == message.metadata.message_id
        return reply.content["answer"] if reply.has_content() else reply.error


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    host = Host()
    yield host
    host.node.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A node for several tests, each with runs of its own: a process takes seconds to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLWR_HOME", str(tmp_path_factory.mktemp("home")))
        host = Host()
        yield host
        host.node.close()


@pytest.mark.slow
def test_code_of_another_version_is_never_served_from_an_old_process(shared: Host) -> None:
    first, again, other, back = shared.ask(1), shared.ask(1), shared.ask(2), shared.ask(1)
    assert [reply["version"] for reply in (first, again, other, back)] == ["one", "one", "two", "one"]
    assert first["pid"] == again["pid"], "the same process answers message after message"
    assert len({first["pid"], other["pid"], back["pid"], os.getpid()}) == 4


def test_runs_of_one_bundle_share_a_process_but_neither_state_nor_settings(shared: Host) -> None:
    replies = [shared.ask(run_id) for run_id in (4, 3, 4, 4, 3)]
    assert [reply["seen"] for reply in replies] == [1, 1, 2, 3, 2]
    assert [reply["setting"] for reply in replies] == ["of 4", "of 3", "of 4", "of 4", "of 3"]
    assert len({reply["pid"] for reply in replies}) == 1 and replies[0]["part"] == 4


@pytest.mark.slow
def test_a_client_that_raises_dies_or_hangs_is_answered_for_and_its_state_stays(shared: Host) -> None:
    before = shared.ask(5)
    raised = shared.ask(5, "raise")
    assert (raised.code, "the client's own fault" in raised.reason) == (2, True)
    assert shared.ask(5)["pid"] == before["pid"], "an exception costs no process"
    died = shared.ask(5, "die")
    assert (died.code, "died" in died.reason) == (8, True)
    began = time.monotonic()
    hung = shared.ask(5, "hang", ttl=4.0)
    assert (hung.code, "time to live" in hung.reason) == (8, True) and time.monotonic() - began < 60
    after = shared.ask(5)
    assert after["pid"] != before["pid"] and after["version"] == "one"
    assert after["seen"] == 4, "messages that were answered are remembered, the two that killed their process are not"


def test_a_reply_that_cannot_be_delivered_does_not_end_the_node(shared: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    inprocess.identify(1)
    messages = [Message(RecordDict({"ask": ConfigRecord({"what": "tell"})}), 1234, "query.tell", ttl=60.0)] * 2
    given: list[Any] = []

    def too_late(reply: Any, seconds: float) -> None:
        given.append(reply)
        raise RuntimeError("the message is no longer there")

    def take() -> Any:
        if not messages:
            raise KeyboardInterrupt
        return messages.pop()

    monkeypatch.setattr(shared.node, "_give", too_late)
    monkeypatch.setattr(shared.node, "_take", take)
    with pytest.raises(KeyboardInterrupt):
        shared.node.run()
    assert len(given) == 2


@pytest.mark.slow
def test_a_worker_has_loaded_its_libraries_before_anything_is_asked_of_it(host: Host) -> None:
    worker = Worker()
    host.node._worker = worker
    worker.wait_until_ready()
    pid = worker._process.pid  # children of this process may be workers of an earlier test
    assert any("libtorch" in part.path for part in psutil.Process(pid).memory_maps())
    first, other = host.ask(1), host.ask(2)
    assert (first["pid"], first["version"]) == (pid, "one")
    assert (other["pid"] != pid, other["version"]) == (True, "two"), "it belongs to the first bundle that it gets"


def test_a_worker_that_dies_before_it_is_asked_anything_is_replaced(host: Host) -> None:
    host.node._worker = Worker()
    host.node._worker._process.kill()
    host.node._worker.wait_until_ready()
    host.node._worker._process.wait()
    assert host.ask(1)["version"] == "one"


def test_a_worker_ends_with_its_node(host: Host) -> None:
    pid = host.ask(1)["pid"]
    host.node.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_module_from_elsewhere_under_the_bundle_s_name_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "tinyapp").mkdir()
    for name in ("__init__.py", "version.py"):
        (tmp_path / "tinyapp" / name).write_text("VERSION = 'old'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import tinyapp.version  # type: ignore[import-not-found]

    assert tinyapp.version.VERSION == "old"
    del sys.modules["tinyapp"]  # the bundle's own package is found again, the old submodule would be served with it
    try:
        with pytest.raises(RuntimeError, match=r"tinyapp\.version was loaded from .*, not from the app bundle"):
            load_client_app(str(tmp_path / "unpacked"), BUNDLES[2].content, BUNDLES[2].hash_str)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "tinyapp"]:
            del sys.modules[name]


@pytest.mark.parametrize(("answers", "asked"), [([401, 401], 2), ([None], 1), ([401, None], 2)])
def test_a_heartbeat_that_a_server_started_anew_refuses_is_a_failure_that_is_repeated(answers, asked, monkeypatch):
    """Any other error ends Flower's thread with a traceback, before the node has said why it goes."""
    monkeypatch.setattr("fedsw.federation.deploy.executor._PAUSE_SECONDS", 0.0)
    seen = []

    def beat(client: Any, request: Any) -> Any:
        seen.append(request)
        code = answers[len(seen) - 1]
        if code is None:
            return SimpleNamespace(success=False)
        asking = httpx.Request("POST", "https://fed.example.org")
        raise httpx.HTTPStatusError("refused", request=asking, response=httpx.Response(code, request=asking))

    with pytest.raises(httpx.TransportError, match="does not know this node"):
        beaten(beat, None, "beat")
    assert len(seen) == asked
    assert beaten(lambda *_: SimpleNamespace(success=True), None, "beat").success
