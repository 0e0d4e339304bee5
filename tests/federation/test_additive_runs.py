"""Runs of an additive model end with that of all hats under every trust model, whatever clients keep of records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedsw.desk.own_data.rehearsal import made_up, on_objects
from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation.engines.driver import run
from fedsw.learning.tasks import problem
from tests.federation.node.test_node_places import experiment_of

pytestmark = [pytest.mark.usefixtures("nobody_is_remembered"), pytest.mark.slow]

TRUSTS = ("central", "distributed", "local-gradient")


def _experiment(trust: str) -> Experiment:
    settings = experiment_of("two classes").model_dump(mode="json", exclude_unset=True)
    settings["privacy"]["trust"] = trust
    settings |= {"seed": 1, "federation": {"clients": 3}}
    del settings["thresholds"], settings["data"]["held_out_to"], settings["data"]["held_out_fraction"]
    return parse_experiment(settings)


def _model(experiment: Experiment, folder: Path) -> dict[str, np.ndarray]:
    columns = experiment.data.columns
    parts = [made_up(columns, {"f": 150, "m": 120}, seed=client) for client in range(3)]
    run(on_objects(experiment, 3, 3), data=parts, runs=folder)
    (weights,) = folder.rglob("model.safetensors")
    return load_file(weights)


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_run_of_places_ends_with_the_model_of_all_hats(tmp_path, trust, monkeypatch):
    experiment = _experiment(trust)
    found = _model(experiment, tmp_path / "places")
    monkeypatch.setattr(problem, "reads_places", lambda *_: False)
    expected = _model(experiment, tmp_path / "hats")
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert np.abs(found[name] - values).max() <= 1e-3 * np.abs(values).max(), (name, trust)
