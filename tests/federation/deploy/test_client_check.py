"""Laws of `fedsw client --check`: what can fail later is named now, each with its remedy, and nothing takes part."""

from __future__ import annotations

import email.utils
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedsw._tools.installed import code_digest
from fedsw.cli.app import main
from fedsw.federation.deploy import certificates, client_check, serving
from fedsw.federation.deploy.certificates import write_certificates, write_federation
from fedsw.federation.deploy.client_check import NodeCheck

COLUMNS = """
features = [{ name = "age", low = 18, high = 90 }]
sensitive = { name = "sex", values = ["f", "m"] }
target = { name = "ill", values = [0, 1] }
"""
NODE = """
superlink = "localhost:9"
certs = "federation/client0"
partition-id = 0
num-partitions = 2
data-path = "train.csv"
state-dir = "state"
trust = ["central"]
schema = "columns.toml"
"""


class Hospital:
    """A client's folder, and a server that can be reached, whose clock is some seconds behind this one's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, monkeypatch
        write_federation(folder / "federation", ["localhost"], 2)
        (folder / "columns.toml").write_text(COLUMNS)
        (folder / "train.csv").write_text("age,sex,ill\n44,f,0\n51,m,1\n")
        (folder / "node.toml").write_text(NODE)
        self.reachable()

    def reachable(self, ahead: float = 0.0, fault: str | None = None) -> None:
        self.patch.setattr(client_check, "probe", lambda address, authority: fault)

        def connect(*about: object) -> SimpleNamespace:
            if fault:
                raise ConnectionError(fault)
            date = email.utils.formatdate(time.time() - ahead, usegmt=True)
            answer = SimpleNamespace(headers={"date": date})
            return SimpleNamespace(request=lambda *asked: None, getresponse=lambda: answer, close=lambda: None)

        self.patch.setattr(client_check, "connection_to", connect)

    def add(self, line: str) -> None:
        with (self.folder / "node.toml").open("a") as file:
            file.write(f"{line}\n")

    def check(self, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, str]]:
        """The exit code, and what is said of each thing that is a fault."""
        code = main(["client", "--config", str(self.folder / "node.toml"), "--check"])
        lines = capsys.readouterr().out.splitlines()
        assert lines and all(line.startswith(("ok     ", "FAULT  ")) for line in lines)
        faults = [line.removeprefix("FAULT  ").partition(": ") for line in lines if line.startswith("FAULT")]
        return code, {what: said for what, _, said in faults}


@pytest.fixture
def hospital(tmp_path, monkeypatch) -> Hospital:
    monkeypatch.setattr(serving, "keep_connected", lambda *about, **more: pytest.fail("it took part"))
    return Hospital(tmp_path, monkeypatch)


def test_where_nothing_is_wrong_nothing_is_said_to_be_and_nothing_is_left(hospital, capsys):
    assert hospital.check(capsys) == (0, {})
    main(["client", "--config", str(hospital.folder / "node.toml"), "--check"])
    said = capsys.readouterr().out
    assert code_digest() in said and "trust central" in said and "train.csv fits" in said
    assert not list((hospital.folder / "state").iterdir())


def _others_key(hospital: Hospital) -> None:
    (hospital.folder / "federation" / "client0" / "node.key").chmod(0o640)


def _old_certificate(hospital: Hospital) -> None:
    folder, soon = hospital.folder / "soon", certificates._builder
    hospital.patch.setattr(certificates, "_builder", lambda *about: soon(*about[:3], 7))
    write_certificates(folder, ["localhost"])
    shutil.copy(folder / "ca.crt", hospital.folder / "federation" / "client0" / "ca.crt")


def _row(hospital: Hospital) -> None:
    with (hospital.folder / "train.csv").open("a") as file:
        file.write("440,f,0\n")


def _no_home(hospital: Hospital) -> None:
    hospital.patch.setenv("HOME", str(hospital.folder / "nobody"))
    hospital.patch.setenv("FEDSW_ACCOUNTS", str(hospital.folder / "elsewhere"))
    hospital.add('account = "patients"')


def _full(hospital: Hospital) -> None:
    hospital.patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))


def _no_locks(hospital: Hospital) -> None:
    def refuse(*about: object) -> None:
        raise OSError(37, "No locks available")

    hospital.patch.setattr(client_check.fcntl, "flock", refuse)


def _on_a_network_s_disk(hospital: Hospital) -> None:
    class Database(sqlite3.Connection):
        def execute(self, *asked):
            return super().execute("SELECT 'delete'") if "journal_mode" in asked[0] else super().execute(*asked)

    hospital.patch.setattr(
        client_check.sqlite3, "connect", lambda path, connect=sqlite3.connect: connect(path, factory=Database)
    )


FAULTS: dict[str, tuple[Callable[[Hospital], None], str, str, str]] = {
    "a bad setting": (lambda h: h.add('code = "none"'), "settings", "no SHA-256", "mend this first"),
    "no locks": (_no_locks, "state", "No locks available", "state-dir"),
    "a network's disk": (_on_a_network_s_disk, "state", "takes no ledger", "state-dir"),
    "a full disk": (_full, "disk", "are free in", "make room"),
    "accounts nowhere": (
        lambda h: h.add('account = "patients"\naccounts = "train.csv"'),
        "accounts",
        "train.csv",
        "FEDSW_ACCOUNTS",
    ),
    "no home": (_no_home, "HOME", "cannot be written to, and accounts are kept there", "HOME=..."),
    "a row beyond its bounds": (_row, "columns", "440", "`fedsw check`"),
    "no file": (lambda h: (h.folder / "train.csv").chmod(0), "columns", "Permission denied", "mend the file"),
    "a key for others": (_others_key, "key", "others may read", "mode 600"),
    "no key": (lambda h: (h.folder / "federation/client0/node.key").write_text(""), "key", "", "`fedsw certs`"),
    "a certificate that ends": (_old_certificate, "certificate", "in 6 days", "`fedsw certs` makes a new one"),
    "no server": (lambda h: h.reachable(fault="no route"), "server", "out of reach (no route)", "start the server"),
    "a clock": (lambda h: h.reachable(ahead=300.0), "clock", " s ahead of the server's", "(NTP)"),
    "a module": (lambda h: h.add('modules = ["nowhere_at_all"]'), "module nowhere_at_all", "finds no", "install it"),
    "another Flower": (
        lambda h: h.patch.setattr(client_check.flower, "refusal", lambda program: "warm clients need Flower 1.41"),
        "code",
        "need Flower",
        "--stock",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_alone_with_its_remedy(hospital, fault, capsys):
    spoil, what, said, remedy = FAULTS[fault]
    if fault == "no file" and os.getuid() == 0:
        pytest.skip("this user may read every file")
    spoil(hospital)
    code, faults = hospital.check(capsys)
    assert code == 1 and list(faults) == [what], faults
    assert said in faults[what] and remedy in faults[what]


def test_a_home_that_nothing_is_kept_in_may_be_out_of_reach(hospital, monkeypatch, capsys):
    """As under ProtectHome of the shipped unit."""
    monkeypatch.setenv("HOME", str(hospital.folder / "nobody"))
    hospital.add('account = "patients"\naccounts = "accounts"')
    assert hospital.check(capsys) == (0, {})


def test_a_line_says_the_remedy_where_there_is_one():
    assert NodeCheck("disk", "full", "make room").line() == "FAULT  disk: full. make room"
    assert NodeCheck("disk", "7 GiB free").line() == "ok     disk: 7 GiB free"
