"""A private classifier of images from beginning to end: trained, measured, used and exported by one path."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits

import fedsw
from fedsw.audit import canary
from fedsw.audit.record import audit
from fedsw.data.sources import load_dataset
from fedsw.desk.use.export import export
from fedsw.desk.use.trained import TrainedModel
from fedsw.experiment import parse_experiment
from fedsw.learning.models.scattering import ScatteredImages
from fedsw.learning.tasks.score_counts import ScoreCounts
from fedsw.runs.run_files import RunFile
from tests.learning.models.test_scattering import DIGITS

pytestmark = pytest.mark.usefixtures("nobody_is_remembered")


def trained(tmp_path: Path, *settings: str) -> TrainedModel:
    return fedsw.load(fedsw.run(DIGITS, *settings, runs=tmp_path).directory)


@pytest.mark.parametrize("trust", ["central", "distributed", "local-gradient"])
def test_what_a_run_measures_is_what_its_model_answers_under_every_trust_model(tmp_path: Path, trust: str) -> None:
    model = trained(tmp_path, f"privacy.trust={trust}", *(("privacy.epsilon=5000",) if trust != "central" else ()))
    held_out = load_dataset(model.experiment.record_source).test
    answers = model.outputs(held_out.features)
    right = float((answers.argmax(dim=1) == held_out.target).double().mean())
    assert right == pytest.approx(model.summary["held_out"]["accuracy"], abs=1e-9)
    assert right > 0.8 and model.summary["moments"]["share"] == 0.2
    assert torch.allclose(answers.sum(dim=1), torch.ones(len(answers), dtype=torch.float64), atol=1e-5)


def test_records_are_coded_once_however_many_rounds_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    forward = ScatteredImages.forward

    def counted(coding: ScatteredImages, inputs: torch.Tensor) -> torch.Tensor:
        seen.append(len(inputs))
        return forward(coding, inputs)

    monkeypatch.setattr(ScatteredImages, "forward", counted)
    fedsw.run(DIGITS, "training.rounds=6", "data.most_records=299", runs=tmp_path)
    assert seen.count(299) == 1


def test_rounds_on_coded_images_are_not_attacked_with_a_remedy_and_a_runs_record_holds(tmp_path: Path) -> None:
    finding = audit(fedsw.run(DIGITS, runs=tmp_path).directory)
    assert finding.passed, finding
    attacked = canary.audit(parse_experiment(DIGITS), trials=100)
    assert not attacked.passed and "not for 3 rounds" in attacked.verdict
    rounds, *_ = attacked.details["parts"]
    assert rounds["how"] == "not attacked" and "model.kind 'logistic': its clips" in rounds["words"]


def test_an_exported_classifier_takes_images_and_answers_as_the_run_does(tmp_path: Path) -> None:
    model = trained(tmp_path)
    files = export(model, tmp_path / "model.pt", "torchscript")
    exported = torch.jit.load(str(files[0]))
    features = load_dataset(model.experiment.record_source).test.features[:5]
    assert torch.allclose(exported(features).double(), model.outputs(features), atol=1e-5)


def test_scores_are_counted_of_records_as_the_released_model_takes_them(tmp_path: Path) -> None:
    digits = load_digits()
    many = 200
    table = pd.DataFrame(digits.data[:many], columns=[f"pixel{number}" for number in range(64)])
    parity = digits.target[:many] % 2
    table["half"], table["odd"] = np.resize(["one", "other"], many), np.where(parity == 1, "yes", "no")
    (tmp_path / "data" / "0").mkdir(parents=True)
    table.to_csv(tmp_path / "data" / "0" / "train.csv", index=False)
    columns = {
        "features": [{"name": "pixel", "count": 64, "low": 0, "high": 16}],
        "sensitive": {"name": "half", "values": ["one", "other"]},
        "target": {"name": "odd", "values": ["no", "yes"]},
    }
    more = {
        "data": {"source": "files", "data_dir": str(tmp_path / "data"), "columns": columns},
        "privacy": {"epsilon": 1000.0, "delta": 1e-5, "moments": 0.2},
        "thresholds": {"share": 0.2},
        "federation": {"clients": 1},
    }
    model = fedsw.load(fedsw.run(DIGITS | more, runs=tmp_path).directory)
    stored = json.loads((model.directory / RunFile.SCORES).read_text(encoding="utf-8"))
    counts = ScoreCounts(2, 1)
    answers = model.outputs(torch.tensor(digits.data[:many] / 16, dtype=torch.float32))[:, 1:]
    places = counts.width * (torch.arange(many) % 2) + counts.places(answers, torch.from_numpy(parity))[:, 0]
    exact = torch.bincount(places, minlength=2 * counts.width)
    off = (torch.tensor(stored["values"]).reshape(-1) - exact) / stored["sigma"]
    assert float(off.abs().max()) < 6


def bars(many: int, seed: int) -> pd.DataFrame:
    """Images of a bar, 8x8, upright where the answer is yes, which it is more often in the brighter group."""
    draw = np.random.default_rng(seed)
    bright = draw.random(many) < 0.5
    upright = np.where(draw.random(many) < 0.3, bright, draw.random(many) < 0.5)
    pictures = np.zeros((many, 8, 8))
    for picture, at, turned in zip(pictures, draw.integers(1, 7, many), upright, strict=True):
        (picture.T if turned else picture)[at] = 1
    seen = np.clip(pictures * np.where(bright, 1.0, 0.6)[:, None, None] + draw.normal(0, 0.05, pictures.shape), 0, 1)
    table = pd.DataFrame(seen.reshape(many, 64), columns=[f"pixel{number}" for number in range(64)])
    table["light"], table["upright"] = np.where(bright, "bright", "dim"), np.where(upright, "yes", "no")
    return table


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["central", "distributed", "local-gradient"])
def test_a_penalty_between_groups_pulls_scores_of_filtered_images_together(tmp_path: Path, trust: str) -> None:
    columns = {
        "features": [{"name": "pixel", "count": 64, "low": 0, "high": 1}],
        "sensitive": {"name": "light", "values": ["dim", "bright"]},
        "target": {"name": "upright", "values": ["no", "yes"]},
    }
    given = DIGITS | {"data": {"source": "object", "columns": columns}}
    apart: dict[float, float] = {}
    for alpha in (0.0, 0.5):
        settings = (f"privacy.trust={trust}", f"objective.alpha={alpha}")
        result = fedsw.run(given, *settings, data=bars(240, 0), held_out=bars(400, 1), runs=tmp_path)
        measured = result.summary["held_out"]
        apart[alpha] = measured["w2_squared"]
        assert measured["accuracy"] > 0.95 and set(result.summary["held_out_by_group"]) == {"dim", "bright"}
        assert 49.99 < result.summary["epsilon_spent"] <= 50
        assert audit(result.directory).passed
    assert apart[0.5] < 0.8 * apart[0.0]
