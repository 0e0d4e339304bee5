"""Laws of a private selection: charged before its first run, and nothing is left of it but the best run."""

from __future__ import annotations

import json
import math
import os
import stat

import pytest

from fedsw._tools.randomness import Stream
from fedsw._tools.settings import FederationError
from fedsw.cli.app import main
from fedsw.desk.planning import private_search as private
from fedsw.desk.planning.search import Candidate
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.privacy.accounting import BudgetExhausted, Charge, Ledger, Step, epsilon
from fedsw.privacy.accounting import selection as renyi
from fedsw.privacy.accounting.lifetime import Cost, DatasetAccount, LimitReached
from fedsw.privacy.accounting.selection import Repetitions
from tests.desk.own_data.test_examine import write
from tests.desk.planning.test_search import OWN
from tests.federation.sketch_runs import sketched
from tests.federations import SMALL

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
        self.directories, self.charged, self.settings = [], [], []

    def __call__(self, experiment, folder, selection):
        assert experiment.data.account is None
        self.charged.append(bool(self.account.state().runs))
        self.settings.append(selection.settings)
        directory = folder / f"run{len(self.directories)}"
        directory.mkdir()
        self.directories.append(directory)
        promise = {"delta": selection.delta, "epsilon": selection.epsilon, "selection": selection}
        status = "completed"
        with Ledger.create(directory / "ledger.sqlite", groups=("a",), **promise) as ledger:
            for round_ in range(self.times):
                try:
                    ledger.spend(round_, 0, [Charge("a", self.rate, 0.1)], 1.0)
                except BudgetExhausted as exhausted:
                    status = f"stopped: {exhausted}"
        summary = {"held_out": {"accuracy": experiment.training.learning_rate}, "status": status}
        summary["selection"] = selection.as_dict()
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
    kept = json.loads((chosen.directory / "summary.json").read_text())["selection"]
    assert kept["epsilon"] == chosen.cost.selection.epsilon and not {"runs", "k", "seconds"} & set(kept)
    assert tuple(kept["settings"]) == chosen.candidate.settings and kept["metric"] == "accuracy"


def test_a_selection_costs_more_than_one_run_and_of_many_less_than_all_of_them_shown(account):
    few, many = private.cost_of(candidates()[:1], LAW), private.cost_of(candidates()[:1], Repetitions(0.0, 0.002))
    assert few.single < few.selection.epsilon < many.selection.epsilon < many.all_shown
    (steps,) = many.steps
    shown = {step: round(Repetitions(0.0, 0.002).mean) * times for step, times in steps.items()}
    assert many.all_shown == pytest.approx(epsilon(shown, many.selection.delta), rel=1e-3)


def test_settings_with_other_noise_cost_what_the_worst_of_them_costs(account):
    many = candidates()
    low = [Candidate(("privacy.epsilon=3",), parse_experiment(SMALL, ["data.records=300", "privacy.epsilon=3"]))]
    assert private.cost_of([*many, *low], LAW).selection.epsilon >= private.cost_of(low, LAW).selection.epsilon


def test_a_selection_beyond_the_limit_runs_nothing(account, tmp_path):
    account.limit(1.2, 1e-5)
    training = Training(account)
    with pytest.raises(LimitReached, match="'people'"):
        private.select(candidates(), LAW, "accuracy", 1.0, runs=tmp_path / "runs", train=training)
    assert not training.directories and not account.state().runs


@pytest.mark.parametrize("more", [{"times": 5}, {"rate": 0.3}])
def test_a_run_cannot_spend_more_than_any_candidate_was_planned_to(account, tmp_path, more):
    with pytest.raises(FederationError, match="did not end as planned"):
        private.select(candidates(), LAW, "accuracy", 1.0, runs=tmp_path / "runs", train=Training(account, **more))
    assert account.state().runs and not (tmp_path / "runs").exists()


def test_a_run_that_spent_more_than_its_own_plan_ends_the_selection(account, tmp_path, monkeypatch):
    monkeypatch.setattr(Repetitions, "draw", lambda law, uniform: 40)
    longer = candidates("training.rounds=6")[:1]
    with pytest.raises(FederationError, match="other than planned"):
        private.select(
            [*candidates(), *longer], LAW, "accuracy", 1.0, runs=tmp_path / "runs", train=Training(account, times=5)
        )
    assert account.state().runs and not (tmp_path / "runs").exists()


def test_the_settings_of_a_run_depend_on_no_run_before_it(account, tmp_path, monkeypatch):
    monkeypatch.setattr(Repetitions, "draw", lambda law, uniform: 12)
    monkeypatch.setattr(Stream, "secure", lambda: Stream.seeded(5, "runs"))
    drawn = []
    for place, sign in enumerate((1.0, -1.0)):
        training = Training(account)
        private.select(candidates(), LAW, "accuracy", sign, runs=tmp_path / str(place), train=training)
        drawn.append(training.settings)
    assert drawn[0] == drawn[1] and {*map(drawn[0].count, set(drawn[0]))} <= set(range(1, 9))


def test_every_account_that_a_candidate_names_is_charged(account, tmp_path, monkeypatch):
    others = candidates("data.account=patients")[:1]
    unnamed = [Candidate(("x",), parse_experiment(SMALL, ["data.records=300"]))]
    found = [*unnamed, *candidates(), *others]
    chosen = private.select(found, LAW, "accuracy", 1.0, runs=tmp_path / "runs", train=Training(account))
    for data in ("people", "patients"):
        state = DatasetAccount(tmp_path / "accounts", data).state()
        (run,) = state.runs.values()
        assert run.settled and state.spent(1e-5) == pytest.approx(chosen.cost.curve.epsilon(1e-5), rel=2e-2)


def test_where_one_account_has_no_room_none_is_charged_and_nothing_runs(account, tmp_path):
    full = DatasetAccount(tmp_path / "accounts", "patients")
    full.limit(1.2, 1e-5)
    training, found = Training(account), [*candidates(), *candidates("data.account=patients")[:1]]
    with pytest.raises(LimitReached, match="'patients'"):
        private.select(found, LAW, "accuracy", 1.0, runs=tmp_path / "runs", train=training)
    assert not training.directories and not full.state().runs and account.state().spent(1e-5) == 0.0


def test_candidates_of_several_deltas_are_refused(account):
    other = candidates("privacy.delta=1e-7")[:1]
    with pytest.raises(ExperimentError, match=r"different deltas, 1e-07 to"):
        private.cost_of([*candidates(), *other], LAW)


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


@pytest.mark.parametrize(
    "cost",
    [Cost.one({Step(0.2, 0.1): 4, Step(1.0, 0.05): 1}), Cost.of([{Step(0.2, 0.1): 4}, {Step(1.0, 0.2): 1}])],
    ids=["rounds and moments", "rounds or counts"],
)
def test_runs_that_release_several_things_are_not_taken_for_runs_that_release_the_dearest(account, monkeypatch, cost):
    monkeypatch.setattr(private, "planned_cost", lambda plan: cost)
    with pytest.raises(ExperimentError, match="releases more than its rounds"):
        private.cost_of(candidates(), LAW)


def test_of_runs_on_a_sketch_in_stages_all_stages_are_charged_and_stages_that_differ_are_refused(account, monkeypatch):
    monkeypatch.setattr(private, "Evaluator", lambda task: None)  # it would train a classifier

    def runs(*stages: str) -> list[Candidate]:
        return [Candidate((), sketched("data.account=people", *stages))]

    ((step, times),) = private.cost_of(runs("sketch.stages=[{}, {}]"), LAW).steps[0].items()
    assert times == 3 and epsilon({Step(1.0, math.sqrt(3) * step.mu): 1}, 1e-5) == pytest.approx(5.0, rel=1e-2)
    with pytest.raises(ExperimentError, match="stages of a sketch with unequal shares"):
        private.cost_of(runs("sketch.stages=[{share=0.3}]"), LAW)
    assert not account.state().runs


def test_a_search_on_records_leaves_out_the_moments_that_nobody_wrote(account):
    open_ = private.cost_of(candidates("privacy.moments='auto'"), LAW)
    assert open_.selection.epsilon == private.cost_of(candidates(), LAW).selection.epsilon
    with pytest.raises(ExperimentError, match="privacy.moments"):
        private.cost_of(candidates("privacy.moments=0.2"), LAW)


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
    before = os.umask(0)
    try:
        assert main([*line, "--json"]) == 0
    finally:
        os.umask(before)
    folders = [path for path in (tmp_path / "runs").rglob("*") if path.is_dir()]
    assert not [path for path in (tmp_path / "runs", *folders) if stat.S_IMODE(path.stat().st_mode) & 0o077]
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
