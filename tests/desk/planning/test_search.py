"""Laws of a free search: every combination is tried, the best comes first, and no record is looked at."""

from __future__ import annotations

import json
import math

import pytest

from fedsw.cli.app import main
from fedsw.desk.planning.search import candidates, metric_of, score_of, search
from fedsw.experiment import ExperimentError, load_experiment
from fedsw.federation.server.settling import settled
from tests.desk.own_data.test_examine import FINE, write

OWN = """
name = "own"
[data]
source = "files"
account = "people"
[data.columns]
features = [{name = "age", low = 0, high = 100}, {name = "work", categories = ["a", "b"]}]
sensitive = {name = "sex", values = ["female", "male"]}
target = {name = "income", values = ["low", "high"]}
[training]
rounds = 3
batch_fraction = 0.5
[federation]
clients = 2
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return path


def test_every_combination_is_tried_and_the_best_comes_first(own):
    found = candidates(own, ["training.rounds=2,3", "training.learning_rate=0.1,0.5,1.0"])
    tried = search(found, lambda one: one.training.rounds - one.training.learning_rate, most=50)
    assert len(tried) == 6
    assert tried[0].candidate.settings == ("training.rounds=3", "training.learning_rate=0.1")
    assert [each.score for each in tried] == sorted((each.score for each in tried), reverse=True)
    assert len(search(found, lambda one: 0.0, most=4)) == 4


def test_without_values_to_try_rates_are_around_the_experiment_s_or_around_the_planned_one(own, tmp_path):
    def rates(text: str) -> list[float]:
        own.write_text(text)
        tried = candidates(own, [], [f"data.data_dir={data}"])
        return [each.experiment.training.learning_rate for each in tried]

    data = tmp_path / "data"
    for client in range(2):
        (data / str(client)).mkdir(parents=True)
        lines = [f"{20 + row % 60},{'ab'[row % 2]},{('female', 'male')[row // 2 % 2]},{('low', 'high')[row // 4 % 2]}"
                 for row in range(client, client + 400)]  # fmt: skip
        (data / str(client) / "train.csv").write_text("\n".join(["age,work,sex,income", *lines]))
    assert sorted(rates(OWN))[len(rates(OWN)) // 2] == 0.05
    auto = OWN.replace("rounds = 3\nbatch_fraction = 0.5\n", 'preset = "auto"\n')
    planned = settled(load_experiment(own, [f"data.data_dir={data}"])) if rates(auto) else None
    assert planned.training.learning_rate != 0.05
    assert sorted(rates(auto))[len(rates(auto)) // 2] == pytest.approx(planned.training.learning_rate, rel=0.01)


def test_a_candidate_that_fails_says_why_and_the_others_go_on(own):
    def score(experiment):
        if experiment.training.rounds == 2:
            raise ValueError("no")
        return 1.0

    tried = search(candidates(own, ["training.rounds=2,3"]), score, most=9)
    assert [each.fault for each in tried] == [None, "ValueError: no"] and tried[1].score == -math.inf


@pytest.mark.parametrize("words", ["training.rounds", "=1,2", "training.rounds="])
def test_what_cannot_be_tried_is_refused_before_anything_runs(own, words):
    with pytest.raises(ExperimentError, match="--try"):
        candidates(own, [words])
    with pytest.raises(ExperimentError, match="unknown key"):
        candidates(own, ["training.rounts=1,2"])


def test_a_score_is_a_held_out_metric_and_one_that_diverged_is_the_worst(own):
    (first, *_) = candidates(own, [])
    assert metric_of(first.experiment, None) == ("accuracy", 1.0)
    assert metric_of(first.experiment, "-loss") == ("loss", -1.0)
    assert score_of({"held_out": {"loss": 0.3}}, "loss", -1.0) == -0.3
    assert score_of({"held_out": {"loss": math.nan}}, "loss", -1.0) == -math.inf
    with pytest.raises(ExperimentError, match="no held-out metric 'auc'; it has loss"):
        score_of({"held_out": {"loss": 0.3}}, "auc", 1.0)


def test_what_a_task_is_judged_by_is_the_task_s_own_word():
    settings = ["objective.task=tests.learning.tasks.own:Copy"]
    copied = load_experiment("fair-regression-1d", settings)
    assert metric_of(copied, None) == ("mean_squared_error", -1.0)  # as the task that it is derived from
    silent = load_experiment("swae-digits", [])
    with pytest.raises(ExperimentError, match="'autoencoder' has no score of its own: add --metric NAME"):
        metric_of(silent, None)


def two_clients(folder) -> None:
    """Tables of two clients, of which neither is a copy of the other."""
    for client, rows in (("0", FINE * 10), ("1", FINE[::-1] * 10)):
        write(folder / client, rows)


def test_the_command_searches_on_twins_and_spends_nothing(own, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDSW_ACCOUNTS", str(tmp_path / "accounts"))
    two_clients(tmp_path / "DATA")
    line = ["tune", str(own), "--data-dir", str(tmp_path / "DATA"), "--try", "training.learning_rate=0.0001,2.0"]
    assert main([*line, "--metric=-loss", "privacy.epsilon=50", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cost"] == 0 and len(found["tried"]) == 2 and not (tmp_path / "accounts").exists()
    assert found["best"] == ["training.learning_rate=2.0"]


def persons(own, tmp_path, second: str) -> list[str]:
    """A command that searches on two clients with 100 persons each, two rows a person; the second's names begin so."""
    own.write_text(OWN.replace('account = "people"', 'account = "people"\nunit = "pid"'))
    for client, (name, order) in enumerate((("p", 1), (second, -1))):
        rows = [[*row, f"{name}{person}"] for person in range(100)[::order] for row in [FINE[person % 20]] * 2]
        write(tmp_path / "DATA" / str(client), rows, header=["age", "work", "sex", "income", "pid"])
    return ["tune", str(own), "--data-dir", str(tmp_path / "DATA"), "--try", "training.learning_rate=0.5,2.0"]


def test_where_records_have_a_unit_every_candidate_is_scored(own, tmp_path, capsys):
    line = persons(own, tmp_path, "q")
    assert main([*line, "privacy.epsilon=50", "--json"]) == 0
    tried = json.loads(capsys.readouterr().out)["tried"]
    assert len(tried) == 2 and all(each["fault"] is None and each["accuracy"] is not None for each in tried)


def test_persons_at_two_clients_are_refused_before_anything_is_tried(own, tmp_path, capsys):
    assert main(persons(own, tmp_path, "p")) == 2
    assert "values of 'pid' have rows at several clients" in capsys.readouterr().err


def test_a_search_in_which_nothing_scored_fails_and_recommends_nothing(own, tmp_path, capsys):
    two_clients(tmp_path / "DATA")
    line = ["tune", str(own), "--data-dir", str(tmp_path / "DATA"), "--try", "training.rounds=1,2", "--metric", "auk"]
    assert main(line) == 2
    said = capsys.readouterr()
    assert "none of the 2 settings tried has a score" in said.err and "'auk'" in said.err and "best" not in said.out
