"""The command works in any folder: what it ships comes with the package, and nothing is looked for around it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedsw.cli.app import app, main
from fedsw.federation.deploy.bundle import bundle_files, write_bundle

ROOT = Path(__file__).resolve().parents[2]


def fedsw(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = "from fedsw.cli.app import program; program()"
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    command = [sys.executable, "-P", "-c", code, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_a_shipped_experiment_runs_in_an_empty_folder(tmp_path: Path) -> None:
    done = fedsw("run", "fair-classification", "training.rounds=2", "data.records=400", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_the_shipped_experiments_are_listed_in_an_empty_folder(tmp_path: Path) -> None:
    listed = {entry["name"] for entry in json.loads(fedsw("list", "--json", cwd=tmp_path).stdout)}
    assert listed == {path.stem for path in (ROOT / "fedsw" / "shipped" / "experiments").glob("*.toml")}


def test_packages_of_these_names_beside_the_user_are_not_looked_at(tmp_path: Path) -> None:
    for name in ("clients", "server", "simulations", "fedsw"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('a stranger ran')")
    done = fedsw("list", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_what_is_sent_has_no_dependencies_and_a_checkout_is_no_app_of_its_own(tmp_path: Path) -> None:
    """Flower installs what a project file names, at every node: gigabytes, with another torch."""
    ours = tomllib.loads((write_bundle(tmp_path / "bundle") / "pyproject.toml").read_text())
    checkout = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert ours["project"]["dependencies"] == [] and not {"optional-dependencies", "dynamic"} & ours["project"].keys()
    assert "flwr" not in checkout["tool"] and "build-system" not in ours
    for key in ("name", "description", "license"):
        assert ours["project"][key] == checkout["project"][key]


def test_the_bundle_is_a_few_lines(tmp_path: Path) -> None:
    code = "".join(text for name, text in bundle_files().items() if name.endswith(".py"))
    assert len([line for line in code.splitlines() if line.strip()]) < 10


@pytest.mark.parametrize("module", ["fedsw", "fedsw.cli.app", "fedsw.experiment"])
def test_importing_the_library_loads_no_framework(module: str) -> None:
    heavy = "'flwr', 'ray', 'opacus', 'matplotlib', 'dp_accounting', 'rich.progress'"
    code = f"import sys, {module}; print([name for name in ({heavy}) if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_a_run_begins_without_what_it_does_not_need_to_begin(tmp_path: Path) -> None:
    """Torch's compiler and scipy's statistics take longer to load than all of fedsw."""
    code = """
import sys, os, pathlib, gc
from fedsw.federation.engines.driver import run
from fedsw.runs.observer import NoObserver
class First(NoObserver):
    def started(self, plan):
        late = "torch._dynamo", "scipy.stats", "scipy.optimize", "scipy.fft"
        print([name for name in late if name in sys.modules], gc.isenabled(), flush=True)
        os._exit(0)
few = "training.rounds=1", "federation.clients=2"
run("fair-classification", *few, runs=pathlib.Path(sys.argv[1]), observer=First())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[] True"


def test_the_help_shows_every_verb_once_in_its_group_and_on_one_line_of_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    assert main(["--help"]) == 0
    printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    panels = re.findall(r"^╭─ (\w+) ─+╮\n((?:│.*│\n)+)╰─+╯$", printed, flags=re.MULTILINE)
    assert [name for name, _ in panels] == ["Options", "Data", "Plan", "Run", "Look", "Use", "Operate"]
    lines = [line for _, inside in panels[1:] for line in inside.splitlines()]
    shown = [match[1] for line in lines if (match := re.fullmatch(r"│ (\w+) +\S.*[.?] +│", line))]
    assert len(shown) == len(lines), "a verb's sentence goes on in a second line"
    verbs = [each.name for each in (*app.registered_commands, *app.registered_groups)]
    assert sorted(shown) == sorted(verbs) and len(set(shown)) == len(shown)
    assert max(map(len, printed.splitlines())) <= 80
