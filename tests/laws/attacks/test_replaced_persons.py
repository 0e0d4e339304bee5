"""A search over tables: other rows of one person exchange nobody else, and move one unit of what is drawn or summed.

Both tables have the same persons, each of the same group at the same client; the rows of one of them are any others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw._tools.randomness import Stream
from fedsw.data import Records, owners
from fedsw.federation.node import held_records as node_units
from fedsw.federation.node.held_records import Held, held_back
from fedsw.federation.node.node import Node
from fedsw.federation.trust.budget_shares import held_out_budget
from fedsw.federation.trust.local_slices import noised_slices as local_slices
from fedsw.federation.trust.sketch.sketch_once import SketchSum
from fedsw.federation.trust.sums_once import TallySum
from fedsw.learning.moments.beside_rounds import tally_of
from fedsw.learning.sketches.from_settings import FIRST
from fedsw.learning.sketches.noised import sketch_sensitivity
from fedsw.learning.sketches.sketch_law import STEP
from fedsw.learning.tasks.measures import law_of_problem
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.single.objective import draw_batch
from tests.federation.sketch_runs import sketched
from tests.runs.kept_runs import kept_run

KEY = bytes(range(32))
SEARCH = settings(max_examples=30)
SEEDS = st.integers(0, 2**32)


@dataclass(frozen=True)
class Site:
    """Some clients' records."""

    records: Records
    owner: np.ndarray
    clients: np.ndarray

    def where(self, rows: np.ndarray) -> Held:
        return Held(self.records.take(rows), self.owner[rows], self.clients)

    @property
    def held(self) -> Held:
        return self.where(np.ones(len(self.records), dtype=bool))


def site(rows: list[int], rng: np.random.Generator, features: np.ndarray, said: dict[int, tuple[int, int]]) -> Site:
    """A table of so many persons' rows, in that order."""
    group, owner = (np.array([said[person][which] for person in rows]) for which in (0, 1))
    records = Records(
        torch.from_numpy(features.astype(np.float32)),
        torch.from_numpy(group),
        torch.from_numpy((features[:, 0] > 0).astype(np.int64)),
        torch.arange(len(rows)),
        unit=torch.tensor(rows),
    )
    return Site(records, owner, np.arange(owner.max() + 1))


def neighbours(seed: int, *, clients: int | None = None, width: int = 2) -> tuple[Site, Site, int]:
    """Two tables that differ in all rows of one person, in what they say, how many they are and where they stand."""
    rng = np.random.default_rng(seed)
    persons = int(rng.integers(8, 40))
    names = rng.choice(2**60, persons, replace=False)
    there = int(rng.integers(1, 4)) if clients is None else clients
    said = {int(name): (place % 2, place // 2 % there) for place, name in enumerate(names)}
    rows = rng.permutation(np.repeat(names, rng.integers(1, 5, persons))).tolist()
    features = rng.normal(size=(len(rows), width))
    replaced = int(rng.choice(names))
    others = np.array([name != replaced for name in rows])
    fresh = int(rng.integers(1, 30))
    places = np.sort(rng.integers(0, others.sum() + 1, fresh) if rng.integers(2) else np.zeros(fresh, dtype=np.int64))
    now = np.insert(np.array(rows)[others], places, replaced).tolist()
    values = np.insert(features[others], places, 100 * rng.normal(size=(fresh, width)), axis=0)
    return site(rows, rng, features, said), site(now, rng, values, said), replaced


def experiment(*overrides: str):
    return kept_run(Path("nowhere"), *overrides, unit="patient")


def require_one_exchanged(one: Records, other: Records, replaced: int) -> None:
    """The same units in the same order, of all but one of them the same row."""
    assert one.unit is not None and other.unit is not None
    assert torch.equal(one.unit, other.unit) and len(one.unit.unique()) == len(one)
    differing = (one.features != other.features).any(1)
    assert bool((one.unit[differing] == replaced).all())


@SEARCH
@given(SEEDS)
def test_replacing_one_person_never_exchanges_others(seed):
    one, other, _ = neighbours(seed)
    task, kept = Problem.from_experiment(experiment()), []
    for each in (one, other):
        back = torch.from_numpy(held_back(task, each.records, each.owner, each.clients))
        kept.append(set(each.records.unit[back].tolist()))
        assert not kept[-1] & set(each.records.unit[~back].tolist())
    assert kept[0] == kept[1]


@SEARCH
@given(SEEDS)
def test_replacing_one_person_moves_the_sums_over_kept_records_by_at_most_one_bound(seed):
    one, other, replaced = neighbours(seed)
    chosen = experiment("data.held_out_fraction=0.5")
    task = Problem.from_experiment(chosen)
    nodes, found = [], []
    for each in (one, other):
        back = held_back(task, each.records, each.owner, each.clients)
        nodes.append(Node.of(task, each.where(~back), "run"))
        nodes[-1].held_out = Node.of(task, each.where(back), "run")
        theta = torch.ones(task.parameters, dtype=torch.float64)
        found.append(TallySum(task, theta).steps(nodes[-1], range(len(each.clients)), Stream(KEY)))
    moved = float(torch.linalg.vector_norm((found[0] - found[1]).double())) * STEP
    assert moved <= held_out_budget(chosen, tally_of(task), 1.0, 1e-5).sensitivity.value
    require_one_exchanged(*(node.held_out.everybody(Stream(KEY)) for node in nodes), replaced)
    require_one_exchanged(*(node.draw(KEY, node.held) for node in nodes), replaced)


@pytest.mark.parametrize("more", [(), ("seed=5",)], ids=["secret", "seeded"])
@SEARCH
@given(SEEDS)
def test_replacing_one_person_changes_one_row_of_a_batch(more, seed):
    one, other, replaced = neighbours(seed)
    task = Problem.from_experiment(experiment(*more))
    nodes = [Node.of(task, each.held, "run") for each in (one, other)]
    assert np.array_equal(nodes[0].held, nodes[1].held)
    assert all(np.array_equal(*pair) for pair in zip(nodes[0].ids, nodes[1].ids, strict=True))
    require_one_exchanged(*(node.draw(KEY, (node.held + 1) // 2) for node in nodes), replaced)
    alone = [node.alone(len(node.clients) - 1) for node in nodes]
    require_one_exchanged(*(node.draw(KEY, (node.held + 1) // 2) for node in alone), replaced)
    if more:
        plan = SimpleNamespace(rate=0.5)
        require_one_exchanged(*(local_slices._shuffled_batch(node, plan, 1, 0) for node in alone), replaced)


@pytest.mark.parametrize("scheme", ["iid", "group", "dirichlet"])
@SEARCH
@given(SEEDS)
def test_replacing_one_person_deals_nobody_else_to_another_client(scheme, seed):
    one, other, _ = neighbours(seed)
    dealt = [
        dict(zip(each.records.unit.tolist(), owners(each.records, 4, scheme, seed=seed).tolist(), strict=True))
        for each in (one, other)
    ]
    assert dealt[0] == dealt[1]


@pytest.mark.parametrize("run_seed", [None, 5], ids=["secret", "seeded"])
def test_replacing_one_person_changes_one_row_of_a_batch_on_one_machine(run_seed, monkeypatch):
    monkeypatch.setattr("fedsw.runs.single.objective.os.urandom", lambda count: KEY[:count])
    for seed in range(30):
        one, other, replaced = neighbours(seed)
        drawn = []
        for each in (one, other):
            task = Problem.from_experiment(experiment())
            cells = node_units.cells_of_units(task, each.records)
            sizes = [(len(cell) + 1) // 2 for cell in cells]
            drawn.append(draw_batch(each.records, cells, sizes, seed=run_seed, round_=1, attempt=0).records)
        require_one_exchanged(*drawn, replaced)


@SEARCH
@given(SEEDS)
def test_replacing_one_person_moves_a_sketch_by_at_most_one_bound(seed):
    chosen = sketched("federation.clients=1")
    task = Problem.from_experiment(chosen)
    one, other, _ = neighbours(seed, clients=1, width=task.features)
    found = [SketchSum(task, FIRST).steps(Node.of(task, each.held, "run"), [0], Stream(KEY)) for each in (one, other)]
    moved = float(torch.linalg.vector_norm((found[0] - found[1]).double())) * STEP
    assert moved <= sketch_sensitivity(law_of_problem(task)).value


@SEARCH
@given(SEEDS)
def test_another_identifier_exchanges_at_most_one_other_in_each_part(seed):
    one, _, replaced = neighbours(seed, clients=1)
    task = Problem.from_experiment(experiment("data.held_out_fraction=0.4"))
    parts = []
    for unit in (one.records.unit, torch.where(one.records.unit == replaced, seed + 1, one.records.unit)):
        back = torch.from_numpy(held_back(task, replace(one.records, unit=unit), one.owner, one.clients))
        parts.append([set(unit[back].tolist()), set(unit[~back].tolist())])
    assert all(len(before - after) == len(after - before) <= 1 for before, after in zip(*parts, strict=True))


def test_of_two_persons_whose_hashes_are_equal_the_smaller_identifier_is_kept_out(monkeypatch):
    monkeypatch.setattr(Stream, "words_of", lambda stream, numbers: np.zeros(len(numbers), dtype=np.uint64))
    task = Problem.from_experiment(experiment("data.held_out_fraction=0.5"))
    for seed in range(20):
        for each in neighbours(seed, clients=1)[:2]:
            back = torch.from_numpy(held_back(task, each.records, each.owner, each.clients))
            for group in range(2):
                own = each.records.unit[each.records.sensitive == group].unique()
                kept = each.records.unit[back & (each.records.sensitive == group)].unique()
                assert kept.tolist() == own[: len(own) // 2].tolist()


def test_who_is_kept_out_follows_the_seed_the_client_and_the_stratum():
    one, _, _ = neighbours(3, clients=1)
    records = replace(one.records, unit=torch.arange(len(one.records)))
    found = []
    for clients, changes in ((0, ()), (1, ()), (0, ("data.seed=1",))):
        task = Problem.from_experiment(experiment("data.held_out_fraction=0.5", *changes))
        found.append(tuple(held_back(task, records, one.owner, np.array([clients]))))
    assert len(set(found)) == 3
    apart = held_back(task, replace(records, sensitive=1 - records.sensitive), one.owner, np.array([0]))
    assert tuple(apart) != found[2]
