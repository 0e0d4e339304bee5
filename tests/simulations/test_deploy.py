"""The pieces of a deployment: what certificates vouch for, who can read keys, what is stopped and what is not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key
from hypothesis import given
from hypothesis import strategies as st

from simulations import OFFLINE, warm_executor, warm_superlink
from simulations.deploy import processes as deploy_processes
from simulations.deploy.certificates import LOOPBACK, ServerCertificates, write_certificates
from simulations.deploy.following import Follower
from simulations.deploy.keys import write_node_key
from simulations.deploy.processes import MARK, Processes
from simulations.deploy.serving import probe, write_federation
from simulations.deploy.superlink import profile, superlink_command
from simulations.deploy.supernode import NodeSettings, node_config_text, supernode_command
from simulations.deploy.watchdog import marked
from tests.federations import small
from tests.simulations.conftest import Watcher

HOSTS = ("fed.example.org", "10.1.2.3", *LOOPBACK)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("federation")
    write_federation(folder, ["fed.example.org", "10.1.2.3"], 3)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("host", HOSTS)
def test_the_certificate_is_valid_for_every_named_host_under_its_own_authority(federation: Path, host: str) -> None:
    files = ServerCertificates.of(federation / "server")
    assert _verified(files.authority, files.certificate, host)


@pytest.mark.parametrize("host", ["other.example.org", "10.1.2.4", "example.org"])
def test_the_certificate_is_not_valid_for_any_other_host(federation: Path, host: str) -> None:
    files = ServerCertificates.of(federation / "server")
    assert not _verified(files.authority, files.certificate, host)


def test_the_certificate_is_not_valid_under_another_authority_of_the_same_name(federation: Path, tmp_path) -> None:
    other = write_certificates(tmp_path / "other", HOSTS)
    assert not _verified(other.authority, ServerCertificates.of(federation / "server").certificate, HOSTS[0])


def test_the_server_certificate_can_sign_nothing_and_the_authority_s_key_is_nowhere(federation: Path) -> None:
    files = ServerCertificates.of(federation / "server")
    server, authority = (
        x509.load_pem_x509_certificate(path.read_bytes()) for path in (files.certificate, files.authority)
    )
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    known = {server.public_key().public_numbers()}  # type: ignore[union-attr]
    for path in federation.rglob("*"):
        if path.is_file() and b"PRIVATE KEY" in (content := path.read_bytes()):
            load = load_ssh_private_key if b"OPENSSH" in content else load_pem_private_key
            known.add(load(content, None).public_key().public_numbers())  # type: ignore[union-attr, operator]
    assert len(known) == 1 + 3, "the server's key and three node keys"
    assert authority.public_key().public_numbers() not in known  # type: ignore[union-attr]


def test_only_their_owner_can_read_secrets(federation: Path) -> None:
    for path in [federation / "server", *federation.glob("client*"), federation / "server" / "nodes"]:
        assert mode(path) == 0o700, path
    for path in (federation / "server" / "server.key", *federation.glob("client*/node.key")):
        assert mode(path) == 0o600, path


def test_a_secret_is_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert mode(write_node_key(tmp_path / "key").private) == 0o600
    finally:
        os.umask(before)


def test_no_machine_is_given_another_machine_s_key(federation: Path) -> None:
    secrets = {path: path.read_bytes() for path in federation.rglob("*.key")}
    assert len(secrets) == len(set(secrets.values())) == 4
    for place in (federation / "server", *(federation / f"client{client}" for client in range(3))):
        held = [content for content in secrets.values() if any(content in p.read_bytes() for p in _files(place))]
        assert len(held) == 1, place


def test_nothing_is_overwritten(federation: Path) -> None:
    before = {path: path.read_bytes() for path in _files(federation)}
    with pytest.raises(FileExistsError, match="choose another folder"):
        write_federation(federation, ["fed.example.org"], 3)
    with pytest.raises(FileExistsError, match=r"node\.key exists"):
        write_node_key(federation / "client0" / "node.key")
    assert {path: path.read_bytes() for path in _files(federation)} == before


@pytest.mark.parametrize("host", ["", "https://fed.example.org", "fed.example.org:9092", "a b", "-..x", "füd.org"])
def test_a_host_that_is_none_is_refused_before_anything_is_written(tmp_path: Path, host: str) -> None:
    with pytest.raises(ValueError, match="host name"):
        write_certificates(tmp_path / "out", [host])
    assert not (tmp_path / "out").exists()


def test_flower_reads_the_node_keys_and_both_halves_belong_together(federation: Path) -> None:
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    private = load_ssh_private_key((federation / "client1" / "node.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(private.curve, ec.SECP384R1)
    registered = try_load_public_key(federation / "server" / "nodes" / "client1.pub")
    assert registered == public_key_to_bytes(private.public_key())


def test_a_client_probes_the_server_s_certificate_before_it_connects(federation: Path, tmp_path: Path) -> None:
    stranger = write_certificates(tmp_path / "stranger", LOOPBACK)
    elsewhere = write_certificates(tmp_path / "elsewhere", ["fed.example.org"])
    own = ServerCertificates.of(federation / "server")
    with _tls_server(own) as port:
        assert probe(f"127.0.0.1:{port}", own.authority) is None
        assert probe(f"localhost:{port}", own.authority) is None
        with pytest.raises(ConnectionError, match="not to be trusted"):
            probe(f"127.0.0.1:{port}", stranger.authority)
    with _tls_server(elsewhere) as port, pytest.raises(ConnectionError, match="not to be trusted"):
        probe(f"127.0.0.1:{port}", elsewhere.authority)
    assert "refused" in str(probe(f"127.0.0.1:{deploy_processes.free_port()}", own.authority))


@pytest.mark.parametrize("address", ["fed.example.org", "https://fed.example.org/", ":9092", "fed:port"])
def test_an_address_without_host_or_port_is_refused(federation: Path, address: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        probe(address, federation / "client0" / "ca.crt")


def _node(federation: Path, **changes: Any) -> NodeSettings:
    settings = {
        "superlink": "fed.example.org:9092",
        "authority": federation / "client0" / "ca.crt",
        "key": federation / "client0" / "node.key",
        "client": 0,
        "clients": 3,
    }
    return NodeSettings(**{**settings, **changes})


def test_flower_understands_the_supernode_s_command_as_meant(federation: Path, tmp_path: Path) -> None:
    from flwr.common.config import parse_config_args
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    node = _node(federation, client=2, data_dir=tmp_path, state_dir=tmp_path / "a b")
    command = supernode_command(node, stock=True, port=19000)
    asked = _parse_args_run_supernode().parse_args(command[1:])
    assert not asked.insecure and asked.superlink == node.superlink
    assert asked.root_certificates == str(node.authority) and asked.auth_supernode_private_key == str(node.key)
    assert (asked.host, asked.port, asked.isolation) == ("127.0.0.1", 19000, "subprocess")
    assert not asked.runtime_dependency_install
    assert parse_config_args([asked.node_config]) == {
        "partition-id": 2,
        "num-partitions": 3,
        "data-dir": str(tmp_path),
        "state-dir": str(tmp_path / "a b"),
    }


def test_the_warm_supernode_is_given_the_same_but_for_the_port(federation: Path) -> None:
    node = _node(federation)
    stock, warm = (supernode_command(node, stock=choice, port=19000) for choice in (True, False))
    assert warm[3:] == stock[1:-4] and stock[-4:] == ["--host", "127.0.0.1", "--port", "19000"]


def test_flower_understands_the_superlink_s_command_as_meant(federation: Path) -> None:
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink

    files = ServerCertificates.of(federation / "server")
    stock = superlink_command(files, "127.0.0.1", 18000, stock=True)
    asked = _parse_args_run_superlink().parse_args(stock[1:])
    assert not asked.insecure and asked.enable_supernode_auth and not asked.runtime_dependency_install
    assert (asked.ssl_certfile, asked.ssl_keyfile) == (str(files.certificate), str(files.key))
    assert (asked.host, asked.port) == ("127.0.0.1", 18000)
    warm = superlink_command(files, "127.0.0.1", 18000, stock=False)
    assert warm[-len(stock) + 1 :] == stock[1:]


@given(st.text(st.characters(exclude_categories=("C",), exclude_characters='"'), min_size=1), st.integers(0, 99))
def test_flower_reads_back_any_path_in_a_node_s_configuration(path: str, client: int) -> None:
    from flwr.common.config import parse_config_args

    config: dict[str, int | str] = {"partition-id": client, "data-dir": path}
    assert parse_config_args([node_config_text(config)]) == config


def test_a_path_that_flower_would_cut_in_two_is_refused() -> None:
    with pytest.raises(ValueError, match="double quote"):
        node_config_text({"data-dir": 'a" partition-id=3 b="'})


@pytest.mark.parametrize(
    ("changes", "error", "what"),
    [
        ({"client": 3}, ValueError, "partition-id 3 is not below num-partitions 3"),
        ({"client": -1}, ValueError, "numbered from 0"),
        ({"key": Path("nowhere")}, FileNotFoundError, "no node key at nowhere"),
        ({"authority": Path("nowhere")}, FileNotFoundError, "no certificate of the authority at nowhere"),
        ({"data_dir": Path("nowhere")}, FileNotFoundError, "no data directory at nowhere"),
    ],
)
def test_a_node_that_cannot_start_is_refused_with_the_reason(federation: Path, changes, error, what) -> None:
    with pytest.raises(error, match=what):
        _node(federation, **changes)


def test_flower_finds_the_superlink_by_its_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.cli.flower_config import read_superlink_connection

    authority = tmp_path / "a b" / "ca.crt"
    (tmp_path / "config.toml").write_text(profile("127.0.0.1:18000", authority))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    connection = read_superlink_connection("fedsw")
    assert (connection.address, connection.root_certificates) == ("127.0.0.1:18000", str(authority))
    assert not connection.insecure


# Processes. SLEEPER starts a process in a session of its own, as Flower's do, and both sleep.
SLEEPER = "import subprocess, sys, time\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\ntime.sleep(600)\n"
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)"
)


def test_everything_started_is_stopped_and_nothing_else(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        with pytest.raises(ZeroDivisionError), Processes(tmp_path) as processes:
            processes.start("sleeper", [sys.executable, "-c", SLEEPER])
            started = _wait_for(lambda: processes.alive() if len(processes.alive()) == 2 else [])
            raise ZeroDivisionError
        assert len(started) == 2 and not any(_runs(process) for process in started)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_process_that_ignores_the_request_to_end_is_killed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(deploy_processes, "end", lambda name, mark: _end(name, mark, grace=0.3))
    with Processes(tmp_path) as processes:
        stubborn = processes.start("stubborn", [sys.executable, "-c", STUBBORN])
        _wait_for(lambda: "ready" in processes.said("stubborn"))
    assert stubborn.returncode == -signal.SIGKILL


def test_the_watchdog_stops_everything_when_its_parent_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    parent = subprocess.Popen([sys.executable, "-c", _ORPHANS.format(logs=str(tmp_path), mark=str(mark))])
    _wait_for(lambda: mark.exists() and mark.read_text())
    assert _wait_for(lambda: len(marked(MARK, mark.read_text())) == 2)
    parent.kill()
    parent.wait()
    assert _wait_for(lambda: not marked(MARK, mark.read_text()))


_ORPHANS = f"""
import os, pathlib, sys, time
from simulations.deploy.processes import Processes
with Processes(pathlib.Path({{logs!r}})) as processes:
    processes.start("sleeper", [sys.executable, "-c", {SLEEPER!r}])
    part = pathlib.Path({{mark!r}} + ".part")
    part.write_text(processes.mark)
    os.replace(part, {{mark!r}})
    time.sleep(600)
"""


def test_children_are_told_not_to_phone_home_and_where_flower_s_commands_are(tmp_path: Path) -> None:
    with Processes(tmp_path, {"FLWR_TELEMETRY_ENABLED": "1", "FLWR_HOME": "here"}) as processes:
        code = "import json, os; print(json.dumps(dict(os.environ)))"
        processes.start("child", [sys.executable, "-c", code], {"MINE": "too"}).wait()
        environment = json.loads(processes.said("child", 10**6))
    assert {name: environment[name] for name in OFFLINE} == OFFLINE
    assert (environment["MINE"], environment["FLWR_HOME"], environment[MARK]) == ("too", "here", processes.mark)
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_a_process_that_does_not_start_is_reported_with_what_it_said(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        process = processes.start("superlink", [sys.executable, "-c", "raise SystemExit('port taken')"])
        with pytest.raises(RuntimeError, match="superlink ended; it said:\nport taken"):
            deploy_processes.wait_until_open(processes, "superlink", process, deploy_processes.free_port(), 30)


def test_every_released_round_is_shown_once_and_a_line_that_is_being_written_is_not(tmp_path: Path) -> None:
    watcher, metrics = Watcher(), tmp_path / "metrics.jsonl"
    follower = Follower(tmp_path, small("training.rounds=7", "federation.clients=4"), watcher)
    follower.look()
    assert not watcher.plans
    (tmp_path / "ledger.sqlite").touch()
    follower.look()
    assert [(plan["rounds"], plan["clients"]) for plan in watcher.plans] == [(7, 4)]
    metrics.write_text('{"round": 1}\n{"round": 2}\n{"rou')
    follower.look()
    follower.look()
    with metrics.open("a") as file:
        file.write('nd": 3}\n')
    follower.look()
    assert [record["round"] for record in watcher.records] == [1, 2, 3] and len(watcher.plans) == 1


@pytest.mark.parametrize(
    ("peer", "path", "passes"),
    [
        (("10.0.0.9", 5), "/v1/control/register-node", False),
        (("10.0.0.9", 5), "/v1/control/start-run", False),
        (("10.0.0.9", 5), "/v1/runtime/acquire-task", False),
        (("10.0.0.9", 5), "/v1/runtime/collect", False),
        (("10.0.0.9", 5), "/docs", False),
        (None, "/v1/control/start-run", False),
        (("10.0.0.9", 5), "/v1/fleet/take", True),
        (("127.0.0.1", 5), "/v1/control/start-run", True),
        (("::1", 5), "/v1/runtime/collect", True),
        (("::ffff:127.0.0.1", 5), "/v1/control/start-run", True),
    ],
)
def test_other_machines_reach_the_nodes_interface_only(peer: Any, path: str, passes: bool) -> None:
    reached, sent = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    asyncio.run(warm_superlink.LoopbackOnly(app)({"type": "http", "path": path, "client": peer}, None, send))
    assert bool(reached) == passes and (passes or sent[0]["status"] == 403)


@pytest.mark.parametrize("main", [warm_executor.main, warm_superlink.main])
def test_another_flower_is_refused_with_the_way_out(main: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.42.0")
    with pytest.raises(SystemExit, match=r"need Flower 1\.41\.x, not 1\.42\.0.*--stock"):
        main(["worker", "0"])


def test_warm_modules_import_none_of_the_app_s_code() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import {0}; print([m for m in sys.modules if m in {1}])"
    own = ("clients", "fedsw", "server", "simulations")
    for name in ("warm_executor", "warm_superlink", "warm_serverapp"):
        folder = str(Path(warm_executor.__file__).parent)
        command = [sys.executable, "-P", "-c", code.format(name, own), folder]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def _verified(authority: Path, certificate: Path, host: str) -> bool:
    import ipaddress

    from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

    try:
        subject: Any = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        subject = x509.DNSName(host)
    store = Store([x509.load_pem_x509_certificate(authority.read_bytes())])
    try:
        verifier = PolicyBuilder().store(store).build_server_verifier(subject)
        verifier.verify(x509.load_pem_x509_certificate(certificate.read_bytes()), [])
    except VerificationError:
        return False
    return True


class _tls_server:
    """Accepts connections on loopback and shakes hands, until it is left."""

    def __init__(self, files: ServerCertificates) -> None:
        import socket

        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.certificate, files.key)
        self._socket = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> int:
        threading.Thread(target=self._serve, daemon=True).start()
        return int(self._socket.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            try:
                self._context.wrap_socket(connection, server_side=True).close()
            except OSError:
                connection.close()


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _end(name: str, mark: str, *, grace: float) -> None:
    from simulations.deploy.watchdog import end

    end(name, mark, grace=grace)


def _wait_for(condition: Any, seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def test_the_mark_finds_living_processes_only(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        process = processes.start("short", [sys.executable, "-c", "pass"])
        _wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
        assert not processes.alive()


def test_a_client_names_its_own_file_and_the_columns_it_agrees_to(tmp_path):
    """What a node reads and what it refuses is decided on its own command line, not by the server."""
    for name in ("ca.crt", "node.key", "records.csv", "columns.toml"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    settings = {"superlink": "host:1", "authority": tmp_path / "ca.crt", "key": tmp_path / "node.key"}
    node = NodeSettings(
        **settings, client=0, clients=2, data_path=tmp_path / "records.csv", schema=tmp_path / "columns.toml"
    )
    assert node.node_config["data-path"] == str((tmp_path / "records.csv").resolve())
    assert node.node_config["schema"] == str((tmp_path / "columns.toml").resolve())
    with pytest.raises(FileNotFoundError, match="no schema at"):
        NodeSettings(**settings, client=0, clients=2, schema=tmp_path / "none.toml")
