"""Ray's workers are this machine's cores, or those of a cluster that runs already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedsw.federation.engines import deployed, inprocess
from fedsw.runs.run_files import RunFile


@pytest.mark.parametrize(
    ("device", "address", "own_machine", "share"),
    [
        ("cpu", None, {"num_cpus": 3}, 0.0),
        ("cpu", "10.0.0.1:6379", {}, 0.0),
        ("cuda", None, {"num_cpus": 3}, 0.5),
        ("cuda", "10.0.0.1:6379", {}, 1.0),
    ],
)
def test_a_cluster_is_joined_with_the_cores_that_it_has_and_every_site_has_its_share_of_the_gpus(
    device: str, address: str | None, own_machine: dict[str, Any], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray refuses a number of cores for a cluster that runs already. Two GPUs of this machine between four sites."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr("flwr.simulation.run_simulation", lambda *_, backend_config: found.append(backend_config))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    inprocess.run_on_ray(cast(ServerApp, None), cast(ClientApp, None), 4, device=device)
    (given,) = found
    assert given["init_args"] == own_machine and given["client_resources"]["num_gpus"] == share


def test_a_run_that_ray_was_too_slow_to_start_is_submitted_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has begun by then, and nothing is charged; whatever else went wrong is said at once."""
    logs = ["The current node timed out during startup."]

    def submitted(directory: Path, *given: object, resume: bool) -> str:
        if logs:
            return logs.pop()
        (directory / RunFile.SUMMARY).write_text(json.dumps({"status": "completed"}))
        return ""

    monkeypatch.setattr(deployed, "_submit", submitted)
    deployed.run_submitted(tmp_path, 2)
    (tmp_path / RunFile.SUMMARY).unlink()
    logs += ["", "no such app"]
    with pytest.raises(RuntimeError, match="never started on Flower's engine; its last output:\nno such app"):
        deployed.run_submitted(tmp_path, 2)
