"""Laws of `fedsw audit RUN` on sketches: a changed sensitivity, sigma, number of releases or generator is named."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedsw.audit.record import audit, model, noise, promise, published, read_book
from fedsw.federation.engines.driver import run
from fedsw.learning.sketches.noised import sketch_sensitivity
from fedsw.learning.tasks.measures import law_of_problem
from fedsw.learning.tasks.problem import Problem
from tests.audit.record import formulas
from tests.audit.record.test_record import change_json, change_ledger, change_lines, failed
from tests.federation.sketch_runs import LOCAL, sketched
from tests.federations import Federation

IMAGES = (
    "data={source='digits', most_records=60}",
    "model.kind=image-generator",
    "model.hidden=[2,2]",
    "sketch.map=cosine",
)
TABLE = (
    "data={source='object', columns={features=[{name='age', low=0, high=100}, {name='dose', low=0, high=9}],"
    "sensitive={name='sex', values=['f', 'm']}, target={name='sick', values=['no', 'yes']}}}",
    "model.kind=table-generator",
    "sketch={kind='table', counts=0.1, batch=20, generated=50}",
)
FACTS = "sigma, records, clients, attempt and epsilon"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("sketches")
    for name, settings in (("sketch", ()), ("sketch-local", (LOCAL,))):
        Federation(home).run(sketched("training.rounds=3", *settings), directory=home / name)
    return {name: home / name for name in ("sketch", "sketch-local")}


@pytest.fixture
def copied(finished, tmp_path):
    return lambda name="sketch": shutil.copytree(finished[name], tmp_path / "run")


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("sketch.labels=false",),
        ("sketch.counts=3.0",),
        ("sketch.also=[{kind='code', columns=[0, 1], weight=2.0}]", "sketch.labels=false"),
        ("sketch.also=[{kind='code', columns=[0, 1], weight=2.0}]",),
        ("sketch.also=[{kind='features'}, {kind='moments', weight=0.5}]", "sketch.counts=0.1"),
        IMAGES,
        (*IMAGES, "sketch.counts=0.5"),
        TABLE,
        (*TABLE, "sketch.labels=false"),
        (*TABLE, "sketch.groups=true", "sketch.counts=2.5"),
    ],
)
def test_the_formula_written_again_is_the_sensitivity_that_is_charged(settings):
    task = Problem.from_experiment(sketched(*settings))
    law = law_of_problem(task)
    again = formulas.of_sketch(task.experiment.model_dump(mode="json"), law.cells)
    assert math.isclose(sketch_sensitivity(law).value, again, rel_tol=1e-12)


@pytest.mark.parametrize("name", ["sketch", "sketch-local"])
def test_a_sketch_with_another_sigma_than_its_rows_is_named(copied, name):
    directory = copied(name)
    path = directory / "sketch.safetensors"
    arrays = load_file(path)
    arrays[FACTS][0] *= 1.01
    save_file(arrays, path)
    changed = float(arrays[FACTS][0])  # the lines agree with the sketch: its rows alone show the change
    change_lines(directory / "metrics.jsonl", lambda line: line.update(sigma=changed))
    assert noise.NAME in failed(audit(directory))


def test_lines_with_another_sigma_than_the_sketch_are_named(copied):
    directory = copied()
    change_lines(directory / "metrics.jsonl", lambda line: line.update(sigma=line["sigma"] / 2))
    assert failed(audit(directory)) == [noise.NAME]


@pytest.mark.parametrize("name", ["sketch", "sketch-local"])
@pytest.mark.parametrize("change", ["sensitivity", "sampling_rate", "sigma"])
def test_a_row_with_another_number_than_the_plan_asks_for_is_named(copied, name, change):
    directory = copied(name)
    path = directory / ("ledger.sqlite" if name == "sketch" else "clients/client-1.sqlite")
    body = _body(path)
    (body if change == "sigma" else body["charges"][0])[change] *= 0.7
    change_ledger(path, f"UPDATE rows SET body = '{json.dumps(body, sort_keys=True, separators=(',', ':'))}'")
    assert noise.NAME in failed(audit(directory))


@pytest.mark.parametrize("trust", ["sketch", "sketch-local"])
@pytest.mark.parametrize("kind", ["table", "images", "waves"])
def test_a_correct_run_of_every_kind_of_sketch_passes_and_a_little_less_than_its_bound_is_named(tmp_path, trust, kind):
    common = (f"privacy.trust={trust}", "training.rounds=1", "federation.clients=2")
    if kind == "images":
        Federation(tmp_path).run(sketched(*IMAGES, *common), directory=tmp_path / "run")
        directory = tmp_path / "run"
    else:  # records from Python objects
        settings = TABLE if kind == "table" else (TABLE[0], "model.kind=vector-generator")
        records = pd.DataFrame({"age": range(40), "dose": 1.5, "sex": ["f", "m"] * 20, "sick": ["no", "yes"] * 20})
        directory = run(sketched(*settings, *common), data=records, runs=tmp_path).directory
    found = audit(directory)
    assert failed(found) == [] and found.details["not_checked"] == []
    path = directory / ("ledger.sqlite" if trust == "sketch" else "clients/client-1.sqlite")
    body = _body(path)
    assert (body["charges"][0]["sensitivity"] < 2) == (kind == "table")
    body["charges"][0]["sensitivity"] *= 0.999
    change_ledger(path, f"UPDATE rows SET body = '{json.dumps(body, sort_keys=True, separators=(',', ':'))}'")
    (check,) = [each for each in audit(directory).details["checks"] if each["name"] == noise.NAME]
    assert not check["passed"] and "is less than" in check["found"]


def _body(path: Path):
    (row,) = read_book(path).rows
    return json.loads(row.body)


def test_a_generator_whose_buffers_are_not_the_trainings_is_named(copied):
    directory = copied()
    path = directory / "model.safetensors"
    arrays = load_file(path)
    arrays["proportions"] = torch.roll(arrays["proportions"], 1)
    save_file(arrays, path)
    assert failed(audit(directory)) == [model.NAME]


def test_a_generator_without_its_training_is_named(copied):
    directory = copied()
    (directory / "generator.pt").write_bytes(b"something else")
    assert failed(audit(directory)) == [model.NAME]


def test_a_narrower_relation_than_labels_included_is_named(copied):
    directory = copied()
    change_json(directory / "summary.json", lambda summary: summary["guarantee"].update(relation="replace-one"))
    assert failed(audit(directory)) == [promise.NAME]


def test_a_sentence_that_claims_more_than_the_settings_allow_is_named(tmp_path):
    Federation(tmp_path).run(sketched("training.rounds=1", "partition.scheme=group"), directory=tmp_path / "run")
    assert failed(audit(tmp_path / "run")) == []

    def claim(summary):
        words = summary["guarantee"]["statement"]
        summary["guarantee"]["statement"] = words.replace(" within its group", ", its label and group included")

    change_json(tmp_path / "run" / "summary.json", claim)
    assert failed(audit(tmp_path / "run")) == [promise.NAME]


def test_a_kept_sketch_of_a_client_with_more_than_noised_numbers_is_named(copied):
    directory = copied("sketch-local")
    path = directory / "releases/client-1.safetensors"
    save_file({**load_file(path), "steps": torch.zeros(3)}, path)
    assert failed(audit(directory)) == [published.NAME]
