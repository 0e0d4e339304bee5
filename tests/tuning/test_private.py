"""Laws of a private selection: charged before its first run, and nothing is left of it but the best run."""

from __future__ import annotations

import json

import pytest

from fedsw.accounting import Charge, Ledger, epsilon, renyi
from fedsw.accounting.lifetime import DatasetAccount, LimitReached
from fedsw.accounting.selection import Repetitions
from fedsw.cli.app import main
from fedsw.errors import FederationError
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.tuning import private
from fedsw.tuning.candidates import Candidate
from tests.federations import SMALL
from tests.owndata.test_check import write
from tests.tuning.test_search import OWN

LAW = Repetitions(0.0, 0.05)


@pytest.fixture(autouse=True, scope="module")
def fewer_orders():
    """Fewer orders are a bound as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(renyi, "ORDERS", renyi.ORDERS[::6])
        yield


@pytest.fixture
def account(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSW_ACCOUNTS", str(tmp_path / "accounts"))
    return DatasetAccount(tmp_path / "accounts", "people")


def candidates(*overrides: str) -> list[Candidate]:
    rates = ("training.learning_rate=0.1", "training.learning_rate=1.0", "training.learning_rate=3.0")
    changes = ["data.account=people", "data.records=300", *overrides]
    return [Candidate((rate,), parse_experiment(SMALL, [*changes, rate])) for rate in rates]


class Training:
    """Stands in for runs: it charges a ledger for them, and scores the learning rate."""

    def __init__(self, account, *, rate: float = 0.2, times: int = 4) -> None:
        self.account, self.rate, self.times = account, rate, times
        self.directories, self.charged = [], []

    def __call__(self, experiment, folder):
        assert experiment.data.account is None
        self.charged.append(bool(self.account.state().runs))
        directory = folder / f"run{len(self.directories)}"
        directory.mkdir()
        self.directories.append(directory)
        with Ledger.create(directory / "ledger.sqlite", groups=("a",), delta=1e-4, epsilon=1e6) as ledger:
            for round_ in range(self.times):
                ledger.spend(round_, 0, [Charge("a", self.rate, 0.1)], 1.0)
        summary = {"held_out": {"accuracy": experiment.training.learning_rate}, "warnings": ["mine"]}
        (directory / "summary.json").write_text(json.dumps(summary))
        return summary, directory


def test_the_selection_is_charged_before_its_first_run_and_only_the_best_run_is_left(account, tmp_path, monkeypatch):
    monkeypatch.setattr(Repetitions, "draw", lambda law, uniform: 12)
    training, found = Training(account), candidates()
    chosen = private.select(found, LAW, "accuracy", 1.0, runs=tmp_path / "runs", train=training)
    assert len(training.directories) == 12 and all(training.charged)
    assert not any(directory.exists() for directory in training.directories)
    assert [path.parent for path in (tmp_path / "runs").rglob("ledger.sqlite")] == [chosen.directory]
    assert chosen.score == chosen.candidate.experiment.training.learning_rate
    (run,) = account.state().runs.values()
    assert run.settled and account.state().spent(1e-5) == pytest.approx(chosen.cost.curve.epsilon(1e-5), rel=2e-2)
    summary = json.loads((chosen.directory / "summary.json").read_text())
    assert "was selected among others" in summary["warnings"][0] and summary["warnings"][1] == "mine"
    kept = json.loads((chosen.directory / "tuning.json").read_text())
    assert kept["epsilon"] == pytest.approx(chosen.cost.epsilon) and not {"runs", "k", "seconds"} & set(kept)


def test_a_selection_costs_more_than_one_run_and_of_many_less_than_all_of_them_shown(account):
    few, many = private.cost_of(candidates()[:1], LAW), private.cost_of(candidates()[:1], Repetitions(0.0, 0.002))
    assert few.single < few.epsilon < many.epsilon < many.all_shown
    (steps,) = many.steps
    shown = {step: round(Repetitions(0.0, 0.002).mean) * times for step, times in steps.items()}
    assert many.all_shown == pytest.approx(epsilon(shown, many.delta), rel=1e-3)


def test_settings_with_other_noise_cost_what_the_worst_of_them_costs(account):
    many = candidates()
    low = [Candidate(("privacy.epsilon=3",), parse_experiment(SMALL, ["data.records=300", "privacy.epsilon=3"]))]
    assert private.cost_of([*many, *low], LAW).epsilon >= private.cost_of(low, LAW).epsilon


def test_a_selection_beyond_the_limit_runs_nothing(account, tmp_path):
    account.limit(1.2, 1e-5)
    training = Training(account)
    with pytest.raises(LimitReached, match="'people'"):
        private.select(candidates(), LAW, "accuracy", 1.0, runs=tmp_path / "runs", train=training)
    assert not training.directories and not account.state().runs


def test_a_run_that_spent_more_than_planned_ends_the_selection(account, tmp_path):
    training = Training(account, times=5)
    with pytest.raises(FederationError, match="other than planned"):
        private.select(candidates(), LAW, "accuracy", 1.0, runs=tmp_path / "runs", train=training)
    assert account.state().runs and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("privacy.trust=local-gradient", "would see every run"),
        ("seed=3", "seed is 3"),
        ("privacy.epsilon=inf", "no noise"),
    ],
)
def test_runs_that_the_theorem_does_not_cover_are_refused(account, setting, said):
    with pytest.raises(ExperimentError, match=said):
        private.cost_of(candidates(setting), LAW)


def test_the_command_searches_on_the_records_and_says_what_it_cost(account, tmp_path, capsys):
    def rows(start: float) -> list[list[object]]:
        return [
            [start + i / 8, "ab"[i % 2], ("female", "male")[i // 2 % 2], ("low", "high")[i > 40]] for i in range(80)
        ]

    for client, start in (("0", 10.0), ("1", 30.0), ("held", 50.0)):
        write(tmp_path / "DATA" / client, rows(start))
    (tmp_path / "DATA" / "held").rename(tmp_path / "held")
    own = tmp_path / "own.toml"
    own.write_text(OWN.replace('source = "files"', 'source = "files"\nheld_out = "held/train.csv"'))
    line = ["tune", str(own), "--data-dir", str(tmp_path / "DATA"), "--try", "training.learning_rate=0.1,2.0"]
    line += ["--on-records", "--expected-runs", "1.1", "--runs", str(tmp_path / "runs")]
    assert main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"][0] in ("training.learning_rate=0.1", "training.learning_rate=2.0")
    (run,) = account.state().runs.values()
    assert run.kind == "selection among 2 settings" and run.settled
    assert account.state().spent(found["delta"]) == pytest.approx(found["epsilon"], rel=2e-2)
    (summary,) = (tmp_path / "runs").rglob("summary.json")
    assert json.loads(summary.read_text())["selection"]["epsilon"] == pytest.approx(found["epsilon"])
    account.limit(found["epsilon"], found["delta"])
    assert main(line) == 2
    assert "would reach" in capsys.readouterr().err and len(list((tmp_path / "runs" / "own").iterdir())) == 1
