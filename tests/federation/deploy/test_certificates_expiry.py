"""Certificates that end: warned of a month before, and refused at the start when they have ended."""

from __future__ import annotations

import datetime
import json
import warnings
from pathlib import Path

import pytest

from fedsw.cli.app import main
from fedsw.federation.deploy import certificates, serving
from fedsw.federation.deploy.certificates import ServerCertificates, valid_until, warn_of_expiry, write_certificates


def made(folder: Path, days: int) -> ServerCertificates:
    return write_certificates(folder, ["localhost"], days=days)


def test_a_certificate_that_lasts_is_not_spoken_of(tmp_path):
    found = made(tmp_path, days=31)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_expiry([found.authority, found.certificate])


def test_a_certificate_that_ends_within_30_days_is_warned_of_with_its_date(tmp_path):
    found = made(tmp_path, days=29)
    with pytest.warns(UserWarning, match=rf"server.pem ends on {valid_until(found.certificate):%Y-%m-%d}, in 28 days"):
        warn_of_expiry([found.certificate])


def test_server_and_client_do_not_start_with_a_certificate_that_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "_CLOCKS_MAY_DIFFER", datetime.timedelta(days=9))
    made(tmp_path, days=-1)
    for name in ("nodes", "state"):
        (tmp_path / name).mkdir()
    (tmp_path / "nodes" / "client0.pub").write_text("")
    monkeypatch.setattr(serving, "Processes", lambda *a, **k: pytest.fail("something was started"))
    with (
        pytest.raises(ValueError, match=r"ca.crt ended on .*`fedsw certs` makes new ones"),
        serving.serving(tmp_path, tmp_path / "home", port=1, stock=False),
    ):
        pass
    words = ["client", "--superlink", "localhost:1", "--certs", str(tmp_path), "--state-dir", str(tmp_path / "state")]
    assert main([*words, "--partition-id", "0", "--num-partitions", "1"]) == 2


def test_certs_says_until_when(tmp_path, capsys):
    words = ["certs", "--host", "localhost", "--clients", "1"]
    assert main([*words, "--out", str(tmp_path / "a"), "--json"]) == 0
    until = json.loads(capsys.readouterr().out)["until"]
    assert until == f"{valid_until(tmp_path / 'a' / 'server' / 'server.pem'):%Y-%m-%d}"
    assert main([*words, "--out", str(tmp_path / "b")]) == 0
    assert f"end on {until}" in capsys.readouterr().out
