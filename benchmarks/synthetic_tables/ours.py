"""Tables learnt from noised sketches, with the settings of `fedsw synthesize`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.synthetic_tables.sets import Table
from fedsw.data import Records
from fedsw.data.codes import codes_of, one_hot, records_of_table
from fedsw.data.columns.declaration import ranges
from fedsw.desk.own_data.synthetic_table import STEPS
from fedsw.learning.models.labelled import TableGenerator
from fedsw.learning.sketches.fit import FitSettings, fit_generator
from fedsw.learning.sketches.noised import NoisedSketch, pooled
from fedsw.learning.sketches.sketch_law import Law
from fedsw.learning.sketches.table_counts import Pairs
from fedsw.learning.sketches.trees import choose, next_pairs
from fedsw.learning.tasks.measures import made_table
from fedsw.privacy.accounting import Ledger
from fedsw.runs.single.sketching import plan_sketch, release_sketch


def ours(
    table: Table, chosen: Mapping[str, str], epsilon: float, delta: float, seed: int, *, clients: int
) -> tuple[Records, dict[str, Any]]:
    """Made-up records, as many as are private, and what the releases were.

    Args:
        chosen: settings of a sketch of tables: singles, balance, generator, and `later`, the second stage's share.
        clients: with noise of their own each; 1 for a server that is trusted.
    """
    sketches = sketched(table, chosen, epsilon, delta, seed, clients=clients)
    made, origin = learnt_from(sketches, table, len(table.private), seed, chosen.get("generator", "network"))
    size = sum(each.value.numel() for each in sketches) * 8
    return made, {"from": origin, "sigma": [round(each.sigma, 3) for each in sketches], "bytes": size}


def sketched(
    table: Table, chosen: Mapping[str, str], epsilon: float, delta: float, seed: int, *, clients: int
) -> list[NoisedSketch]:
    """The releases of all records, or of each client's with noise of its own, added up. Nominal: the tables are public.

    One, or, where `later` is a part of the budget, a second one of the pairs that the first one chose.
    """
    later, found, codes_at = float(chosen.get("later", 0)), list[NoisedSketch](), ranges(table.coded)
    classes = len(table.columns.classes)
    for number, share in enumerate((1 - later, later)):
        if not share:
            continue
        part = part_of(table, chosen)
        if number:
            part = replace(part, chosen=next_pairs(found, 15))
        law = Law(codes_at[-1][1], (part,), classes=classes, counts=0.01 if number else 0.1)
        sketcher, parts = law.drawn(), []
        for client in range(clients):
            own = table.private.take(torch.arange(client, len(table.private), clients))
            whole = plan_sketch(law, records=len(own), delta=delta, epsilon=epsilon)
            noise, random = whole.multiplier / share**0.5, seed * clients + client + 10_000 * number
            plan = plan_sketch(law, records=len(own), delta=delta, noise_multiplier=noise, seed=random)
            codes = one_hot(codes_of(own, table.coded), table.coded)
            with tempfile.TemporaryDirectory() as folder, Ledger.create(Path(folder) / "ledger.sqlite", plan) as ledger:
                parts.append(release_sketch(sketcher, codes, own.target, plan, ledger))
        found.append(pooled(parts))
    return found


def part_of(table: Table, chosen: Mapping[str, str]) -> Pairs:
    """What is measured, with the settings `singles` and `balance` of a sketch of tables."""
    singles, balance = chosen.get("singles", "0.2"), chosen.get("balance", "equal")
    share: float | Literal["auto"] = "auto" if singles == "auto" else float(singles)
    return Pairs(ranges(table.coded), share, "size" if balance == "size" else "equal")


def learnt_from(
    sketches: Sequence[NoisedSketch], table: Table, rows: int, seed: int, generator: str
) -> tuple[Records, dict[str, Any]]:
    """Rows learnt from the sketches, and what they were drawn from: the network, the tree, or the nearer one ("auto")."""
    wanted: Literal["auto", "network", "tree"] = "auto" if generator == "auto" else "network"
    network = TableGenerator(ranges(table.coded), len(table.columns.classes), seed=seed)
    if generator == "tree":
        wanted = "tree"
    else:
        later = [(each, each.law.drawn()) for each in sketches[1:]]
        fit_generator(sketches[0], network, FitSettings(STEPS, 500, seed, 0.005), later=later)
    chosen = choose(sketches, network, wanted=wanted, sketchers=[None] * len(sketches))
    described = {"kind": chosen.kind, **{kind: round(each, 8) for kind, each in chosen.distances.items()}}
    cells = made_table(network, table.columns, table.coded, rows, seed=seed)
    return records_of_table(cells, table.columns), described
