"""Ray's workers are this machine's cores, or those of a cluster that runs already."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, cast

import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from benchmarks.performance.cluster import kill, ray_nodes
from fedsw.federation.deploy.processes import free_port
from fedsw.federation.engines import deployed, inprocess
from fedsw.federation.engines.driver import resume, run
from fedsw.privacy.accounting import Ledger
from fedsw.runs.directory import RunDirectory
from fedsw.runs.run_files import RunFile
from tests.federations import small
from tests.pretended_runs import Watcher
from tests.processes import left_of_this_test, mark


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


def test_a_cluster_that_is_out_of_reach_is_named_before_anything_begins(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:\d+ \(RAY_ADDRESS\) is out of reach: .*refused.*unset"):
        run(small(), engine="ray", runs=tmp_path)
    assert not list(tmp_path.glob("*/*"))


@pytest.mark.slow
@pytest.mark.ray
def test_a_node_that_dies_ends_the_run_by_name_and_the_nodes_that_are_left_go_on_with_it(tmp_path, monkeypatch) -> None:
    """Two Ray nodes with a place each: one dies after the second round, with every process of it at once.

    Without a seed the key of a batch is in the state of its client's own node alone, and Ray hands a client to any of
    its workers: each that gets one makes the same secret batch again.
    """
    mark(monkeypatch)
    with ray_nodes((1, 1)) as nodes:

        class Kills(Watcher):
            def round_done(self, record: dict[str, Any]) -> None:
                super().round_done(record)
                if record["round"] == 2:
                    kill(nodes[1])

        watcher = Kills()
        experiment = small("federation.clients=4", "training.rounds=5", "federation.timeout=600.0")
        with pytest.raises(RuntimeError, match=r"2 of 4 clients are left.*The site of clients .*(unavailable|died)"):
            run(experiment, engine="ray", runs=tmp_path, observer=watcher)
        (directory,) = tmp_path.glob("*/*")
        assert RunDirectory(directory).read_config(())[0].federation.sites == 2, "one a place"
        with Ledger.open(directory / "ledger.sqlite", read_only=True) as ledger:
            assert ledger.released_rounds() == len(watcher.records) < 5
        until = time.monotonic() + 120
        while inprocess.places() > 1:  # Ray takes some seconds to know, and would have a site wait for the dead one
            assert time.monotonic() < until
            time.sleep(1)
        summary = resume(directory).summary
    assert summary["status"] == "completed" and summary["released_rounds"] == 5
    with Ledger.open(directory / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.released_rounds() == 5 and ledger.replay() == ledger.epsilon() == summary["epsilon_spent"]
    assert not left_of_this_test()


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
