"""The SuperLink of a deployment, and what is asked of it with Flower's own command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsw.deploy.bundle import run_config, write_bundle
from fedsw.deploy.certificates import ServerCertificates
from fedsw.deploy.processes import Processes, script, wait_until_open
from fedsw.federation.origin import SIGNING_KEY

_WARM = (sys.executable, "-P", str(Path(__file__).parent / "warm" / "superlink.py"))
_PROFILE = "fedsw"
_START_SECONDS = 90.0


def superlink_command(
    certificates: ServerCertificates, host: str, port: int, *, stock: bool, database: Path | None = None
) -> list[str]:
    """The command that starts a SuperLink with TLS and SuperNode authentication."""
    start = [*_WARM, "stock" if stock else "superlink"]
    options = [
        "--host",
        host,
        "--port",
        str(port),
        "--ssl-ca-certfile",
        str(certificates.authority),
        "--ssl-certfile",
        str(certificates.certificate),
        "--ssl-keyfile",
        str(certificates.key),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]
    return [*start, *options, *(["--database", str(database)] if database is not None else [])]


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
        cls,
        processes: Processes,
        certificates: ServerCertificates,
        home: Path,
        *,
        host: str,
        port: int,
        stock: bool,
        database: Path | None = None,
    ) -> SuperLink:
        """Start one and wait until it listens.

        Args:
            home: its FLWR_HOME, where apps are unpacked and the profile of `flwr` is kept.

        Raises:
            RuntimeError: with what it printed, if it does not start.
        """
        address = f"127.0.0.1:{port}"
        (home / "config.toml").write_text(profile(address, certificates.authority), encoding="utf-8")
        process = processes.start(
            "superlink",
            superlink_command(certificates, host, port, stock=stock, database=database),
            {"FLWR_HOME": str(home), SIGNING_KEY: str(certificates.signing.resolve())},
        )
        wait_until_open(processes, "superlink", process, port, _START_SECONDS)
        return cls(processes, process, address, certificates.authority, home, stock)

    def register(self, public_keys: Sequence[Path]) -> None:
        """Admit the nodes with these keys; all others are refused.

        Raises:
            RuntimeError: with Flower's message, if a key is refused.
        """
        if self.stock:
            one = [script("flwr"), "supernode", "register"]
            commands = [[*one, str(key), _PROFILE] for key in public_keys]
        else:
            commands = [[*_WARM, "register", self.address, str(self.authority), *map(str, public_keys)]]
        for command in commands:
            if self.processes.start("register", command, {"FLWR_HOME": str(self.home)}).wait() != 0:
                raise RuntimeError(f"the SuperLink did not take a node key:\n{self.processes.said('register')}")

    def revoke_all_but(self, public_keys: Sequence[Path]) -> None:
        """Refuse from now on every node that was admitted and whose key is not among these; runs go on without it.

        Raises:
            RuntimeError: with Flower's message, if it does not answer; with `stock`, which is asked otherwise.
        """
        if self.stock:
            raise RuntimeError("a stock SuperLink is asked with `flwr supernode unregister NODE-ID` (docs/security.md)")
        command = [*_WARM, "revoke", self.address, str(self.authority), *map(str, public_keys)]
        if self.processes.start("revoke", command, {"FLWR_HOME": str(self.home)}).wait() != 0:
            raise RuntimeError(f"the SuperLink revoked no node key:\n{self.processes.said('revoke')}")

    def submit(self, directory: Path, modules: Sequence[str] = (), *, resume: bool) -> subprocess.Popen[bytes]:
        """Run the prepared job of a folder; the process ends when the run does.

        Args:
            modules: what the job's settings may name as `module:name`.
        """
        config = run_config(directory, modules, resume=resume)
        bundle = write_bundle(directory / "deployment" / "bundle")
        command = [script("flwr"), "run", str(bundle), _PROFILE, "--stream", "--run-config", config]
        return self.processes.start("run", command, {"FLWR_HOME": str(self.home)})


def profile(address: str, authority: Path) -> str:
    """The `config.toml` with which `flwr` finds a SuperLink."""
    return (
        f'[superlink]\ndefault = "{_PROFILE}"\n\n[superlink.{_PROFILE}]\n'
        f"address = {json.dumps(address)}\nroot-certificates = {json.dumps(str(authority.resolve()))}\n"
    )
