"""How a synthetic table compares with held-out records, which no guarantee covers; never with private ones."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw.columns.declaration import Coded
from fedsw.data import Records
from fedsw.data.codes import codes_of
from fedsw.experiment import Experiment
from fedsw.own_data.usefulness import REAL, SYNTHETIC, Usefulness, usefulness
from fedsw.randomness import Stream
from fedsw.report.facts import Facts
from fedsw.report.page.document import Document, Listed, Part, Section, Strong
from fedsw.sketches.tables import table_weights
from fedsw.transport.sliced import directions, sliced_w2

_MOST = 4000
"""Rows of either side that distances look at."""


@dataclass(frozen=True)
class Fidelity:
    """What is like held-out records, each beside what one half of these is for the other: the best to be expected.

    Attributes:
        marginals: total variation between the laws of every column's codes, by column.
        pairs: the same of every two columns, their mean.
        marginals_of_halves, pairs_of_halves: means between two halves of the held-out records.
        correlations: largest change of a correlation (Cramer's V of codes) of two columns, and their names.
        sw2, sw2_of_halves: sliced W2 between encoded features.
        nearest, nearest_of_halves: median and lowest percentile of the distance to the nearest held-out record.
        usefulness: for prediction, on one half of the held-out records, of the synthetic rows and of the other half;
            None where nothing is predicted.
        rates: how often the last class is in each group, synthetic and held-out.
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
    usefulness: Usefulness | None
    rates: dict[str, tuple[float, float]]

    def plain(self) -> dict[str, Any]:
        """The same as a mapping."""
        found = asdict(self)
        if self.usefulness is not None:
            found["usefulness"] |= {"verdict": self.usefulness.verdict, "useless": self.usefulness.useless}
        return found


def fidelity(
    synthetic: Records, held_out: Records, coded: tuple[Coded, ...], *, groups: tuple[str, ...], classes: int
) -> Fidelity:
    """Compare synthetic rows with held-out records.

    Guarantee: none for the held-out records; what is returned are un-noised functions of them.

    Raises:
        ModuleNotFoundError: without scikit-learn (the extra `app`).
        ValueError: with fewer than four held-out records.
    """
    if len(held_out) < 4:
        raise ValueError(f"{len(held_out)} held-out records; a comparison takes at least 4")
    order = torch.from_numpy(np.argsort(Stream.seeded(0, "halves of held-out records").words(len(held_out))))
    one, other = held_out.take(order[::2]), held_out.take(order[1::2])
    made, real, first, second = (codes_of(each, coded).numpy() for each in (synthetic, held_out, one, other))
    sizes = [each.size for each in coded]
    names = [each.name for each in coded]
    few, few_one, few_other = (_first_of(each) for each in (synthetic, one, other))
    marginals = [_variation(_counts(made, [k], sizes), _counts(real, [k], sizes)) for k in range(len(coded))]
    halves = [_variation(_counts(first, [k], sizes), _counts(second, [k], sizes)) for k in range(len(coded))]
    return Fidelity(
        records=len(held_out),
        marginals=dict(zip(names, marginals, strict=True)),
        marginals_of_halves=float(np.mean(halves)),
        pairs=_pairs(made, real, sizes),
        pairs_of_halves=_pairs(first, second, sizes),
        correlations=_correlations(made, real, sizes, names),
        sw2=_sliced(few, few_other),
        sw2_of_halves=_sliced(few_one, few_other),
        nearest=_nearest(few, few_other),
        nearest_of_halves=_nearest(few_one, few_other),
        usefulness=usefulness(synthetic, one, other, classes),
        rates=_rates(synthetic, held_out, groups) if classes > 1 else {},
    )


def _first_of(records: Records) -> Records:
    return records.take(torch.arange(min(_MOST, len(records))))


def _counts(codes: NDArray[np.int64], columns: list[int], sizes: list[int]) -> NDArray[np.float64]:
    """The law of some columns' codes together, as one vector."""
    place = np.zeros(len(codes), dtype=np.int64)
    for column in columns:
        place = place * sizes[column] + codes[:, column]
    total = int(np.prod([sizes[column] for column in columns]))
    return np.bincount(place, minlength=total) / len(codes)


def _variation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(np.abs(one - other).sum() / 2)


def _pairs(one: NDArray[np.int64], other: NDArray[np.int64], sizes: list[int]) -> float:
    both = itertools.combinations(range(len(sizes)), 2)
    found = [_variation(_counts(one, [*pair], sizes), _counts(other, [*pair], sizes)) for pair in both]
    return float(np.mean(found)) if found else 0.0


def _correlations(
    one: NDArray[np.int64], other: NDArray[np.int64], sizes: list[int], names: list[str]
) -> tuple[float, str, str]:
    worst = (0.0, "", "")
    for i, j in itertools.combinations(range(len(sizes)), 2):
        found = [_cramers_v(_counts(each, [i, j], sizes).reshape(sizes[i], sizes[j])) for each in (one, other)]
        worst = max(worst, (abs(found[0] - found[1]), names[i], names[j]))
    return worst


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
    return float(sliced_w2(one.features.double(), other.features.double(), theta))


def _nearest(one: Records, other: Records) -> tuple[float, float]:
    """Median and lowest percentile of the distances from one side's features to the nearest of the other's."""
    found = torch.cat([torch.cdist(part, other.features).amin(dim=1) for part in torch.split(one.features, 500)])
    return float(found.median()), float(torch.quantile(found, 0.01))


def _rates(synthetic: Records, held_out: Records, groups: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """How often the last class is in each group, of both tables; nan where nobody is."""
    last = int(held_out.target.max())
    return {
        name: (
            float((synthetic.target[synthetic.sensitive == group] == last).double().mean()),
            float((held_out.target[held_out.sensitive == group] == last).double().mean()),
        )
        for group, name in enumerate(groups)
    }


def card(
    name: str,
    rows: int,
    experiment: Experiment,
    summary: dict[str, Any],
    coded: tuple[Coded, ...],
    compared: Fidelity | None,
    held_out: str | None = None,
) -> Document:
    """The card of a table of `rows` rows in the file `name`.

    Args:
        summary: of the run that learnt it.
        coded: its columns as codes.
        compared: with held-out records; None if there are none.
        held_out: the table that they came from, where it is another than that of the run.
    """
    said = None if compared is None else compared.usefulness
    useless = said is not None and said.useless
    return Document(
        title=f"Synthetic table {name}",
        verdict="" if said is None or useless else said.verdict,
        begins=(
            *([Strong(said.verdict)] if said is not None and useless else []),
            f"{rows} made-up rows of the columns that the experiment {experiment.name} declares. None of them is a "
            "person's record.",
        ),
        sections=(
            Section.of("Guarantee", _guarantee(experiment, summary)),
            Section.of("What is kept", _kept(experiment, summary, coded)),
            Section.of("What is not kept", _NOT_KEPT),
            Section.of("Compared with held-out records", _compared(experiment, summary, compared, held_out)),
        ),
    )


_NOT_KEPT = (
    "What three or more columns and the class do together, beyond what follows from their pairs.",
    "Rare values and rare pairs, below the noise that is stated above; a column's rare values may come up too often.",
    "Where numbers lie inside a part of their range: they are uniform there. Peaks, such as round numbers, are gone.",
    "Order of rows, identifiers, and whatever the declaration leaves out. Rows do not stand for persons, and cannot be "
    "joined with other tables.",
)


def _guarantee(experiment: Experiment, summary: dict[str, Any]) -> list[Part]:
    if not experiment.privacy.noisy:
        return [
            Strong("None. No noise was added: the table shows the records that it was learnt from. Do not publish it.")
        ]
    whose = "the server saw the sum of all records without noise, and is trusted not to tell"
    if experiment.privacy.local:
        by = {"client": "every client by itself"}.get(adds := experiment.privacy.model.adds_noise, adds)
        whose = f"{by} added the noise, so the promise holds against {summary['guarantee']['against']}"
    found: list[Part] = [
        f"{summary['guarantee']['statement']}",
        f"Trust model {experiment.privacy.trust}: {whose}. Everything in the table is computed from that release: "
        "more rows and other tables of the same run cost nothing further. Whoever releases something else of the same "
        "records adds its epsilon.",
        f"Public, and not protected: {'; '.join(summary['guarantee']['public'])}; and the settings.",
    ]
    if experiment.seed is not None:
        found.insert(0, Strong("Nominal: the noise is reproducible from a seed. Do not publish this table."))
    return found


def _kept(experiment: Experiment, summary: dict[str, Any], coded: tuple[Coded, ...]) -> list[Part]:
    sketch, about = experiment.sketch, summary["sketch"]
    where = [word for word, asked in (("class", sketch.labels), ("group", sketch.groups)) if asked]
    within = f", within each {' and '.join(where)}" if where else ""
    single, pair = table_weights([each.size for each in coded], sketch.singles, sketch.balance)
    sigma, several = float(about["sigma"]), len(coded) > 1 and bool(pair.any())
    lines: list[Part] = [
        f"How often every value of a column occurs, and every pair of values of two columns{within}. Noise of a "
        f"standard deviation of {_deviations(sigma, single)} records is in every count of a value"
        + (f", and of {_deviations(sigma, pair[pair > 0])} in every count of a pair" if several else "")
        + f"; there were {about['records']} records. The generator finds rows that fit all of them together.",
        Listed(
            "Columns",
            Facts.of(("column", "codes", "written as"), [(each.name, each.size, _written(each)) for each in coded]),
        ),
    ]
    if sketch.independent:
        lines.append(
            "Labels do not depend on the group, as was asked for: each label and group is generated as often as if "
            "they were independent, with the records' own law inside each. It is not a copy of how things were, and "
            "other columns may still tell the group."
        )
    return lines


def _deviations(sigma: float, weights: Tensor) -> str:
    """The standard deviations of the noise in tables of these weights, the least and the largest."""
    least, most = (f"{sigma / float(weight):.0f}" for weight in (weights.max(), weights.min()))
    return least if least == most else f"{least} to {most}"


def _written(column: Coded) -> str:
    if column.values:
        text = "its values"
    elif column.whole and column.size - (column.missing is not None) == column.edges[-1] - column.edges[0]:
        text = "every whole number"
    else:
        text = f"{len(column.edges) - 1} parts of its range"
    return text + (", or missing" if column.missing is not None else "")


def _compared(
    experiment: Experiment, summary: dict[str, Any], found: Fidelity | None, held_out: str | None
) -> list[Part]:
    if found is None:
        return [
            "Not measured: the experiment names no table in data.held_out. Private records are never compared with: a "
            "distance to them would be one more release, without noise."
        ]
    whose = summary["measured_on"] if held_out is None else f"{held_out}, which the guarantee does not cover"
    marked: list[Part] = (
        [Strong("epsilon = infinity for the reader of this section: held-out rows may be private ones too.")]
        if experiment.data.shows_private_rows
        else []
    )
    rows = [
        ["single columns, mean total variation", _mean(found.marginals), found.marginals_of_halves],
        ["pairs of columns, mean total variation", found.pairs, found.pairs_of_halves],
        ["sliced W2 of encoded columns", found.sw2, found.sw2_of_halves],
        ["nearest held-out record, median", found.nearest[0], found.nearest_of_halves[0]],
        ["nearest held-out record, closest 1 %", found.nearest[1], found.nearest_of_halves[1]],
    ]
    worst = max(found.marginals, key=lambda name: found.marginals[name])
    change, one, other = found.correlations
    parts: list[Part] = [
        *marked,
        f"On {found.records} records of {whose}. Beside each number is what one half of the held-out "
        "records is for the other: nobody can expect less distance, and rows much closer than that would be copies.",
        Listed(
            "Distances",
            Facts.of(("", "synthetic", "real half"), [(name, f"{a:.4f}", f"{b:.4f}") for name, a, b in rows]),
        ),
        f"The column that differs most is {worst!r} ({found.marginals[worst]:.3f})."
        + (
            f" The correlation (Cramer's V) that changed most is that of {one!r} and {other!r}: by {change:.3f}."
            if one
            else ""
        ),
    ]
    if found.usefulness is not None:
        parts += [
            "Models trained on the synthetic rows, and on one half of the held-out records; tested on the other half:",
            Listed(
                "For prediction",
                Facts.of(
                    ("model and score", "trained on synthetic rows", "trained on real ones"),
                    [
                        (name, *(f"{each[origin]:.3f}" for origin in (SYNTHETIC, REAL)))
                        for name, each in found.usefulness.by_model.items()
                    ],
                ),
            ),
        ]
    if len(found.rates) > 1:
        parts += [
            "How often the last declared class occurs, by group:",
            Listed(
                "The last class, by group",
                Facts.of(
                    ("group", "synthetic", "held-out"),
                    [(name, f"{a:.3f}", f"{b:.3f}") for name, (a, b) in found.rates.items()],
                ),
            ),
        ]
    return parts


def _mean(values: dict[str, float]) -> float:
    return sum(values.values()) / len(values)
