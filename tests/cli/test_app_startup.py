"""What a command does not need is not imported: a person who asks for help or a list does not wait for torch."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedsw
from fedsw.cli.app import main
from fedsw.federation.deploy.certificates import write_federation

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "numpy", "scipy", "flwr", "ray", "matplotlib", "opacus", "dp_accounting", "sklearn", "ot")
COMMANDS = (
    "run",
    "compare",
    "audit",
    "deploy local",
    "certs",
    "server",
    "client",
    "list",
    "demo",
    "budget",
    "tune",
    "resume",
    "show",
)


def imported(code: str) -> set[str]:
    """The modules of a fresh process after `code`."""
    report = "; import json, sys; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code + report],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def imported_by(line: str) -> set[str]:
    """The modules of a process that ran the command line, which must succeed."""
    return imported(f"from fedsw.cli.app import main; assert main({line.split()!r}) == 0")


@pytest.mark.parametrize("line", ["--help", "--version", "list", "list --json"])
def test_a_command_that_computes_nothing_imports_nothing_that_computes(line: str) -> None:
    found = imported_by(line)
    assert found.isdisjoint(HEAVY)
    assert "fedsw.cli.app" in found


def test_the_help_of_a_command_imports_nothing_that_computes() -> None:
    lines = [f"{command} --help".split() for command in COMMANDS]
    found = imported(f"from fedsw.cli.app import main; assert not any(main(line) for line in {lines!r})")
    assert found.isdisjoint({*HEAVY, "pydantic"})


def test_a_budget_imports_its_accountants_and_no_more() -> None:
    pytest.importorskip("dp_accounting")
    found = imported_by("budget --delta 1e-5 -p 0.1 --steps 10 --noise-multiplier 2 --json")
    assert "dp_accounting.rdp" in found
    assert found.isdisjoint({"torch", "flwr", "ray", "matplotlib", "opacus", "sklearn", "simulations"})
    assert found.isdisjoint({"scipy.stats", "scipy.signal", "dp_accounting.pld"})


def test_a_client_that_waits_for_a_run_holds_nothing_that_computes(tmp_path: Path) -> None:
    """Its process only starts Flower's, again and again; what computes is started there."""
    _, (client,) = write_federation(tmp_path / "fed", ["localhost"], 1)
    line = f"--certs {client} --state-dir {tmp_path / 'state'} --partition-id 0 --num-partitions 1 --trust central"
    code = f"""
from fedsw.cli.app import main
from fedsw.federation.deploy import serving
serving.keep_connected = lambda *given, **named: None
assert main({["client", "--superlink", "localhost:9", *line.split()]}) == 0"""
    assert imported(code).isdisjoint({"torch", "flwr", "ray", "matplotlib", "sklearn", "scipy.stats"})


def test_the_package_alone_is_light_with_its_version() -> None:
    found = imported("import fedsw; fedsw.__version__")
    assert found.isdisjoint({*HEAVY, "pydantic", "typer", "rich"})
    assert not [name for name in imported("import fedsw") if name.startswith(("fedsw.", "importlib.metadata"))]


def test_the_version_is_the_installed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fedsw.__version__ == importlib.metadata.version("fedsw")

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert fedsw.__version__ == "0+not.installed"


def test_the_package_has_no_other_names_of_its_own() -> None:
    with pytest.raises(AttributeError, match="no attribute 'a_name'"):
        getattr(fedsw, "a_name")  # noqa: B009


@pytest.mark.parametrize(("code", "daemon"), [(0, True), (3, True), (130, True), (3, False)])
def test_a_program_leaves_computing_threads_alone_and_loses_no_word(code: int, daemon: bool) -> None:
    """Python stops daemon threads on its way out, and one that is inside a library ends the process by a signal."""
    program = f"""
import atexit, os, sys, threading, time
from fedsw.cli import app
threading.Thread(target=time.sleep, args=({60 if daemon else 0.5},), daemon={daemon}).start()
atexit.register(print, "tidied up")
leave = os._exit
app.os._exit = lambda code: (os.write(1, b"left\\n"), leave(code))
app.main = lambda: {code}
print("said")
app.program()
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert found.returncode == code
    assert found.stdout.splitlines() == ["said", "tidied up", *(["left"] if daemon else [])]


def test_a_signal_that_comes_where_python_can_only_print_it_ends_a_command_all_the_same() -> None:
    """As in a `__del__`, or in a library that calls Python: what is raised there is printed, and gone."""
    program = """
import os, signal, sys, time
from fedsw.cli.options import invoke, new_group
class Ends:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
app = new_group()
app.command("look")(print)
@app.command("wait")
def wait():
    Ends()
    print("is not lost", flush=True)
    time.sleep(10)
sys.exit(invoke(app, ["wait"], debug=False))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=25)
    assert (found.returncode, found.stdout) == (143, "is not lost\n") and "Traceback" not in found.stderr


READ_ALONE = {
    "init": "init DATA --group sex --target income -o own.toml --from-public",
    "show": "show seen",
    "list": "list --json",
    "certs": "certs --host localhost --clients 2 --out keys",
    "account": "account",
    "account show": "account show people",
    "budget": "budget --delta 1e-5 -p 0.1 --steps 10 --epsilon 1",
    "report": "report seen",
    "report of an additive model": "report fits",
    "show shapes": "show fits shapes",
    "show card": "show fits card",
    "describe a run": "describe fits-described/run",
    "check": "check fits.toml --data-dir DATA",
}
"""Lines of each verb that trains nothing: it reads tables, settings, ledgers and figures, composes, or makes keys."""

FITS = """
name = "fits"
[data]
source = "files"
[data.columns]
features = [{name = "age", kind = "integer", low = 0, high = 120}]
sensitive = {name = "sex", values = ["f", "m"]}
target = {name = "income", values = ["low", "high"]}
[model]
kind = "additive"
[privacy]
moments = 0.2
delta = 1e-3
[training]
rounds = 2
[federation]
clients = 3
"""

STOP = """
import sys
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise AssertionError("torch is imported")
sys.meta_path.insert(0, Stop())
from fedsw.cli.app import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three clients' tables, finished runs of them and of others, and the account that one counts in."""
    place = tmp_path_factory.mktemp("read-alone")
    for client in range(3):
        (place / "DATA" / str(client)).mkdir(parents=True)
        rows = [f"{20 + (7 * row + client) % 50},{'fm'[row % 2]},{('low', 'high')[row % 3 == 0]}" for row in range(40)]
        (place / "DATA" / str(client) / "table.csv").write_text("\n".join(["age,sex,income", *rows, ""]))
    (place / "fits.toml").write_text(FITS)
    data = {"records": 200, "test_records": 60, "account": "people"}
    settings = {"name": "seen", "data": data, "training": {"rounds": 1}, "federation": {"clients": 2}}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FEDSW_ACCOUNTS", str(place / "accounts"))
        fedsw.run(settings, runs=place / "runs")
        own = [str(place / "fits.toml"), "--data-dir", str(place / "DATA"), "--runs", str(place / "runs"), "--quiet"]
        assert main(["run", *own]) == 0 and main(["describe", *own]) == 0
    next((place / "runs" / "fits-described").iterdir()).rename(place / "runs" / "fits-described" / "run")
    return place


@pytest.mark.slow
@pytest.mark.parametrize("verb", READ_ALONE)
def test_a_verb_that_trains_nothing_ends_without_torch(verb: str, folder: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", STOP, *READ_ALONE[verb].split()],
        cwd=folder,
        env={**os.environ, "FEDSW_ACCOUNTS": str(folder / "accounts")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stdout + found.stderr


LOADED = """
import sys
from fedsw.cli.app import main
assert main(sys.argv[1:]) == 0
assert not {"torch._dynamo", "sympy", "pandas", "sklearn"} & set(sys.modules)
"""


@pytest.mark.slow
def test_a_run_on_tables_loads_neither_torchs_compiler_nor_pandas(folder: Path) -> None:
    for line in (f"{READ_ALONE['init']} --force", "run own.toml --data-dir DATA training.rounds=2 --quiet"):
        found = subprocess.run(
            [sys.executable, "-c", LOADED, *line.split()],
            cwd=folder,
            env={**os.environ, "FEDSW_ACCOUNTS": str(folder / "accounts"), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert found.returncode == 0, found.stdout + found.stderr
