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
from fedsw._tools.settings import require_data_set
from fedsw.data.columns.declaration import read_columns
from fedsw.federation.deploy.bundle import read_bundle, run_config, write_bundle
from fedsw.federation.deploy.certificates import ServerCertificates, read_signing_key
from fedsw.federation.deploy.processes import Processes, require_free_port, script
from fedsw.federation.exchange.roll import NODE_KEYS
from fedsw.federation.node.limits import CHOICE, read_codes, read_limit, read_modules, read_trust, room_of
from fedsw.federation.node.own_ledger import ACCOUNT, ACCOUNTS, SHARED
from fedsw.federation.node.roster import COLLUDING, KEY, KEY_FILE, ROSTER, read_mask_key, read_roster
from fedsw.federation.node.simulated import ANY_MODULE
from fedsw.federation.origin import SERVER_KEY, SIGNING_KEY
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


def read_address(address: str) -> tuple[str, int]:
    """Host and port of a SuperLink; ValueError for anything but HOST:PORT, a URL among them."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f"{address!r} is no address of a SuperLink; it is HOST:PORT, without http:// or https://")
    return host, int(port)


_WARM_NODE = (sys.executable, "-P", str(Path(__file__).with_name("executor.py")))


@dataclass(frozen=True)
class NodeSettings:
    """Settings of a client's SuperNode: the options of `fedsw client`; its help explains each.

    They reach the ClientApp as `context.node_config`, and nothing of them leaves the node. `own_data` says that a
    folder named by the experiment is not read. Without `modules` (None) an experiment may name any, at processes of who
    wrote it. The node's own key for masked sums is in `state_dir`.

    Raises:
        ValueError, FileNotFoundError: for settings that can't be right, naming the setting and its value.
    """

    superlink: str
    authority: Path
    key: Path
    client: int
    clients: int
    data_dir: Path | None = None
    state_dir: Path | None = None
    data_path: Path | None = None
    schema: Path | None = None
    trust: str | None = None
    max_epsilon: float | None = None
    max_memory: float | None = None
    max_seconds: float | None = None
    own_data: bool = False
    bundle: str | None = None
    modules: tuple[str, ...] | None = ()
    num_clients: int | None = None
    roster: Path | None = None
    colluding: int | None = None
    account: str | None = None
    accounts: Path | None = None
    server_key: Path | None = None
    code: str | None = None

    def __post_init__(self) -> None:
        read_address(self.superlink)
        if not 0 <= self.client < self.clients:
            raise ValueError(
                f"partition-id {self.client} is not below num-partitions {self.clients}; clients are numbered from 0"
            )
        if self.num_clients is not None and self.num_clients < self.clients:
            raise ValueError(
                f"num-clients {self.num_clients} is below num-partitions {self.clients}; every node holds at least one "
                "client"
            )
        for path, what in ((self.authority, "certificate of the authority"), (self.key, "node key")):
            if not path.is_file():
                raise FileNotFoundError(f"no {what} at {path}; `fedsw certs` makes it for this machine")
        if self.data_dir is not None and not self.data_dir.is_dir():
            raise FileNotFoundError(f"no data directory at {self.data_dir}")
        for file, what in ((self.data_path, "data file"), (self.schema, "schema")):
            if file is not None and not file.is_file():
                raise FileNotFoundError(f"no {what} at {file}")
        if self.schema is not None:
            read_columns(self.schema)  # at a greeting it would be the server that learns of a fault
        if self.server_key is not None:
            read_signing_key(self.server_key)
        if self.trust is not None:
            read_trust(self.trust)
        if self.max_epsilon is not None:
            read_limit(self.max_epsilon)
        if self.own_data and self.trust is None and self.max_epsilon is None:
            raise ValueError(f"this client's operator has not said what it takes part in; {CHOICE}")
        if (self.roster is None) != (self.colluding is None):
            raise ValueError("--roster and --colluding go together: the keys of all sites, and how many may be false")
        if self.roster is not None:
            read_roster(self.roster)
            read_mask_key(Path(str(self.node_config[KEY])))
        room_of(self.node_config)
        if self.bundle is not None:
            object.__setattr__(self, "bundle", read_bundle(self.bundle))
        if self.code is not None:
            read_codes(self.code)
        read_modules(",".join(self.modules or ()))
        if self.own_data and self.account == SHARED:
            raise ValueError(
                f"account is {SHARED!r}, which takes the data set's name from each experiment: the server would choose "
                "the account that a run counts in, and so its limit; give the data set a name of this machine's own"
            )
        if self.account not in (None, SHARED):
            require_data_set(str(self.account))

    @property
    def node_config(self) -> dict[str, int | str]:
        """The configuration the ClientApp sees: whole numbers and texts, paths absolute."""
        config: dict[str, int | float | str | Path | None] = {
            "partition-id": self.client,
            "num-partitions": self.clients,
            "num-clients": self.num_clients,
            "own-data": 1 if self.own_data else None,
            "trust": self.trust,
            "bundle": self.bundle,
            "code": self.code,
            "modules": ANY_MODULE if self.modules is None else ",".join(self.modules),
            ACCOUNT: self.account,
            COLLUDING: self.colluding,
            SERVER_KEY: None if self.server_key is None else read_signing_key(self.server_key),
            "max-epsilon": self.max_epsilon,
            "max-memory": self.max_memory,
            "max-seconds": self.max_seconds,
            "data-dir": self.data_dir,
            "state-dir": self.state_dir,
            "data-path": self.data_path,
            "schema": self.schema,
            ACCOUNTS: self.accounts,
            ROSTER: self.roster,
            KEY: None if self.roster is None or self.state_dir is None else self.state_dir / KEY_FILE,
        }
        return {name: _plain(value) for name, value in config.items() if value is not None}


def _plain(value: int | float | str | Path) -> int | str:
    if isinstance(value, Path):
        return str(value.resolve())
    return str(value) if isinstance(value, float) else value


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
