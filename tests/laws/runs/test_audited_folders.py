"""Every trust model, kind and verb that makes a run's folder ends in a passed audit; they come from the registries."""

from __future__ import annotations

import re
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file, save_file

from fedsw.audit.record import audit
from fedsw.cli.app import GROUPS, main
from fedsw.desk.own_data.description import as_description
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.experiment.sections import Model
from fedsw.experiment.task_kinds import MODELS
from fedsw.experiment.trust import releasing_gradients, trust_models
from fedsw.federation.engines.driver import run
from fedsw.runs.run_files import RunFile
from tests.federation.node.runs import GENERATION, RUNS
from tests.federations import Federation

FEATURES = [{"name": f"x{place}", "low": 0, "high": 1} for place in range(3)]
SEX = {"name": "sex", "values": ["f", "m"]}
CLASS, NUMBER = {"name": "y", "values": ["a", "b"]}, [{"name": "z", "low": 0, "high": 1}]
KEPT = ("data.held_out_fraction=0.2", "data.held_out_to=everybody")
SYNTHESIS = {
    "model": {"kind": "table-generator", "latent": 3, "hidden": [8]},
    "objective": {"task": "synthesis", "penalty": "distribution-matching", "alpha": 1.0},
}
TABLES = {
    "pairs": {},
    "triples later": {"bins": 3, "stages": [{"share": 0.4, "tables": 2, "together": 3}]},
    "pairs later": {"bins": 3, "stages": [{"share": 0.4, "tables": 2}]},
    "independent labels": {"groups": True, "independent": True},
    "class alone": {"crossed": "class", "labels": False},
}
TABLES_OF_TESTS = ["tests.runs.kept_runs", "tests.laws.runs.test_histograms_first"]  # modules that settings name
INPUTS = typing.get_args(Model.model_fields["inputs"].annotation)


def table(rows: int = 240) -> pd.DataFrame:
    draw = np.random.default_rng(rows)
    made = pd.DataFrame(draw.uniform(size=(rows, 3)).round(3), columns=["x0", "x1", "x2"])
    made["sex"] = np.array(["f", "m"])[np.arange(rows) % 2]
    made["y"] = np.where(made.x0 + made.x1 > 1, "a", "b")
    return made.assign(z=(made.x0 / 2 + made.x1 / 4).round(3))


def settings(columns: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "name": "own",
        "data": {
            "source": "object",
            "columns": columns or {"features": FEATURES, "sensitive": SEX, "target": CLASS},
        },
        "training": {"rounds": 2, "batch_fraction": 0.25},
        "federation": {"clients": 3},
        "privacy": {"delta": 1e-5, "epsilon": 1.0},
        **more,
    }


def sketched(**sketch: Any) -> dict[str, Any]:
    return settings(**SYNTHESIS, training={"rounds": 2}, sketch={"kind": "table", "bins": 4, "batch": 20, **sketch})


def require_passed(directory: Path) -> None:
    found = audit(directory, TABLES_OF_TESTS)
    assert found.passed, f"{directory}: {found.verdict}\n{found.details['checks']}"
    if parts := found.details["parts"]:  # every row of the ledger is listed, and nothing is said to be attacked
        counts = [re.fullmatch(r"\((\d+) of (\d+) rows\)", part["words"]).groups() for part in parts]
        assert sum(int(some) for some, _ in counts) == int(counts[0][1])
        assert {part["how"] for part in parts} == {"recomputed"} and "100% of μ²" in found.verdict


def ran_and_passed(folder: Path, raw: dict[str, Any], *overrides: str) -> None:
    experiment = parse_experiment(raw, overrides)
    result = run(experiment, data=table() if experiment.data.source == "object" else None, runs=folder)
    assert result.summary["status"] == "completed"
    require_passed(result.directory)


def about_everything(trust: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Settings of a trust model under which it releases all that it can beside its rounds."""
    model, words = trust_models()[trust], [f"privacy.trust={trust}"]
    if trust == "none":
        words.append("privacy.epsilon=inf")
    if model.seeds == ("sketch",):
        return sketched(), tuple(words)
    if trust not in releasing_gradients():
        return {**GENERATION, "privacy": {"delta": 1e-5, "epsilon": 10.0}}, tuple(words)
    beside = {"privacy.moments=0.3", "thresholds.share=0.2"} if trust != "none" else set()
    kept = KEPT if "everybody" in model.held_out_to else ()
    return settings(model={"kind": "additive"}, slicing={"directions": 4}), (*words, *sorted(beside), *kept)


@pytest.mark.parametrize("trust", list(trust_models()))
def test_an_honest_run_under_every_trust_model_with_all_that_it_releases_passes(tmp_path, trust):
    raw, words = about_everything(trust)
    ran_and_passed(tmp_path, raw, *words)


DESCRIBED = sorted({model.once for model in trust_models().values() if model.once is not None})


@pytest.mark.parametrize("trust", DESCRIBED)
def test_an_honest_description_passes(tmp_path, trust):
    experiment = as_description(parse_experiment(settings()), trust=trust)
    require_passed(run(experiment, data=table(), runs=tmp_path).directory)


def test_a_description_with_another_model_than_its_training_made_is_named(tmp_path):
    experiment = as_description(parse_experiment(settings()), trust=DESCRIBED[0])
    directory = run(experiment, data=table(), runs=tmp_path).directory
    stored = load_file(directory / RunFile.MODEL)
    name = max(stored, key=lambda tensor: stored[tensor].numel())
    save_file({**stored, name: stored[name] + 1}, directory / RunFile.MODEL)
    found = audit(directory)
    assert not found.passed and f"model.safetensors is not the training's: {name}" in str(found.details["checks"])


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_an_honest_run_of_everything_that_has_messages_of_its_own_passes(tmp_path, name):
    raw, words = RUNS[name]
    Federation(tmp_path).run(parse_experiment(raw, words), directory=tmp_path / "run")
    require_passed(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("trust", DESCRIBED)
@pytest.mark.parametrize("kind", TABLES)
def test_an_honest_table_of_every_kind_passes(tmp_path, trust, kind):
    ran_and_passed(tmp_path, sketched(**TABLES[kind]), f"privacy.trust={trust}")


def kinds_of_columns() -> list[tuple[str, str]]:
    """Every registered predictor with every kind of inputs that goes with it."""
    pairs = []
    for name in MODELS:
        for inputs in INPUTS:
            try:
                parse_experiment(settings(model={"kind": name, "inputs": inputs}))
            except ExperimentError:
                continue
            pairs.append((name, inputs))
    return pairs


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "inputs"), kinds_of_columns())
@pytest.mark.parametrize("trust", [trust for trust in releasing_gradients() if trust != "none"])
def test_an_honest_run_of_every_model_and_inputs_passes(tmp_path, kind, inputs, trust):
    raw = settings(model={"kind": kind, "inputs": inputs}, objective={"alpha": 0.0})
    ran_and_passed(tmp_path, raw, f"privacy.trust={trust}", "privacy.moments=auto", *KEPT)


@pytest.mark.slow
@pytest.mark.parametrize("trust", [trust for trust in releasing_gradients() if trust != "none"])
def test_an_honest_regression_with_moments_passes(tmp_path, trust):
    columns = {"features": FEATURES, "targets": NUMBER}
    raw = settings(
        columns, model={"kind": "logistic", "inputs": "by-noise"}, objective={"task": "regression", "alpha": 0.0}
    )
    ran_and_passed(tmp_path, raw, f"privacy.trust={trust}", "privacy.moments=0.3", *KEPT)


def test_an_honest_run_for_additions_and_removals_passes(tmp_path):
    privacy = {"delta": 1e-5, "epsilon": 1.0, "relation": "add-remove", "sampling": "poisson", "records": 300}
    columns = {"features": FEATURES, "target": CLASS}
    raw = settings(columns, model={"kind": "additive"}, objective={"alpha": 0.0}, privacy=privacy)
    ran_and_passed(tmp_path, raw, "privacy.moments=0.3")


TOML = """
name = "own"
training = {rounds = 2, batch_fraction = 0.25}
federation = {clients = 2}
privacy = {delta = 1e-5, epsilon = 1.0}
[data]
source = "files"
[data.columns]
features = [{name = "x0", low = 0, high = 1}, {name = "x1", low = 0, high = 1}, {name = "x2", low = 0, high = 1}]
sensitive = {name = "sex", values = ["f", "m"]}
target = {name = "y", values = ["a", "b"]}
"""
HELD_OUT = ["--set", "data.held_out=other/t.csv"]
MAKE = {
    "run": ["run", "own.toml", "--data-dir", "DATA"],
    "describe": ["describe", "own.toml", "--data-dir", "DATA"],
    "synthesize": ["synthesize", "own.toml", "--data-dir", "DATA", "--set", "training.rounds=20", "--rows", "50"],
    "compare": ["compare", "own.toml", "--data-dir", "DATA", "--epsilon", "1", "--seeds", "1", *HELD_OUT],
    "tune": ["tune", "own.toml", "--data-dir", "DATA", "--on-records", "--try", "training.rounds=2,3", *HELD_OUT],
    "demo": ["demo", "--rounds", "20"],
}
"""The verbs that make a run's folder, each with a command of it."""
MAKE_NONE = {
    *GROUPS["Look"], *GROUPS["Use"], "init", "check", "distance", "plan", "budget", "certs", "bundle", "client",
}  # fmt: skip
ELSEWHERE = {
    "resume": "goes on in a folder that another verb made",
    "deploy": "`tests/federation/engines/test_deployed.py` audits a run of real processes",
    "server": "is what `deploy local` starts",
}


def test_every_verb_is_known_to_make_a_folder_or_to_make_none():
    verbs = {verb for verbs in GROUPS.values() for verb in verbs}
    assert verbs == {*MAKE, *MAKE_NONE, *ELSEWHERE}


@pytest.mark.slow
@pytest.mark.parametrize("verb", MAKE)
def test_every_folder_that_a_verb_makes_passes(tmp_path, monkeypatch, capsys, verb):
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text(TOML)
    for place, rows in (("DATA/0", table()[::2]), ("DATA/1", table()[1::2]), ("other", table(41))):
        Path(place).mkdir(parents=True)
        rows.drop(columns="z").to_csv(Path(place, "t.csv"), index=False)
    assert main(MAKE[verb]) == 0, capsys.readouterr().err
    folders = [path.parent for path in tmp_path.rglob(RunFile.CONFIG)]
    assert folders
    for folder in folders:
        require_passed(folder)
