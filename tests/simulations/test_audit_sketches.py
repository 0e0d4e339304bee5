"""Laws of `fedsw audit RUN` on sketches: a changed sensitivity, sigma, number of releases or generator is named."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedsw.audit.record import absent, model, noise, promise
from fedsw.audit.record.sketch import least_sensitivity
from fedsw.audit.recorded import audit
from fedsw.privacy.sketches import sketch_sensitivity
from fedsw.tasks.problem import Problem
from fedsw.tasks.sketch_sums import law_of_problem
from tests.federations import Federation
from tests.server.sketch_runs import LOCAL, sketched
from tests.simulations.test_audit_recorded import change_json, change_ledger, change_lines, failed

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
    ],
)
def test_the_formula_written_again_is_the_sensitivity_that_is_charged(settings):
    task = Problem.from_experiment(sketched(*settings))
    law = law_of_problem(task)
    again = least_sensitivity(task.experiment.model_dump(mode="json"), law.cells)
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


def _body(path: Path):
    import sqlite3

    database = sqlite3.connect(path)
    ((body,),) = database.execute("SELECT body FROM rows").fetchall()
    database.close()
    return json.loads(body)


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


def test_a_kept_sketch_of_a_client_with_more_than_noised_numbers_is_named(copied):
    directory = copied("sketch-local")
    path = directory / "releases/client-1.safetensors"
    save_file({**load_file(path), "steps": torch.zeros(3)}, path)
    assert failed(audit(directory)) == [absent.NAME]
