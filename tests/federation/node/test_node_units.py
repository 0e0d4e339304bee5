"""Laws of a node with units: persons are drawn, not rows, and whatever leaves holds one row of each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsw._tools.randomness import Stream
from fedsw.data import BadRecords
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.federation.node import replies as nodes
from fedsw.federation.node.held_records import Held, held_records, require_units
from fedsw.federation.node.node import Node
from fedsw.federation.trust.distributed.members import Cohort
from fedsw.federation.trust.distributed.once import agreed_sum, bounded_of
from fedsw.federation.trust.distributed.site import Answering
from fedsw.federation.trust.local_slices import noised_slices as local_slices
from fedsw.federation.trust.sketch import sketch_once as sketch
from fedsw.learning.sketches.from_settings import FIRST
from fedsw.learning.tasks.problem import Problem
from tests.federation.node import releases
from tests.federation.sketch_runs import sketched
from tests.federation.test_local_slices import RELEASE, SLICES
from tests.federations import small

CONFIG = {"partition-id": 0, "num-partitions": 1}


def node_of(experiment: Experiment, persons: int) -> Node:
    """A site whose clients have so many persons of each group; the first has most rows, the others one."""
    nodes._nodes.clear()
    task = Problem.from_experiment(experiment)
    held = held_records(task, CONFIG)
    strata = held.records.sensitive * len(held.clients) + torch.from_numpy(held.owner)
    units = strata * persons
    for stratum in strata.unique():
        rows = (strata == stratum).nonzero()[:, 0]
        units[rows[1:persons]] += torch.arange(1, persons)
    return Node.of(task, Held(replace(held.records, unit=units), held.owner, held.clients), "run")


ONE = ("federation.clients=1", "data.records=240")


@pytest.mark.parametrize("seed", [(), ("seed=4",)], ids=["secret", "seeded"])
def test_a_person_with_most_rows_is_drawn_no_more_often_than_others(seed):
    node, keys = node_of(small(*ONE, *seed), 8), 1500
    assert node.sizes == [8, 8] and np.diff(node.units.starts).max() > 90
    met = np.zeros(16)
    for key in range(keys):
        units = node.draw(Stream.seeded(key).words(4).tobytes(), [2, 6]).unit
        assert len(set(units.tolist())) == 8
        met[units] += 1
    rates = np.repeat([2 / 8, 6 / 8], 8)
    assert np.abs(met - keys * rates).max() < 5 * np.sqrt(keys * 0.25)


def test_the_rows_of_a_batch_are_drawn_anew_and_are_the_same_for_the_same_key():
    node = node_of(small(*ONE), 2)
    keys = [Stream.seeded(key).words(4).tobytes() for key in range(30)]
    batches = [node.draw(key, node.sizes).ids.tolist() for key in keys]
    assert len({tuple(batch) for batch in batches}) > 25
    assert batches[3] == node.draw(keys[3], node.sizes).ids.tolist()


def test_delta_and_sizes_are_those_of_persons_at_every_client_of_a_site():
    node = node_of(small("federation.clients=3", "data.records=240", "privacy.delta='1/n^2'"), 4)
    assert node.held.tolist() == [[4, 4]] * 3 and node.delta(0) == 24.0**-2
    for place in range(3):
        alone = node.alone(place)
        assert alone.sizes == [4, 4]
        rows = node.units.all_rows(node.units_of(place))
        assert sorted(alone.records.ids.tolist()) == sorted(node.records.ids[rows].tolist())
    assert sum(len(node.alone(place).records) for place in range(3)) == 240


def test_one_person_in_two_strata_is_refused_where_classes_are_strata_and_only_there():
    parity, odds = small(*ONE), small(*ONE, "objective.penalty=equality-of-odds")
    assert node_of(parity, 8).sizes == [8, 8]
    with pytest.raises(BadRecords, match="are of one unit and differ in group or class"):
        node_of(odds, 8)


def test_records_that_do_not_say_whose_they_are_do_not_join_a_run_of_units():
    columns = {"features": [{"name": "age"}], "sensitive": {"name": "sex", "values": ["f", "m"]}, "unit": "patient"}
    columns["target"] = {"name": "income", "values": ["low", "high"]}
    asked = parse_experiment({"name": "own", "data": {"source": "files", "columns": columns}})
    node = node_of(small(*ONE), 8)
    require_units(asked, node.records)
    with pytest.raises(ExperimentError, match="read without it"):
        require_units(asked, replace(node.records, unit=None))


def spied(monkeypatch, module, name: str) -> list[torch.Tensor]:
    """The features (n, p) that a method is about to privatise."""
    seen, genuine = [], getattr(module, name)
    monkeypatch.setattr(module, name, lambda *given, **more: (seen.append(given), genuine(*given, **more))[1])
    return seen


@pytest.mark.parametrize("more", [(), ("seed=5",)], ids=["secret", "seeded"])
def test_records_that_are_released_once_are_one_row_of_each_person(tmp_path, more):
    node = node_of(parse_experiment(RELEASE, ("federation.clients=1", *more)), 9)
    released = releases.records(node, tmp_path / "client-0.sqlite", 0, 0, 9)
    assert len(released.released) == 9 < len(node.records)


def test_slices_are_of_one_row_of_each_drawn_person(tmp_path, monkeypatch):
    seen = spied(monkeypatch, local_slices, "_features")
    node = node_of(parse_experiment(SLICES, ("federation.clients=1", "training.batch_fraction=0.5")), 10)
    slices = releases.slices(node, tmp_path / "client-0.sqlite", torch.zeros(0), 1, 0, 10)
    drawn = seen[0][2]
    assert slices.projections.shape[0] == len(drawn) == len(set(drawn.unit.tolist())) == 5


def test_a_sketch_is_of_one_row_of_each_person(tmp_path, monkeypatch):
    seen = spied(monkeypatch, sketch, "sketch_of_records")
    node = node_of(sketched("federation.clients=2"), 6)
    persons = len(node.units)
    total = sketch.SketchSum(node.task, FIRST)
    for asked, expected in (([0, 1], persons), ([1], len(node.units_of(1))), ([], None)):
        total.steps(node, asked, Stream(bytes(32)))
        if expected is not None:
            drawn = seen[-1][1]
            assert len(drawn) == expected == len(set(drawn.unit.tolist()))
    assert len(seen) == 2
    alone = node_of(sketched("federation.clients=1", "privacy.trust=sketch-local"), 6)
    releases.summed(sketch.SketchSum(alone.task, FIRST), alone, tmp_path / "client-0.sqlite", 1, 0, 12)
    assert len(seen[-1][1]) == len(alone.units) == len(set(seen[-1][1].unit.tolist()))


@pytest.mark.parametrize("asked", [[0, 1], [1], [0, 1, 2]])
def test_a_masked_sum_of_a_sketch_is_of_one_row_of_each_person(monkeypatch, asked):
    seen = spied(monkeypatch, sketch, "sketch_of_records")
    node = node_of(sketched("federation.clients=3", "privacy.trust=distributed"), 6)
    party = {"site": 0, "key": "0" * 64, "nonce": "0" * 64, "clients": asked, "sizes": [[6]] * len(asked)}
    cohort = Cohort.model_validate({"records": 18, "parties": [party]})
    total = sketch.SketchSum(node.task, FIRST)
    here = Answering(node, None, cohort, agreed_sum(total, cohort), 0, [])
    draws = []
    for attempt in (0, 1):
        bounded_of(total, here, 1, attempt)
        drawn = seen[-1][1]
        persons = sum(len(node.units_of(place)) for place in asked)
        assert len(drawn) == persons == len(set(drawn.unit.tolist())) < len(node.records) / 3
        draws.append(drawn.ids.tolist())
    assert draws[0] != draws[1], "every attempt draws its rows anew"
