"""Laws of additive models in whole runs: under every trust model that trains, of persons, with cells missing."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

import fedsw
from fedsw.desk.use.export import export
from fedsw.experiment import parse_experiment
from fedsw.learning.moments.moments_sum import layout_of
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.additive_shapes import read_shapes
from fedsw.runs.report.shapes import draw_shapes
from fedsw.runs.run_files import read_json
from fedsw.runs.write import write_card
from tests.desk.use.conftest import COLUMNS, INCOME, PAY, row, settings

MISSING = {
    **COLUMNS,
    "features": [
        {"name": "age", "low": 0, "high": 400, "missing": [""], "fill": 100, "knots": [0, 50, 200, 400]},
        {"name": "work", "categories": ["a", "b"]},
    ],
    "unit": "id",
}


@pytest.fixture(scope="session")
def persons(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clients' tables in which persons have two rows, and cells of age are missing."""
    found = tmp_path_factory.mktemp("persons")
    for client, ages in enumerate((range(0, 60), range(60, 140))):
        path = found / "DATA" / str(client) / "train.csv"
        path.parent.mkdir(parents=True)
        rows = [row(age) for age in ages for _ in range(2)]
        for place, own in enumerate(rows):
            own[1] = "" if place % 7 == 0 else own[1]
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["id", "age", "work", "sex", "income", "pay"], *rows])
    return found


def additive(place: Path, kind: dict, **sections) -> dict:
    asked = settings(place, kind, model={"kind": "additive"}, **sections)
    data = {name: value for name, value in asked["data"].items() if name != "held_out"}
    return {**asked, "data": data | {"columns": MISSING | kind}}


@pytest.mark.parametrize("trust", ["central", "local-gradient", "distributed"])
@pytest.mark.parametrize("kind", [INCOME, PAY], ids=["classes", "numbers"])
def test_an_additive_model_is_trained_on_persons_with_missing_cells_and_answers_as_its_export(
    trust, kind, persons, tmp_path
):
    asked = additive(
        persons,
        kind,
        objective={"task": "classification" if kind is INCOME else "regression", "alpha": 0.2 * (kind is INCOME)},
        privacy={"trust": trust, "epsilon": 1.0, "delta": 1e-4, "moments": 0.3},
    )
    if trust == "distributed":
        asked["federation"] = {"clients": 2, "masks": "real"}
        asked["local"] = {"colluding": 0}
    found = fedsw.run(asked, runs=tmp_path / "runs")
    model = fedsw.load(found.directory)
    assert model.model[0].in_features == 7 and model.width == 4  # 4 knots, 2 categories and a missing cell; encoded
    encoded = torch.tensor([[0.125, 0.0, 1.0, 0.0], [0.25, 1.0, 0.0, 1.0], [9.0, 0.0, 0.5, np.nan]])
    path, _ = export(model, tmp_path / "model.pt", "torchscript")
    assert torch.allclose(torch.jit.load(path)(encoded).double(), model.outputs(encoded), atol=1e-6)
    if trust == "central":
        path, _ = export(model, tmp_path / "model.pt2", "torch-export")
        alone = torch.export.load(path).module()
        assert torch.allclose(alone(encoded).double(), model.outputs(encoded), atol=1e-6)
        assert torch.allclose(alone(encoded[:1]).double(), model.outputs(encoded[:1]), atol=1e-6)
    table = [{"id": "p", "age": "", "work": "a", "sex": "female"}, {"id": "q", "age": 50, "work": "b", "sex": "male"}]
    path = tmp_path / "table.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "age", "work", "sex"])
        writer.writeheader()
        writer.writerows(table)
    first = next(name for name in model.names())
    wanted = model.outputs(torch.tensor([[0.25, 1.0, 1.0, 0.0], [0.125, 0.0, 0.0, 1.0]]))[:, 0].numpy()
    assert np.allclose(model.predictions(path)[first], wanted, atol=1e-6)
    shapes = {shape.column: shape for shape in read_shapes(found.directory)}
    assert [*shapes] == ["age", "work"] and shapes["work"].labels == ("a", "b")
    assert shapes["age"].places == (0, 50, 200, 400) and shapes["age"].labels[-1] == "age is missing"
    if kind is INCOME:
        answers = model.outputs(torch.tensor([[x, 0.0, 1.0, 0.0] for x in (0.0, 0.125, 0.5, 1.0)]))[:, 1]
        drawn = torch.from_numpy(shapes["age"].values[:4, 0] - shapes["age"].values[0, 0])
        assert torch.allclose(torch.sigmoid(torch.logit(answers[:1]) + drawn), answers, atol=1e-4)  # of float32 logits
        assert (shapes["age"].band > 0).all()
    assert draw_shapes(list(shapes.values()), "own") is not None
    assert "additive" in write_card(found.directory, tmp_path / "card.md").read_text()


def test_without_a_penalty_one_block_of_moments_holds_the_records_of_all_groups(persons, tmp_path):
    asked = additive(persons, INCOME, objective={"alpha": 0.0}, training={"rounds": 1})
    asked["privacy"] = {"epsilon": 1.0, "delta": 1e-4, "moments": 0.3}
    found = fedsw.run(asked, runs=tmp_path / "runs")
    moments = read_json(found.directory / "moments.json")
    assert len(moments["values"]) == 1 and moments["records"] == [70, 70]
    assert layout_of(Problem.from_experiment(fedsw.load(found.directory).experiment)).cells == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": {"source": "adult"}}, "inputs of data.source 'adult' are not declared"),
        (
            {"model": {"kind": "additive", "inputs": "centred"}},
            "model.inputs is 'centred', which model.kind 'additive' does not read",
        ),
        ({"model": {"kind": "logistic", "knots": 7}}, "model.knots is 7, which model.kind 'logistic' does not read"),
    ],
)
def test_what_an_additive_model_cannot_take_is_refused_with_the_remedy(change, words, persons):
    with pytest.raises(ValueError, match=words):
        parse_experiment(additive(persons, INCOME) | change)


def test_a_number_without_bounds_has_no_knots_and_is_refused(persons):
    asked = additive(persons, INCOME)
    asked["data"]["columns"] = COLUMNS | INCOME | {"features": [{"name": "age"}]}
    with pytest.raises(ValueError, match="column 'age' needs public bounds: declare low and high"):
        parse_experiment(asked)
