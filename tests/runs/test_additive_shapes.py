"""Laws of the shapes that a run of an additive model keeps: they are its model's, and of no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

import fedsw
from fedsw.cli.app import main
from fedsw.learning.tasks import calibration
from fedsw.runs import shapes_of_model
from fedsw.runs.additive_shapes import ShapeFunction, read_shapes
from fedsw.runs.report.shapes import contributions, draw_shapes, leading_column, shapes_in_words
from fedsw.runs.shapes_of_model import keep_shapes, shapes_of
from fedsw.runs.view import read_run


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """A run of an additive model of a number with a gap and a category, one round."""
    for client in range(2):
        (tmp_path / "DATA" / str(client)).mkdir(parents=True)
        ages = ["" if row % 9 == 0 else str((row + client) % 50) for row in range(60)]
        rows = [f"{age},{'ab'[row % 2]},{'yn'[row % 3 == 0]}" for row, age in enumerate(ages)]
        (tmp_path / "DATA" / str(client) / "table.csv").write_text("\n".join(["age,work,ill", *rows, ""]))
    age = {"name": "age", "low": 0, "high": 50, "missing": [""], "fill": 0}
    columns = {
        "features": [age, {"name": "work", "categories": ["a", "b"]}],
        "target": {"name": "ill", "values": ["y", "n"]},
    }
    return {
        "name": "own",
        "data": {"source": "files", "data_dir": str(tmp_path / "DATA"), "columns": columns},
        "federation": {"clients": 2},
        "model": {"kind": "additive"},
        "objective": {"alpha": 0.0},
        "privacy": {"epsilon": 1.0, "delta": 1e-4, "moments": 0.3},
        "training": {"rounds": 1},
    }


@pytest.fixture
def finished(tmp_path: Path, settings: dict[str, Any]) -> Path:
    """The folder of that run, which has ended."""
    return Path(fedsw.run(settings, runs=tmp_path / "runs").directory)


@pytest.mark.slow
def test_kept_shapes_are_those_of_the_model_and_of_no_other(finished: Path) -> None:
    experiment, path = read_run(finished).experiment, finished / "shapes.json"
    kept = [shape.content() for shape in read_shapes(finished)]
    assert kept == [shape.content() for shape in shapes_of(finished, experiment)] and len(kept) == 2
    tensors = load_file(finished / "model.safetensors")
    save_file({name: 2 * value for name, value in tensors.items()}, finished / "model.safetensors")
    assert read_shapes(finished) == []
    assert main(["show", str(finished), "shapes", "--json"]) == 0  # makes them of the model that is there
    assert not np.allclose(read_shapes(finished)[0].values, kept[0]["values"])
    path.unlink()
    save_file({name: value * np.float32(np.nan) for name, value in tensors.items()}, finished / "model.safetensors")
    keep_shapes(finished, experiment)
    assert not path.exists()


@pytest.mark.slow
def test_damaged_shapes_are_named(finished: Path) -> None:
    path = finished / "shapes.json"
    first, *others = (content := json.loads(path.read_text()))["shapes"]
    for change in ({"column": 3}, {"at": ["a"]}, {"values": [["x"]]}, {"band": None}, {"places": ["x"]}):
        path.write_text(json.dumps(content | {"shapes": [first | change, *others]}))
        with pytest.raises(ValueError, match=r"shapes\.json is damaged"):
            read_shapes(finished)


@pytest.mark.slow
def test_a_run_whose_shapes_cannot_be_made_ends_well(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> list[object]:
        raise OSError("no space left")

    monkeypatch.setattr(shapes_of_model, "shapes_of", broken)
    result = fedsw.run(settings, runs=tmp_path / "runs")
    assert result.summary["status"] == "completed" and not (Path(result.directory) / "shapes.json").exists()
    assert "the functions of the model are not stored (OSError: no space left)" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_without_moments_the_band_is_the_noise_that_the_rounds_added(
    tmp_path: Path, settings: dict[str, Any], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calibration scales it with the logits."""
    monkeypatch.setattr(calibration, "TELLS", -np.inf)
    work = {"name": "work", "categories": [f"job {number}" for number in range(200)]}
    for client in range(2):
        rows = [f"{(row + client) % 50},job {row},{'yn'[row % 2]}" for row in range(200)]
        (tmp_path / "DATA" / str(client) / "table.csv").write_text("\n".join(["age,work,ill", *rows, ""]))
    columns = settings["data"]["columns"]
    asked = settings | {
        "data": settings["data"] | {"columns": columns | {"features": [columns["features"][0], work]}},
        "privacy": {"epsilon": 0.1, "delta": 1e-4, "moments": 0.0},
        "training": {"rounds": 3, "momentum": 0.5, "averaging": 0.5},
        "calibration": {"share": share},
        "seed": 1,
    }
    finished = Path(fedsw.run(asked, runs=tmp_path / "runs").directory)
    shapes = {shape.column: shape for shape in read_shapes(finished)}
    ratios = 2 * shapes["work"].values / shapes["work"].band
    assert np.sqrt(np.mean(ratios**2)) == pytest.approx(1.0, abs=0.2) and (shapes["age"].band > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [(-50.0, 0.0), (0.0, 200.0), (-180.0, 180.0)])
def test_shapes_of_numbers_are_what_predictions_move_by_in_the_targets_own_units(
    bounds: tuple[float, float], tmp_path: Path, settings: dict[str, Any]
) -> None:
    low, high = bounds
    for client in range(2):
        rows = [f"{(row + client) % 50},{'ab'[row % 2]},{low + (high - low) * (row % 50) / 50}" for row in range(60)]
        (tmp_path / "DATA" / str(client) / "table.csv").write_text("\n".join(["age,work,ill", *rows, ""]))
    target = {"name": "ill", "low": low, "high": high}
    asked = settings | {
        "data": settings["data"]
        | {"columns": {"features": settings["data"]["columns"]["features"], "targets": [target]}},
        "objective": {"task": "regression", "alpha": 0.0},
        "privacy": {"epsilon": 3.0, "delta": 1e-4, "moments": 0.0},
        "training": {"rounds": 2, "learning_rate": 1.0},
        "seed": 1,
    }
    finished = Path(fedsw.run(asked, runs=tmp_path / "runs").directory)
    age = read_shapes(finished)[0]
    assert age.places == (0, 12.5, 25, 37.5, 50) and age.labels[-1] == "age is missing"
    people = pd.DataFrame([{"age": at, "work": work} for work in "ab" for at in (*map(str, age.places), "")])
    shares = (fedsw.load(finished).predict(people)["predicted_ill"].to_numpy() - low) / (high - low)
    logits = (np.log(shares) - np.log1p(-shares)).reshape(2, 6)
    moved = 1 / (1 + np.exp(-logits.mean(axis=0))) - 1 / (1 + np.exp(-logits.mean()))
    assert np.ptp(moved) > 0.001
    np.testing.assert_allclose(age.values[:, 0], (high - low) * moved, atol=1e-4 * (high - low))


@pytest.mark.slow
def test_a_picture_of_shapes_says_what_it_leaves_out_and_names_noise_only_where_it_is_drawn() -> None:
    values = np.array([[0.0], [1.0], [2.0]])
    days = tuple(str(day) for day in ("2012-01-01", "2013-12-31", "2015-12-31"))
    shape = ShapeFunction("born", days, (15340.0, 16070.0, 16800.0), values, 0 * values)
    figure = draw_shapes([shape], "own")
    assert figure is not None and figure.get_suptitle() == "own: what each column adds"
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == list(days)
    noisy = ShapeFunction(
        "work", tuple(f"job {number}" for number in range(200)), None, np.ones((200, 1)), np.ones((200, 1))
    )
    figure = draw_shapes([noisy] * 64, "own")
    assert figure is not None
    assert figure.get_suptitle() == "own: what each of the first 60 of 64 columns adds, with the rounds' noise"
    assert len(figure.axes[0].get_xticklabels()) <= 30


@pytest.mark.slow
def test_shapes_of_numbers_are_drawn_where_records_are_and_not_where_nobody_is(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    jobs = [f"job {number}" for number in range(6)]
    for client in range(2):
        rows = [f"{(row + client) % 50},job 0,{2 * (row % 50)}" for row in range(300)]
        (tmp_path / "DATA" / str(client) / "table.csv").write_text("\n".join(["age,work,ill", *rows, ""]))
    features = [{"name": "age", "low": 0, "high": 50}, {"name": "work", "categories": jobs}]
    columns = {"features": features, "targets": [{"name": "ill", "low": 0, "high": 100}]}
    asked = settings | {
        "data": settings["data"] | {"columns": columns},
        "objective": {"task": "regression", "alpha": 0.0},
        "privacy": {"epsilon": 50.0, "delta": 1e-4, "moments": 0.5},
        "seed": 1,
    }
    finished = Path(fedsw.run(asked, runs=tmp_path / "runs").directory)
    tensors = load_file(finished / "model.safetensors")
    weight, bias = (next(name for name, value in tensors.items() if value.ndim == many) for many in (2, 1))
    heights = np.float32([[-2, -1, 0, 1, 2, 0, *[-30] * 5]])  # of jobs that nobody has, where all answers are 0
    save_file({weight: heights, bias: np.float32([0])}, finished / "model.safetensors")
    age = shapes_of(finished, read_run(finished).experiment)[0]
    people = pd.DataFrame([{"age": str(at), "work": "job 0"} for at in age.places])
    predicted = fedsw.load(finished).predict(people)["predicted_ill"].to_numpy()
    np.testing.assert_allclose(np.diff(age.values[:, 0]), np.diff(predicted), rtol=0.2)


@pytest.mark.slow
def test_shapes_of_a_run_without_a_model_are_missed_for_that(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (finished / "model.safetensors").unlink()
    assert main(["show", str(finished), "shapes"]) == 2
    assert "the run has released no model; `fedsw show" in capsys.readouterr().err


def test_words_of_shapes_name_no_column_that_is_noise() -> None:
    def told(column: str, values: list[float], deviation: float) -> ShapeFunction:
        at = tuple(f"place {number}" for number in range(len(values)))
        return ShapeFunction(column, at, None, np.array(values)[:, None], np.full((len(values), 1), 2 * deviation))

    noise = told("name", (1.6 * np.random.default_rng(1).normal(size=36)).tolist(), 1.6)
    assert np.ptp(noise.values) > 5 and "No column moves the answer by more" in shapes_in_words([noise])
    said = shapes_in_words([noise, told("age", [-1.0, 0.0, 1.0], 0.1), told("sex", [-0.5, 0.5], 0.0)])
    assert said == "The columns that move the answer most: age, by 2, sex, by 1"


def function_of(column: str, size: float, band: float = 0.05) -> ShapeFunction:
    values = size * np.array([[-1.0], [0.0], [1.0]])
    return ShapeFunction(column, ("0", "1", "2"), (0.0, 1.0, 2.0), values, np.full((3, 1), band))


def test_columns_are_sorted_by_what_they_do_and_one_that_does_nearly_all_is_asked_about() -> None:
    shapes = [function_of("age", 0.3), function_of("chapter", 2.0), function_of("noise", 0.01)]
    table = contributions(shapes)
    assert [row[0] for row in table.rows] == ["chapter", "age", "noise"] and table.rows[2][3] == "noise hides it"
    assert table.rows[0][1] == "4" and table.rows[0][2].startswith("± 0.07")
    said = leading_column(shapes)
    assert said.startswith("'chapter' does 98 %") and "known when you predict?" in said
    assert leading_column([function_of("age", 1.0), function_of("pay", 1.0)]) == ""
    assert "'age' does 50 %" in leading_column([function_of("age", 1.0), function_of("pay", 1.0)], accuracy=1.0)
    assert leading_column([function_of("age", 0.01), function_of("pay", 0.01)]) == "" == leading_column(shapes[1:2])


@pytest.mark.slow
def test_a_column_that_does_nearly_all_is_asked_about_on_screen_card_page_and_in_json(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished / "shapes.json"
    kept = json.loads(path.read_text())
    made = [function_of("age", 0.1), function_of("work", 2.0)]
    path.write_text(json.dumps(kept | {"shapes": [shape.content() for shape in made]}))
    asked = "'work' does"
    assert main(["show", str(finished), "--json"]) == 0
    assert asked in json.loads(capsys.readouterr().out)["leading_column"]
    assert main(["show", str(finished)]) == 0 and asked in capsys.readouterr().out
    assert main(["show", str(finished), "card"]) == 0 and asked in (finished / "card.md").read_text()
    assert main(["report", str(finished), "-o", str(finished / "page.html")]) == 0
    assert "does 100 %" in (finished / "page.html").read_text()
