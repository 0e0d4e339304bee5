"""Metrics of a user's own, and numbers by group: at the server, on held-out records, tried before anything is spent."""

import importlib
import importlib.util
import json
import logging
import math
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from fedsw.data import Records
from fedsw.experiment import ExperimentError, load_experiment, parse_experiment
from fedsw.experiment.choices import is_shipped, load_metrics
from fedsw.experiment.task_kinds import shipped_task
from fedsw.federation.engines import driver
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.evaluation.evaluator import Evaluator, OwnMetrics
from fedsw.runs.evaluation.quality import by_group
from tests.federations import Saboteur, small

TOML = 'name = "own"\nmetrics = ["{reference}"]\n[data]\nrecords = 200\ntest_records = 100\n'


def mean_output(outputs, records):
    """The mean output, and that of every group."""
    groups = {f"group{g}": float(outputs[records.sensitive == g].mean()) for g in range(2)}
    return {"all": float(outputs.mean()), **groups}


def share_of_ones(outputs, records):
    return (records.target == 1).double().mean()


def by_name(**metrics):
    return OwnMetrics(metrics)


@pytest.fixture
def held_out():
    return torch.tensor([[0.2], [0.9], [0.6]]), Records(
        torch.ones((3, 2)), torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]), torch.arange(3)
    )


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module of a user's own with metrics; its name."""
    (tmp_path / "fedsw_own_module.py").write_text(
        "number = 3\ndef half(outputs, records): return 0.5\ndef accuracy(outputs, records): return 0.5\n"
        "class Of:\n    @staticmethod\n    def inner(outputs, records): return {'a': 1, 'b': 2.0}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "fedsw_own_module"


def test_a_metric_sees_the_held_out_outputs_and_is_in_every_evaluated_round_and_in_the_summary(tmp_path):
    seen = []

    def watch(outputs, records):
        seen.append((outputs.clone(), records))
        return float(outputs.double().mean())

    experiment = small("evaluate_every=2")
    result = driver.run(experiment, runs=tmp_path, metrics={"watch": watch, "mean-output": mean_output})
    with np.load(result.directory / "outputs.npz") as arrays:
        released = arrays["outputs"]
    assert result.summary["held_out"]["watch"] == float(torch.from_numpy(released).double().mean())
    assert torch.equal(seen[-1][0], torch.from_numpy(released))
    held_out = [line["held_out"] for line in result.history if "held_out" in line]
    assert len(held_out) == len(seen) - 2  # one try before the first round, and one for the summary
    expected = {"watch", "mean-output.all", "mean-output.group0", "mean-output.group1"}
    assert all(expected <= line.keys() for line in held_out)
    assert all(len(outputs) == len(records) == experiment.data.test_records for outputs, records in seen)


def test_metrics_in_toml_and_from_python_are_the_same_numbers_and_both_may_be_given(tmp_path, own_module):
    path = tmp_path / "own.toml"
    path.write_text(TOML.format(reference=f"{own_module}:Of.inner"))
    task = Problem.from_experiment(load_experiment(path))
    evaluator = Evaluator(task, {"ones": share_of_ones})
    report = evaluator.metrics(torch.zeros(task.parameters, dtype=torch.float64))
    assert (report["inner.a"], report["inner.b"]) == (1.0, 2.0) and 0 < report["ones"] < 1


@pytest.mark.parametrize(
    ("reference", "fault"),
    [
        ("no_such_module:f", "'no_such_module' cannot be imported"),
        ("{own}:missing", "has no 'missing'"),
        ("{own}:number", "is a int and cannot be called"),
        ("{own}:accuracy", "'accuracy' has the name of a metric that is measured anyway"),
        ("half", "not written as module:name"),
    ],
)
def test_a_metric_that_cannot_be_used_is_refused_when_the_experiment_is_loaded(tmp_path, own_module, reference, fault):
    path = tmp_path / "own.toml"
    path.write_text(TOML.format(reference=reference.format(own=own_module)))
    with pytest.raises(ExperimentError, match=fault):
        load_experiment(path)


def test_two_metrics_of_one_name_are_refused(own_module):
    with pytest.raises(ExperimentError, match="two metrics are named 'half'"):
        parse_experiment({"name": "own", "metrics": [f"{own_module}:half", "other:half"]})
    task = Problem.from_experiment(small(f"metrics=['{own_module}:half']"))
    with pytest.raises(ExperimentError, match="two metrics are named 'half'"):
        Evaluator(task, {"half": share_of_ones})


def test_reading_an_experiment_imports_nothing_as_a_client_and_a_reader_of_the_record_do(monkeypatch):
    importing = importlib.import_module

    def shipped(name: str) -> ModuleType:
        return importing(name) if name.startswith("fedsw.") else pytest.fail(f"{name} was imported")

    monkeypatch.setattr("importlib.import_module", shipped)
    experiment = parse_experiment({"name": "own", "metrics": ["somewhere.else:f"]})
    assert type(experiment).model_validate_json(experiment.model_dump_json()) == experiment


def test_clients_never_see_the_names_of_metrics(federation, own_module):
    sent = []

    def listen(message, context):
        sent.extend(
            config["experiment"] for config in message.content.config_records.values() if "experiment" in config
        )

    summary = federation.run(small(f"metrics=['{own_module}:half']"), app=Saboteur(listen))
    assert summary["held_out"]["half"] == 0.5
    assert len(sent) == 3 and not any(own_module in words or "metrics" in json.loads(words) for words in sent)


@pytest.mark.parametrize(
    ("metric", "fault"),
    [
        (lambda outputs, records: None, "returned a NoneType"),
        (lambda outputs, records: "0.5", "returned a str"),
        (lambda outputs, records: True, "returned a bool"),
        (lambda outputs, records: 1j, "returned a complex"),
        (lambda outputs, records: outputs, r"returned a tensor \(\d+, 1\)"),
        (lambda outputs, records: {"a": [1.0]}, r"'wrong\.a' returned a list"),
        (lambda outputs, records: {1: 1.0}, "under the name 1"),
        (lambda outputs, records: records.nothing, "fails on .* AttributeError"),
        (lambda outputs: 1.0, "fails on .* TypeError"),
        (3.0, "is a float and cannot be called"),
    ],
)
def test_a_metric_that_returns_no_number_is_refused_before_anything_is_spent(tmp_path, metric, fault):
    with pytest.raises(ExperimentError, match=fault):
        driver.run(small(), runs=tmp_path, metrics={"wrong": metric})
    assert list(tmp_path.glob("*/*")) == []


@pytest.mark.parametrize("name", ["accuracy", "eo_7", "", "two words", "a.b", "1st"])
def test_a_name_that_is_taken_or_no_word_is_refused(name):
    with pytest.raises(ExperimentError):
        by_name(**{name: share_of_ones})


def test_a_metric_that_changes_what_it_is_called_with_changes_it_for_nobody_else(held_out):
    outputs, records = held_out
    metrics = by_name(
        changing=lambda o, r: sum(float(values.zero_().sum()) for values in (o, r.features, r.sensitive, r.target)),
        next=lambda o, r: float(o.sum() + r.features.sum() + r.sensitive.sum() + r.target.sum()),
    )
    whole = float(outputs.sum()) + 6 + 2 + 1
    metrics.attempt(outputs, records)
    for _ in range(2):
        assert metrics.measure(outputs, records) == {"changing": 0.0, "next": pytest.approx(whole)}
    assert records.features.sum() == 6 and records.sensitive.sum() == 2 and records.target.sum() == 1


def test_numbers_of_any_kind_are_floats_and_outputs_may_be_changed(held_out):
    outputs, records = held_out
    metrics = by_name(
        whole=lambda o, r: 3,
        numpy=lambda o, r: np.float32(0.5),
        tensor=lambda o, r: o.zero_().sum(),
        last=lambda o, r: o[1, 0],
    )
    metrics.attempt(outputs, records)
    assert metrics.measure(outputs, records) == {
        "whole": 3.0,
        "numpy": 0.5,
        "tensor": 0.0,
        "last": outputs[1, 0].item(),
    }
    assert all(type(value) is float for value in metrics.measure(outputs, records).values())


def test_a_metric_that_fails_while_the_run_goes_on_is_nan_and_said_so_once_and_the_run_ends_in_order(tmp_path, caplog):
    calls = []

    def later(outputs, records):
        calls.append(1)
        if len(calls) > 1:
            raise ZeroDivisionError("no record was positive")
        return 1.0

    with caplog.at_level(logging.WARNING, logger="fedsw.server"):
        result = driver.run(small("evaluate_every=1"), runs=tmp_path, metrics={"later": later, "ones": share_of_ones})
    assert result.summary["status"] == "completed" and result.summary["held_out"]["later"] == "nan"
    assert len(calls) > 3 and sum("no record was positive" in record.message for record in caplog.records) == 1
    assert all(0 < line["held_out"]["ones"] < 1 for line in result.history)
    assert "no record was positive" not in (result.directory / "log.jsonl").read_text()


@pytest.mark.parametrize("engine", ["flwr", "deployed"])
def test_functions_are_refused_where_the_server_is_another_process(tmp_path, engine):
    with pytest.raises(ExperimentError, match=f"engine '{engine}' runs the server in another.*module:name"):
        driver.run(small(), runs=tmp_path, engine=engine, metrics={"ones": share_of_ones})
    assert list(tmp_path.iterdir()) == []


def test_every_shipped_metric_is_known_by_name():
    kinds = {
        "classification": [],
        "regression": ["objective.task=regression"],
        "representation": ["objective.task=representation", "model.kind=encoder-decoder", "model.latent=2"],
    }
    for kind, overrides in kinds.items():
        task = Problem.from_experiment(small(*overrides))
        assert task.experiment.objective.task == kind
        report = Evaluator(task).metrics(torch.zeros(task.parameters, dtype=torch.float64))
        assert report and [name for name in report if not is_shipped(name)] == []
    assert load_metrics(()) == {} and not is_shipped("eo_x") and not is_shipped("my_accuracy")


def stand_in(kind, groups, classes):
    """What `by_group` looks at of a task."""
    return SimpleNamespace(
        task=shipped_task(kind), groups=tuple(f"g{g}" for g in range(groups)),
        classes=classes, dimension=1 if classes == 2 else classes, positive=1 if classes == 2 else None,
        units=None,
    )  # fmt: skip


@pytest.mark.parametrize(("groups", "classes"), [(2, 2), (5, 2), (3, 4)])
def test_the_table_by_group_is_that_of_naive_loops_for_any_number_of_groups(groups, classes):
    numbers = np.random.default_rng(7)
    n = 300
    outputs = torch.from_numpy(numbers.random((n, 1 if classes == 2 else classes)))
    sensitive = numbers.integers(0, groups - 1, n)  # nobody in the last group
    target = numbers.integers(0, classes, n)
    records = Records(torch.zeros((n, 1)), torch.from_numpy(sensitive), torch.from_numpy(target), torch.arange(n))
    table = by_group(stand_in("classification", groups, classes), outputs, records).numbers
    predicted = [
        int(row[0] > 0.5) if classes == 2 else max(range(classes), key=lambda c: row[c]) for row in outputs.tolist()
    ]
    assert list(table) == [f"g{g}" for g in range(groups)]
    for g in range(groups - 1):
        rows = [i for i in range(n) if sensitive[i] == g]
        found = table[f"g{g}"]
        assert found["count"] == len(rows)
        assert found["accuracy"] == pytest.approx(sum(predicted[i] == target[i] for i in rows) / len(rows), abs=1e-15)
        for c in range(classes):
            name = "selection_rate" if classes == 2 else f"selection_rate_{c}"
            if classes > 2 or c == 1:
                rate = sum(predicted[i] == c for i in rows) / len(rows)
                assert found[name] == pytest.approx(rate, abs=1e-15)
    empty = table[f"g{groups - 1}"]
    assert empty["count"] == 0 and all(math.isnan(value) for name, value in empty.items() if name != "count")


def test_squared_errors_by_group_add_up_to_the_overall_one():
    numbers = np.random.default_rng(3)
    outputs, target = (torch.from_numpy(numbers.random((50, 2)).astype(np.float32)) for _ in range(2))
    sensitive = torch.from_numpy(numbers.integers(0, 3, 50))
    records = Records(torch.zeros((50, 1)), sensitive, target, torch.arange(50))
    table = by_group(stand_in("regression", 3, 0), outputs, records).numbers
    for g in range(3):
        rows = [i for i in range(50) if sensitive[i] == g]
        naive = sum(sum((float(o) - float(t)) ** 2 for o, t in zip(outputs[i], target[i], strict=True)) for i in rows)
        found = table[f"g{g}"]
        assert found["count"] == len(rows)
        assert found["mean_squared_error"] == pytest.approx(naive / len(rows), rel=1e-6)
        mean = target[rows].double().mean(dim=0)
        spread = float((target[rows].double() - mean).square().sum())
        assert found["r2"] == pytest.approx(1 - naive / spread, rel=1e-6)
        distances = [math.dist(outputs[i].tolist(), target[i].tolist()) for i in rows]
        assert found["mean_absolute_error"] == pytest.approx(sum(distances) / len(rows), rel=1e-6)


def test_one_group_and_other_tasks_have_no_table():
    records = Records(
        torch.zeros((4, 1)), torch.zeros(4, dtype=torch.long), torch.zeros(4, dtype=torch.long), torch.arange(4)
    )
    assert by_group(stand_in("classification", 1, 2), torch.zeros((4, 1)), records) == ({}, {})
    assert by_group(stand_in("generation", 2, 2), torch.zeros((4, 1)), records) == ({}, {})


def test_the_summary_s_table_agrees_with_its_own_metrics(tmp_path):
    result = driver.run(small(), runs=tmp_path)
    table, overall = result.summary["held_out_by_group"], result.summary["held_out"]
    count = sum(numbers["count"] for numbers in table.values())
    assert count == small().data.test_records and len(table) == 2
    accuracy = sum(numbers["count"] * numbers["accuracy"] for numbers in table.values()) / count
    assert accuracy == pytest.approx(overall["accuracy"], abs=1e-12)
    rates = [numbers["selection_rate"] for numbers in table.values()]
    assert max(rates) - min(rates) == pytest.approx(overall["demographic_parity_difference"], abs=1e-12)


def test_measuring_by_group_and_trying_a_metric_change_no_released_number(tmp_path):
    plain = driver.run(small("seed=3"), runs=tmp_path / "a")
    more = driver.run(small("seed=3"), runs=tmp_path / "b", metrics={"ones": share_of_ones})
    assert [line["gradient_norm"] for line in plain.history] == [line["gradient_norm"] for line in more.history]
