"""Laws of a task or a model of one's own: tried before anything is spent, and bounded by the same clips."""

from __future__ import annotations

import math

import pytest
import torch

import fedsw
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.federation.node.held_records import held_records
from fedsw.federation.node.node import Node
from fedsw.learning.models import flatten
from fedsw.learning.tasks.problem import Problem
from fedsw.mathematics.clipping import UnsupportedModule
from tests.federations import SMALL, Federation, small
from tests.learning.tasks import own

REGRESSION = ("objective.task=regression", "seed=5")
CONFIG = {"partition-id": 0, "num-partitions": 1}


def problem(*overrides: str) -> Problem:
    return Problem.from_experiment(small(*overrides))


def named(name: str) -> str:
    return f"objective.task={own.MODULE}:{name}"


def modelled(name: str) -> str:
    return f"model.kind={own.MODULE}:{name}"


@pytest.mark.parametrize(
    ("task", "error", "reason"),
    [
        ("Mixing", UnsupportedModule, "Mixing.*output of record 0 differs between the batch and the record alone"),
        ("MixingLoss", UnsupportedModule, "differs between the batch and the record alone"),
        ("MeanLoss", ExperimentError, r"the loss of 3 records: torch.float64 \(\); a float tensor of shape \(3,\)"),
        ("Shifting", ExperimentError, "the model or the task changes the records in place.*let it change a copy"),
        ("Narrow", ExperimentError, r"outputs of 3 records: torch.float64 \(3, 1\); .* shape \(3, 2\) is expected"),
        ("Overflowing", ExperimentError, "the loss of made-up records in the unit cube: not finite"),
        ("Detached", ExperimentError, r"the loss: no gradient reaches a trained parameter.*without detach\(\)"),
        ("Random", UnsupportedModule, "draws random numbers"),
        ("Broken", ExperimentError, r"the task's outputs cannot be computed \(RuntimeError: no such head\)"),
        ("Flat", ExperimentError, "has outputs of dimension 0, with 0 classes and 2 targets; it must be at least 1"),
        ("NoTask", ExperimentError, "names <class .*NoTask.*>; it must be a class derived from"),
        ("number", ExperimentError, "names 3; it must be a class derived from"),
        ("Absent", ExperimentError, "has no 'Absent'"),
    ],
)
def test_a_task_that_no_clip_could_hold_is_refused_by_name_before_a_record_is_read(task, error, reason):
    with pytest.raises(error, match=reason):
        problem(named(task))


@pytest.mark.parametrize(
    ("model", "error", "reason"),
    [
        ("recurrent", UnsupportedModule, "Bilinear.*use Linear on the outer product"),
        ("batch_norm", UnsupportedModule, r"BatchNorm1d.*use GroupNorm, or freeze it .* and call \.eval\(\)"),
        ("in_place", ExperimentError, "changes the records in place .as a first layer with inplace=True does"),
        ("mean_of_batch", UnsupportedModule, "differs between the batch and the record alone"),
        ("fickle", ExperimentError, "'0.weight' is not trained and differs between two makings"),
        ("nothing", ExperimentError, "made a int; it must make an nn.Module"),
        ("number", ExperimentError, "is a int; give an nn.Module, or a function or class that makes one"),
        ("TwoHeads", ExperimentError, "the task reads 'outputs': return a dict with that name"),
    ],
)
def test_a_model_that_no_clip_could_hold_is_refused_by_name_before_a_record_is_read(model, error, reason):
    with pytest.raises(error, match=reason):
        problem(*REGRESSION, modelled(model))


def test_the_error_of_a_model_of_another_width_names_both_widths():
    with pytest.raises(
        ExperimentError, match=r"the model returns \(3, 2\) for 3 records, .* asks it for \(3, 1\): the"
    ):
        problem(modelled("wide"))


def test_arguments_that_a_model_does_not_take_are_named():
    with pytest.raises(ExperimentError, match=r"small_mlp' made no model of .*'depth': 3.*unexpected keyword"):
        problem(*REGRESSION, modelled("small_mlp"), "model.arguments.depth=3")
    with pytest.raises(ExperimentError, match="model.arguments are given, and model.kind .* is a module, made already"):
        problem(*REGRESSION, modelled("made"), "model.arguments.depth=3")


def test_a_model_of_ones_own_is_made_of_its_arguments_and_the_models_seed_alone():
    built = problem(*REGRESSION, modelled("small_mlp"), "model.arguments.width=9")
    assert [tuple(p.shape) for p in built.build_model().parameters()] == [(9, 16), (9,), (2, 9), (2,)]
    before = torch.get_rng_state()
    assert torch.equal(flatten(built.build_model()), flatten(built.build_model()))
    assert torch.equal(before, torch.get_rng_state())
    other = problem(*REGRESSION, modelled("small_mlp"), "model.arguments.width=9", "model.seed=1")
    assert not torch.equal(flatten(built.build_model()), flatten(other.build_model()))


def test_a_module_that_is_there_already_is_copied_for_every_model():
    built = problem(*REGRESSION, modelled("made"))
    first, second = built.build_model(), built.build_model()
    with torch.no_grad():
        first[0].weight.zero_()
    assert not torch.equal(flatten(first), flatten(second))
    assert torch.equal(flatten(second), flatten(own.made))


def test_a_task_of_ones_own_that_says_the_same_learns_the_same_bit_for_bit(tmp_path):
    federation = Federation(tmp_path)
    found = [federation.run(small(*REGRESSION, task)) for task in ("objective.task=regression", named("Copy"))]
    stored = [(tmp_path / f"run{i}" / "model.safetensors").read_bytes() for i in (1, 2)]
    assert stored[0] == stored[1]
    assert found[0]["held_out"] == found[1]["held_out"] and found[0]["epsilon"] == found[1]["epsilon"]


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_a_loss_of_ones_own_however_steep_contributes_no_more_than_the_clips_allow(alpha):
    whole = problem(named("Steep"), f"objective.alpha={alpha}", "clip.loss=0.5", "clip.jacobian=0.25")
    records = held_records(whole, CONFIG).records
    node = Node(whole, records, whole.cells_of(records), whole.build_model())
    theta = 5 * torch.ones(whole.parameters)
    batch, outputs = node.forward(theta, records, 1, 0)
    weight = whole.objective.task_weight(len(records))
    cotangents = torch.randn(outputs.shape, dtype=torch.float64) / len(records)
    found, _ = node.task.clipped.contribution(batch, cotangents, weight)
    bound = (1 if alpha else 0) * 0.25 * float(cotangents.norm(dim=1).sum()) + len(records) * weight * 0.5
    assert 0 < float(found.norm()) <= bound * (1 + 1e-9)
    given = whole.given(records)
    losses = whole.clipped.losses(node.model(given.features), given)
    (plain,) = torch.autograd.grad(losses.sum() * weight, node.model[0].weight)
    assert float(plain.norm()) > 100 * bound  # the clips bite


def test_heads_by_name_are_compared_and_trained_apart(tmp_path):
    settings = (named("Separate"), modelled("TwoHeads"), "training.rounds=3")
    whole = problem(*settings)
    assert (whole.dimension, whole.parameters) == (3, 16 * 6 + 6 + 6 * 3 + 3 + 6 * 2 + 2)
    records = held_records(whole, CONFIG).records
    node = Node(whole, records, whole.cells_of(records), whole.build_model())
    _, outputs = node.forward(flatten(node.model), records, 1, 0)
    given, model = whole.given(records), whole.build_model()
    assert outputs.shape == (len(records), 3)
    q = torch.randn(outputs.shape, dtype=torch.float64)
    # With clips far above what is here the sum is plain autograd's.
    loose = Problem.from_experiment(small(*settings, "clip.loss=1e6", "clip.jacobian=1e6"))
    free = Node(loose, records, loose.cells_of(records), loose.build_model())
    batch, _ = free.forward(flatten(free.model), records, 1, 0)
    found, _ = free.task.clipped.contribution(batch, q, 0.01)
    raw = model(given.features)
    plain = (whole.outputs(raw, given) * q.float()).sum() + 0.01 * whole.clipped.losses(raw, given).sum()
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(plain, list(model.parameters()))])
    torch.testing.assert_close(found.float(), expected, rtol=1e-3, atol=1e-3)
    held_out = Federation(tmp_path).run(small(*settings))["held_out"]
    assert set(held_out) == {"loss"} and math.isfinite(held_out["loss"])


def test_a_frozen_backbone_stays_as_it_was_and_its_head_is_trained(tmp_path):
    from safetensors.torch import load_file

    directory = tmp_path / "run"
    settings = small(*REGRESSION, modelled("Backbone"), "training.rounds=3")
    Federation(tmp_path).run(settings, directory=directory)
    stored, fresh = load_file(directory / "model.safetensors"), Problem.from_experiment(settings).build_model()
    for name, value in fresh.state_dict().items():
        assert torch.equal(stored[name], value) == (not name.startswith("head")), name


@pytest.mark.parametrize("targets", [1, 3])
def test_a_regression_has_as_many_targets_as_are_declared(tmp_path, targets):
    generator = torch.Generator().manual_seed(1)
    rows = torch.rand(200, 2 + targets, generator=generator)
    names = ["x0", "x1", *(f"y{i}" for i in range(targets)), "a"]
    lines = [",".join(names)]
    lines += [",".join([*(f"{value:.6f}" for value in row), str(i % 3)]) for i, row in enumerate(rows.tolist())]
    (tmp_path / "train.csv").write_text("\n".join(lines[:150]) + "\n")
    (tmp_path / "apart.csv").write_text("\n".join([lines[0], *lines[150:]]) + "\n")
    columns = {
        "features": [{"name": "x0"}, {"name": "x1"}],
        "sensitive": {"name": "a", "values": ["0", "1", "2"]},
        "targets": [{"name": f"y{i}", "low": 0.0, "high": 1.0} for i in range(targets)],
    }
    data = {"source": "files", "columns": columns, "data_dir": str(tmp_path), "held_out": str(tmp_path / "apart.csv")}
    experiment = parse_experiment({**SMALL, "data": data}, ("objective.task=regression", "federation.clients=2"))
    whole = Problem.from_experiment(experiment)
    assert (whole.dimension, len(whole.objective.cells)) == (targets, 3)
    assert whole.clipped.directions(1, 0)[0].shape[0] == targets
    (tmp_path / "runs").mkdir()
    summary = Federation(tmp_path / "runs").run(experiment)
    assert summary["status"] == "completed" and summary["held_out"]["mean_squared_error"] < 1


def test_what_takes_a_tasks_facts_is_settled_when_it_is_loaded():
    assert small(named("Copy"), "objective.penalty=equality-of-odds")  # nothing was imported yet
    with pytest.raises(ExperimentError, match="objective.penalty 'equality-of-odds' with objective.task .*Copy'"):
        problem(named("Copy"), "objective.penalty=equality-of-odds")
    with pytest.raises(ExperimentError, match="privacy.trust 'local-slices' cannot run .*Trust models that can"):
        problem(named("Copy"), "privacy.trust=local-slices")
    with pytest.raises(ExperimentError, match="model.kind 'encoder-decoder' with objective.task"):
        problem(named("Copy"), "model.kind=encoder-decoder")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("model.arguments.width=3",), "model.arguments is .*, which model.kind 'logistic' does not read"),
        (("objective.arguments.width=3",), "arguments are for a task of your own"),
        (
            ("model.kind=own:build", "model.hidden=[3]"),
            "model.hidden is .*, which model.kind 'own:build' does not read",
        ),
        (("model.kind=own:build", "model.arguments.when=1979-05-27"), "an argument of type date"),
        (("model.kind=own:build", "model.arguments.width=inf"), "an argument of type float is no finite number"),
        (("objective.task=clustering",), "Input should be 'adaptation'.*or 'module:name' for a task of your own"),
        (("objective.task=own.py:Mine!",), "or 'module:name' for a task of your own"),
    ],
)
def test_settings_of_ones_own_that_cannot_be_meant_are_refused_at_load(overrides, reason):
    with pytest.raises(ExperimentError, match=reason):
        small(*overrides)


def test_a_model_that_was_given_in_python_is_named_by_its_class_and_not_by_what_the_process_calls_it(tmp_path):
    records = fedsw.as_records(
        torch.rand(20, 4), group=torch.arange(20) % 2, groups=[0, 1], target=torch.arange(20) // 10, classes=[0, 1]
    )
    settings = {"name": "given", "training": {"rounds": 1}, "federation": {"clients": 1}}
    with pytest.raises(ExperimentError, match=r"model\.kind \(your Linear\): the model does not take records"):
        fedsw.run(settings, model=torch.nn.Linear(5, 1), data=records, runs=tmp_path)
    with pytest.raises(ExperimentError, match=r"model\.kind \(your int\) made a int"):
        fedsw.run(settings, model=int, data=records, runs=tmp_path)


def test_an_engine_that_is_unknown_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="engine 'rey' is unknown; choose one of inprocess, ray"):
        fedsw.run("fair-classification", engine="rey", runs=tmp_path)
    assert not list(tmp_path.iterdir())
