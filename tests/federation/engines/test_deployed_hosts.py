"""Four hosts in one machine, each with its own addresses, files and names: the commands of deploy/ and of the pages."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsw.federation.deploy.certificates import write_federation
from fedsw.federation.deploy.processes import Processes
from fedsw.federation.deploy.serving import PORT
from fedsw.federation.node.roster import read_roster
from fedsw.privacy.accounting import Ledger
from fedsw.runs.client_status import read_client_status
from tests.packaging.test_many_machines import ROOT, SERVICES, pod
from tests.processes import left_of_this_test, mark

pytestmark = pytest.mark.slow
SITES, ROUNDS = 3, 2
RELAY = "10.99.0.1"
RELAYED = {"site0": False, "site1": True}
"""Sites that reach the server by relay.py, and whether it ends TLS there. The third has a plain wire, which drops."""
DOWN_SECONDS = 60.0
AS_A_CONTAINER = """
set -e
mount -t tmpfs none /run && mkdir -p /run/secrets /run/records
mount -t tmpfs none /home && mkdir /home/fedsw
mount --bind "$HOST/hosts" /etc/hosts
mount --bind "$HOST/secrets" /run/secrets
mount --bind "$HOST/records" /run/records
mount --bind "$HOST/kept" /home/fedsw
cd /home/fedsw
exec "$@"
"""
"""What a container's engine does before it starts a command: $HOST is the folder with this host's files."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


@contextlib.contextmanager
def namespaces(names: list[str]) -> Iterator[dict[str, str]]:
    """Network namespaces by host, with a wire from the first to each other; a skip where they are not allowed."""
    at = {name: f"fedsw-{secrets.token_hex(3)}-{name}" for name in names}
    try:
        wire(at)
    except FileNotFoundError as fault:
        pytest.skip(f"network namespaces need a program that is not on this machine: {fault.filename}")
    except subprocess.CalledProcessError as fault:
        unwire(at)
        pytest.skip(f"network namespaces are not allowed on this machine: {fault.stderr.decode().strip()}")
    try:
        yield at
    finally:
        unwire(at)


def wire(at: dict[str, str]) -> None:
    for namespace in at.values():
        ip("netns", "add", namespace)
        ip("-n", namespace, "link", "set", "lo", "up")
        entered = ["nsenter", f"--net=/run/netns/{namespace}", "unshare", "--mount", "true"]
        subprocess.run(entered, check=True, capture_output=True, timeout=30)
    first, *others = at
    for number, other in enumerate(others):
        peer = ["type", "veth", "peer", "name", "wire", "netns", at[other]]
        ip("-n", at[first], "link", "add", f"wire{number}", *peer)
        for name, device, end in ((first, f"wire{number}", 1), (other, "wire", 2)):
            ip("-n", at[name], "address", "add", f"10.77.{number}.{end}/24", "dev", device)
            ip("-n", at[name], "link", "set", device, "up")
            netem = ["qdisc", "add", "dev", device, "root", "netem", "delay", "50ms", "loss", "1%"]
            subprocess.run(["tc", "-n", at[name], *netem], capture_output=True)  # not in every kernel: see `is_slow`


def is_slow(namespace: str) -> bool:
    """True if the wire itself delays and loses what travels."""
    shown = subprocess.run(["tc", "-n", namespace, "qdisc", "show"], capture_output=True, text=True)
    return "netem" in shown.stdout


def unwire(at: dict[str, str]) -> None:
    for namespace in at.values():
        subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)


class Hosts:
    """A server and its sites: `start` starts a command on one of them, as a container of deploy/compose.yml."""

    def __init__(self, folder: Path, at: dict[str, str], processes: Processes) -> None:
        self.folder, self.at, self._processes = folder, at, processes
        write_federation(folder / "federation", ["server"], SITES)
        for number, name in enumerate(at):
            here = folder / name
            for part in ("kept", "records"):
                (here / part).mkdir(parents=True)
            (here / "records" / "table.csv").write_text("x\n1\n")  # the runs' own records are synthetic
            from_certs = "server" if name == "server" else f"client{number - 1}"
            shutil.copytree(folder / "federation" / from_certs, here / "secrets")
            address = {"server": "127.0.0.1", **dict.fromkeys(RELAYED, RELAY)}.get(name, f"10.77.{number - 1}.1")
            (here / "hosts").write_text(f"127.0.0.1 localhost\n{address} server\n")
        for number, (name, ends_tls) in enumerate(RELAYED.items()):
            ip("-n", at[name], "address", "add", f"{RELAY}/32", "dev", "lo")
            words = [f"{RELAY}:{PORT}", f"10.77.{number}.1:{PORT}", "0" if is_slow(at[name]) else "0.05"]
            words += [str(folder / "federation" / "server")] if ends_tls else []
            program = [sys.executable, str(Path(__file__).with_name("relay.py"))]
            processes.start(f"way of {name}", ["nsenter", f"--net=/run/netns/{at[name]}", *program, *words], {})

    def command(self, name: str, words: list[str]) -> list[str]:
        inside = ["unshare", "--mount", "sh", "-c", AS_A_CONTAINER, name]
        return ["nsenter", f"--net=/run/netns/{self.at[name]}", *inside, *words]

    def start(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        return self._processes.start(name, self.command(name, words), self.env(name))

    def env(self, name: str) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        set_ = {
            "HOST": str(self.folder / name),
            "HOME": "/home/fedsw",
            "OMP_NUM_THREADS": "1",
            "FLWR_HOME": "superlink",
        }
        return {**os.environ, **set_, "PATH": path}

    def ask(self, name: str, words: list[str]) -> str:
        """All output of a command that ends well."""
        asked = self.command(name, words)
        done = subprocess.run(asked, env=self.env(name), capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self._processes.said(name)}"
        return done.stdout


def rosters(hosts: Hosts) -> None:
    """What the sites' operators exchange, by the commands of docs/operator.md."""
    shared, sites = hosts.folder / "roster.toml", list(hosts.at)[1:]
    for name in sites:
        key = json.loads(hosts.ask(name, ["fedsw", "certs", "roster", "key", "state", "--json"]))["public"]
        shutil.copy(shared, hosts.folder / name / "kept") if shared.exists() else None
        hosts.ask(name, ["fedsw", "certs", "roster", "add", "roster.toml", "--name", name, "--key", key])
        shutil.copy(hosts.folder / name / "kept" / "roster.toml", shared)
    for name in sites:
        shutil.copy(shared, hosts.folder / name / "kept")
    assert len(read_roster(shared).member) == SITES


def documented() -> tuple[list[str], list[str]]:
    """The two commands of docs/machines.md by which a run is submitted inside the server's pod."""
    page = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8").replace("\\\n", " ")
    bundle, submit = (shlex.split(line)[4:] for line in re.findall(r"^kubectl exec .*$", page, flags=re.MULTILINE))
    return bundle, submit


def drops(namespace: str, runs: Path) -> None:
    """Take a site's link down for a minute once its run has released a round: the next needs it."""
    until = time.monotonic() + 300
    while not any(path.stat().st_size for path in runs.glob("*/*/metrics.jsonl")) and time.monotonic() < until:
        time.sleep(0.05)
    ip("-n", namespace, "link", "set", "wire", "down")
    time.sleep(DOWN_SECONDS)
    ip("-n", namespace, "link", "set", "wire", "up")


def test_hosts_with_addresses_of_their_own_run_every_trust_model_and_charge_what_they_release(tmp_path, monkeypatch):
    """The chart's server, the sites of compose, and runs by the pages' commands; one site comes back elsewhere."""
    mark(monkeypatch)
    names = ["server", *(f"site{number}" for number in range(SITES))]
    with namespaces(names) as at, Processes(tmp_path) as processes:
        hosts = Hosts(tmp_path, at, processes)
        served = [word.replace("/certs", "/run/secrets") for word in pod("server")["containers"][0]["command"]]
        hosts.start("server", [word for word in served if not word.startswith("--metrics-port")])
        rosters(hosts)
        sites = {name: shlex.split(SERVICES[name]["command"].replace("/records", "/run/records")) for name in names[1:]}
        agreed = ["--roster", "roster.toml", "--colluding", "1"]
        clients = [hosts.start(name, ["fedsw", *words, *agreed]) for name, words in sites.items()]
        health = ["python", *SERVICES["server"]["healthcheck"]["test"][2:]]
        until = time.monotonic() + 120
        while subprocess.run(hosts.command("server", health), env=hosts.env("server"), capture_output=True).returncode:
            assert time.monotonic() < until, processes.said("server")
            time.sleep(0.5)
        assert "FAULT" not in hosts.ask("site0", ["fedsw", *sites["site0"], "--check"])
        bundle, submit = documented()
        hosts.ask("server", bundle)
        for trust in ("central", "distributed", "local-gradient"):
            if trust == "local-gradient":  # a site's own ledger is of one run: its operator names another folder
                for client in clients:
                    client.terminate()
                for client in clients:
                    client.wait(60)
                ip("-n", at["site2"], "address", "delete", "10.77.2.2/24", "dev", "wire")
                ip("-n", at["site2"], "address", "add", "10.77.2.9/24", "dev", "wire")
                for name, words in sites.items():
                    hosts.start(name, ["fedsw", *(word.replace("fedsw/state", "fedsw/next") for word in words)])
            settings = f"federation.clients={SITES};training.rounds={ROUNDS};data.records=900;privacy.trust={trust}"
            settings += ";federation.timeout=200.0"
            words = [word.replace("federation.clients=2", settings) for word in submit]
            drop = threading.Thread(target=drops, args=(at["site2"], tmp_path / "server" / "kept" / "runs"))
            if trust == "central":
                drop.start()
            said = hosts.ask("server", words)
            assert "Traceback" not in said, said  # `flwr run` ends well whatever the run does
            if trust == "central":
                drop.join()
                answers = processes.said("way of site1").split().count("/v1/fleet/give")
                # One for each exchange, two a round, after roll call, greeting and sizes.
                assert 2 * ROUNDS <= answers <= 2 * ROUNDS + 3
        runs = sorted((tmp_path / "server" / "kept" / "runs").glob("*/*/"))
        released = [len((run / "metrics.jsonl").read_text().splitlines()) for run in runs]
        assert released == [ROUNDS] * 3
        with Ledger.open(runs[0] / "ledger.sqlite", read_only=True) as ledger:
            assert ledger.released_rounds() == ROUNDS and ledger.replay() == ledger.epsilon()
        for name, folder in itertools.product(sites, ("state", "next")):
            (own,) = read_client_status(tmp_path / name / "kept" / folder).ledgers
            assert own.rounds == ROUNDS and 0 < own.epsilon <= own.budget
    assert left_of_this_test() == {}
