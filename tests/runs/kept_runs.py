"""Runs on clients' own tables that keep a part of their records out of training, and release counts of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file

from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation.node.held_records import held_out_records
from fedsw.learning.models import flatten
from fedsw.learning.moments.beside_rounds import tally_of
from fedsw.learning.sketches.sketch_law import STEP
from fedsw.learning.tasks.measures import tally_of_records
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.tally import Cut
from fedsw.privacy.accounting import Ledger
from fedsw.runs.run_files import RunFile

LOCAL = ("privacy.trust=local-gradient", "privacy.noise_multiplier=0.8", "training.batch_fraction=0.2")
NOBODY = ("privacy.trust=none",)
CLASSES = {
    "features": [{"name": "x0"}, {"name": "x1"}],
    "sensitive": {"name": "sex", "values": ["female", "male"]},
    "target": {"name": "income", "values": ["low", "high"]},
}
NUMBERS = {**{k: v for k, v in CLASSES.items() if k != "target"}, "targets": [{"name": "score", "low": 0, "high": 10}]}
SITE = {"partition-id": 0, "num-partitions": 1}


def frame(client: int, persons: int, *, rows: int = 1) -> pd.DataFrame:
    rng = np.random.default_rng(client)
    who = np.repeat(np.arange(persons), rows)
    found = pd.DataFrame(rng.normal(size=(len(who), 2)).round(3), columns=["x0", "x1"])
    found["sex"] = np.array(["female", "male"])[who % 2]
    found["income"] = np.array(["low", "high"])[(found["x0"] > 0).astype(int)]
    found["score"] = np.clip(5 + 2 * found["x0"], 0, 10).round(3)
    found["patient"] = [f"{client}-{number}" for number in who]
    return found


def everybody(client: int, clients: int) -> pd.DataFrame:
    """A client's records, for `data.source = "tests.runs.kept_runs:everybody"`."""
    return frame(client, 40)


def written(folder: Path, frames: list[pd.DataFrame]) -> Path:
    for client, own in enumerate(frames):
        (folder / str(client)).mkdir(parents=True)
        own.to_csv(folder / str(client) / "train.csv", index=False)
    return folder


def tables(folder: Path, *sizes: int, rows: int = 1) -> Path:
    return written(folder, [frame(client, size, rows=rows) for client, size in enumerate(sizes)])


def kept_run(folder: Path, *overrides: str, clients: int = 3, regression: bool = False, **data) -> Experiment:
    raw = {
        "name": "kept",
        "data": {
            "source": "files",
            "columns": NUMBERS if regression else CLASSES,
            "data_dir": str(folder),
            "held_out_fraction": 0.25,
            "held_out_to": "everybody",
            **data,
        },
        "objective": {"task": "regression" if regression else "classification"},
        "training": {"rounds": 2, "batch_fraction": 0.5, "learning_rate": 1.0},
        "privacy": {"noise_multiplier": 2.0, "delta": 1e-5},
        "federation": {"clients": clients, "timeout": 20.0},
        "seed": None,
    }
    return parse_experiment(raw, overrides)


def exact(experiment: Experiment, directory: Path, node=None, cut: Cut | None = None) -> torch.Tensor:
    """The sums of kept records under the model that a run released, (groups, t); of one node, or of all."""
    task = Problem.from_experiment(experiment)
    model = task.build_model()
    model.load_state_dict(load_file(directory / RunFile.MODEL))
    model = task.prepared(task.build_model(), flatten(model))
    kept = held_out_records(task, SITE if node is None else node).records
    tally = tally_of(task) if cut is None else replace(tally_of(task), cut=cut)
    return tally_of_records(task, tally, kept, model).double() * STEP


def released(directory: Path) -> dict:
    found = json.loads((directory / "held_out.json").read_text())
    return {**found, "values": torch.tensor(found["values"], dtype=torch.float64)}


def entries(path: Path):
    with Ledger.open(path, read_only=True) as ledger:
        return ledger.entries()
