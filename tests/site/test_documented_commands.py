"""The commands that the documents and the service files print are commands that there are."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import click
import pytest
import typer

from fedsw.cli.app import app
from fedsw.federation import OFFLINE
from fedsw.federation.deploy.node_settings import read_node_file
from fedsw.federation.deploy.processes import script
from fedsw.federation.engines import Engine
from fedsw.privacy.accounting.lifetime import ACCOUNTS_VARIABLE
from tests.site.pages import committed

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "docs" / "reference" / "index.md", *sorted((ROOT / "docs").glob("*.md"))]
UNITS = [ROOT / "clients" / "fedsw-client.service", ROOT / "server" / "fedsw-server.service"]


def printed() -> list[tuple[str, str]]:
    """Every line of a document that begins with `fedsw` and goes on with a command, continued lines joined."""
    found = []
    for document in DOCUMENTS:
        for line in document.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            if match := re.match(r"(?:    |podman run .* )?fedsw ([a-z-].*)", line):
                found.append((document.name, match[1]))
    return found


def parse(arguments: list[str]) -> None:
    """Read a command line as the command would, without running it, whether or not its files are there."""
    command: click.Command = typer.main.get_command(app)
    while isinstance(command, click.Group) and (arguments or not command.invoke_without_command):
        name = arguments[0]
        if name.startswith("-") and command.invoke_without_command:
            break  # options of a verb that has verbs of its own
        assert name in command.commands, f"there is no command {name!r} in {sorted(command.commands)}"
        command, arguments = command.commands[name], arguments[1:]
    command.make_context(command.name, arguments)


def test_there_are_documented_commands():
    assert {"README.md", "index.md", "compare.md", "deploy.md"} <= {name for name, _ in printed()} and len(
        printed()
    ) >= 20


def test_no_page_names_a_verb_that_is_gone():
    verbs = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    pages = [*ROOT.glob("*.md"), *committed(), *(ROOT / "fedsw").rglob("*.py")]
    named = [
        (page.name, verb) for page in pages for verb in re.findall(r"`fedsw ([a-z][a-z-]*)", page.read_text("utf-8"))
    ]
    assert len(named) > 100 and [each for each in named if each[1] not in verbs] == []
    gone = re.compile(r"`(?:ledger|status|card)`, `|`, `(?:ledger|status|card)`")  # verbs that are parts of `show` now
    assert [page.name for page in pages if page.suffix == ".md" and gone.search(page.read_text("utf-8"))] == []


@pytest.mark.parametrize(("document", "line"), printed())
def test_every_documented_command_is_understood(document, line):
    words = shlex.split(line, comments=True)
    while words[0].startswith("--"):  # options of `fedsw` itself
        words = words[1:]
    parse([word for word in words if word not in ("…", "...")])


@pytest.mark.parametrize("engine", get_args(Engine))
def test_every_engine_can_be_asked_for(engine):
    parse(["run", "fair-classification", "--engine", engine])


def settings(unit: Path, name: str) -> str:
    """One setting of a unit, with what its Environment= line sets filled in."""
    lines = dict(re.findall(r"^(\w+)=(.*)$", unit.read_text(encoding="utf-8"), flags=re.MULTILINE))
    values = dict(pair.split("=", 1) for pair in shlex.split(lines.get("Environment", "")))
    return re.sub(r"\$\{?(\w+)\}?", lambda name: values[name[1]], lines[name])


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_service_starts_a_command_that_is_understood(unit):
    executable, *words = shlex.split(settings(unit, "ExecStart"))
    assert executable.endswith("/fedsw")
    parse(words)


def test_a_unit_says_where_accounts_are_and_no_more_and_the_client_s_reads_the_file_that_deploy_names():
    """Accounts are where the service may write: under `ProtectHome` there is no ~/.fedsw."""
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert "A client's settings are in `/srv/fedsw/node.toml`" in text
    for unit in UNITS:
        name, _, place = settings(unit, "Environment").partition("=")
        assert name == ACCOUNTS_VARIABLE and Path(place).is_relative_to(settings(unit, "ReadWritePaths"))
        assert settings(unit, "ProtectHome") == "yes"
    assert settings(UNITS[0], "ExecStart").endswith("--config /srv/fedsw/node.toml")
    shipped = ROOT / "fedsw" / "shipped" / "node.toml"
    written = Path(settings(UNITS[0], "ReadWritePaths")).relative_to("/srv/fedsw")
    file = read_node_file(shipped)
    assert file["state-dir"] == shipped.parent / written
    accounts = Path(settings(UNITS[0], "Environment").partition("=")[2]).relative_to("/srv/fedsw")
    assert file["accounts"] == shipped.parent / accounts
    page = (ROOT / "docs" / "operator.md").read_text(encoding="utf-8")
    assert f"--schema /srv/fedsw/{file['schema'].name} " in page and f"/srv/fedsw/{written} " in page


def complaints(unit: Path, folder: Path, **changed: str) -> list[str]:
    """What systemd says of a service whose program is the one that is installed here, with other settings changed."""
    program = f'"{script("fedsw")}"'  # in a folder whose name has a space, too
    text = re.sub(r"(?<=ExecStart=)\S+", lambda _: program, unit.read_text(encoding="utf-8"))
    for name, value in changed.items():
        text = re.sub(rf"(?<=^{name}=).*$", value, text, flags=re.MULTILINE)
    here = folder / unit.name
    here.write_text(text, encoding="utf-8")
    checked = subprocess.run(["systemd-analyze", "verify", str(here)], capture_output=True, text=True, timeout=60)
    return [line for line in checked.stderr.splitlines() if unit.name in line]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_finds_no_fault_in_a_service(unit, tmp_path, monkeypatch):
    if not complaints(unit, tmp_path, Restart="sometimes"):
        pytest.skip("systemd-analyze checks nothing on this machine")
    assert not complaints(unit, tmp_path)
    place = tmp_path / "a folder with spaces" / "fedsw"
    place.parent.mkdir()
    shutil.copy("/bin/true", place)
    monkeypatch.setattr(f"{__name__}.script", lambda name: str(place))
    assert not complaints(unit, tmp_path)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_service_is_exposed_to_little(unit):
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=25", str(unit)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "Unknown" in checked.stderr or "unrecognized" in checked.stderr:
        pytest.skip("systemd-analyze of this machine cannot judge a file")
    assert checked.returncode == 0, checked.stdout[-2000:]


def test_the_image_is_made_of_what_the_index_has_with_known_hashes_and_of_no_other_index():
    text = (ROOT / "clients" / "Containerfile").read_text(encoding="utf-8")
    installs = re.findall(r"pip install [^&\n]*", text)
    assert "index-url" not in text and len(installs) > 1
    assert all("--require-hashes" in each or "--no-index" in each for each in installs)
    assert re.search(r"^ARG BASE$", text, flags=re.MULTILINE) and re.search(
        r"^FROM \$\{BASE\}$", text, flags=re.MULTILINE
    )
    for name in ("app", "dev", "cuda"):
        blocks = re.split(r"(?m)^(?=[a-zA-Z])", (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8"))[1:]
        assert blocks and all("==" in block and "--hash=sha256:" in block for block in blocks)


@pytest.mark.parametrize(
    ("base", "fits"),
    [
        (f"docker.io/library/python@sha256:{'0f' * 32}", True),
        (f"python:3.11-slim@sha256:{'0f' * 32}", True),
        ("docker.io/library/python:3.11-slim", False),
        ("", False),
        ("python@sha256:", False),
        (f"python@sha256:{'0f' * 31}", False),
        (f"python@sha256:{'0f' * 32} AS other", False),
        (f"@sha256:{'0f' * 32}", False),
    ],
)
def test_the_image_begins_with_a_base_that_is_named_by_digest_or_with_none(base, fits):
    """The first step after FROM, as the builder's shell runs it."""
    lines = (ROOT / "clients" / "Containerfile").read_text(encoding="utf-8").splitlines()
    asked, step = lines[lines.index("FROM ${BASE}") + 1 :][:2]
    assert asked == "ARG BASE" and step.startswith("RUN ")
    done = subprocess.run(
        ["sh", "-c", step.removeprefix("RUN ")], env={"BASE": base, "PATH": "/usr/bin:/bin"}, stderr=-1
    )
    assert (done.returncode == 0) == fits and (fits or b"name the image by digest" in done.stderr)


def test_locks_are_of_the_versions_that_are_tested_together():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    known = {re.sub("[_.]", "-", name.lower()): version for name, version in pins.items()}
    for name in ("app", "dev"):
        text = (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8")
        for package, version in re.findall(r"^([\w.-]+)(?:\[[^\]]*\])?==([^\s;]+)", text, flags=re.MULTILINE):
            assert known[re.sub("[_.]", "-", package.lower())] == version, package


def test_the_image_is_made_of_what_there_is_and_speaks_to_nobody_else():
    lines = (ROOT / "clients" / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert copied and all((ROOT / name).exists() for name in copied)
    set_ = dict(pair.split("=") for line in lines if line.startswith("ENV ") for pair in line.split()[1:])
    assert {name: value for name, value in OFFLINE.items() if name.startswith("FLWR")}.items() <= set_.items()
