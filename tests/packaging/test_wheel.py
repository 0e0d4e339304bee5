"""The wheel is the whole product: installed into an empty environment, it does in an empty folder what README says."""

from __future__ import annotations

import json
import os
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedsw.experiment.load import SHIPPED
from fedsw.federation.deploy.bundle import bundle_hash
from tests.packaging.environments import (
    ROOT,
    built_wheel,
    empty_environment,
    link_requirements,
    outside,
    pip,
    run,
    sources,
)
from tests.processes import left_of_this_test, mark

pytestmark = pytest.mark.slow
SMALL = ("data.records=600", "data.test_records=200")
Fedsw = Callable[..., str]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sources(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with `fedsw[app]` from the wheel, under the versions that are tested together."""
    python = empty_environment(tmp_path_factory.mktemp("installed"))
    link_requirements(python, "fedsw[app]")
    pip(python, "install", "--no-index", "--constraint", str(ROOT / "constraints.txt"), f"{wheel}[app]")
    return python


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("empty")


@pytest.fixture
def environment(empty: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A home of its own beside the empty folder; no process is left behind."""
    mark(monkeypatch)
    yield outside(HOME=str(empty.parent), XDG_CACHE_HOME=str(empty.parent), OMP_NUM_THREADS="1")
    assert not left_of_this_test()


@pytest.fixture
def fedsw(python: Path, empty: Path, environment: dict[str, str]) -> Fedsw:
    """Run the installed command in the empty folder; returns what it printed."""
    return lambda *arguments: run([str(python.with_name("fedsw")), *arguments], empty, environment)


def _names(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    walked = os.walk(ROOT / "fedsw", followlinks=True)
    files = {Path(folder, name).relative_to(ROOT).as_posix() for folder, _, names in walked for name in names}
    assert _names(wheel) == {name for name in files if "__pycache__" not in name}


def test_the_wheel_of_a_source_archive_is_the_wheel_of_the_checkout(source, wheel, tmp_path):
    python = empty_environment(tmp_path / "builder")
    requires = [line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("requires = [")]
    pip(python, "install", *json.loads(requires[0].partition("=")[2]))
    command = [str(python), "-c", f"from setuptools.build_meta import build_sdist; build_sdist({str(tmp_path)!r})"]
    run(command, source, outside())
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert _names(built_wheel(unpacked, tmp_path / "wheels")) == _names(wheel)


def test_nothing_of_the_checkout_is_found_but_what_the_wheel_brought(python, empty, environment):
    code = (
        "import importlib.util as u, fedsw; "
        "print(fedsw.__file__, *map(u.find_spec, ('clients', 'server', 'tests', 'simulations')))"
    )
    file, *others = run([str(python), "-c", code], empty, environment).split()
    assert Path(file).is_relative_to(python.parents[1]) and others == ["None"] * 4


def test_every_module_of_the_wheel_can_be_imported(python, empty, environment):
    """But for entries that run when they are imported, and what other extras bring."""
    code = (
        "import importlib, pkgutil, fedsw\n"
        "for module in pkgutil.walk_packages(fedsw.__path__, 'fedsw.'):\n"
        "    if not module.name.endswith('__main__'): importlib.import_module(module.name)\n"
        "    print(module.name)"
    )
    assert len(run([str(python), "-c", code], empty, environment).split()) > 200


def test_the_shipped_experiments_are_listed_and_a_budget_is_computed(fedsw):
    listed = {experiment["name"] for experiment in json.loads(fedsw("list", "--json"))}
    assert listed == {path.stem for path in (SHIPPED / "experiments").glob("*.toml")} and len(listed) > 10
    assert fedsw("--version").startswith("fedsw ")
    readme = "--sampling-rate 0.01 --steps 5000 --delta 1e-5 --noise-multiplier 1.0"
    assert "ε" in fedsw("budget", *readme.split())
    assert "fair-classification" in fedsw("compare", "--list")
    assert fedsw("bundle").strip() == bundle_hash(), "Flower gets the same from the wheel and from the checkout"


def test_a_run_leaves_its_record_and_its_pictures_in_the_folder_it_is_started_in(fedsw, empty):
    done = json.loads(fedsw("run", "fair-classification", "training.rounds=3", *SMALL, "--clients", "2", "--json"))
    place = empty / done["directory"]
    assert done["status"] == "completed" and place.is_relative_to(empty / "runs")
    assert len(done["plots"]) >= 3 and all((empty / plot).stat().st_size > 1000 for plot in done["plots"])
    assert json.loads(fedsw("show", "fair-classification", "--json"))["epsilon"] == done["epsilon"]
    assert "3 of 3" in fedsw("show", str(place), "progress")
    assert "A=0" in fedsw("show", str(place), "ledger")


def test_the_start_page_leads_from_nothing_to_a_report_in_ten_commands_at_most(python, tmp_path, environment):
    text = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "tables.py").write_text(script, encoding="utf-8")
    blocks = "".join(re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)).replace("\\\n", " ")
    install, *commands = [line for line in blocks.splitlines() if not line.startswith("python3 -m venv")]
    assert install.split("#")[0].strip() == 'pip install "./fedsw[app]"' and len(commands) + 2 <= 10
    path = {"PATH": f"{python.parent}{os.pathsep}{environment['PATH']}"}
    for command in commands:
        run(["bash", "-ec", command], tmp_path, {**environment, **path})
    (report,) = tmp_path.glob("runs/own/*/report.html")
    summary = json.loads(report.with_name("summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "completed" and summary["guarantee"]["trust"] == "central"
    assert summary["held_out"]["accuracy"] > 0.7 and "http" not in "".join(
        re.findall(r' src="[^"]*"', report.read_text())
    )
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 601


def test_real_processes_run_on_the_installed_package(fedsw):
    done = fedsw("deploy", "local", "--clients", "2", "fair-classification", "training.rounds=2", *SMALL, "--json")
    assert (json.loads(done)["status"], json.loads(done)["engine"]) == ("completed", "deployed")
