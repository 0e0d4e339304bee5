"""Laws of substitution: records of the same ids and groups are exchanged, in this process, for a while."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedsw.data import Records
from fedsw.federation.node.held_records import held_records
from fedsw.federation.node.simulated import exchanged, substituted, with_substitutes
from fedsw.learning.tasks.problem import Problem
from tests.federations import small

CONFIG = {"partition-id": 1, "num-partitions": 3}


def changed(records: Records, rows: list[int]) -> Records:
    part = records.take(rows)
    return replace(part, features=part.features + 1.0, target=1 - part.target)


def test_a_node_loads_the_substitutes_in_place_of_their_records_and_the_rest_as_they_were() -> None:
    task = Problem.from_experiment(small())
    own = held_records(task, CONFIG).records
    other = changed(own, [11, 3, 70])
    with substituted(other):
        found = held_records(task, CONFIG).records
    assert torch.equal(found.ids, own.ids) and torch.equal(found.sensitive, own.sensitive)
    assert torch.equal(found.features[[11, 3, 70]], other.features)
    assert torch.equal(found.target[[11, 3, 70]], other.target)
    rest = torch.ones(len(own), dtype=torch.bool)
    rest[[11, 3, 70]] = False
    assert torch.equal(found.features[rest], own.features[rest]) and torch.equal(found.target[rest], own.target[rest])
    assert torch.equal(held_records(task, CONFIG).records.features, own.features)
    assert with_substitutes(own) is own


def test_records_that_a_node_does_not_hold_change_nothing() -> None:
    task = Problem.from_experiment(small())
    own, elsewhere = held_records(task, CONFIG).records, held_records(task, {**CONFIG, "partition-id": 0}).records
    found = exchanged(own, changed(elsewhere, [0, 1]))
    assert torch.equal(found.features, own.features) and torch.equal(found.target, own.target)


def test_a_substitute_of_another_group_is_refused() -> None:
    own = held_records(Problem.from_experiment(small()), CONFIG).records
    part = own.take([5])
    with pytest.raises(ValueError, match="another group"):
        exchanged(own, replace(part, sensitive=1 - part.sensitive))


def test_one_substitution_at_a_time_and_none_after_an_error() -> None:
    own = held_records(Problem.from_experiment(small()), CONFIG).records
    with substituted(own.take([0])), pytest.raises(RuntimeError, match="already"), substituted(own.take([1])):
        pass
    assert with_substitutes(own) is own
