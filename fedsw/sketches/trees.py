"""A tree of pairs of columns, chosen from noised tables, and whether it or the network is nearer to the sketch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedsw.models.labelled import generate, proportions_of
from fedsw.models.tables import NONE, TableGenerator
from fedsw.randomness import Stream
from fedsw.sketches.consistent import Tables, consistent, with_margins
from fedsw.sketches.fit import sketch_distance
from fedsw.sketches.law import Sketcher
from fedsw.sketches.noised import NoisedSketch
from fedsw.sketches.tables import Pair

_DRAWS = 2
"""Tables of independent columns with fresh noise, by which mutual informations are corrected."""
_JUDGED = 20_000

Kind = Literal["network", "tree"]


@dataclass(frozen=True)
class Chosen:
    """What rows are drawn from.

    Attributes:
        kind: the network of chances, or the tree.
        distances: squared distances to the sketch, noise taken off, by kind.
        edges: of the tree, (parent, column).
    """

    kind: Kind
    distances: dict[str, float]
    edges: tuple[Pair, ...]


def choose(
    sketches: Sequence[NoisedSketch],
    network: TableGenerator,
    *,
    wanted: Kind | Literal["auto"] = "auto",
    sketchers: Sequence[Sketcher | None] = (None,),
    proportions: Tensor | None = None,
) -> Chosen:
    """Fit a tree to sketches of tables, and let rows be drawn from it where it is nearer to them than the network.

    Guarantee: post-processing; the choice reads the released sketch and generated rows, no record.

    Args:
        sketches: whose only part is `Pairs`, of each stage.
        network: trained on them; changed in place where the tree is chosen.
        wanted: one of them whatever their distances are, or "auto".
        sketchers: the sketches' laws, drawn, where they are there already.
        proportions: (cells,), of what is generated, in place of those of the tables.
    """
    trained = network.proportions.clone()
    distances = {"network": _distance(sketches, network, sketchers)}
    tables = consistent(*sketches)
    parents, order = spanning_tree(informations(tables), len(tables.singles))
    network.follow(parents, order, [_given(tables, column, parent) for column, parent in enumerate(parents)])
    network.proportions.copy_(tables.proportions if proportions is None else proportions)
    distances["tree"] = _distance(sketches, network, sketchers)
    nearer: Kind = "tree" if distances["tree"] < distances["network"] else "network"
    kind = nearer if wanted == "auto" else wanted
    if kind == "network":
        network.drawn.fill_(False)
        network.proportions.copy_(trained)
    edges = tuple((parents[column], column) for column in order if parents[column] != NONE)
    return Chosen(kind, distances, edges)


def next_pairs(sketches: Sequence[NoisedSketch], count: int) -> tuple[Pair, ...]:
    """Which pairs of columns a later stage measures: those of the tree, then those that tell most of each other.

    Guarantee: post-processing of the sketches (cells, F + 1) that were released.
    """
    tables = consistent(*sketches)
    information = informations(tables)
    parents, _ = spanning_tree(information, len(tables.singles))
    edges = {(min(edge), max(edge)) for edge in enumerate(parents) if NONE not in edge}
    ranked = sorted(information, key=lambda pair: (pair not in edges, -information[pair]))
    return tuple(sorted(ranked[:count]))


def informations(tables: Tables) -> dict[Pair, float]:
    """The mutual information of every two columns within cells, in nats, less what noise alone would make of it.

    Independent columns with the same margins get noise of the same size and are made to agree in the same way; their
    mean information is taken off. It may be negative.
    """
    stream, corrected = Stream.seeded(0, "noise of independent columns"), {}
    cells = tables.proportions.clamp(min=torch.finfo(torch.float64).tiny)[:, None, None]
    for (i, j), table in tables.pairs.items():
        rows, columns = tables.singles[i], tables.singles[j]
        apart = rows.unsqueeze(2) * columns.unsqueeze(1) / cells
        chance = 0.0
        for _ in range(_DRAWS):
            noise = torch.from_numpy(stream.normals(apart.numel())).reshape(apart.shape)
            chance += _information(with_margins(apart + tables.deviations[i, j] * noise, rows, columns)) / _DRAWS
        corrected[i, j] = _information(table) - chance
    return corrected


def spanning_tree(weights: dict[Pair, float], columns: int) -> tuple[list[int], list[int]]:
    """The parents and the order of the trees of the largest weight; edges without a positive weight are none.

    Source: Chow, Liu 1968.
    """
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

    matrix = np.zeros((columns, columns))
    for (i, j), weight in weights.items():
        matrix[i, j] = -max(0.0, weight)
    edges = minimum_spanning_tree(matrix)
    parents, order = [NONE] * columns, list[int]()
    for root in range(columns):
        if root in order:
            continue
        reached, before = breadth_first_order(edges, root, directed=False)
        order += reached.tolist()
        for column in reached[1:].tolist():
            parents[column] = int(before[column])
    return parents, order


def _given(tables: Tables, column: int, parent: int) -> Tensor:
    """The table (cells, parent's codes, own codes) that a column is drawn by; of a parent's code that never was, its
    own law."""
    alone = tables.singles[column].unsqueeze(1)
    if parent == NONE:
        return alone
    pair = tables.pairs[min(column, parent), max(column, parent)]
    table = pair if parent < column else pair.transpose(1, 2)
    return torch.where(table.sum(dim=2, keepdim=True) > 0, table, alone)


def _information(law: Tensor) -> float:
    """Sum over cells of f ln(f p / (r c)), of laws (cells, a, b) within cells of proportion p."""
    least = torch.finfo(torch.float64).tiny
    apart = law.sum(dim=2, keepdim=True) * law.sum(dim=1, keepdim=True) / law.sum(dim=(1, 2), keepdim=True).clamp(least)
    terms = law * (law.clamp(min=least) / apart.clamp(min=least)).log()
    return float(torch.where(law > 0, terms, 0.0).sum())


def _distance(sketches: Sequence[NoisedSketch], network: TableGenerator, sketchers: Sequence[Sketcher | None]) -> float:
    features, cells = generate(network, proportions_of(network), _JUDGED)
    pairs = zip(sketches, sketchers, strict=True)
    return sum(sketch_distance(sketch, features, cells, sketcher=sketcher) for sketch, sketcher in pairs)
