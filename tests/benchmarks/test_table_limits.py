"""Triples of a trial: how far a record moves them, and what their distance and choice read."""

from __future__ import annotations

import itertools
import math
from typing import Any, cast

import pytest
import torch

from benchmarks.synthetic_tables import limits
from benchmarks.synthetic_tables.sets import Table
from fedsw.data.codes import records_of_table
from fedsw.data.columns.declaration import Columns, coded_columns, ranges
from fedsw.learning.models.table_generator import TableGenerator

SIZES = {"a": 3, "b": 2, "c": 4, "d": 2}
EVERY = list(itertools.combinations(range(4), 3))


def table(rows: list[tuple[int, ...]]) -> Table:
    """Four columns and a class of two, of these codes, the class last."""
    features: list[dict[str, Any]] = [
        {"name": name, "categories": [f"{name}{k}" for k in range(size)]} for name, size in SIZES.items()
    ]
    columns = Columns.model_validate({"features": features, "target": {"name": "y", "values": ["no", "yes"]}})
    cells = {name: [f"{name}{row[k]}" for row in rows] for k, name in enumerate(SIZES)}
    made = records_of_table({**cells, "y": [("no", "yes")[row[-1]] for row in rows]}, columns)
    return Table(columns, coded_columns(columns, bins=4, group_in_cell=False), made, made)


def network(of: Table) -> TableGenerator:
    found = TableGenerator(ranges(of.coded), 2, latent=3, hidden=(4,))
    found.proportions.copy_(torch.tensor([0.5, 0.5]))
    return found


def numbers(rows: list[tuple[int, ...]]) -> torch.Tensor:
    """All weighted counts, side by side."""
    of = table(rows)
    measured = limits.Triples.of(of, network(of), EVERY, 0.0, 0).measured
    return torch.cat([counts.flatten() * len(rows) for _, _, counts in measured])


@pytest.mark.parametrize("last", [(0, 0, 0, 0, 0), (1, 1, 1, 1, 1), (0, 0, 0, 0, 1), (2, 1, 3, 1, 0)])
def test_a_replaced_record_moves_all_triples_by_the_root_of_two_at_most(last: tuple[int, ...]) -> None:
    others = [(0, 1, 2, 1, 0), (1, 0, 3, 0, 1)]
    moved = [
        float((numbers([*others, last]) - numbers([*others, (*other, y)])).norm())
        for other in ((0, 0, 0, 0), (2, 1, 3, 1), (0, 0, 1, 1))
        for y in (0, 1)
    ]
    assert max(moved) == pytest.approx(math.sqrt(2), abs=1e-9)


def test_rows_that_are_the_records_are_at_no_distance_and_noise_is_taken_off() -> None:
    rows = [(0, 1, 2, 1, 0), (1, 0, 3, 0, 0), (2, 0, 0, 1, 1), (0, 1, 1, 1, 1)]
    of = table(rows)
    codes = torch.stack([of.codes(of.private)[:2, :-1], of.codes(of.private)[2:, :-1]])
    chances = torch.cat(
        [torch.nn.functional.one_hot(codes[..., k], size).double() for k, size in enumerate(of.sizes[:-1])], dim=-1
    )
    made = network(of)
    assert float(limits.Triples.of(of, made, EVERY, 0.0, 0).distance(chances)) == pytest.approx(0.0, abs=1e-12)
    distances = [float(limits.Triples.of(of, made, EVERY, 0.5, seed).distance(chances)) for seed in range(200)]
    noise = limits.Triples.of(of, made, EVERY, 0.5, 0).noise
    assert abs(sum(distances) / 200) < 0.05 * noise


def test_triples_that_tell_of_the_label_come_first_and_rows_alone_are_read() -> None:
    of = table([(0, 0, 0, 0, 0), (1, 1, 1, 1, 1)])
    made = network(of)
    chances = torch.cat([torch.full((2, 500, size), 1 / size) for size in SIZES.values()], dim=-1)
    chances[0, :, -2:], chances[1, :, -2:] = torch.tensor([0.9, 0.1]), torch.tensor([0.1, 0.9])
    made.take(chances)
    unread = Table(of.columns, of.coded, cast(Any, None), cast(Any, None))
    assert {3 in triple for triple in limits.next_triples(made, unread)[:3]} == {True}
