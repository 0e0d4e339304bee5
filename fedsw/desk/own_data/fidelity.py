"""Comparison of a synthetic table with held-out records, which no guarantee covers; never with private ones."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsw._tools.randomness import Stream
from fedsw.data import Records
from fedsw.data.codes import codes_of
from fedsw.data.columns.declaration import Coded, Columns
from fedsw.data.formats import Chunk
from fedsw.data.tables import checked
from fedsw.desk.own_data.synthetic_table import Usefulness, usefulness
from fedsw.mathematics.transport.sliced import directions, sliced_w2

_MOST, _FEW = 4000, 1000
"""Rows of either side that distances look at, and held-out records that are guessed."""


_Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Fidelity:
    """Likeness of a synthetic table to held-out records, beside that of halves of these: the best to expect.

    Distances: total variation between laws of every column's codes (``marginals``) and, on average, of every two
    columns' (``pairs``); the largest change of a correlation (Cramer's V), with its columns; sliced W2 between encoded
    features; median and lowest percentile to the ``nearest`` held-out record. ``scores`` are 1 minus mean total
    variations, by property. ``guessed`` says how often a column of a held-out record is guessed from all its others, by
    the most alike row: synthetic, of the other half, and its commonest value, on average and of the column that the
    synthetic rows give away most. ``rates``: how often one class is in each group, synthetic and held-out.
    """

    records: int
    marginals: dict[str, float]
    marginals_of_halves: float
    pairs: float
    pairs_of_halves: float
    correlations: tuple[float, str, str]
    sw2: float
    sw2_of_halves: float
    nearest: tuple[float, float]
    nearest_of_halves: tuple[float, float]
    scores: dict[str, tuple[float, float]]
    guessed: tuple[tuple[float, float, float], tuple[float, float, float], str]
    usefulness: Usefulness | None
    rates: dict[str, tuple[float, float]]

    def plain(self) -> dict[str, Any]:
        """All numbers as a mapping."""
        values = asdict(self)
        if self.usefulness is not None:
            values["usefulness"] |= {"verdict": self.usefulness.verdict, "useless": self.usefulness.useless}
        return values


def fidelity(
    synthetic: Records,
    held_out: Records,
    coded: tuple[Coded, ...],
    *,
    groups: tuple[str, ...],
    classes: int,
    shown: int | None = None,
) -> Fidelity:
    """Compare synthetic rows with held-out records; rates by group are of the class ``shown``, by default the last.

    Guarantee: none for the held-out records: what is returned are un-noised functions of them. ValueError for less
    than four.
    """
    if len(held_out) < 4:
        raise ValueError(f"{len(held_out)} held-out records; a comparison takes at least 4")
    order = torch.from_numpy(np.argsort(Stream.seeded(0, "halves of held-out records").words(len(held_out))))
    one, other = held_out.take(order[::2]), held_out.take(order[1::2])
    made, real, first, second = (codes_of(item, coded).numpy() for item in (synthetic, held_out, one, other))
    sizes = [item.size for item in coded]
    names = [item.name for item in coded]
    few, few_one, few_other = (item.part(0, min(_MOST, len(item))) for item in (synthetic, one, other))
    marginals, halves = _variations(made, real, sizes, 1), _mean(_variations(first, second, sizes, 1))
    pairs, pairs_of_halves = (_mean(_variations(*sides, sizes, 2)) for sides in ((made, real), (first, second)))
    worst = (0.0, "", "")
    for i, j in itertools.combinations(range(len(sizes)), 2):
        strengths = [_cramers_v(_counts(codes, (i, j), sizes).reshape(sizes[i], sizes[j])) for codes in (made, real)]
        worst = max(worst, (abs(strengths[0] - strengths[1]), names[i], names[j]))
    return Fidelity(
        records=len(held_out),
        marginals=dict(zip(names, marginals, strict=True)),
        marginals_of_halves=halves,
        pairs=pairs,
        pairs_of_halves=pairs_of_halves,
        correlations=worst,
        sw2=_sliced(few, few_other),
        sw2_of_halves=_sliced(few_one, few_other),
        nearest=_nearest(few, few_other),
        nearest_of_halves=_nearest(few_one, few_other),
        scores={
            "single columns": (1 - _mean(marginals), 1 - halves),
            "pairs of columns": (1 - pairs, 1 - pairs_of_halves),
            **_by_cell("class", classes, (synthetic.target, made), (held_out.target, real), sizes),
            **_by_cell("group", len(groups), (synthetic.sensitive, made), (held_out.sensitive, real), sizes),
        },
        guessed=_guessed(made[:_MOST], first[:_MOST], second[:_FEW], names),
        usefulness=usefulness(synthetic, one, other, classes),
        rates=_rates(synthetic, held_out, groups, classes - 1 if shown is None else shown) if classes > 1 else {},
    )


def _counts(codes: _Codes, columns: tuple[int, ...], sizes: list[int]) -> NDArray[np.float64]:
    """The law of some columns' codes together, as one vector."""
    code = np.zeros(len(codes), dtype=np.int64)
    for column in columns:
        code = code * sizes[column] + codes[:, column]
    total = int(np.prod([sizes[column] for column in columns]))
    return np.bincount(code, minlength=total) / len(codes)


def _variations(one: _Codes, other: _Codes, sizes: list[int], together: int) -> list[float]:
    """Total variation between the laws of every so many columns together."""
    some = itertools.combinations(range(len(sizes)), together)
    return [float(np.abs(_counts(one, columns, sizes) - _counts(other, columns, sizes)).sum() / 2) for columns in some]


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _cramers_v(law: NDArray[np.float64]) -> float:
    """Cramer's V of a joint law (a, b): 0 for independent columns, 1 where one follows from the other."""
    law = law[law.sum(axis=1) > 0][:, law.sum(axis=0) > 0]
    if min(law.shape) < 2:
        return 0.0
    apart = np.outer(law.sum(axis=1), law.sum(axis=0))
    return float(np.sqrt((np.square(law - apart) / apart).sum() / (min(law.shape) - 1)))


def _sliced(one: Records, other: Records) -> float:
    width = one.features.shape[1]
    normals = torch.from_numpy(Stream.seeded(0, "slices of a table").normals(width * 100)).reshape(width, 100)
    theta = directions(width, 100, normals=normals, scheme="iid")
    return float(sliced_w2(one.features, other.features, theta, dtype=torch.float32))


def _nearest(one: Records, other: Records) -> tuple[float, float]:
    """Median and lowest percentile of the distances from one side's features to the nearest of the other's."""
    distances = torch.cat([torch.cdist(part, other.features).amin(dim=1) for part in torch.split(one.features, 500)])
    return float(distances.median()), float(torch.quantile(distances, 0.01))


def _rates(
    synthetic: Records, held_out: Records, groups: tuple[str, ...], shown: int
) -> dict[str, tuple[float, float]]:
    """Return the frequency of a class in each group, in both tables; nan for empty groups."""

    def rate(records: Records, group: int) -> float:
        return float((records.target[records.sensitive == group] == shown).double().mean())

    return {name: (rate(synthetic, group), rate(held_out, group)) for group, name in enumerate(groups)}


def _by_cell(
    name: str, count: int, made: tuple[torch.Tensor, _Codes], real: tuple[torch.Tensor, _Codes], sizes: list[int]
) -> dict[str, tuple[float, float]]:
    """The score of single columns inside every class, or group, that both sides have; of the halves inside it."""
    variations = []
    for cell in range(count if count > 1 else 0):
        inside, held = (codes[(cells == cell).numpy()] for cells, codes in (made, real))
        if len(inside) and len(held) > 1:
            sides = ((inside, held), (held[::2], held[1::2]))
            variations.append([_mean(_variations(one, other, sizes, 1)) for one, other in sides])
    if not variations:
        return {}
    synthetic, halves = np.mean(variations, axis=0)
    return {f"columns by {name}": (1 - float(synthetic), 1 - float(halves))}


def _guessed(
    made: _Codes, half: _Codes, wanted: _Codes, names: list[str]
) -> tuple[tuple[float, float, float], tuple[float, float, float], str]:
    """Return how often codes (n, K) of a column are guessed from all others, by the most alike row of either side."""
    rates: list[list[float]] = [[], [], [float(np.bincount(column).max() / len(wanted)) for column in wanted.T]]
    for known, guessed in ((made, rates[0]), (half, rates[1])):
        differ = sum(wanted[:, k, None] != known[None, :, k] for k in range(len(names)))
        for k in range(len(names)):
            alike = (differ - (wanted[:, k, None] != known[None, :, k])).argmin(axis=1)
            guessed.append(float((known[alike, k] == wanted[:, k]).mean()))
    by_column = list(zip(*rates, strict=True))
    worst = max(range(len(names)), key=lambda k: by_column[k][0] - by_column[k][1])
    synthetic, other, commonest = (float(np.mean(by_column_rates)) for by_column_rates in rates)
    return (synthetic, other, commonest), by_column[worst], names[worst]


def faults_of(cells: Mapping[str, list[str]], columns: Columns) -> int:
    """Count the cells of a table that are not as declared: outside bounds, of no category, not whole, not a number."""
    result = checked([Chunk(1, dict(cells))], columns)
    return len(result.faults) + result.more + sum(sum(counts.values()) for counts in result.absent.values())
