"""Synthetic tables that are drawn from a run, and their cards: guarantee, what is kept, likeness to held-out records.

`made_table` draws one, compares it with other records and describes it; `findings` and `card` say it in words.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedsw.data.codes import records_of_table
from fedsw.data.columns.declaration import Coded
from fedsw.desk.own_data.apart import OtherTable
from fedsw.desk.own_data.fidelity import Fidelity, faults_of, fidelity
from fedsw.desk.own_data.rehearsal import made_up
from fedsw.desk.own_data.synthetic_table import REAL, SYNTHETIC, LearntTable, table_cells
from fedsw.experiment import Experiment
from fedsw.learning.sketches.from_settings import table_of
from fedsw.learning.sketches.table_counts import table_weights
from fedsw.learning.sketches.table_parts import TriplesOfCodes
from fedsw.runs.report.document import Document, Listed, PageSection, Part, Strong


@dataclass(frozen=True)
class MadeTable:
    """A synthetic table as cells by column, its likeness to other records, findings in words, and its card."""

    cells: dict[str, list[str]]
    compared: Fidelity | None
    said: list[str]
    card: Document


def made_table(
    learnt: LearntTable, other: OtherTable | None, named: Path | None, *, name: str, rows: int, draw: int
) -> MadeTable:
    """Draw rows from what a run learnt, compare them with another table, and describe them.

    Guarantee: drawing and describing are post-processing. Functions of the ``other`` table have no noise: why its
    reader has no guarantee, if it may hold a private record, is on the card. ``named`` is the file
    of that table where it is not the experiment's own, `name` that of the table that is made.
    """
    cells = table_cells(learnt, rows, seed=draw)
    coded, columns = table_of(learnt.experiment), learnt.columns
    assert coded is not None
    compared = None
    if other is not None:
        made, classes = records_of_table(cells, columns), len(columns.classes)
        compared = fidelity(made, other.records, coded, groups=columns.groups, classes=classes, shown=columns.positive)
    said = findings(learnt.experiment, learnt.summary, coded, faults_of(cells, columns), compared)
    said += [f"{other.word[:1].upper()}{other.word[1:]}."] if other is not None and other.word else []
    file, doubt = None if named is None else named.name, "" if other is None else other.doubt
    described = card(name, rows, learnt.experiment, learnt.summary, coded, compared, said, file, doubt)
    return MadeTable(cells, compared, said, described)


def rehearse_table(learnt: LearntTable, *, held_out: bool) -> None:
    """Draw, compare where records are held out, and describe a table that was learnt from made-up records."""
    others = made_up(learnt.columns, dict.fromkeys(learnt.columns.groups, 20), seed=1)
    made = made_table(learnt, OtherTable(others) if held_out else None, None, name="synthetic.csv", rows=40, draw=0)
    made.card.markdown()
    made.card.page()


def findings(
    experiment: Experiment, summary: dict[str, Any], coded: tuple[Coded, ...], faults: int, compared: Fidelity | None
) -> list[str]:
    """Sentences that the screen and the card say alike: what rows are drawn from, what is noise, and what is kept."""
    single, pair = _weights(experiment, coded)
    least = float((pair[pair > 0] if bool(pair.any()) else single).min())
    noise = 2 * float(summary["sketch"]["sigma"]) / least
    said = [
        _drawn_from(summary["sketch"]["generator"], coded),
        f"Useless for what fewer than {noise:.0f} of the {summary['sketch']['records']} records share, the class "
        "included: twice the noise of a count in the noisiest table.",
        "Every cell is as declared: of its categories, inside its bounds, whole where it is to be."
        if not faults
        else f"{faults} cells are not as declared: outside their bounds, of no category, or not whole.",
    ]
    if compared is None:
        return said
    scores = ", ".join(f"{name} {made:.3f} ({half:.3f})" for name, (made, half) in compared.scores.items())
    (made, half, commonest), worst, column = compared.guessed
    return [
        *said,
        f"Likeness to held-out records, 1 at best (of one half of these to the other): {scores}.",
        "A column of a held-out record is guessed from its others by the most alike synthetic row in "
        f"{made:.3f} of all cases, by a real one in {half:.3f}, by the commonest value in {commonest:.3f}; most beyond "
        f"real ones {column!r}, {worst[0]:.3f}, {worst[1]:.3f} and {worst[2]:.3f}.",
    ]


def _drawn_from(generator: dict[str, Any], coded: tuple[Coded, ...]) -> str:
    by = {"network": "those of the network", "tree": "those of the tree"}
    kind = generator["kind"]
    (other,) = (name for name in by if name != kind)
    edges = ", ".join(f"{coded[one].name!r} and {coded[two].name!r}" for one, two in generator["edges"])
    what = {
        "network": "a network that fits all counts together",
        "tree": f"a tree of pairs of columns: {edges or 'none, every column is by itself'}",
    }[kind]
    distances = generator["distances"]
    chosen = "which is nearer to the noised counts" if generator["wanted"] == "auto" else "as the settings say"
    return (
        f"Rows are drawn from {what}; {chosen}: their squared distance, less what noise alone would make, is "
        f"{distances[kind]:.2g}, of {by[other]} {distances[other]:.2g}."
    )


def _weights(experiment: Experiment, coded: tuple[Coded, ...]) -> tuple[Tensor, Tensor]:
    sketch = experiment.sketch
    return table_weights([column.size for column in coded], sketch.singles, sketch.balance)


def card(
    name: str,
    rows: int,
    experiment: Experiment,
    summary: dict[str, Any],
    coded: tuple[Coded, ...],
    compared: Fidelity | None,
    said: list[str],
    held_out: str | None = None,
    doubt: str = "",
) -> Document:
    """The card of a table of `rows` rows in the file `name`; held-out records may be of another table.

    Why a reader of the comparison has no guarantee (``doubt``) stands before everything else, and beside the guarantee.
    """
    worth = None if compared is None else compared.usefulness
    useless = worth is not None and worth.useless
    return Document(
        title=f"Synthetic table {name}",
        verdict="" if worth is None or useless else worth.verdict,
        begins=(
            *([Strong(doubt)] if doubt else []),
            *([Strong(worth.verdict)] if worth is not None and useless else []),
            f"{rows} made-up rows of the columns that the experiment {experiment.name} declares. None of them is a "
            "person's record.",
            *said,
        ),
        sections=(
            PageSection.of("Guarantee", [*_guarantee(experiment, summary), *([Strong(doubt)] if doubt else [])]),
            PageSection.of("What is kept", _kept(experiment, summary, coded)),
            PageSection.of("What is not kept", _NOT_KEPT),
            PageSection.of("Compared with held-out records", _compared(experiment, summary, compared, held_out)),
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
    if experiment.privacy.guarantee.unprotected:
        return [
            Strong("None. No noise was added: the table shows the records that it was learnt from. Do not publish it.")
        ]
    seen = experiment.privacy.model.sees_sums(summary["guarantee"]["against"])
    parts: list[Part] = [
        f"{summary['guarantee']['statement']}",
        f"Trust model {experiment.privacy.trust}: {seen}. Everything in the table is computed from that release: "
        "more rows and other tables of the same run cost nothing further. Another release of the same records adds "
        "its epsilon.",
        f"Public, and not protected: {'; '.join(summary['guarantee']['public'])}; and the settings.",
    ]
    if experiment.seed is not None:
        parts.insert(0, Strong("Nominal: the noise is reproducible from a seed. Do not publish this table."))
    return parts


def _kept(experiment: Experiment, summary: dict[str, Any], coded: tuple[Coded, ...]) -> list[Part]:
    sketch, about = experiment.sketch, summary["sketch"]
    where = [word for word, wanted in (("class", sketch.labels), ("group", sketch.groups)) if wanted]
    within = f", within each {' and '.join(where)}" if where else ""
    single, pair = _weights(experiment, coded)
    sigma, several = float(about["sigma"]), len(coded) > 1 and bool(pair.any())
    columns = [(column.name, column.size, _written(column)) for column in coded]
    lines: list[Part] = [
        f"How often every value of a column occurs, and every pair of values of two columns{within}. Noise of a "
        f"standard deviation of {_deviations(sigma, single)} records is in every count of a value"
        + (f", and of {_deviations(sigma, pair[pair > 0])} in every count of a pair" if several else "")
        + f"; there were {about['records']} records.",
        Listed.of("Columns", ("column", "codes", "written as"), columns),
    ]
    for later in about.get("later", ()):
        sizes, triples = tuple(column.size for column in coded), later.get("triples", ())
        if triples:
            weights = TriplesOfCodes(sizes, [(i, j, k) for i, j, k in triples]).factors
        else:
            weights = table_weights(sizes, sketch.singles, sketch.balance, later["pairs"])[1]
        names = ", ".join(" and ".join(repr(coded[k].name) for k in together) for together in triples or later["pairs"])
        lines.append(
            f"A later release measured some {'triples' if triples else 'pairs once more'}, with noise of a standard "
            f"deviation of {_deviations(float(later['sigma']), weights[weights > 0])} records: {names}."
        )
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
    experiment: Experiment, summary: dict[str, Any], fidelity: Fidelity | None, held_out: str | None
) -> list[Part]:
    if fidelity is None:
        return [
            "Not measured: the experiment names no table in data.held_out. Private records are never compared with: a "
            "distance to them would be one more release, without noise."
        ]
    whose = summary["measured_on"] if held_out is None else f"{held_out}, which the guarantee does not cover"
    rows = [
        [
            "single columns, mean total variation",
            statistics.fmean(fidelity.marginals.values()),
            fidelity.marginals_of_halves,
        ],
        ["pairs of columns, mean total variation", fidelity.pairs, fidelity.pairs_of_halves],
        ["sliced W2 of encoded columns", fidelity.sw2, fidelity.sw2_of_halves],
        ["nearest held-out record, median", fidelity.nearest[0], fidelity.nearest_of_halves[0]],
        ["nearest held-out record, closest 1 %", fidelity.nearest[1], fidelity.nearest_of_halves[1]],
    ]
    worst = max(fidelity.marginals, key=lambda name: fidelity.marginals[name])
    change, one, other = fidelity.correlations
    changed = f" The correlation (Cramer's V) that changed most is that of {one!r} and {other!r}: by {change:.3f}."
    parts: list[Part] = [
        f"On {fidelity.records} records of {whose}. Beside each number is what one half of the held-out "
        "records is for the other: the least distance to expect, and rows much closer than that would be copies.",
        Listed.of("Distances", ("", "synthetic", "real half"), [(name, f"{a:.4f}", f"{b:.4f}") for name, a, b in rows]),
        f"The column that differs most is {worst!r} ({fidelity.marginals[worst]:.3f})." + (changed if one else ""),
    ]
    if experiment.data.shows_private_rows:
        marked = "epsilon = infinity for the reader of this section: held-out rows may be private ones too."
        parts.insert(0, Strong(marked))
    if fidelity.usefulness is not None:
        learnt = [(name, scores[SYNTHETIC], scores[REAL]) for name, scores in fidelity.usefulness.by_model.items()]
        headings = ("model and score", "trained on synthetic rows", "trained on real ones")
        parts += [
            "Models trained on the synthetic rows, and on one half of the held-out records; tested on the other half:",
            Listed.of("For prediction", headings, [(name, f"{a:.3f}", f"{b:.3f}") for name, a, b in learnt]),
        ]
    columns = experiment.data.columns
    if len(fidelity.rates) > 1 and columns is not None:
        rates = [(name, f"{a:.3f}", f"{b:.3f}") for name, (a, b) in fidelity.rates.items()]
        shown = columns.classes[-1 if columns.positive is None else columns.positive]  # the favourable one, or the last
        parts += [
            f"How often the class {shown!r} occurs, by group:",
            Listed.of("A class, by group", ("group", "synthetic", "held-out"), rates),
        ]
    return parts
