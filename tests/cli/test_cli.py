"""The commands of the app, over a stand-in for training."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedsw.cli import app as cli
from fedsw.cli import demo, execution
from fedsw.cli.demo import ALPHAS, EPSILONS, missing_cells, read_demo
from fedsw.experiment import Experiment, load_experiment
from fedsw.experiment.load import shipped, shipped_experiments
from fedsw.experiment.task_kinds import task_facts
from fedsw.privacy.accounting import Charge, Ledger
from fedsw.runs.run_files import find_run

MakeRun = Callable[..., Path]
FakeRuns = Any
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the figures out, where they are not what is tested: drawing takes a second."""
    monkeypatch.setattr(execution, "draw_run", lambda directory, modules: [])
    monkeypatch.setattr(demo, "draw_demo", lambda folder: [])


def strict_json(text: str) -> Any:
    def refuse(literal: str) -> None:
        raise AssertionError(f"{literal} in JSON")

    return json.loads(text, parse_constant=refuse)


def asked(fake_runs: FakeRuns) -> Experiment:
    experiment: Experiment = fake_runs.calls[-1][0]
    return experiment


def test_a_shipped_name_runs_and_leaves_plots_and_a_summary(fake_runs: FakeRuns, capsys: Capture) -> None:
    assert cli.main(["run", "fair-classification"]) == 0
    assert asked(fake_runs) == load_experiment(shipped()["fair-classification"])
    (directory,) = Path("runs/fair-classification").iterdir()
    assert len(list((directory / "plots").glob("*.png"))) == 2 + len(task_facts("classification").figures)
    assert "ε = 1 at δ" in capsys.readouterr().out


@pytest.mark.usefixtures("fake_runs")
def test_a_figure_that_fails_is_a_warning_and_the_run_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def fail(directory: Path, modules: Sequence[str]) -> list[Path]:
        raise IndexError("index 1 is out of bounds")

    monkeypatch.setattr(execution, "draw_run", fail)
    assert cli.main(["run", "fair-classification"]) == 0
    said = capsys.readouterr()
    assert "warning: the plots of runs/fair-classification/" in said.err and "index 1 is out of bounds" in said.err
    assert "ε = 1 at δ" in said.out


@pytest.mark.usefixtures("undrawn")
def test_a_file_runs_as_a_shipped_name_does(fake_runs: FakeRuns, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\n[training]\nrounds = 3\n')
    assert cli.main(["run", str(path), "--quiet"]) == 0
    assert (asked(fake_runs).name, asked(fake_runs).training.rounds) == ("mine", 3)


def test_an_unknown_experiment_is_refused_with_the_nearest_known(fake_runs: FakeRuns, capsys: Capture) -> None:
    assert cli.main(["run", "fair-clasification"]) == 2
    assert "no experiment 'fair-clasification'; nearest: 'fair-classification'" in capsys.readouterr().err
    assert cli.main(["run", "missing.toml"]) == 2
    assert "no experiment file at missing.toml" in capsys.readouterr().err
    assert fake_runs.calls == []


OVERRIDES: list[tuple[list[str], Callable[[Experiment], object], object]] = [
    (["--clients", "7"], lambda e: e.federation.clients, 7),
    (["--epsilon", "3"], lambda e: e.privacy.epsilon, 3.0),
    (["--epsilon", "inf"], lambda e: e.privacy.epsilon, math.inf),
    (["--seed", "5"], lambda e: e.seed, 5),
    (["--unsafe-metrics"], lambda e: e.unsafe_metrics, True),
    (["--set", "objective.alpha=0.75"], lambda e: e.objective.alpha, 0.75),
    (
        ["--set", "objective.alpha=0.75", "training.rounds=9"],
        lambda e: (e.objective.alpha, e.training.rounds),
        (0.75, 9),
    ),
    (["--set", "clip.loss=2", "--set", "clip.output=3"], lambda e: (e.clip.loss, e.clip.output), (2.0, 3.0)),
    (["--set", "privacy.noise_multiplier=4"], lambda e: (e.privacy.epsilon, e.privacy.noise_multiplier), (None, 4.0)),
    (["training.optimizer=adam"], lambda e: e.training.optimizer, "adam"),
]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("arguments", "read", "value"), OVERRIDES, ids=[" ".join(case[0]) for case in OVERRIDES])
def test_options_reach_the_experiment(
    arguments: list[str], read: Callable[[Experiment], object], value: object, fake_runs: FakeRuns
) -> None:
    assert cli.main(["run", "fair-classification", *arguments, "--quiet"]) == 0
    assert read(asked(fake_runs)) == value


@pytest.mark.usefixtures("undrawn")
def test_engine_runs_and_data_directory_are_handed_on(fake_runs: FakeRuns, tmp_path: Path) -> None:
    odd = tmp_path / 'da"ta ε'
    arguments = ["--engine", "ray", "--runs", "elsewhere", "--data-dir", str(odd), "--quiet"]
    assert cli.main(["run", "adult", *arguments]) == 0
    assert fake_runs.calls[-1][1] == {"engine": "ray", "runs": Path("elsewhere")}
    assert asked(fake_runs).data.data_dir == str(odd)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epsilon", "0"], "privacy.epsilon"),
        (["--epsilon", "-1"], "privacy.epsilon"),
        (["--set", "training.roundz=3"], "nearest known: 'training.rounds'"),
        (["--set", "rounds"], "section.key=value"),
        (["--clients", "0"], "--clients"),
        (["--engine", "spark"], "'spark' is not one of 'inprocess', 'ray'"),
    ],
)
def test_bad_input_is_code_2_and_nothing_runs(
    arguments: list[str], words: str, fake_runs: FakeRuns, capsys: Capture
) -> None:
    assert cli.main(["run", "fair-classification", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""
    assert fake_runs.calls == []
    assert not Path("runs").exists()


@pytest.mark.usefixtures("undrawn")
def test_json_is_one_valid_document_and_alone_on_stdout(fake_runs: FakeRuns, capsys: Capture) -> None:
    assert cli.main(["run", "fair-classification", "--epsilon", "inf", "--json"]) == 0
    summary = strict_json(capsys.readouterr().out)
    assert (summary["epsilon"], summary["status"]) == ("inf", "completed")
    assert Path(summary["directory"]).is_dir()
    assert all(Path(path).is_file() for path in summary["plots"])


@pytest.mark.usefixtures("undrawn")
def test_a_terminal_sees_epsilon_signal_to_noise_and_held_out_metrics_pass_by(
    fake_runs: FakeRuns, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "160")
    assert cli.main(["run", "fair-classification"]) == 0
    seen = capsys.readouterr().err
    for words in ("500/500", "ε 1 of 1", "SNR", "accuracy 0.8 · DI 0.6"):
        assert words in seen
    assert "loss" not in seen


@pytest.mark.usefixtures("undrawn")
def test_quiet_prints_the_directory_alone(fake_runs: FakeRuns, capsys: Capture) -> None:
    assert cli.main(["run", "fair-classification", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert Path(captured.out.strip()).is_dir()
    assert captured.err == ""


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_stops_midway_is_code_3_and_says_how_to_go_on(fake_runs: FakeRuns, capsys: Capture) -> None:
    fake_runs.fail_in = 20
    assert cli.main(["run", "fair-classification", "--quiet"]) == 3
    (directory,) = Path("runs/fair-classification").iterdir()
    error = capsys.readouterr().err
    assert "client 2 raised ZeroDivisionError" in error
    assert f"`fedsw resume {directory}` goes on" in error
    assert "Traceback" not in error

    fake_runs.fail_in = None
    assert cli.main(["resume", str(directory), "--json"]) == 0
    assert strict_json(capsys.readouterr().out)["status"] == "completed"
    assert len((directory / "metrics.jsonl").read_text().splitlines()) == asked(fake_runs).training.rounds


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_run_is_code_130_and_says_how_to_go_on(fake_runs: FakeRuns, capsys: Capture) -> None:
    fake_runs.fail_in, fake_runs.fault = 20, KeyboardInterrupt()
    assert cli.main(["run", "fair-classification", "--quiet"]) == 130
    assert "fedsw: interrupted" in (error := capsys.readouterr().err)
    assert "`fedsw resume runs/fair-classification/" in error


@pytest.mark.usefixtures("undrawn")
def test_of_two_runs_at_once_the_one_that_stops_names_its_own_folder(fake_runs: FakeRuns, capsys: Capture) -> None:
    fake_runs.fail_in, fake_runs.fault = 20, KeyboardInterrupt()
    fake_runs.before_fault = lambda directory: (directory.parent / "99990101-120000").mkdir()
    assert cli.main(["run", "fair-classification", "--quiet"]) == 130
    first, other = sorted(Path("runs/fair-classification").iterdir())
    assert f"`fedsw resume {first}`" in (error := capsys.readouterr().err) and other.name not in error


def test_a_federation_that_refuses_before_its_plan_is_bad_input(
    fake_runs: FakeRuns, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedsw._tools.settings import FederationError

    def refuse(*_: object, **__: object) -> None:
        raise FederationError("a client could not join: row 3, column 'age' is NaN")

    monkeypatch.setattr(sys.modules["fedsw.federation.engines.driver"], "run", refuse)
    assert cli.main(["run", "fair-classification"]) == 2
    assert capsys.readouterr().err == "fedsw: a client could not join: row 3, column 'age' is NaN\n"


def test_a_fault_between_the_folder_and_the_plan_offers_nothing_to_resume(
    fake_runs: FakeRuns, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(experiment: Experiment, *, runs: Path, **_: object) -> None:
        (runs / experiment.name / "20250101-120000").mkdir(parents=True)
        raise ValueError("delta 1e-12 is below 1e-10")

    monkeypatch.setattr(sys.modules["fedsw.federation.engines.driver"], "run", refuse)
    assert cli.main(["run", "fair-classification"]) == 2
    assert capsys.readouterr().err == "fedsw: delta 1e-12 is below 1e-10\n"


def test_runs_are_found_by_path_by_name_and_by_experiment(finished_run: MakeRun, tmp_path: Path) -> None:
    first, second = finished_run(), finished_run()
    runs = tmp_path / "runs"
    assert find_run(str(first), runs) == first
    assert find_run(f"toy/{first.name}", runs) == first
    assert find_run("toy", runs) == second
    with pytest.raises(ValueError, match=r"no run at 'toi/.*nearest: 'toy/"):
        find_run(f"toi/{first.name}", runs)
    with pytest.raises(ValueError, match="there are none under nowhere"):
        find_run("toy", Path("nowhere"))


def test_show_prints_the_summary_again(finished_run: MakeRun, capsys: Capture) -> None:
    directory = finished_run()
    assert cli.main(["show", "toy"]) == 0
    assert "accuracy 0.794" in capsys.readouterr().out
    assert cli.main(["show", str(directory), "--json"]) == 0
    assert strict_json(capsys.readouterr().out)["directory"] == str(directory)
    (directory / "summary.json").unlink()
    assert cli.main(["show", str(directory), "--json"]) == 0
    assert strict_json(capsys.readouterr().out)["status"] == "not finished"
    assert cli.main(["show", "nothing"]) == 2
    assert "no run at 'nothing'" in capsys.readouterr().err


def test_every_shipped_experiment_is_valid_named_for_its_file_and_listed(capsys: Capture) -> None:
    experiments = shipped_experiments()
    assert [experiment.name for experiment in experiments] == list(shipped())
    assert all(experiment.title for experiment in experiments)
    assert cli.main(["list", "--json"]) == 0
    assert [row["name"] for row in strict_json(capsys.readouterr().out)] == list(shipped())
    assert cli.main(["list"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in shipped())


@pytest.mark.parametrize(
    ("name", "rounds", "loss", "output", "jacobian", "rate"),
    [
        ("fair-classification-rll", 500, 5, 1, 1, 0.05),
        ("fair-classification-eo-rll", 500, 5, 1, 1, 0.05),
        ("fair-regression-rll", 1000, 10, 1 / math.sqrt(2), math.sqrt(2), 0.05),
        ("fair-representation-rll", 500, 10, 2, math.sqrt(2), 0.01),
    ],
)
def test_the_published_settings_are_shipped(
    name: str, rounds: int, loss: float, output: float, jacobian: float, rate: float
) -> None:
    experiment = load_experiment(shipped()[name])
    clip, training = experiment.clip, experiment.training
    assert (training.rounds, training.learning_rate, training.batch_fraction) == (rounds, rate, 0.1)
    assert (clip.loss, clip.output, clip.jacobian) == pytest.approx((loss, output, jacobian), rel=1e-15)
    assert experiment.privacy.delta == "0.1/n" and experiment.slicing.directions == 50
    assert (clip.mode, experiment.privacy.bound, experiment.privacy.accountant) == ("row", "paper", "gdp-clt-uniform")
    assert "not a guarantee" in experiment.title


def test_the_demo_runs_the_grid_and_writes_a_table_and_two_figures(fake_runs: FakeRuns, capsys: Capture) -> None:
    assert cli.main(["demo", "--rounds", "4", "--json"]) == 0
    table = strict_json(capsys.readouterr().out)
    cells = [(row["alpha"], float(row["target_epsilon"])) for row in table["rows"]]
    assert cells == [(alpha, epsilon) for alpha in ALPHAS for epsilon in EPSILONS]
    folder = Path(table["directory"])
    assert strict_json((folder / "table.json").read_text())["rows"] == table["rows"]
    assert sorted(Path(path).name for path in table["plots"]) == ["histograms.png", "trade-off.png"]
    assert all(Path(path).is_file() for path in table["plots"])
    assert {experiment.federation.clients for experiment, _ in fake_runs.calls} == {4}
    assert {experiment.training.rounds for experiment, _ in fake_runs.calls} == {4}


@pytest.mark.usefixtures("undrawn")
def test_a_demo_that_stopped_goes_on_with_the_cells_it_does_not_have(fake_runs: FakeRuns, capsys: Capture) -> None:
    real, fake_runs.fail_in = fake_runs._train, 3

    def third_fails(*arguments: Any) -> Any:
        fake_runs.fail_in = 3 if len(fake_runs.calls) == 3 else None
        return real(*arguments)

    fake_runs._train = third_fails
    assert cli.main(["demo", "--rounds", "4", "--clients", "2", "--quiet"]) == 3
    (folder,) = Path("runs/demo").iterdir()
    assert f"`fedsw demo --resume {folder}` goes on" in capsys.readouterr().err
    assert len(read_demo(folder)["rows"]) == 2
    assert len(missing_cells(read_demo(folder))) == 7

    assert cli.main(["demo", "--resume", str(folder)]) == 0
    assert len(read_demo(folder)["rows"]) == 9
    assert len(fake_runs.calls) == 3 + 7
    assert {experiment.federation.clients for experiment, _ in fake_runs.calls} == {2}
    assert capsys.readouterr().out.count("0.794") == 9


def test_a_demo_is_resumed_with_its_own_settings_only(fake_runs: FakeRuns, capsys: Capture) -> None:
    assert cli.main(["demo", "--resume", "runs", "--clients", "3"]) == 2
    assert "--resume takes --clients" in capsys.readouterr().err
    assert cli.main(["demo", "--resume", "nowhere"]) == 2
    assert "nowhere holds no demo to resume" in capsys.readouterr().err


def test_the_ledger_is_replayed_and_alike_rounds_share_a_line(finished_run: MakeRun, capsys: Capture) -> None:
    directory = finished_run()
    groups = ("A=0", "A=1")
    with Ledger.create(
        directory / "ledger.sqlite", groups=groups, delta=1e-5, epsilon=3.0, accountant="pld", nominal=False
    ) as ledger:
        for round_ in range(1, 6):
            charges = [Charge("A=0", 0.1, 0.01), Charge("A=1", 0.1, 0.01 if round_ < 5 else 0.02)]
            spent = ledger.spend(round_, 0, charges, 0.05)
        # While the run still holds its ledger.
        assert cli.main(["show", str(directory), "ledger", "--json"]) == 0
    account = strict_json(capsys.readouterr().out)
    assert account["epsilon"] == pytest.approx(spent, abs=1e-9)
    assert (account["budget"], account["released_rounds"], len(account["entries"])) == (3.0, 5, 10)
    assert cli.main(["show", "toy", "ledger"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "A=" in line]
    assert [line[-5:-3] for line in lines] == [["5", "A=0"], ["4", "A=1"], ["1", "A=1"]]


def test_a_run_without_a_ledger_says_so(finished_run: MakeRun, capsys: Capture) -> None:
    finished_run()
    assert cli.main(["show", "toy", "ledger"]) == 2
    assert "ledger.sqlite" in capsys.readouterr().err
