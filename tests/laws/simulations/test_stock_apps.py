"""Apps that protect their clients run under `flwr run`, on a stock SuperLink with stock SuperNodes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsw
from fedsw.federation.deploy.flower_processes import profile
from fedsw.federation.deploy.processes import Processes, free_port, script
from fedsw.federation.node.roster import KEY_FILE, Roster, RosterSite, read_mask_key, write_mask_key

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
TEMPLATE = ROOT / "docs" / "examples" / "flower_app"
NODES, SECONDS = 2, 500.0

PLAN = "fedsw.plan_sum(norm=1.0, rounds=1, epsilon=8.0, delta=1e-4, vectors=2, colluding=1, who='each client')"
CLIENT = f"""
import fedsw
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from fedsw.flower import private_updates

app = ClientApp(mods=[private_updates({PLAN})])

@app.train()
def train(message, context):
    w = message.content["arrays"]["w"].numpy()
    moved = ArrayRecord({{"w": Array(w + context.node_config["partition-id"])}})
    return Message(RecordDict({{"arrays": moved, "metrics": MetricRecord({{"num-examples": 3}})}}), reply_to=message)
"""
SERVER = f"""
import pathlib
import fedsw
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from fedsw.flower import MaskedUpdates

app = ServerApp()

@app.main()
def main(grid, context):
    strategy = MaskedUpdates(FedAvg(fraction_evaluate=0.0), {PLAN})
    result = strategy.start(grid, ArrayRecord({{"w": Array(np.zeros(2000))}}), num_rounds=1)
    np.save(pathlib.Path(context.run_config["folder"]) / "ended.npy", result.arrays["w"].numpy())
"""
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "masked-steps"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr>=1.41", "fedsw"]
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "example"
[tool.flwr.app.components]
serverapp = "steps.server:app"
clientapp = "steps.client:app"
[tool.flwr.app.config]
folder = ""
"""


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Any]:
    """A function that runs an app's folder on stock processes, and returns what `flwr run` printed."""
    home, port, roster = tmp_path / "home", free_port(), Roster()
    home.mkdir()
    (tmp_path / "logs").mkdir()
    (home / "config.toml").write_text(profile(f"127.0.0.1:{port}", None))
    for node in range(NODES):
        key = read_mask_key(write_mask_key(tmp_path / f"key{node}"))
        roster = roster.with_member(RosterSite(name=f"site {node}", key=key.public.hex()))
    (tmp_path / "roster.toml").write_text(roster.text())
    with Processes(tmp_path / "logs", {"FLWR_HOME": str(home)}) as processes:
        link = [script("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port)]
        processes.start_listening("superlink", link, port, {})
        for node in range(NODES):
            config = {
                "partition-id": node, "num-partitions": NODES, "state-dir": str(tmp_path / "state"), "colluding": 1,
                "roster": str(tmp_path / "roster.toml"), "mask-key": str(tmp_path / f"key{node}" / KEY_FILE),
            }  # fmt: skip
            said = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
            command = [script("flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}"]
            processes.start(f"node{node}", [*command, "--port", str(free_port()), "--node-config", said], {})
        until = time.monotonic() + SECONDS
        while not all("SuperNode ID:" in processes.said(f"node{node}", 2**16) for node in range(NODES)):
            assert time.monotonic() < until, [processes.said(f"node{node}") for node in range(NODES)]
            time.sleep(0.2)

        def run(app: Path, config: str) -> str:
            line = [script("flwr"), "run", str(app), profile_name(home), "--stream", "--run-config", config]
            process = processes.start("run", line, {})
            code = process.wait(SECONDS)
            said = processes.said("run", 2**20)
            assert code == 0, said
            return said

        yield run


def profile_name(home: Path) -> str:
    return (home / "config.toml").read_text().split('default = "')[1].split('"')[0]


def test_the_template_and_masked_updates_run_with_one_ledger_a_node(deployed: Any, tmp_path: Path) -> None:
    said = deployed(TEMPLATE, "num-server-rounds=1 steps=3")
    assert "epsilon" in said and "accuracy" in said, said
    for node in range(NODES):
        with fedsw.Ledger.open(tmp_path / "state" / f"client-{node}" / "ledger.sqlite", read_only=True) as ledger:
            assert len(ledger.entries()) == 3 and 7.9 < ledger.epsilon() <= 8.0

    app = tmp_path / "app"
    (app / "steps").mkdir(parents=True)
    for name, text in (("__init__", ""), ("client", CLIENT), ("server", SERVER)):
        (app / "steps" / f"{name}.py").write_text(text)
    (app / "pyproject.toml").write_text(PROJECT)
    said = deployed(app, f"folder={json.dumps(str(tmp_path))}")
    plan = eval(PLAN, {"fedsw": fedsw})
    assert (tmp_path / "ended.npy").exists(), said
    ended = np.load(tmp_path / "ended.npy")
    spread = plan.sigma * math.sqrt(2) / 2  # of two shares, the mean of two clients
    assert ended.std() == pytest.approx(spread, rel=0.1), said
    for node in range(NODES):
        with fedsw.Ledger.open(tmp_path / "state" / f"updates-{node}.sqlite", read_only=True) as ledger:
            assert len(ledger.entries()) == 1 and ledger.epsilon() == pytest.approx(8.0, rel=1e-3)
