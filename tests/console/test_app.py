"""The console finds the Flower app, hands over to it, and says what to do where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fedsw.console.app import AppNotFound, find_app

ROOT = Path(__file__).resolve().parents[2]
CLI = "def main(arguments, *, debug):\n    print(__file__, debug, arguments)\n    return 7\n"


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    for name in ("clients", "server", "simulations"):
        (folder / name).mkdir(parents=True)
    (folder / "simulations" / "__init__.py").touch()
    (folder / "simulations" / "cli.py").write_text(CLI)
    (folder / "pyproject.toml").write_text("[tool.flwr.app]\npublisher = 'someone'\n")
    return folder


def fedsw(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from fedsw.cli.app import main; sys.exit(main())"
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)


def test_the_app_is_found_from_its_directory_and_from_below(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = app / "docs" / "deep"
    below.mkdir(parents=True)
    for folder in (app, below):
        monkeypatch.chdir(folder)
        assert find_app(None, "run") == app


def test_a_given_directory_wins_over_the_current_one(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert find_app(app, "run") == app


def test_without_an_app_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AppNotFound, match=r"`fedsw run` belongs to the Flower app.*--app DIR.*`fedsw budget`"):
        find_app(None, "run")
    assert find_app(None, None) is None


@pytest.mark.parametrize("missing", ["clients", "server", "fedsw/cli/app.py", "pyproject.toml", "[tool.flwr.app]"])
def test_a_directory_that_is_not_the_app_is_refused_by_what_it_misses(app: Path, missing: str) -> None:
    target = app / missing
    if missing.startswith("["):
        (app / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    elif target.is_dir():
        target.rmdir()
    else:
        target.unlink()
    with pytest.raises(AppNotFound, match="is not a fedsw app") as refused:
        find_app(app, "run")
    assert missing in str(refused.value)


def test_a_pyproject_that_is_not_toml_is_named(app: Path) -> None:
    (app / "pyproject.toml").write_text("[tool")
    with pytest.raises(AppNotFound, match=r"pyproject\.toml cannot be read"):
        find_app(app, "run")


def test_a_stranger_between_here_and_the_app_is_passed_over(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = app / "vendor"
    inner.mkdir()
    (inner / "pyproject.toml").write_text("[tool.flwr.app]\n")
    monkeypatch.chdir(inner)
    assert find_app(None, "run") == app


@pytest.mark.parametrize(
    "arguments",
    [["run", "x", "--app", "{app}"], ["--app", "{app}", "run", "x"], ["run", "--app={app}", "x"]],
)
def test_app_is_accepted_before_and_after_the_command(app: Path, tmp_path: Path, arguments: list[str]) -> None:
    done = fedsw(*(word.format(app=app) for word in arguments), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout.split() == [str(app / "simulations" / "cli.py"), "False", "['run',", "'x']"]


def test_the_app_in_the_current_directory_runs_first_even_beside_other_packages(app: Path) -> None:
    done = fedsw("list", cwd=app)
    assert done.returncode == 7
    assert done.stdout.startswith(str(app / "simulations" / "cli.py"))


def test_a_stranger_with_the_same_name_is_never_run_in_place_of_the_app(app: Path) -> None:
    (app / "simulations" / "__init__.py").unlink()
    done = fedsw("list", cwd=app)
    assert done.returncode == 2
    assert f"not from {app}" in done.stderr


def test_outside_any_app_a_command_fails_with_one_message_and_code_2(tmp_path: Path) -> None:
    done = fedsw("run", "fair-classification", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("fedsw: `fedsw run` belongs to the Flower app")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_and_budget_work_outside_any_app(tmp_path: Path) -> None:
    done = fedsw("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "budget" in done.stdout
    assert "Flower app" in done.stdout
    assert fedsw("budget", "--help", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("module", ["fedsw", "fedsw.console", "fedsw.experiment"])
def test_importing_the_library_loads_no_framework(module: str) -> None:
    heavy = "'flwr', 'ray', 'opacus', 'matplotlib', 'dp_accounting', 'simulations'"
    code = f"import sys, {module}; print([name for name in ({heavy}) if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
