"""A run in Weights & Biases: what observers are handed over, and nothing else."""

import sys
from types import SimpleNamespace

import pytest

from fedsw.cli.app import main
from fedsw.federation.engines import driver
from fedsw.runs.observers import WandbObserver
from tests.federations import Saboteur, small


class FakeRun:
    """Keeps what it is given."""

    def __init__(self, given):
        self.given, self.logged, self.summary, self.code = given, [], {}, None

    def log(self, numbers, *, step):
        self.logged.append((step, numbers))

    def finish(self, *, exit_code):
        self.code = exit_code


@pytest.fixture
def runs(monkeypatch):
    """The runs that a module of wandb's name began."""
    begun = []
    fake = SimpleNamespace(
        Settings=lambda **settings: settings, init=lambda **given: begun.append(FakeRun(given)) or begun[-1]
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return begun


def test_every_released_number_is_logged_at_the_step_of_its_round(runs, tmp_path):
    result = driver.run(small(), runs=tmp_path, observer=WandbObserver())
    (run,) = runs
    assert [step for step, _ in run.logged] == [1, 2, 3, 4]
    for (_, numbers), line in zip(run.logged, result.history, strict=True):
        assert numbers["epsilon"] == line["epsilon"] and numbers["gradient_norm"] == line["gradient_norm"]
        held_out = {name: value for name, value in numbers.items() if name.startswith("held_out/")}
        assert held_out == {f"held_out/{name}": value for name, value in line.get("held_out", {}).items()}
    assert run.given["project"] == "fedsw" and run.given["config"]["rounds"] == 4
    assert run.summary["status"] == "completed" and run.summary["epsilon_spent"] == result.summary["epsilon_spent"]
    assert run.code == 0


def test_wandb_sends_nothing_by_itself(runs, tmp_path):
    driver.run(small(), runs=tmp_path, observer=WandbObserver())
    settings = runs[0].given["settings"]
    assert settings["console"] == "off"  # what the server prints may hold a client's words
    assert not settings["save_code"] and settings["disable_code"] and settings["disable_git"]
    assert settings["x_disable_stats"] and settings["x_disable_meta"] and settings["x_disable_machine_info"]


def test_a_run_that_breaks_off_is_failed_and_goes_on_under_the_same_id(runs, federation):
    messages = []

    def fail(message, context):
        messages.append(message)
        if len(messages) > 12:
            raise RuntimeError("a record: 17")

    with pytest.raises(Exception, match="a record"):
        federation.run(small(), app=Saboteur(fail), observer=WandbObserver())
    assert runs[0].code == 1 and "17" not in runs[0].summary["status"]
    federation.run(small(), directory=federation.folder / "run1", resume=True, observer=WandbObserver())
    assert runs[0].given["id"] == runs[1].given["id"] and runs[1].given["resume"] == "allow" and runs[1].code == 0
    federation.run(small(), observer=WandbObserver())
    assert runs[2].given["id"] != runs[0].given["id"]


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_library_is_an_error_that_names_the_extra_before_a_run_begins(tmp_path, monkeypatch, capsys, name):
    monkeypatch.setitem(sys.modules, name, None)
    code = main(["run", "fair-classification", "--observe", name, "--runs", str(tmp_path)])
    assert code == 2 and f".[{name}]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_shows_nothing_cannot_be_observed(tmp_path, capsys):
    assert main(["run", "fair-classification", "--engine", "flwr", "--observe", "wandb", "--runs", str(tmp_path)]) == 2
    assert "engine 'flwr' shows nothing" in capsys.readouterr().err


def test_the_real_library_takes_it_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed; pip install '.[wandb]' in fedsw's checkout")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    result = driver.run(small(), runs=tmp_path / "runs", observer=WandbObserver(mode="offline"))
    assert result.summary["status"] == "completed"
    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = log.read_bytes()
    assert b"held_out/accuracy" in content and b"epsilon_spent" in content
    kept = {path.name for path in tmp_path.glob("wandb/offline-run-*/files/*")}
    assert not kept & {"output.log", "requirements.txt", "wandb-metadata.json"}
