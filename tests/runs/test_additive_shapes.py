"""Laws of the shapes that a run of an additive model keeps: they are its model's, and of no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fedsw
from fedsw.runs import additive_shapes
from fedsw.runs._shapes_of_model import shapes_of
from fedsw.runs.additive_shapes import keep_shapes, read_shapes
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
def test_kept_shapes_are_those_of_the_model_and_of_no_other(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, path = read_run(finished).experiment, finished / "shapes.json"
    kept = [shape.content() for shape in read_shapes(finished, experiment)]
    assert kept == [shape.content() for shape in shapes_of(finished, experiment)] and len(kept) == 2
    with monkeypatch.context() as patched:
        patched.setattr(additive_shapes, "_made", lambda directory, experiment: [])
        assert [shape.content() for shape in read_shapes(finished, experiment)] == kept  # off the file
        tensors = load_file(finished / "model.safetensors")
        save_file({name: 2 * value for name, value in tensors.items()}, finished / "model.safetensors")
        assert read_shapes(finished, experiment) == []  # of another model: they would be made anew
    assert not np.allclose(read_shapes(finished, experiment)[0].values, kept[0]["values"])
    keep_shapes(finished, experiment)
    assert json.loads(path.read_text())["shapes"] != kept
    path.unlink()
    assert len(read_shapes(finished, experiment)) == 2
    save_file({name: value * np.float32(np.nan) for name, value in tensors.items()}, finished / "model.safetensors")
    keep_shapes(finished, experiment)
    assert not path.exists()


@pytest.mark.slow
def test_damaged_shapes_are_named(finished: Path) -> None:
    path, experiment = finished / "shapes.json", read_run(finished).experiment
    first, *others = (content := json.loads(path.read_text()))["shapes"]
    for change in ({"column": 3}, {"at": ["a"]}, {"values": [["x"]]}, {"band": None}, {"places": ["x"]}):
        path.write_text(json.dumps(content | {"shapes": [first | change, *others]}))
        with pytest.raises(ValueError, match=r"shapes\.json is damaged"):
            read_shapes(finished, experiment)


@pytest.mark.slow
def test_a_run_whose_shapes_cannot_be_made_ends_well(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> list[object]:
        raise OSError("no space left")

    monkeypatch.setattr(additive_shapes, "_made", broken)
    result = fedsw.run(settings, runs=tmp_path / "runs")
    assert result.summary["status"] == "completed" and not (Path(result.directory) / "shapes.json").exists()
    assert "the functions of the model are not stored (OSError: no space left)" in caplog.text
