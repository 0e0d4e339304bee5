"""Laws of what leaves a run: an exported model answers as the run's, and the card says what the summary says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fedsw
from fedsw._tools.text import measured
from fedsw.cli.app import main
from fedsw.desk.use.export import TOLERANCE, export, largest_difference
from fedsw.runs.run_files import read_json
from fedsw.runs.write import write_card
from tests.desk.use.conftest import INCOME, settings


@pytest.mark.parametrize("kind", ["classifier", "regression"])
def test_an_exported_model_answers_as_the_run_s_for_any_number_of_records(kind, request, tmp_path):
    model = fedsw.load(request.getfixturevalue(kind))
    path, beside = export(model, tmp_path / "model.pt", "torchscript")
    alone = torch.jit.load(path)
    for count in (1, 7):
        features = torch.rand((count, model.width), generator=torch.Generator().manual_seed(count))
        assert torch.allclose(alone(features).double(), model.outputs(features), atol=1e-6)
    about = json.loads(beside.read_text())
    assert about["inputs"] == ["age", "work=a", "work=b"] and about["answers"] == list(model.names())
    assert about["guarantee"] == model.guarantee and about["guarantee"]


@pytest.mark.parametrize("kind", ["classifier", "regression"])
def test_a_program_of_torch_export_answers_as_the_run_s_for_any_number_of_records(kind, request, tmp_path):
    model = fedsw.load(request.getfixturevalue(kind))
    path, beside = export(model, tmp_path / "model.pt2", "torch-export")
    alone = torch.export.load(path).module()
    for count in (1, 7):
        features = torch.rand((count, model.width), generator=torch.Generator().manual_seed(count))
        assert torch.allclose(alone(features).double(), model.outputs(features), atol=1e-6)
    assert json.loads(beside.read_text())["format"] == "torch-export"


def test_a_model_of_columns_about_their_middle_answers_as_its_exports(place, tmp_path):
    model = fedsw.load(_coding({"inputs": "centred"}, place, tmp_path))
    features = torch.rand((7, model.width))
    script, _ = export(model, tmp_path / "model.pt", "torchscript")
    program, _ = export(model, tmp_path / "model.pt2", "torch-export")
    for alone in (torch.jit.load(script), torch.export.load(program).module()):
        assert torch.allclose(alone(features).double(), model.outputs(features), atol=1e-6)


def _coding(model: dict, place: Path, folder: Path) -> Path:
    """The folder of a finished run of a model that codes the declared columns itself."""
    asked = settings(place, INCOME, model=model, objective={"task": "classification", "alpha": 0.0})
    return fedsw.run(asked, runs=folder / "runs").directory


def test_an_export_that_answers_otherwise_is_refused(classifier, tmp_path, monkeypatch):
    monkeypatch.setattr("fedsw.desk.use.export.largest_difference", lambda *_: 0.5)
    with pytest.raises(ValueError, match="answers otherwise than the run's, by up to 0.5"):
        export(fedsw.load(classifier), tmp_path / "model.pt", "torchscript")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("off", "answers_otherwise"), [((5e-4, 2e-5), False), ((4.0, 0.0), True), ((0.0, 2e-4), True)])
def test_answers_are_compared_by_the_size_of_numbers_of_their_kind(off, answers_otherwise):
    wanted = torch.tensor([[18_000.0, 0.5], [300.0, -0.2]])
    form = SimpleNamespace(answers=lambda content, features: wanted.double().numpy() + np.array(off))
    assert (largest_difference(lambda features: wanted, b"", form, torch.zeros(2, 1)) > TOLERANCE) == answers_otherwise


def test_onnx_without_its_package_names_the_remedy(classifier, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["export", str(classifier), "-o", str(tmp_path / "model.onnx"), "--format", "onnx"]) == 2
    said = capsys.readouterr().err
    assert "pip install onnx onnxscript" in said and "--format torchscript" in said


@pytest.mark.parametrize("coded", [None, {"kind": "additive", "knots": 4}])
def test_an_onnx_model_answers_as_the_run_s(coded, classifier, place, tmp_path):
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")
    model = fedsw.load(classifier if coded is None else _coding(coded, place, tmp_path))
    path, _ = export(model, tmp_path / "model.onnx", "onnx")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    features = torch.rand((7, model.width))
    (found,) = session.run(None, {"features": features.numpy()})
    assert np.allclose(found, model.outputs(features).numpy(), atol=1e-6)


def test_the_card_says_what_the_summary_says(classifier, place, tmp_path):
    summary = read_json(classifier / "summary.json")
    text = write_card(classifier, tmp_path / "card.md").read_text()
    assert summary["guarantee"]["statement"] in text and summary["guarantee"]["against"] in text
    for warning in summary["warnings"]:
        assert f"**{warning}**" in text
    assert summary["warnings"] and text.index("Read this first") < text.index("## Guarantee")
    accuracy = measured(summary["held_out"]["accuracy"], summary["held_out_intervals"]["accuracy"])
    assert " to " in accuracy and f"| accuracy | {accuracy} |" in text and summary["constant_answers"] in text
    for part in ("| female | 70 |", "| male | 70 |", "| work | input | a, b |", "fedsw predict", "torch "):
        assert part in text, part
    assert str(place / "DATA") not in text, "folders of private records are nobody's business"


def test_a_run_ends_with_its_card(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert (
        main(["run", "fair-classification", "training.rounds=1", "data.records=60", "--clients", "2", "--quiet"]) == 0
    )
    (written,) = tmp_path.glob("runs/*/*/card.md")
    before = written.read_text()
    written.unlink()
    capsys.readouterr()
    assert main(["show", "fair-classification", "card"]) == 0
    assert written.read_text() == before and capsys.readouterr().out.strip().endswith("card.md")


def test_a_run_that_has_not_ended_has_no_card(classifier, tmp_path):
    (tmp_path / "config.json").write_bytes((classifier / "config.json").read_bytes())
    with pytest.raises(ValueError, match="has not ended"):
        write_card(tmp_path)
