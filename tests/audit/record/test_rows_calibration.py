"""Laws of the audit of calibrated probabilities: they follow from the counts on file, and from nothing else."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedsw.audit.record import audit, noise
from fedsw.learning.moments import beside_rounds
from fedsw.learning.tasks import calibration
from fedsw.runs.evaluation import group_thresholds
from tests.audit.record.test_record import change_json, failed
from tests.federations import small


def test_a_calibration_that_is_not_the_counts_own_fails_the_audit(federation, monkeypatch):
    """Also where model, file and summary agree on it."""
    monkeypatch.setattr(calibration, "TELLS", -math.inf)
    federation.run(small("calibration.share=0.2", "privacy.epsilon=4.0"))
    folder = federation.folder / "run1"
    assert audit(folder).passed
    paths = [folder / "scores.json", folder / "summary.json"]
    scores, summary = (json.loads(path.read_text()) for path in paths)
    model = load_file(folder / "model.safetensors")
    sharper = {name: values * 2 for name, values in model.items()}
    for said in (scores["calibration"], summary["calibration"]):
        said["scale"], said["shift"] = 2 * said["scale"], [2 * shift for shift in said["shift"]]
    for path, content in zip(paths, (scores, summary), strict=True):
        path.write_text(json.dumps(content))
    save_file({name: values.clone() for name, values in sharper.items()}, folder / "model.safetensors")
    found = audit(folder)
    failed = [check for check in found.details["checks"] if not check["passed"]]
    assert [check["name"] for check in failed] == ["noise against Δ"] and "the calibration's scale" in str(failed)
    assert torch.isfinite(model["0.weight"]).all()


@pytest.mark.parametrize("thresholds", ["thresholds.share=0", "thresholds.share=0.2"])
def test_a_folder_is_audited_by_the_rule_that_calibrated_it(federation, monkeypatch, thresholds):
    """One of the first rule, which had other edges and no number, passes; calibrated otherwise it fails."""
    first = calibration.RULES[0]
    with monkeypatch.context() as before:
        before.setattr(calibration, "RULES", (first, first))
        before.setattr(beside_rounds, "COARSE", first.edges)
        federation.run(small("calibration.share=0.2", thresholds, "privacy.epsilon=4.0"))
    folder = federation.folder / "run1"
    for file in ("scores.json", "summary.json"):
        change_json(folder / file, lambda content: [content["calibration"].pop(name) for name in ("rule", "evidence")])
    scores = group_thresholds.kept(folder)
    assert scores is not None and scores.calibration is not None and scores.calibration.rule == 0
    assert audit(folder).passed
    change_json(folder / "scores.json", lambda content: content["calibration"].update(rule=1, evidence=9.0))
    assert noise.NAME in failed(audit(folder))
    change_json(folder / "scores.json", lambda content: content["calibration"].update(rule=7))
    assert "unknown rule 7" in str(audit(folder).details["checks"])
