"""The client's service, confined as its unit says: it can do all that its drafted node file offers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedsw.cli.app import main
from fedsw.experiment.load import SHIPPED
from fedsw.federation.deploy.certificates import write_federation
from tests.site.test_documented_commands import ROOT, UNITS, settings

UNIT = UNITS[0]
CONFINED = """
set -e
mount --make-rprivate /
mount --bind "$PLACE" /srv
mount --bind "/srv/${STATE#/srv/}" "$STATE"
awk '{print $2}' /proc/self/mounts | while read -r place; do
    case "$place" in /proc*|/sys*|/dev*|"$STATE") ;; *) mount -o remount,bind,ro "$place" 2>/dev/null || true ;; esac
done
for place in /tmp /var/tmp; do mount -t tmpfs tmpfs "$place"; done
mount -t tmpfs -o ro tmpfs /home
if touch /srv/fedsw/written 2>/dev/null; then echo "not confined"; exit 3; fi
exec "$@"
"""
"""ProtectSystem=strict, ProtectHome=yes, PrivateTmp=yes and ReadWritePaths= of the unit."""


def reason() -> str:
    """Why this machine confines nothing; "" if it does."""
    if shutil.which("unshare") is None or not Path("/srv").is_dir():
        return "no unshare, or no /srv, on this machine"
    tried = subprocess.run(
        ["unshare", "-m", "sh", "-c", "mount --make-rprivate / && mount -t tmpfs tmpfs /srv"], capture_output=True
    )
    return "" if tried.returncode == 0 else "this user may not make a mount namespace (unshare -m)"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """/srv of a client's machine: its folder of `fedsw certs`, roster, records, columns, and an empty state."""
    home = tmp_path / "srv" / "fedsw"
    for folder in (home / "state", tmp_path / "srv" / "records"):
        folder.mkdir(parents=True)
    write_federation(tmp_path / "federation", ["fed.example.org"], 2)
    shutil.copytree(tmp_path / "federation" / "client0", home / "client")
    shutil.copy(ROOT / "clients" / "columns.toml", home)
    roster = home / "roster.toml"
    assert main(["certs", "roster", "key", str(home / "state")]) == 0
    assert main(["certs", "roster", "add", str(roster), "--name", "other", "--key", "ab" * 32]) == 0
    draw = np.random.default_rng(0)
    rows = [
        f"{draw.integers(18, 90)},{draw.integers(-99, 99)},{draw.integers(9)},public,{('female', 'male')[row % 2]},"
        f"{('<=50K', '>50K')[draw.integers(2)]}"
        for row in range(200)
    ]
    header = "age,balance,visits,work,sex,income"
    (tmp_path / "srv" / "records" / "train.csv").write_text("\n".join([header, *rows]) + "\n")
    return tmp_path / "srv"


def every_line(without: str = "\n\n") -> str:
    """The drafted node file with every line of it turned on, but for those that begin with a text."""
    drafted = (SHIPPED / "node.toml").read_text("utf-8")
    turned = re.sub(r"(?m)^# (?=[a-z-]+ = \S)", "", drafted)
    assert len(re.findall(r"(?m)^[a-z-]+ = ", turned)) >= len(re.findall(r"(?m)^[a-z-]+ = ", drafted)) + 5
    return "\n".join(line for line in turned.splitlines() if not line.startswith(without)) + "\n"


@pytest.mark.slow
@pytest.mark.skipif(bool(reason()), reason=reason() or "confined")
@pytest.mark.parametrize(
    ("without", "environment", "answer"),
    [
        ("\n\n", True, "greeted"),  # the file and the unit
        ("accounts =", True, "greeted"),  # the unit, of a file that was drafted before
        ("\n\n", False, "greeted"),
        ("accounts =", False, "refused"),  # under ProtectHome= there is no ~/.fedsw
    ],
    ids=["file and unit", "unit", "file", "neither"],
)
def test_a_confined_client_can_do_what_its_node_file_offers(place, without, environment, answer):
    (place / "fedsw" / "node.toml").write_text(every_line(without))
    told = dict([settings(UNIT, "Environment").split("=", 1)]) if environment else {}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FEDSW_", "FLWR_"))}
    state = settings(UNIT, "ReadWritePaths")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", CONFINED, "sh", sys.executable, "-m", "tests.site.greeted"]
        + [settings(UNIT, "ExecStart").split()[-1]],
        env={**kept, **told, "HOME": "/home/fedsw", "PLACE": str(place), "STATE": state, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and done.stdout.splitlines()[-1].startswith(answer), done.stdout + done.stderr
    accounts = place / "fedsw" / "state" / "accounts"
    assert accounts.is_dir() == (answer == "greeted")
    assert not accounts.is_dir() or (accounts / "patients.account").is_file()
