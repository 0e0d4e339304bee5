"""Choice of the source of a table's rows: the network's chances, moved to the sketches, or a tree of column pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy
import torch
from torch import Tensor, nn

from fedsw._tools.randomness import Stream
from fedsw.experiment.sections import Sketch
from fedsw.learning.models.labelled import NONE, TableGenerator, generate, proportions_of, seeded_generator
from fedsw.learning.sketches.drift import sketch_distance
from fedsw.learning.sketches.noised import NoisedSketch, independent_cells
from fedsw.learning.sketches.sketch_law import Sketcher
from fedsw.learning.sketches.table_counts import Pair, Tables, consistent, pairs_measured, with_margins
from fedsw.learning.sketches.table_parts import Triples, TriplesOf

_DRAWS = 2
"""Tables of independent columns with fresh noise, by which mutual informations are corrected."""
_JUDGED = 20_000
_MOVES, _RATE = 400, 0.03
"""The most steps of rows of chances, and the rate of the first."""

Kind = Literal["network", "tree"]


@dataclass(frozen=True)
class Chosen:
    """The chosen source of rows: the network's chances, moved, or the tree with its edges (parent, column).

    The ``distances`` are squared, to the sketch, noise taken off, by kind.
    """

    kind: Kind
    distances: dict[str, float]
    edges: tuple[Pair, ...]


def settle_rows(
    settings: Sketch, network: nn.Module, sketches: Sequence[NoisedSketch], sketchers: Sequence[Sketcher | None]
) -> Chosen | None:
    """Choose what draws a generator's rows by an experiment's settings; None if it stays as it was trained.

    Only a table's generator has a choice, and only where all pairs of columns were measured: a tree takes any of them.
    A run and its audit both ask here. Guarantee: that of `choose`.
    """
    if not isinstance(network, TableGenerator) or settings.crossed != "all":
        return None
    proportions = independent_cells(sketches[0]) if settings.independent else None
    return choose(sketches, network, wanted=settings.generator, sketchers=sketchers, proportions=proportions)


def choose(
    sketches: Sequence[NoisedSketch],
    network: TableGenerator,
    *,
    wanted: Kind | Literal["auto"] = "auto",
    sketchers: Sequence[Sketcher | None] = (None,),
    proportions: Tensor | None = None,
) -> Chosen:
    """Move the network's chances to sketches of tables, and draw from a tree in their place where that is nearer.

    Guarantee: post-processing; the choice reads the released sketch and generated rows, no record.

    Sketches, of each stage, have `Pairs` as their only part, or later ones `Triples`, and the network was trained on
    them; it is changed in place. What is ``wanted`` may be one of them whatever their distances are; where it is a tree
    nothing is moved. Sketchers are the sketches' laws, drawn, where they are there already; ``proportions`` (cells,) of
    what is generated are in place of those of the tables.
    """
    trained = network.proportions.clone()
    if wanted != "tree":
        move_rows(sketches, network)
    distances = {"network": _distance(sketches, network, sketchers)}
    tables = consistent(*_of_pairs(sketches))
    parents, order = spanning_tree(informations(tables), len(tables.singles))
    network.follow(parents, order, [_given(tables, column, parent) for column, parent in enumerate(parents)])
    network.proportions.copy_(tables.proportions if proportions is None else proportions)
    distances["tree"] = _distance(sketches, network, sketchers)
    nearer: Kind = "tree" if distances["tree"] < distances["network"] else "network"
    kind = nearer if wanted == "auto" else wanted
    settle: dict[Kind, Callable[[], object]] = {"tree": lambda: None, "network": lambda: network.leave(trained)}
    settle[kind]()
    edges = tuple((parents[column], column) for column in order if parents[column] != NONE)
    return Chosen(kind, distances, edges)


def move_rows(sketches: Sequence[NoisedSketch], network: TableGenerator) -> None:
    """Take rows of chances that the network makes, and move them until the sketches tell them from records no more.

    The law of rows, picked evenly, has exact tables, sums over rows of products of chances: gradients of its squared
    distance to the sketches move all rows at once, and no batch adds noise of its own. It ends where the distance,
    noise taken off, is 0: what is left is as large as the noise, and would be learnt with it.

    Guarantee: post-processing of the sketches (cells, F + 1) that were released.

    Sources: Aydore and others 2021 (relaxed tables of chances); Morozov 1966 (to end at the size of the noise).
    """
    targets = [TablesOf(sketch) for sketch in _of_pairs(sketches)]
    together = [TriplesOf(sketch) for sketch in sketches if isinstance(sketch.law.parts[0], Triples)]
    network.moved.fill_(False)
    logits = _rows_of(network).clamp(min=1e-6).log().requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=_RATE, betas=(0.9, 0.99))
    for step in range(_MOVES):
        chances = _chances(logits, network)
        off = [target.distance(chances) for target in targets]
        off += [target.distance(chances, targets[0].proportions) for target in together]
        distance = torch.stack(off).sum()
        if float(distance.detach()) <= 0:
            break
        optimizer.param_groups[0]["lr"] = _RATE * (1 + math.cos(math.pi * step / _MOVES)) / 2
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(distance)
        optimizer.step()
    network.take(_chances(logits.detach(), network))


def _of_pairs(sketches: Sequence[NoisedSketch]) -> list[NoisedSketch]:
    return [sketch for sketch in sketches if not isinstance(sketch.law.parts[0], Triples)]


class TablesOf:
    """A sketch's sums as squares (cells, q, q) of products and rows (cells, q) of single codes, on the processor."""

    def __init__(self, sketch: NoisedSketch) -> None:
        measured, blocks = pairs_measured(sketch).cpu(), sketch.blocks.cpu()
        codes, column = len(measured.column), measured.column
        self.proportions = sketch.proportions.cpu().to(torch.float64)
        self.alone, self.single = blocks[:, :codes], measured.single[column]
        self.weights = measured.pair[column][:, column].triu()
        self.square = torch.zeros(len(blocks), codes, codes, dtype=torch.float64)
        self.square[:, measured.first, measured.second] = blocks[:, codes:]
        self.noise = sketch.deviation**2 * sketch.coordinates * len(blocks)

    def distance(self, chances: Tensor) -> Tensor:
        """The squared distance, noise taken off, of the law that picks rows of chances (cells, R, q) evenly."""
        share = self.proportions[:, None, None]
        products = torch.bmm(chances.transpose(1, 2), chances) / chances.shape[1] * share * self.weights
        singles = chances.mean(dim=1) * share[:, 0] * self.single
        return (self.square - products).square().sum() + (self.alone - singles).square().sum() - self.noise


def _rows_of(network: TableGenerator) -> Tensor:
    """Rows of chances that the network makes of every cell, (cells, R, q) float64."""
    cells, among, _ = network.rows.shape
    noise = torch.randn(cells * among, network.latent, generator=seeded_generator(0, "rows of chances"))
    where = torch.arange(cells).repeat_interleave(among).to(network.rows.device)
    with torch.no_grad():
        made: Tensor = network.eval()(noise.to(network.rows), where)
    return made.cpu().to(torch.float64).reshape(network.rows.shape)


def _chances(logits: Tensor, network: TableGenerator) -> Tensor:
    """Chances of every column's codes, of logits side by side."""
    return torch.cat([logits[..., first:end].softmax(dim=-1) for first, end in network.codes], dim=-1)


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
    matrix = np.zeros((columns, columns))
    for (i, j), weight in weights.items():
        matrix[i, j] = -max(0.0, weight)
    edges = scipy.sparse.csgraph.minimum_spanning_tree(matrix)
    parents, order = [NONE] * columns, list[int]()
    for root in range(columns):
        if root in order:
            continue
        reached, before = scipy.sparse.csgraph.breadth_first_order(edges, root, directed=False)
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
