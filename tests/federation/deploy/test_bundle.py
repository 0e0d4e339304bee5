"""A node that demands a bundle loads that one and no other, and settles it from the bytes before anything of them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.cli.build import build_fab_from_disk, build_fab_from_files
from hypothesis import given
from hypothesis import strategies as st

from fedsw._tools.installed import code_digest
from fedsw._tools.settings import FederationError
from fedsw.cli.app import main
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.experiment.trust import trust_models
from fedsw.federation import flower
from fedsw.federation.deploy import bundle
from fedsw.federation.deploy.bundle import bundle_files, bundle_hash, read_bundle, write_bundle
from fedsw.federation.deploy.executor import BundleRefused, NodeLoop, require_bundle
from fedsw.federation.deploy.flower_processes import supernode_command
from fedsw.federation.deploy.node_settings import NodeSettings
from fedsw.federation.engines import inprocess
from fedsw.federation.node.limits import require_code, require_limits
from tests.federation.node.runs import RUNS
from tests.federations import Saboteur, small

PYPROJECT = """
[project]
name = "tiny"
version = "0.1.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fedsw"
[tool.flwr.app.components]
serverapp = "bundled.app:app"
clientapp = "bundled.app:app"
"""
APP = """
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
Path({mark!r}).write_text("code of the bundle ran")
app = ClientApp()
@app.query("tell")
def tell(message, context):
    config = {{"keys": sorted(context.node_config), "from": __file__}}
    return Message(RecordDict({{"answer": ConfigRecord(config)}}), reply_to=message)
"""
OTHER = "0" * 64
OWN, _ = build_fab_from_files({name: text.encode() for name, text in bundle_files().items()})
OWN_HASH = bundle_hash()


@dataclass(frozen=True)
class Answer:
    """The code and text of an error reply, or what the app says: its node configuration's keys, and its own file."""

    code: int
    reason: str
    keys: list[str] = field(default_factory=list)
    file: str = ""


class Sent:
    """A SuperLink that sends one bundle, announced by any hash; the bundle's import writes the file `mark`."""

    def __init__(self, folder: Path, announced: str | None = None) -> None:
        self.mark, app = folder / "mark", APP.format(mark=str(folder / "mark"))
        files = {"pyproject.toml": PYPROJECT, "bundled/__init__.py": "", "bundled/app.py": app}
        self.content, _ = build_fab_from_files({name: text.encode() for name, text in files.items()})
        self.hash = hashlib.sha256(self.content).hexdigest()
        self.announced = announced or self.hash

    def ask(self, **config: Any) -> Answer:
        """What a node of this configuration answers."""
        replies: list[Message] = []
        fab = SimpleNamespace(content=self.content, hash_str=self.announced)
        run = SimpleNamespace(fab_hash=self.announced, series_id=1, override_config={})
        node = NodeLoop(None, 12, {"partition-id": 0, **config}, lambda run_id: run, lambda fab_hash, run_id: fab)
        node._give = lambda reply, seconds: replies.append(reply)  # type: ignore[method-assign]
        inprocess.identify(1)
        message = Message(RecordDict({"ask": ConfigRecord({})}), 12, "query.tell", ttl=120.0)
        flower.number(message, "m")
        try:
            node._answer(message)
        finally:
            node.close()
        (reply,) = replies
        assert reply.metadata.reply_to_message_id == "m"
        if not reply.has_content():
            return Answer(reply.error.code, reply.error.reason)
        answer = reply.content["answer"]
        return Answer(0, "", list(answer["keys"]), str(answer["from"]))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("FLWR_HOME", str(home))
    return home


def test_another_bundle_than_the_demanded_one_is_refused_before_any_of_its_code_runs(tmp_path, home):
    sent = Sent(tmp_path)
    refused = sent.ask(bundle=OTHER)
    assert refused.code == 1 and OTHER in refused.reason and sent.hash in refused.reason
    assert not sent.mark.exists() and not list(home.iterdir()), "nothing was run, and nothing unpacked"


def test_the_demanded_bundle_is_served(tmp_path, home):
    sent = Sent(tmp_path)
    answer = sent.ask(bundle=sent.hash)
    assert answer.keys == ["partition-id"], "what was kept by the node is not asked of the app"
    assert sent.mark.read_text() == "code of the bundle ran"


def test_a_bundle_is_what_its_bytes_are_and_not_what_it_is_announced_as(tmp_path, home):
    sent = Sent(tmp_path, announced=OTHER)
    for config in ({"bundle": OTHER}, {}):
        refused = sent.ask(**config)
        assert OTHER in refused.reason and sent.hash in refused.reason and not sent.mark.exists()


@given(st.integers(0, len(OWN) - 1), st.integers(1, 255))
def test_a_bundle_with_any_byte_changed_is_refused(place: int, change: int) -> None:
    tampered = bytearray(OWN)
    tampered[place] ^= change
    for announced in (OWN_HASH, hashlib.sha256(tampered).hexdigest()):
        with pytest.raises(BundleRefused, match=f"demands the bundle {OWN_HASH}"):
            require_bundle(bytes(tampered), announced, OWN_HASH)
    with pytest.raises(BundleRefused, match="announced as"):
        require_bundle(bytes(tampered), OWN_HASH, None)


def test_the_own_bundle_is_what_flower_sends_of_the_folder_that_a_server_submits(tmp_path):
    sent = build_fab_from_disk(write_bundle(tmp_path / "bundle"))
    assert hashlib.sha256(sent).hexdigest() == read_bundle("own") == bundle_hash()
    require_bundle(sent, bundle_hash(), bundle_hash())
    require_bundle(sent, bundle_hash(), bundle_hash().upper())


def test_flower_installs_nothing_for_what_is_sent(tmp_path):
    """On a fresh FLWR_HOME, without an index: an environment of its own, in which there is no package."""
    code = (
        "import sys; from flwr.supercore.superexec.dependency_installer import install_app_dependencies as install;"
        "place = install(sys.argv[1]); print(*(p.name for p in place.glob('lib/python*/site-packages/*.dist-info')))"
    )
    folder = write_bundle(tmp_path / "bundle")
    env = {**os.environ, "FLWR_HOME": str(tmp_path / "home"), "UV_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code, folder], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].strip() == "" and (tmp_path / "home" / "runtime-envs").is_dir()


def test_a_folder_of_an_earlier_bundle_is_not_served_in_place_of_the_one_that_came(tmp_path, home, monkeypatch):
    from flwr.cli.install import install_from_fab

    sent = Sent(tmp_path)
    left = install_from_fab(sent.content, skip_prompt=True)
    assert left.is_relative_to(home)
    (left / "bundled" / "app.py").write_text("raise SystemExit('left by an earlier bundle')\n")
    answer = sent.ask(bundle=sent.hash)
    assert sent.mark.exists() and not Path(answer.file).is_relative_to(left)
    shutil.rmtree(home / "apps")
    assert not list(home.iterdir()), "what a worker unpacked is removed with it"


def _node(folder: Path, **changes: Any) -> NodeSettings:
    for name in ("ca.crt", "node.key"):
        (folder / name).touch()
    files = {"authority": folder / "ca.crt", "key": folder / "node.key"}
    return NodeSettings(superlink="fed.example.org:9092", client=0, clients=2, **files, **changes)


def test_a_node_that_cannot_look_at_the_hash_is_not_started(tmp_path):
    node = _node(tmp_path, bundle="own")
    assert f'bundle="{bundle_hash()}"' in supernode_command(node, stock=False, port=1)[-1]
    with pytest.raises(ValueError, match=rf"--bundle {bundle_hash()} cannot be kept with --stock.*leave --stock out"):
        supernode_command(node, stock=True, port=1)
    with pytest.raises(ExperimentError, match=r"demands the bundle .* without --stock"):
        require_limits(small(), node.node_config)  # a SuperNode that was started by hand, with this configuration


@pytest.mark.parametrize("text", ["", "owned", "12ab", "g" * 64, "0" * 63, "0" * 65])
def test_what_is_no_hash_is_refused_when_the_node_is_started(tmp_path, text):
    with pytest.raises(ValueError, match=r"64 hexadecimal digits.*`fedsw bundle` prints it"):
        _node(tmp_path, bundle=text)


def test_the_command_prints_the_hash_and_writes_what_it_is_the_hash_of(tmp_path, capsys):
    assert main(["bundle"]) == 0
    assert capsys.readouterr().out.split() == [bundle_hash()]
    assert main(["bundle", str(tmp_path / "app"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["sha256"] == hashlib.sha256(build_fab_from_disk(tmp_path / "app")).hexdigest()
    assert all((tmp_path / "app" / name).is_file() for name in answer["files"])


def test_two_versions_of_the_installed_code_never_make_one_bundle(monkeypatch):
    """The entries are the same few lines for every version; a node that demands its own must notice another."""
    monkeypatch.setattr(bundle, "code_digest", lambda: OTHER)
    assert bundle_hash() != OWN_HASH
    with pytest.raises(BundleRefused, match=f"demands the bundle {OWN_HASH}"):
        other, _ = build_fab_from_files({name: text.encode() for name, text in bundle_files().items()})
        require_bundle(other, hashlib.sha256(other).hexdigest(), OWN_HASH)


def test_the_digest_of_the_installed_code_is_printed_beside_the_bundle_s(capsys):
    assert main(["bundle", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["code"] == code_digest()


@pytest.mark.parametrize("text", ["", "owned", "12ab", "any,own", f"own,{'g' * 64}"])
def test_what_is_no_digest_of_code_is_refused_when_the_node_is_started(tmp_path, text):
    with pytest.raises(ExperimentError, match=r"no SHA-256 in 64 hexadecimal digits; `fedsw bundle --json`"):
        _node(tmp_path, code=text)


def taken(experiment: Any, stated: str | None, **config: str) -> bool:
    try:
        require_code(experiment, stated, config)
    except ExperimentError as refused:
        assert "this node takes part with" in str(refused) and "--code" in str(refused)
        assert (stated or "(it states none)") in str(refused)
        return False
    return True


@pytest.mark.parametrize("trust", list(trust_models()))
def test_a_node_takes_part_with_the_code_that_its_operator_names_and_where_all_rest_on_it_with_its_own(trust):
    for name in (name for name in RUNS if f"{name},".startswith(f"{trust},")):
        experiment = parse_experiment(*RUNS[name])
        alike = experiment.privacy.model.sites_code == "same"
        assert alike == (trust == "distributed")
        for stated in (OTHER, None, ""):
            assert taken(experiment, stated) != alike and taken(experiment, stated, code="any")
            assert not taken(experiment, stated, code="own")
        for config in ({}, {"code": "own"}, {"code": f"{OTHER}, OWN"}, {"code": code_digest().upper()}):
            assert taken(experiment, code_digest(), **config)
        assert taken(experiment, OTHER, code=f"{OTHER},own") and not taken(experiment, code_digest(), code=OTHER)


def other_code(client: int):
    """A client whose fedsw is another one, as it says itself."""

    def after(message, reply):
        if message.metadata.message_type == "query.hello" and message.metadata.dst_node_id == 1000 + client:
            reply.content["config"]["code"] = OTHER
        return reply

    return Saboteur(after=after)


@pytest.mark.parametrize("trust", ["central", "local-gradient", "distributed"])
def test_a_server_takes_other_code_but_where_all_rest_on_it_or_a_setting_says_so(federation, trust):
    settings = [f"privacy.trust={trust}", "privacy.epsilon=8.0", "privacy.delta=1e-5", "federation.sites=3"]
    words = rf"client 1's fedsw has the code {OTHER}, and this server's has {code_digest()}: .*federation\.code"
    allowed = {"any": True, "same": False, None: trust != "distributed"}
    for setting, takes in allowed.items():
        chosen = small(*settings, *([] if setting is None else [f"federation.code={setting}"]))
        if takes:
            assert federation.run(chosen, app=other_code(1))["status"] == "completed"
        else:
            with pytest.raises(FederationError, match=words):
                federation.run(chosen, app=other_code(1))
    without = small(*settings, "federation.code=same", "federation.min_clients=2")
    assert federation.run(without, app=other_code(1))["clients"] == 2
