"""A run's folder may be a stranger's: code that its settings name runs where it is allowed by name alone."""

from __future__ import annotations

import inspect
import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import typer

import fedsw
from fedsw.cli.app import GROUPS, main
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.experiment.choices import CodeRefused, modules_of, named_code, require_allowed_code
from fedsw.federation.node.limits import require_modules
from fedsw.privacy.accounting import Ledger
from tests.desk.use.conftest import INCOME, settings, write

MODULE = "fedsw_test_hospital"
SOURCE = """\
import os
import pathlib
from subprocess import run

import torch

pathlib.Path(os.environ["FEDSW_TEST_MARKER"]).touch()


def make(features, outputs, seed):
    pathlib.Path(os.environ["FEDSW_TEST_MARKER"]).touch()
    return torch.nn.Linear(features, outputs)


class Layers:
    made = staticmethod(make)
"""
NAMED = {
    "model.kind": {"model": {"kind": f"{MODULE}:make"}},
    "objective.task": {"objective": {"task": f"{MODULE}:Task"}},
    "data.source": {"source": f"{MODULE}:records", "data_dir": None, "held_out": None},
    "data.held_out": {"source": "object:x0", "data_dir": None, "held_out": f"{MODULE}:make"},
    "metrics[0]": {"metrics": [f"{MODULE}:make"]},
}
UNREAD = {
    "init", "check", "plan", "tune", "budget", "run",
    "client", "bundle", "list", "demo",
}  # fmt: skip
"""Verbs that take no stored run: an experiment file, or nothing."""
VIEWS = {
    "summary": ["show", "RUN"],
    "card": ["show", "RUN", "card", "-o", "OUT"],
    "progress": ["show", "RUN", "progress"],
    "ledger": ["show", "RUN", "ledger"],
    "report": ["report", "RUN", "-o", "OUT"],
}
"""Verbs that look at a stored run and run nothing of it."""
USES = {
    "audit": ["audit", "RUN", "-o", "OUT"],
    "predict": ["predict", "RUN", "TABLE"],
    "export": ["export", "RUN", "-o", "MODEL"],
    "resume": ["resume", "RUN"],
    "evaluate": ["evaluate", "RUN"],
    "synthesize": ["synthesize", "RUN", "-o", "OUT"],
    "describe": ["describe", "RUN"],
    "distance": ["distance", "RUN"],
    "server": ["server", "--certs", "CERTS", "--resume", "RUN"],
    "compare": ["compare", "--resume", "COMPARISON"],
}
"""Verbs that build a stored run's model, or go on with it."""


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose model is a function of a module that the user named in an experiment of their own."""
    place = tmp_path_factory.mktemp("named")
    write(place / "DATA" / "0" / "train.csv", range(0, 60))
    write(place / "DATA" / "1" / "train.csv", range(60, 140))
    write(place / "held-out.csv", range(200, 320))
    (place / f"{MODULE}.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        patch.setenv("FEDSW_TEST_MARKER", str(place / "trained"))
        asked = settings(place, INCOME, model={"kind": f"{MODULE}:make"})
        directory = fedsw.run(asked, runs=place / "runs").directory
    assert (place / "trained").exists()
    sys.modules.pop(MODULE)
    return directory


@pytest.fixture
def marker(named: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the module writes when it is imported or called."""
    monkeypatch.syspath_prepend(named.parents[2])
    monkeypatch.setenv("FEDSW_TEST_MARKER", str(tmp_path / "marker"))
    sys.modules.pop(MODULE, None)
    return tmp_path / "marker"


@pytest.fixture
def received(named: Path, tmp_path: Path) -> Path:
    """A copy of the folder, as one that somebody sent."""
    return Path(shutil.copytree(named, tmp_path / "received"))


def changed(folder: Path, **sections: object) -> Path:
    config = json.loads((folder / "config.json").read_text())
    for name, value in sections.items():
        if name in ("source", "held_out", "data_dir"):
            config["experiment"]["data"][name] = value
        elif isinstance(value, dict):
            config["experiment"][name] |= value
        else:
            config["experiment"][name] = value
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def comparison(folder: Path, run: Path, cell: str = "none") -> Path:
    folder.mkdir()
    experiment = json.loads((run / "config.json").read_text())["experiment"]
    cell_ = {"id": cell, "method": "none", "epsilon": "inf", "seed": 0, "experiment": experiment}
    grid = {"task": "fair-classification", "methods": ["none"], "epsilons": [1.0], "seeds": 1, "nominal": False}
    (folder / "grid.json").write_text(json.dumps({**grid, "cells": [cell_]}))
    return folder


def words(command: list[str], received: Path) -> list[str]:
    place = received.parent
    if "COMPARISON" in command:
        comparison(place / "comparison", received)
    write(place / "table.csv", range(380, 390))
    known = {
        "RUN": received,
        "OUT": place / "out",
        "MODEL": place / "model.pt",
        "TABLE": place / "table.csv",
        "CERTS": place / "certs",
    }
    known["COMPARISON"] = place / "comparison"
    return [str(known.get(word, word)) for word in command]


def verbs() -> dict[str, object]:
    commands = [command for verbs in GROUPS.values() for command in verbs.items()]
    return {verb: command for verb, command in commands if not isinstance(command, typer.Typer)}


def of_one_run() -> dict[str, list[str]]:
    """Verbs of which nothing is said above, and which take one stored run: they are views until they say otherwise."""
    said = {*UNREAD, *USES, *(line[0] for line in VIEWS.values())}
    return {
        verb: [verb, "RUN"]
        for verb, command in verbs().items()
        if verb not in said and "run" in inspect.signature(command).parameters
    }


def test_every_verb_is_known_to_read_stored_runs_or_not():
    known = {*UNREAD, *USES, *(line[0] for line in VIEWS.values()), *of_one_run()}
    assert known == set(verbs())


@pytest.mark.parametrize("verb", USES)
def test_a_verb_that_uses_a_stored_run_runs_no_code_that_its_settings_name(verb, received, marker, capsys):
    arguments = words(USES[verb], received)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert f"model.kind = '{MODULE}:make'" in said and f"--allow-module {MODULE}" in said
    assert f"fedsw {shlex.join(arguments)} --allow-module {MODULE}" in said
    assert not marker.exists() and MODULE not in sys.modules


@pytest.mark.parametrize("verb", [*VIEWS, *of_one_run()])
def test_a_verb_that_shows_a_stored_run_runs_no_code_that_its_settings_name(verb, received, marker):
    assert main(words({**VIEWS, **of_one_run()}[verb], received)) == 0
    assert not marker.exists() and MODULE not in sys.modules


@pytest.mark.parametrize("setting", NAMED)
@pytest.mark.parametrize("verb", ["audit", "predict", "export", "resume", "evaluate"])
def test_no_setting_of_a_stored_run_names_code_that_runs(verb, setting, received, marker, capsys):
    changed(received, **{"model": {"kind": "logistic"}, **NAMED[setting]})
    assert main(words(USES[verb], received)) == 2
    assert f"{setting} = " in capsys.readouterr().err
    assert not marker.exists() and MODULE not in sys.modules


def test_a_function_of_the_standard_library_is_not_called_by_a_stored_run(received, tmp_path, capsys):
    proof = tmp_path / "proof"
    changed(received, model={"kind": "subprocess:check_call", "arguments": {"args": ["touch", str(proof)]}})
    for verb in ("audit", "predict", "export", "resume", "evaluate"):
        assert main(words(USES[verb], received)) == 2
        assert "model.kind = 'subprocess:check_call'" in capsys.readouterr().err
    assert not proof.exists()


def test_python_entries_run_no_code_of_a_stored_run(received, marker):
    from fedsw.audit.record import audit
    from fedsw.desk.own_data.evaluate import evaluate
    from fedsw.federation.engines.driver import resume
    from fedsw.runs.write import draw_run
    from simulations.papers.finished import Finished

    for use in (fedsw.load, resume, audit, lambda run: evaluate(run, None), lambda run: Finished(run).problem):
        with pytest.raises(CodeRefused, match=rf"allow_modules=\['{MODULE}'\]"):
            use(received)
    draw_run(changed(received, model={"kind": "logistic"}, objective={"task": f"{MODULE}:Task"}))
    assert not marker.exists() and MODULE not in sys.modules


def test_an_allowed_module_of_a_stored_run_is_loaded(received, marker, capsys):
    assert main([*words(USES["predict"], received), "--allow-module", MODULE]) == 0
    assert marker.exists() and "predicted_income" in capsys.readouterr().out
    assert fedsw.load(received, allow_modules=[MODULE]).width == 3
    assert main([*words(USES["audit"], received), "--allow-module", MODULE]) == 0
    assert main([*words(USES["export"], received), "--allow-module", MODULE]) == 0
    assert main([*words(USES["resume"], received), "--allow-module", MODULE]) == 0


@pytest.mark.parametrize(
    "reference", [f"{MODULE}:os.system", f"{MODULE}:run", f"{MODULE}:make.__globals__.clear", f"{MODULE}:os"]
)
def test_what_an_allowed_module_imports_is_not_allowed_with_it(reference, received, marker):
    changed(received, model={"kind": reference})
    with pytest.raises(ExperimentError, match=f"only what '{MODULE}' defines itself"):
        fedsw.load(received, allow_modules=[MODULE])
    node = {"modules": MODULE, "own-data": True}
    stored = json.loads((received / "config.json").read_text())["experiment"]
    with pytest.raises(ExperimentError, match=f"only what '{MODULE}' defines itself"):
        require_modules(parse_experiment(stored), node)


@pytest.mark.parametrize("reference", [f"{MODULE}:make", f"{MODULE}:Layers", f"{MODULE}:Layers.made"])
def test_what_an_allowed_module_defines_is_allowed(reference, received, marker):
    changed(received, model={"kind": reference})
    stored = parse_experiment(json.loads((received / "config.json").read_text())["experiment"])
    require_allowed_code(stored, [MODULE], stored=received)
    require_modules(stored, {"modules": MODULE, "own-data": True})


@pytest.mark.parametrize(
    ("setting", "reference"),
    [
        ("model", "fedsw._tools.files:replace"),
        ("model", "fedsw.learning.models.layers:torch.save"),
        ("model", "fedsw.federation.deploy.processes:Processes"),
        ("model", "fedsw.learning.models:mlp"),
        ("objective", "fedsw.learning.tasks.kinds._classification:TASK.misfit"),
    ],
)
def test_of_fedsw_itself_only_the_classes_of_tasks_and_models_may_be_named(setting, reference, received):
    key = {"model": "kind", "objective": "task"}[setting]
    changed(received, **{"model": {"kind": "logistic"}, setting: {key: reference}})
    with pytest.raises(ExperimentError, match="name code to be run|only what|has no|cannot be imported"):
        fedsw.load(received)


def test_the_class_of_a_shipped_model_is_always_allowed(received):
    stored = parse_experiment(
        json.loads((received / "config.json").read_text())["experiment"]
        | {"model": {"kind": "fedsw.learning.models:Adaptor"}}
    )
    assert modules_of(stored) == ("fedsw.learning.models",) and [key for key, _ in named_code(stored)] == ["model.kind"]
    require_allowed_code(stored, (), stored=received)


def test_a_comparison_s_cells_stay_in_its_folder(received, marker, capsys):
    folder = comparison(received.parent / "comparison", received, cell="../../elsewhere")
    assert main(["compare", "--resume", str(folder), "--allow-module", MODULE]) == 2
    assert "'../../elsewhere'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["model.safetensors", "metrics.jsonl", "clients", "plots"])
def test_a_link_in_a_stored_run_is_not_followed(name, received, marker, tmp_path, capsys):
    place = received / name
    outside = tmp_path / "outside"
    if place.is_dir():
        shutil.rmtree(place)
        outside.mkdir()
    else:
        outside.write_bytes(place.read_bytes() if place.exists() else b"")
        place.unlink(missing_ok=True)
    place.symlink_to(outside)
    for command in (*USES.values(), *VIEWS.values()):
        if "RUN" not in command:
            continue
        assert main([*words(command, received)]) == 2
        assert "is a link" in capsys.readouterr().err
    assert not marker.exists()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER more AFTER INSERT ON rows BEGIN DELETE FROM rows; END",
        "ALTER TABLE rows RENAME TO real; CREATE VIEW rows AS SELECT * FROM real",
    ],
)
def test_a_ledger_with_statements_of_its_own_is_refused(statement, received):
    import sqlite3

    from fedsw.audit.record import read_book
    from fedsw.privacy.accounting import LedgerDamaged

    path = received / "ledger.sqlite"
    with sqlite3.connect(path) as database:
        database.executescript(statement)
    with pytest.raises(LedgerDamaged, match="not a ledger of fedsw"):
        Ledger.open(path, read_only=True)
    if "VIEW" in statement:
        with pytest.raises(ValueError, match="more than the tables of a ledger"):
            read_book(path)
