"""A run in MLflow: what observers are handed over, and nothing else."""

import json
import math

import pytest

from fedsw.cli.app import main
from fedsw.federation.engines import driver
from fedsw.runs.observers import MlflowObserver
from tests.federations import Saboteur, small

pytest.importorskip("mlflow", reason="mlflow is not installed; pip install '.[mlflow]' in fedsw's checkout")


@pytest.fixture
def client(tmp_path, monkeypatch):
    """A client of a store in files."""
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return MlflowClient()


def only_run(client, experiment="fedsw"):
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    assert len(found) == 1
    return found[0]


def test_every_released_number_is_logged_at_the_step_of_its_round(client, tmp_path):
    result = driver.run(small(), runs=tmp_path / "runs", observer=MlflowObserver())
    run = only_run(client)
    for name in ("epsilon", "sigma", "snr", "gradient_norm", "bytes_up"):
        logged = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, name)}
        assert logged == {line["round"]: line[name] for line in result.history}
    held_out = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "held_out/accuracy")}
    assert held_out == {line["round"]: line["held_out"]["accuracy"] for line in result.history if "held_out" in line}
    metrics, parameters, tags = run.data.metrics, run.data.params, run.data.tags
    assert metrics["summary/epsilon_spent"] == result.summary["epsilon_spent"]
    assert float(parameters["epsilon"]) == pytest.approx(result.summary["epsilon"]) and parameters["rounds"] == "4"
    assert tags["fedsw.guarantee/statement"] == result.summary["guarantee"]["statement"]
    assert (run.info.status, tags["fedsw.status"]) == ("FINISHED", "completed")


def test_nothing_is_logged_but_what_observers_are_handed_over(client, tmp_path):
    handed = {"round": [], "plan": None, "summary": None}

    class Spy(MlflowObserver):
        def started(self, plan):
            handed["plan"] = plan
            super().started(plan)

        def round_done(self, record):
            handed["round"].append(record)
            super().round_done(record)

        def finished(self, summary):
            handed["summary"] = summary
            super().finished(summary)

    driver.run(small(), runs=tmp_path / "runs", observer=Spy())
    run = only_run(client)
    words = json.dumps(handed, default=str).replace("A=", "A_")
    for name in run.data.params | {n.removeprefix("summary/"): v for n, v in run.data.metrics.items()}:
        assert all(f'"{part}"' in words for part in name.split("/")), name
    own = {"fedsw.directory", "mlflow.runName"}
    for name in run.data.tags.keys() - own:
        assert name.startswith("fedsw.") and f'"{name.removeprefix("fedsw.").split("/")[0]}"' in words, name
    assert client.list_artifacts(run.info.run_id) == []


def test_the_time_of_a_round_is_not_on_record(client, tmp_path):
    driver.run(small(), runs=tmp_path / "runs", observer=MlflowObserver())
    run = only_run(client)
    times = {m.timestamp for name in run.data.metrics for m in client.get_metric_history(run.info.run_id, name)}
    assert times == {run.info.start_time}


def test_a_run_that_breaks_off_is_failed_and_goes_on_in_the_same_mlflow_run(client, federation):
    rounds = []

    def fail(message, context):
        rounds.append(message)
        if len(rounds) > 12:
            raise RuntimeError("a record: 17")

    with pytest.raises(Exception, match="a record"):
        federation.run(small(), app=Saboteur(fail), observer=MlflowObserver())
    run = only_run(client)
    assert run.info.status == "FAILED" and run.data.tags["fedsw.status"].startswith("failed")
    assert "a record: 17" not in json.dumps(run.data.tags)
    summary = federation.run(small(), directory=federation.folder / "run1", resume=True, observer=MlflowObserver())
    again = only_run(client)
    assert (again.info.run_id, again.info.status) == (run.info.run_id, "FINISHED")
    steps = {metric.step for metric in client.get_metric_history(run.info.run_id, "epsilon")}
    assert steps == {1, 2, 3, 4} and again.data.metrics["summary/epsilon_spent"] == summary["epsilon_spent"]


def test_infinite_and_missing_numbers_and_many_clients_are_taken(client, tmp_path):
    observer = MlflowObserver("other")
    observer.started({"name": "n", "directory": str(tmp_path / "it's"), "rounds": 1, "epsilon": math.inf, "title": ""})
    spent = {str(number): number / 10 for number in range(2500)}
    observer.round_done({"round": 1, "epsilon": "inf", "snr": None, "epsilon_by_client": spent})
    observer.finished({"status": "completed", "released_rounds": 1, "epsilon": math.inf})
    data = only_run(client, "other").data
    assert data.metrics["epsilon"] == math.inf and data.metrics["epsilon_by_client/2499"] == 249.9
    assert data.params["epsilon"] == "inf" and len(data.metrics) == 2500 + 1 + 2


def test_a_store_that_cannot_be_used_is_refused_before_a_run_begins(client, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ValueError, match="takes no runs.*Set MLFLOW_TRACKING_URI"):
        MlflowObserver(tracking_uri=(tmp_path / "file").as_uri())


@pytest.mark.slow
def test_the_command_line_observes_beside_the_progress(client, tmp_path, capsys):
    words = ["fair-classification", "training.rounds=2", "data.records=400", "data.test_records=100"]
    assert main(["run", *words, "--observe", "mlflow", "--runs", str(tmp_path / "runs"), "--quiet"]) == 0
    assert only_run(client).data.metrics["summary/released_rounds"] == 2.0
