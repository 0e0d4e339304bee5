"""Laws of models and tasks that are handed to a run as Python objects: they are the run's, here and nowhere else."""

from __future__ import annotations

import re

import pytest

from fedsw._tools.own_objects import held, held_objects, in_this_process, load_object
from fedsw.experiment import ExperimentError
from fedsw.federation.engines import driver
from fedsw.federation.engines.driver import resume, run
from fedsw.learning.models import mlp
from fedsw.privacy.accounting import Ledger
from fedsw.runs.report import facts
from fedsw.runs.view import read_run
from fedsw.runs.write import draw_run
from tests.federations import small
from tests.learning.tasks import own

SETTINGS = ("objective.task=regression", "seed=5", "model.seed=3")


def stored(result):
    return (result.directory / "model.safetensors").read_bytes()


def test_objects_are_run_as_the_same_things_by_name(tmp_path):
    names = (f"model.kind={own.MODULE}:small_mlp", f"objective.task={own.MODULE}:Copy")
    named = run(small(*SETTINGS, *names), runs=tmp_path)
    handed = run(small(*SETTINGS), runs=tmp_path, model=own.small_mlp, task=own.Copy())
    assert stored(named) == stored(handed)
    assert named.summary["held_out"] == handed.summary["held_out"]
    assert named.summary["epsilon_spent"] == handed.summary["epsilon_spent"]
    assert handed.experiment.model.seed == 3


def test_the_layers_of_the_settings_give_way_to_the_model_that_is_handed_over(tmp_path):
    base = small(*SETTINGS, "model.kind=mlp", "model.hidden=[7]", "training.rounds=1")
    model = mlp(16, (5,), 2, seed=1)
    result = run(base, runs=tmp_path, model=model)
    assert result.summary["status"] == "completed" and result.experiment.model.hidden == ()


def test_nothing_is_held_after_the_run_and_its_folder_can_be_read(tmp_path):
    result = run(small(*SETTINGS), runs=tmp_path, task=own.Copy)
    assert not held_objects
    assert result.experiment.objective.task.startswith("object:")
    assert facts.plain(read_run(result.directory))["status"] == "completed"
    assert {path.name for path in draw_run(result.directory)} >= {"metrics.png", "privacy.png", "outputs.png"}
    with pytest.raises(ExperimentError, match="an object that was handed to another run of Python"):
        load_object(result.experiment.objective.task, what="objective.task")


@pytest.mark.parametrize("engine", ["ray", "flwr", "deployed"])
def test_engines_whose_clients_are_elsewhere_refuse_objects_and_leave_no_folder(tmp_path, monkeypatch, engine):
    monkeypatch.setattr(driver, "fresh_folder", lambda _: pytest.fail("the run begins"))
    reason = f"objective.task is a Python object, .* engine '{engine}' .*use engine 'inprocess', or .*'module:name'"
    with pytest.raises(ExperimentError, match=reason):
        run(small(*SETTINGS), runs=tmp_path, engine=engine, task=own.Copy())
    assert not list(tmp_path.glob("*/*"))


def test_a_run_goes_on_with_its_objects_and_not_without_them(tmp_path, monkeypatch):
    whole = run(small(*SETTINGS), runs=tmp_path / "whole", model=own.small_mlp, task=own.Copy())
    spend, spent = Ledger.spend, []

    def stops(self, *args, **kwargs):
        spent.append(1)
        if len(spent) == 3:
            raise RuntimeError("the power went")
        return spend(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "spend", stops)
        with pytest.raises(RuntimeError, match="the power went"):
            run(small(*SETTINGS), runs=tmp_path / "parts", model=own.small_mlp, task=own.Copy())
    (directory,) = (tmp_path / "parts" / "small").iterdir()
    with pytest.raises(ExperimentError, match=re.escape("going on needs it again: resume(folder, model=...)")):
        resume(directory, task=own.Copy())
    with pytest.raises(ExperimentError, match=re.escape("going on needs it again: resume(folder, task=...)")):
        resume(directory, model=own.small_mlp)
    result = resume(directory, model=own.small_mlp, task=own.Copy())
    assert result.summary["status"] == "completed"
    assert [line["round"] for line in result.history] == [line["round"] for line in whole.history]
    with pytest.raises(ExperimentError, match="model.kind is 'logistic', no Python object; leave model= out"):
        resume(run(small(*SETTINGS), runs=tmp_path / "plain").directory, model=own.small_mlp)


def test_names_of_held_objects_end_with_their_block():
    thing = object()
    with held(thing) as name:
        assert load_object(name, what="model.kind") is thing
        with held(thing) as other:
            assert other != name
    with pytest.raises(ExperimentError, match="hand it over again"):
        load_object(name, what="model.kind")


def test_a_name_that_is_held_again_within_its_block_is_what_it_was_after_it():
    one, other = object(), object()
    with held(one, "module:name"):
        with held(other, "module:name"):
            assert in_this_process("module:name") is other
        assert in_this_process("module:name") is one
    assert in_this_process("module:name") is None


def test_a_refused_object_leaves_nothing_held_and_no_folder(tmp_path):
    with pytest.raises(ValueError, match="differs between the batch and the record alone"):
        run(small(*SETTINGS), runs=tmp_path, task=own.Mixing())
    assert not held_objects and not list(tmp_path.glob("*/*"))
