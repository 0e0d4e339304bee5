"""A federation of real processes: the same results, strangers refused, and nothing left behind."""

from __future__ import annotations

import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedsw.audit.record import audit
from fedsw.federation.deploy.bundle import bundle_hash
from fedsw.federation.deploy.certificates import LOOPBACK, write_certificates, write_federation, write_node_key
from fedsw.federation.deploy.flower_processes import SuperLink, supernode_command
from fedsw.federation.deploy.node_settings import NodeSettings
from fedsw.federation.deploy.processes import MARK, Processes, free_port, script
from fedsw.federation.deploy.serving import probe, serving
from fedsw.federation.engines.deployed import local_federation
from fedsw.federation.engines.driver import run
from fedsw.runs.run_files import found_json
from tests.federation.local_runs import parameters_of
from tests.federations import small
from tests.pretended_runs import Watcher
from tests.processes import interruptible, mark, of_this_test

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
PATIENT = "federation.timeout=600.0"
CLIENTS = 2


def deployed_processes() -> dict[int, str]:
    """Every living process of a deployment that the test at hand started."""
    return of_this_test(having=MARK)


def wait_for(condition: Callable[[], Any], seconds: float = 300.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    mark(monkeypatch)
    yield
    assert wait_for(lambda: not deployed_processes(), 30), deployed_processes()


def test_real_processes_end_with_the_same_model_and_the_same_epsilon(tmp_path, monkeypatch) -> None:
    """Proxies that are out of reach disturb no run on this machine."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9" if name != "ALL_PROXY" else "socks5://127.0.0.1:9")
    experiment = small("seed=5", "privacy.epsilon=3.0", "federation.clients=2", "federation.sites=2", PATIENT)
    watcher = Watcher()
    ours = run(experiment, runs=tmp_path / "ours")
    theirs = run(experiment, engine="deployed", runs=tmp_path / "theirs", observer=watcher)
    reference = parameters_of(ours.directory)
    assert float((parameters_of(theirs.directory) - reference).norm()) <= 1e-6 * float(reference.norm())
    for number in ("epsilon", "epsilon_spent", "delta", "released_rounds", "bytes_up", "bytes_down"):
        assert theirs.summary[number] == ours.summary[number], number
    assert [record["round"] for record in watcher.records] == [1, 2, 3, 4] and audit(theirs.directory).passed
    assert len(watcher.plans) == len(watcher.summaries) == 1
    assert not (theirs.directory / "deployment").exists(), "keys and certificates belong to the run only"


@pytest.mark.parametrize("killed", [signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_command_ends_all_it_started(tmp_path, killed) -> None:
    """How a run goes on from there is `tests/laws/simulations/test_chaos_deployed.py`."""
    command = [script("fedsw"), "deploy", "local", "fair-classification"]
    options = ["--clients", "2", "--runs", str(tmp_path), "training.rounds=100000", "data.records=600", PATIENT]
    process = subprocess.Popen(
        [*command, *options],
        start_new_session=True,
        preexec_fn=interruptible,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = wait_for(lambda: [path for path in tmp_path.glob("*/*/metrics.jsonl") if path.stat().st_size > 2000])
    assert metrics and deployed_processes()
    process.send_signal(killed)
    try:
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()  # it has ended, or the test has failed
    assert wait_for(lambda: not deployed_processes(), 30)
    directory = metrics[0].parent
    if killed != signal.SIGKILL:
        assert process.returncode == 128 + killed and f"fedsw resume {directory}" in said
        assert not any((directory / "deployment").glob("keys/*")), "secrets go with the processes"
        assert "Traceback" not in said and found_json(directory / "summary.json")["released_rounds"] > 0


def start_fedsw(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [script("fedsw"), *words]
    return subprocess.Popen(command, cwd=folder, start_new_session=True, stderr=subprocess.PIPE, text=True)


def test_a_client_that_demands_another_bundle_than_the_server_s_ends_the_run_with_both_hashes(tmp_path: Path) -> None:
    fedsw, port, other = partial(start_fedsw, tmp_path), str(free_port()), "0" * 64
    assert fedsw("certs", "--host", "localhost", "--clients", "1", "--out", "fed").wait() == 0
    (tmp_path / "node.toml").write_text(
        f"superlink = 'localhost:{port}'\ncerts = 'fed/client0'\npartition-id = 0\nnum-partitions = 1\n"
        f"state-dir = 'state'\ntrust = 'any'\nbundle = '{other}'\n",
        encoding="utf-8",
    )
    client = fedsw("client", "--config", "node.toml")
    try:
        settings = ["federation.clients=1", "training.rounds=3", "data.records=600", PATIENT]
        server = fedsw("server", "--certs", "fed/server", "--port", port, "fair-classification", *settings)
        _, said = server.communicate(timeout=600)
    finally:
        client.send_signal(signal.SIGTERM)
        client.communicate(timeout=60)
    assert server.returncode == 2 and other in said and bundle_hash() in said, said
    assert not list(tmp_path.glob("runs/*/*/ledger.sqlite")), "nothing was spent"
    assert wait_for(lambda: not deployed_processes(), 30)


def test_server_and_clients_that_are_started_apart_find_each_other_and_outlive_a_run(tmp_path: Path) -> None:
    fedsw = partial(start_fedsw, tmp_path)
    port = str(free_port())
    assert fedsw("certs", "--host", "localhost", "--clients", "2", "--out", "fed").wait() == 0
    common = ["--superlink", f"localhost:{port}", "--num-partitions", "2", "--bundle", "own", "--trust", "central"]
    clients = [
        fedsw("client", *common, "--certs", f"fed/client{i}", "--partition-id", str(i), "--state-dir", f"state{i}")
        for i in range(2)
    ]
    try:
        settings = ["federation.clients=2", "training.rounds=3", "data.records=600", PATIENT]
        for _ in range(2):  # the second server meets clients whose first one went away
            server = fedsw("server", "--certs", "fed/server", "--port", port, "fair-classification", *settings)
            _, said = server.communicate(timeout=600)
            assert server.returncode == 0, said
        assert len(list(tmp_path.glob("runs/*/*/model.safetensors"))) == 2
        assert all(client.poll() is None for client in clients)
        assert fedsw("resume", str(next(tmp_path.glob("runs/*/*")))).wait() == 2
    finally:
        for client in clients:
            client.send_signal(signal.SIGTERM)
        codes = [client.wait(60) for client in clients]
    assert codes == [128 + signal.SIGTERM] * 2 and wait_for(lambda: not deployed_processes(), 30)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, SuperLink]]:
    folder = tmp_path_factory.mktemp("federation")
    experiment = small(f"federation.clients={CLIENTS}", PATIENT)
    with local_federation(folder / "place", folder / "states", experiment) as link:
        yield folder, link


def test_all_secrets_are_their_owner_s_while_the_federation_runs(federation: tuple[Path, SuperLink]) -> None:
    place = federation[0] / "place"
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    keys = [path for path in place.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert len(keys) == 2 + CLIENTS  # of TLS, of requests, and of each node
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in keys)


@pytest.mark.parametrize("stock", [False, True])
def test_an_unknown_node_key_is_refused(federation: tuple[Path, SuperLink], tmp_path: Path, stock: bool) -> None:
    folder, link = federation
    key = write_node_key(tmp_path / "stranger").with_suffix("")
    node = NodeSettings(link.address, folder / "place" / "certificates" / "ca.crt", key, client=0, clients=CLIENTS)
    with Processes(tmp_path, {"FLWR_HOME": str(tmp_path)}) as processes:
        stranger = processes.start("stranger", supernode_command(node, stock=stock, port=free_port()))
        if stock:  # Flower's own client asks again for ever
            with pytest.raises(subprocess.TimeoutExpired):
                stranger.wait(20)
        else:
            assert stranger.wait(120) != 0 and "does not know this key" in processes.said("stranger")
        assert "SuperNode ID:" not in processes.said("stranger")


def test_a_key_that_is_taken_away_is_refused_and_one_that_is_put_there_admitted_while_the_server_runs(
    tmp_path: Path,
) -> None:
    server, (mine, other) = write_federation(tmp_path / "fed", ["localhost"], 2)
    admitted = server / "nodes" / f"{other.name}.pub"
    spare = admitted.read_bytes()
    admitted.unlink()
    port = free_port()
    environment = {"FLWR_HOME": str(tmp_path)}
    with (
        serving(server, tmp_path / "home", port=port, stock=False) as link,
        Processes(tmp_path, environment) as processes,
    ):

        def started(name: str, place: Path, client: int) -> Any:
            node = NodeSettings(
                f"localhost:{port}",
                place / "ca.crt",
                place / "node.key",
                client=client,
                clients=2,
                server_key=place / "signing.pub",
            )
            return processes.start(name, supernode_command(node, stock=False, port=free_port()))

        def is_admitted(name: str) -> bool:
            return "SuperNode ID:" in processes.said(name)

        revoked = started("mine", mine, 0)
        assert wait_for(lambda: is_admitted("mine"), 90)
        (server / "nodes" / f"{mine.name}.pub").unlink()
        admitted.write_bytes(spare)
        assert wait_for(lambda: revoked.poll() is not None, 90), "a revoked node goes on"
        assert started("again", mine, 0).wait(90) != 0 and not is_admitted("again")
        started("other", other, 1)
        assert wait_for(lambda: is_admitted("other"), 90) and link.process.poll() is None


@pytest.mark.parametrize("stock", [False, True])
def test_a_server_whose_certificate_is_not_trusted_is_not_spoken_to(federation, tmp_path: Path, stock: bool) -> None:
    folder, link = federation
    stranger = write_certificates(tmp_path / "other", LOOPBACK).authority
    with pytest.raises(ConnectionError, match="not to be trusted"):
        probe(link.address, stranger)
    node = NodeSettings(link.address, stranger, folder / "place" / "keys" / "client0", client=0, clients=CLIENTS)
    with Processes(tmp_path, {"FLWR_HOME": str(tmp_path)}) as processes:
        process = processes.start("node", supernode_command(node, stock=stock, port=free_port()))
        wait_for(lambda: process.poll() is not None, 25)
        assert "SuperNode ID:" not in processes.said("node")
    assert probe(link.address, link.authority) is None


@pytest.mark.parametrize("path", ["/v1/fleet/take", "/v1/fleet/give", "/v1/fleet/pull-messages"])
def test_no_message_is_given_to_who_cannot_sign_for_the_node(federation, tmp_path: Path, path: str) -> None:
    import httpx
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.proto.fleet_pb2 import PullMessagesRequest
    from flwr.proto.node_pb2 import Node
    from flwr.proto.recorddict_pb2 import BytesList
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    folder, link = federation
    victim = int(link.processes.said("client0").partition("SuperNode ID: ")[2].split()[0])
    keys = [write_node_key(tmp_path / "stranger").with_suffix(""), folder / "place" / "keys" / "client1"]
    request = PullMessagesRequest(node=Node(node_id=victim))
    body: Any = request if path.endswith("pull-messages") else BytesList(vals=[request.SerializeToString()])
    signers: list[list[Any]] = [[]]
    for key in keys:
        private: Any = load_ssh_private_key(key.read_bytes(), None)
        signers.append([NodeAuthHttpInterceptor(private, private.public_key())])
    for signer in signers:
        with FleetHttpClient.from_server_address(link.address, False, str(link.authority), signer) as client:
            with pytest.raises(httpx.HTTPStatusError) as refused:
                client._unary_unary(path=path, rpc_method=path, request=body, response_type=BytesList)
            assert refused.value.response.status_code == 401


@pytest.mark.parametrize("path", ["/v1/runtime/offer", "/v1/runtime/collect"])
def test_no_message_is_taken_from_or_given_to_who_is_no_server_app(federation, path: str) -> None:
    import ssl

    import httpx

    context = ssl.create_default_context(cafile=str(federation[1].authority))
    url = f"https://{federation[1].address}{path}"
    answers = [httpx.post(url, content=b"\n\x00", headers=headers, verify=context) for headers in ({}, {"x": "y"})]
    assert all(answer.status_code in (401, 403) for answer in answers), answers
    assert httpx.post(url, content=b"\xff\xff", verify=context).status_code == 400


def processes_with(words: str) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid, line in deployed_processes().items() if words in line]


def test_a_killed_client_process_is_replaced_and_a_node_that_stands_still_for_half_a_minute_ends_no_run(
    tmp_path: Path,
) -> None:
    """A ClientApp's process dies between rounds: an error reply, a fresh process, a fresh attempt.

    Later a node stands still for longer than a lease of 20 s, while the round needs it.
    """
    stopped: list[psutil.Process] = []

    def disturb(round_: int) -> None:
        if round_ == 2:
            processes_with("apps.py worker")[0].kill()
        if round_ == 5:
            node = processes_with("partition-id=1 ")[0]
            stopped.extend([node, *node.children(recursive=True)])
            for process in stopped:
                process.suspend()
            threading.Timer(30.0, lambda: [process.resume() for process in stopped]).start()

    class Disturbs(Watcher):
        def round_done(self, record: dict[str, Any]) -> None:
            super().round_done(record)
            disturb(record["round"])

    experiment = small("training.rounds=8", "federation.clients=2", "federation.timeout=120.0")
    result = run(experiment, engine="deployed", runs=tmp_path, observer=Disturbs())
    assert len(stopped) >= 2, "the node and its worker"
    assert result.summary["status"] == "completed" and result.summary["released_rounds"] == 8
