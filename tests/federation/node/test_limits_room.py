"""Laws of what a request may cost a client: no message asks for more memory and time than its operator gives."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import NoReturn

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

from fedsw._tools.installed import GIB, machine_memory
from fedsw.data.sources import load_shape, stated_shape
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.experiment.load import shipped_experiments
from fedsw.federation import messages
from fedsw.federation.client import app as client_app
from fedsw.federation.engines.inprocess import InProcessGrid
from fedsw.federation.exchange.exchange import Traffic, exchange
from fedsw.federation.messages import Broadcast, Fault, Terms
from fedsw.federation.messages.table import OutputsAsked
from fedsw.federation.node import limits
from fedsw.federation.node import replies as nodes
from fedsw.federation.node.limits import require_room, room_of
from fedsw.federation.node.simulated import ONE_PERSON
from fedsw.learning.models import count_parameters
from fedsw.learning.tasks import needs
from fedsw.learning.tasks.needs import model_size
from fedsw.learning.tasks.own_task import task_of
from fedsw.learning.tasks.problem import Problem
from tests.federations import numbers, small

RUN = "0123456789abcdef" * 2
OWN = {"partition-id": 0, "num-partitions": 2, "own-data": 1, "trust": "any"}
MLP = "model.kind=mlp"
LOCAL = ("privacy.trust=local-gradient", "privacy.epsilon=2.0", "privacy.delta=1e-4")
IMAGES = {
    "name": "a",
    "data": {"source": "digits"},
    "objective": {"task": "synthesis", "penalty": "distribution-matching", "alpha": 1.0},
    "model": {"kind": "image-generator"},
    "privacy": {"trust": "sketch", "epsilon": 1.0},
}
RING = {
    "name": "a",
    "data": {"source": "ring"},
    "objective": {"task": "generation", "penalty": "distribution-matching", "alpha": 1.0},
    "model": {"kind": "generator", "hidden": [8]},
}


def greeted(experiment: Experiment, state, config=OWN, run: str = RUN, written: str | None = None) -> str:
    """Why a node refuses a greeting."""
    grid = InProcessGrid(client_app, [{**config, "state-dir": str(state)}])
    content = {"experiment": experiment.model_dump_json() if written is None else written, "run": run}
    try:
        (node,) = grid.get_node_ids()
        requests = {node: RecordDict({"config": ConfigRecord(content)})}
        reply = exchange(grid, messages.HELLO.kind, requests, group="g", timeout=30.0, traffic=Traffic())[node]
    finally:
        grid.close()
    assert isinstance(reply, Fault), "it took part"
    return reply.reason


def never(what: str) -> Callable[..., NoReturn]:
    """A function that clients do not call: its fault is one that they answer with, so that nobody waits for them."""

    def called(*arguments: object) -> NoReturn:
        raise AssertionError(what)

    return called


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ((MLP, "model.hidden=[30000,30000]"), "model.hidden is [30000, 30000]"),
        ((MLP, "model.hidden=[1000000000000,1000000000000]"), "model.hidden is [1000000000000, 1000000000000]"),
        ((*LOCAL, "local.bins=9000000000"), "local.bins is 9000000000"),
        (("data.records=1000000000",), "data.records is 1000000000"),
        (("data.test_records=1000000000",), "data.test_records is 1000000000"),
        (("data.core_features=1000000000",), "data.records is 600"),
        (("training.rounds=10000000000",), "training.rounds is 10000000000"),
        ((MLP, "model.hidden=[3000,3000]", "training.rounds=200000000"), "model.hidden is [3000, 3000]"),
    ],
)
def test_a_small_greeting_never_makes_a_client_build_what_it_has_no_room_for(tmp_path, monkeypatch, settings, setting):
    """Refused by an estimate: nothing is built, and no file is opened."""
    monkeypatch.setattr(nodes, "held_records", never("records were read"))
    monkeypatch.setattr(Problem, "from_json", never("a network was made"))
    reason = greeted(small(*settings), tmp_path, {**OWN, "max-memory": "4", "max-seconds": "100000"})
    assert setting in reason and ("raises max-memory" in reason or "raises max-seconds" in reason)


@pytest.mark.parametrize(
    ("raw", "settings", "setting"),
    [
        (RING, ("model.kind=dcgan", "model.hidden=[60000,60000]", "data.source=digits"), "model.hidden"),
        (RING, ("slicing.directions=1000000000",), "slicing.directions is 1000000000"),
        (RING, ("model.latent=1000000000",), "model.latent is 1000000000"),
        (RING, ("data.source=mnist", "data.half=true", "data.encoded=8", "data.encoder_epochs=90000000"), "encoder_"),
        (IMAGES, ("sketch.pairs=100000000",), "sketch.pairs is 100000000"),
        (IMAGES, ("sketch.kind=cramer", "sketch.directions=100000000"), "sketch.directions is 100000000"),
        (IMAGES, ("sketch.map=convolutions", "sketch.kernel=100001"), "sketch.filters is 16"),
        (IMAGES, ("sketch.map=convolutions", "sketch.filters=100000000"), "sketch.pairs is 600"),
        (
            IMAGES,
            ("sketch.pairs=2000", "sketch.map=scattering", "sketch.orientations=180", "sketch.order=2"),
            "sketch.pairs",
        ),
        (IMAGES, ("sketch.kind=cramer", "sketch.harmonics=8000000"), "sketch.harmonics is 8000000"),
    ],
)
def test_every_kind_of_model_and_sketch_has_an_estimate(raw, settings, setting):
    asked = parse_experiment(raw, settings)
    with pytest.raises(ExperimentError, match=f"{setting.replace('[', '.')}.*this client gives less"):
        require_room(asked, {**OWN, "max-memory": "4"})


SCATTERING = ("sketch.map=scattering", "sketch.scales=3")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("sketch.orientations=30000", *SCATTERING), "sketch.orientations: Input should be less than or equal to 180"),
        (("sketch.scales=100", "sketch.map=scattering"), "sketch.scales: Input should be less than or equal to 32"),
        (("sketch.bandwidths=[" + "1.0," * 65 + "]",), "sketch.bandwidths: 65 bandwidths are given; there are at most"),
        (("sketch.also=[" + "{pairs=4}," * 65 + "]",), "sketch.also: 65 parts are given; there are at most 64"),
        (("model.hidden=[" + "1," * 101 + "]",), "model.hidden: 101 layers are given; there are at most 100"),
        (("federation.threads=200000",), "federation.threads: Input should be less than or equal to 1024"),
        (("federation.threads=100000000000",), "federation.threads: Input should be less than or equal to 1024"),
    ],
)
def test_numbers_of_parts_and_threads_have_a_limit_that_is_said(settings, said):
    """No estimate holds what is made one by one: a greeting of 2 kB took a client 3.9 GiB, and another its process."""
    with pytest.raises(ExperimentError) as refused:
        parse_experiment(IMAGES, settings)
    assert said in str(refused.value)
    parse_experiment(IMAGES, (*SCATTERING, "sketch.orientations=180", "sketch.bandwidths=[" + "1.0," * 64 + "]"))
    small(MLP, "model.hidden=[" + "1," * 100 + "]", "federation.threads=1024")


@pytest.mark.parametrize(
    ("settings", "more", "least"),
    [
        ((*SCATTERING, "sketch.orientations=90", "sketch.pairs=4"), "sketch.orientations=180", 40 * 540 * 256),
        ((*SCATTERING, "sketch.orientations=8", "sketch.order=2"), "sketch.orientations=16", 40 * 48 * 256),
        (("sketch.pairs=20000",), "sketch.pairs=40000", 8 * 64 * 40_000),
        (("sketch.kind=cramer", "sketch.harmonics=1000"), "sketch.harmonics=2000", 8 * 64 * 40_000),
    ],
)
def test_a_sketch_is_estimated_by_what_making_it_takes(settings, more, least):
    """Memory is that of the bank and the frequencies; the time grows with what there is to make, and is never long."""

    def estimated(*asked: str) -> tuple[float, float]:
        experiment = parse_experiment(IMAGES, asked)
        parts = needs.parts_of(experiment, task_of(experiment), stated_shape(experiment.record_source))
        own = [part for part in parts if part.setting.startswith("sketch.")]
        return sum(part.bytes for part in own), sum(part.seconds for part in own)

    (few, quick), (many, slow) = estimated(*settings), estimated(*settings, more)
    assert many >= least and many > 1.5 * few
    assert 0 < 1.2 * quick < slow < 2.0


@pytest.mark.parametrize("settings", [("sketch.pairs=400000",), (*SCATTERING, "sketch.orientations=180")])
def test_the_time_that_public_maps_and_frequencies_take_is_limited(settings):
    asked = parse_experiment(IMAGES, ("sketch.pairs=4", *settings))
    with pytest.raises(ExperimentError, match=r"^sketch\.\w+ is .*this client gives less"):
        require_room(asked, {**OWN, "max-seconds": "0.01"})


def test_drawing_directions_anew_every_round_takes_time():
    asked = small(MLP, "objective.task=regression", "slicing.directions=100000", "training.rounds=100000")
    assert _slicing(asked).seconds > 300 > 30 > _slicing(small("slicing.directions=50")).seconds


def _slicing(asked: Experiment) -> needs.SettingCost:
    parts = needs.parts_of(asked, task_of(asked), stated_shape(asked.record_source))
    return next(part for part in parts if part.setting == "slicing.directions")


def test_a_client_computes_with_no_more_threads_than_it_has_cores(tmp_path, monkeypatch):
    """torch ends the process where it is given more threads than a machine can start."""
    given: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    asked = small("federation.threads=1000")
    monkeypatch.setattr(nodes, "held_records", never("this far"))
    greeted(asked, tmp_path)
    assert given[0] == min(1000, os.cpu_count() or 1) == asked.federation.cores < 1000


def test_the_estimate_of_a_deep_network_keeps_nothing_of_it():
    """A graph of 20 000 layers ended the process when it was freed; nothing is kept to be differentiated."""
    asked = small(MLP, "model.hidden=[" + "1," * 100 + "]")
    seen: list[bool] = []
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *given: seen.append(torch.is_grad_enabled()))
    try:
        model_size.cache_clear()
        require_room(asked, OWN)
    finally:
        hook.remove()
    assert seen and not any(seen)


def test_a_setting_that_this_machine_has_no_room_for_is_refused_to_its_own_operator_too():
    for settings, setting in (
        ((MLP, "model.hidden=[1000000,1000000]"), "model.hidden"),
        (("federation.clients=1000000000000",), "federation.clients"),
        (("federation.clients=1000000000000", "federation.sites=1000000000000"), "federation.sites"),
        (("training.rounds=1000000000000000",), "training.rounds"),
    ):
        with pytest.raises(ExperimentError, match=rf"^{setting} is .*this machine.*Lower {setting}"):
            Problem.from_experiment(small(*settings))


def test_without_limits_a_client_gives_half_of_its_machine_and_a_day_and_a_simulation_all_of_it(monkeypatch):
    monkeypatch.setenv(ONE_PERSON, "1")
    simulated = {"partition-id": 0, "num-partitions": 2}
    assert room_of(OWN) == (machine_memory() / 2, 86_400.0)
    assert room_of(simulated)[0] == room_of({**OWN, "modules": "*"})[0] == machine_memory()
    assert room_of({**OWN, "max-memory": "1.5", "max-seconds": "60"}) == (1.5 * GIB, 60.0)
    for wrong in ("0", "-1", "inf", "nan"):
        with pytest.raises(ExperimentError, match="this node's max-memory is .*; it must be positive and finite"):
            room_of({"max-memory": wrong})


def test_batches_count_once_the_records_are_known(tmp_path, monkeypatch):
    """One record fits, and a batch of a thousand does not."""
    asked = small(MLP, "model.hidden=[2000]", "data.records=40000", "training.batch_fraction=1.0")
    require_room(asked, {**OWN, "max-memory": "0.02"})
    assert "training.batch_fraction is 1.0" in greeted(asked, tmp_path, {**OWN, "max-memory": "0.02"})


@pytest.mark.parametrize("limit", [{}, {"max-memory": "0.5"}, {"max-seconds": "0.001"}])
def test_no_refusal_tells_a_server_how_much_a_client_has(tmp_path, caplog, limit):
    reason = greeted(small(MLP, "model.hidden=[30000,30000]"), tmp_path, {**OWN, **limit})
    assert "and this client gives less" in reason and reason.count("GiB") <= 1, "what the run takes, alone"
    assert "this client gives a run" in caplog.text


def test_estimates_are_below_what_a_shipped_experiment_may_take():
    """An ordinary experiment is refused by nobody: each within a fifth of what a small machine has."""
    for experiment in shipped_experiments():
        require_room(experiment, {**OWN, "max-memory": "2"})


def test_a_model_is_counted_as_it_is_built():
    for settings in ((), (MLP, "model.hidden=[7,5]"), ("objective.task=regression", MLP, "model.hidden=[4]")):
        problem = Problem.from_experiment(small(*settings))
        found = model_size(problem.experiment, task_of(problem.experiment), problem.shape)
        assert found.parameters == count_parameters(problem.build_model())
        assert found.flops >= 2 * sum(p.numel() for p in problem.build_model().parameters() if p.dim() == 2)


def test_shapes_are_known_without_a_file():
    """Of the sources that need none here; the others are compared where their files are."""
    seen = set()
    for experiment in shipped_experiments():
        source = (experiment.data.source, experiment.objective.task, experiment.data.target)
        if source[0] in ("synthetic", "ring", "gaussians", "digits") and source not in seen:
            seen.add(source)
            stated, found = (stated_shape(experiment.record_source), load_shape(experiment.record_source))
            assert (stated.features, stated.classes, stated.targets) == (found.features, found.classes, found.targets)
            assert len(stated.groups) == len(found.groups)
    assert len(seen) > 5


def test_filler_is_no_longer_than_what_a_client_holds(tmp_path):
    """Rows that outputs are filled up to: a number of a few digits is no order for gigabytes."""
    grid = InProcessGrid(client_app, [{"partition-id": 0, "num-partitions": 2, "state-dir": str(tmp_path)}])
    experiment = small("federation.clients=2")

    def ask(kind: str, content: dict) -> RecordDict | Fault:
        return exchange(grid, kind, {node: RecordDict(content)}, group="g", timeout=30.0, traffic=Traffic())[node]

    try:
        (node,) = grid.get_node_ids()
        greeting = ConfigRecord({"experiment": experiment.model_dump_json(), "run": RUN})
        joined = ask(messages.HELLO.kind, {"config": greeting})
        held = int(numbers(joined["arrays"]["sizes"]).sum())
        for rows, refused in ((held + 1, True), (2**40, True), (held, False)):
            answer = ask(messages.OUTPUTS.kind, _outputs_asked(experiment, rows))
            assert isinstance(answer, Fault) == refused, rows
            assert not refused or f"filled up to {rows} rows were asked for" in answer.reason
    finally:
        grid.close()


def _outputs_asked(experiment: Experiment, rows: int) -> RecordDict:
    problem = Problem.from_experiment(experiment)
    terms = Terms.of(problem, S=1)
    asked = OutputsAsked(Broadcast.of(torch.zeros(problem.parameters), terms), 1, 0, torch.tensor([[2, 2]]), rows)
    return messages.encode(asked, terms)


def test_the_limit_of_a_day_is_about_computing_and_infinite_needs_are_refused():
    assert limits.room_of({"max-seconds": "1e9"})[1] == 1e9
    part = needs.SettingCost("model.hidden", [1], math.inf)
    with pytest.raises(ExperimentError, match="more than can be counted"):
        needs.require_within([part], bytes_=1e300, seconds=1.0, holder="this client", remedy=("", ""))
