"""Laws of the audit of calibrated probabilities: they follow from the counts on file, and from nothing else."""

from __future__ import annotations

import json
import math

import torch
from safetensors.torch import load_file, save_file

from fedsw.audit.record import audit
from fedsw.learning.tasks import calibration
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
