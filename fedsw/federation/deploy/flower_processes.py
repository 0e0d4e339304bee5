"""Flower's two programs in a deployment: the SuperLink and what is asked of it, and the SuperNode of one client."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsw._tools import files
from fedsw.federation import NODE_KEYS, SIGNING_KEY
from fedsw.federation.deploy.bundle import run_config, write_bundle
from fedsw.federation.deploy.certificates import ServerCertificates
from fedsw.federation.deploy.node_settings import NodeSettings
from fedsw.federation.deploy.processes import Processes, require_free_port, script
from fedsw.runs.run_files import RUNS_REPORTED, found_json, reported_runs

_WARM_LINK = (sys.executable, "-P", str(Path(__file__).with_name("superlink.py")))
_PROFILE = "fedsw"
_NODE_KEYS_FILE, _RUNS_FILE = "node-keys.json", "runs.jsonl"
_MOST_SAID = 2**20
_ADMITTED = r"(?:^node |SuperNode )(\d+)(?:: | registered)"
"""How the number of a node that was admitted is printed, by superlink.py and by Flower's own command."""


def superlink_command(certificates: ServerCertificates, host: str, port: int, *, stock: bool) -> list[str]:
    """The command that starts a SuperLink with TLS and SuperNode authentication."""
    secrets = {"ca-certfile": certificates.authority, "certfile": certificates.certificate, "keyfile": certificates.key}
    options = {"--host": host, "--port": str(port), **{f"--ssl-{name}": str(path) for name, path in secrets.items()}}
    flags = ("--enable-supernode-auth", "--disable-runtime-dependency-installation")
    return [*_WARM_LINK, "stock" if stock else "superlink", *_words(options), *flags]


def _words(options: Mapping[str, str]) -> list[str]:
    return [word for pair in options.items() for word in pair]


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink, asked through `flwr` with a profile in a folder of its own."""

    processes: Processes
    process: subprocess.Popen[bytes]
    address: str
    authority: Path
    home: Path
    stock: bool

    @classmethod
    def start(
        cls, processes: Processes, certificates: ServerCertificates, home: Path, *, host: str, port: int, stock: bool
    ) -> SuperLink:
        """Start one, with its FLWR_HOME at `home`, and wait until it listens; an error has what it printed."""
        require_free_port(host, port, "--port")
        address = f"127.0.0.1:{port}"
        (home / "config.toml").write_text(profile(address, certificates.authority), encoding="utf-8")
        command = superlink_command(certificates, host, port, stock=stock)
        environment = {
            "FLWR_HOME": str(home),
            SIGNING_KEY: str(certificates.signing.resolve()),
            NODE_KEYS: str((home / _NODE_KEYS_FILE).resolve()),
            RUNS_REPORTED: str((home / _RUNS_FILE).resolve()),
        }
        for name in (_NODE_KEYS_FILE, _RUNS_FILE):
            (home / name).unlink(missing_ok=True)  # of the nodes and runs of a SuperLink before
        process = processes.start_listening("superlink", command, port, environment)
        return cls(processes, process, address, certificates.authority, home, stock)

    def register(self, public_keys: Sequence[Path]) -> None:
        """Admit the nodes with these keys; all others are refused. An error has Flower's message.

        Which node has which key is written down beside the logs, for the roll call of a run.
        """
        if self.stock:
            one = [script("flwr"), "supernode", "register"]
            commands = [[*one, str(key), _PROFILE] for key in public_keys]
        else:
            commands = [[*_WARM_LINK, "register", self.address, str(self.authority), *map(str, public_keys)]]
        nodes: list[str] = []
        for command in commands:
            self._ask("register", command, "the SuperLink did not take a node key")
            nodes += re.findall(_ADMITTED, self.processes.said("register", _MOST_SAID), flags=re.MULTILINE)
        known = found_json(self._node_keys)
        self._write_node_keys(known | {node: key.name for node, key in zip(nodes, public_keys, strict=False)})

    def revoke_all_but(self, public_keys: Sequence[Path]) -> None:
        """Refuse from now on every admitted node with a key that is not among these; runs go on without it."""
        if self.stock:
            raise RuntimeError("a stock SuperLink is asked with `flwr supernode unregister NODE-ID` (docs/security.md)")
        command = [*_WARM_LINK, "revoke", self.address, str(self.authority), *map(str, public_keys)]
        self._ask("revoke", command, "the SuperLink revoked no node key")
        left = {key.name for key in public_keys}
        self._write_node_keys({node: key for node, key in found_json(self._node_keys).items() if key in left})

    @property
    def runs(self) -> list[Path]:
        """The folders of the runs that were submitted to it, in their order."""
        return reported_runs(self.home / _RUNS_FILE)

    @property
    def _node_keys(self) -> Path:
        return self.home / _NODE_KEYS_FILE

    def _write_node_keys(self, keys: Mapping[str, str]) -> None:
        files.replace(self._node_keys, json.dumps(keys).encode(), durable=False)

    def _ask(self, name: str, command: Sequence[str], refusal: str) -> None:
        if self.processes.start(name, command, {"FLWR_HOME": str(self.home)}).wait() != 0:
            raise RuntimeError(f"{refusal}:\n{self.processes.said(name)}")

    def submit(self, directory: Path, modules: Sequence[str] = (), *, resume: bool) -> subprocess.Popen[bytes]:
        """Run the prepared job of a folder; the process ends when the run does."""
        config = run_config(directory, modules, resume=resume)
        bundle = write_bundle(directory / "deployment" / "bundle")
        command = [script("flwr"), "run", str(bundle), _PROFILE, "--stream", "--run-config", config]
        return self.processes.start("run", command, {"FLWR_HOME": str(self.home)})


def profile(address: str, authority: Path | None) -> str:
    """The `config.toml` with which `flwr` finds a SuperLink, by TLS where there is an authority's certificate."""
    secured = "insecure = true" if authority is None else f"root-certificates = {json.dumps(str(authority.resolve()))}"
    header = f'[superlink]\ndefault = "{_PROFILE}"\n\n[superlink.{_PROFILE}]\n'
    return f"{header}address = {json.dumps(address)}\n{secured}\n"


_WARM_NODE = (sys.executable, "-P", str(Path(__file__).with_name("executor.py")))


def supernode_command(node: NodeSettings, *, stock: bool, port: int) -> list[str]:
    """The command that starts a SuperNode, on a port of the loopback interface; no stock one demands a bundle."""
    if stock and node.bundle is not None:
        raise ValueError(
            f"--bundle {node.bundle} cannot be kept with --stock: Flower's own SuperNode loads whatever bundle comes, "
            "without a look at its hash; leave --stock out"
        )
    options = {
        "--superlink": node.superlink,
        "--root-certificates": str(node.authority),
        "--auth-supernode-private-key": str(node.key),
        "--node-config": node_config_text(node.node_config),
    }
    listening = {"--host": "127.0.0.1", "--port": str(port)} if stock else {}
    return [*([script("flower-supernode")] if stock else _WARM_NODE), *_words(options), *_words(listening)]


def node_config_text(config: Mapping[str, int | str]) -> str:
    """The configuration as `--node-config` wants it: TOML pairs in one line, no text with a double quote in it."""
    for key, value in config.items():
        if '"' in str(value):
            raise ValueError(f"{key} {value!r} holds a double quote, which a node's configuration cannot; rename it")
    return " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in config.items())
