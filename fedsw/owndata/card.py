"""The card beside a synthetic table: what is guaranteed, what is kept and what is not, in Markdown."""

from __future__ import annotations

import math
from typing import Any

from fedsw.columns.coded import Coded
from fedsw.experiment import Experiment
from fedsw.markdown import table
from fedsw.owndata.fidelity import Fidelity


def card(
    name: str,
    rows: int,
    experiment: Experiment,
    summary: dict[str, Any],
    coded: tuple[Coded, ...],
    compared: Fidelity | None,
) -> str:
    """The card of a table of `rows` rows in the file `name`.

    Args:
        summary: of the run that learnt it.
        coded: its columns as codes.
        compared: with held-out records; None if there are none.
    """
    parts = [
        f"# Synthetic table {name}",
        f"{rows} made-up rows of the columns that `{experiment.name}` declares. None of them is a person's record.",
        "## Guarantee",
        *_guarantee(experiment, summary),
        "## What is kept",
        *_kept(experiment, summary, coded),
        "## What is not kept",
        _NOT_KEPT,
        "## Compared with held-out records",
        *_compared(experiment, summary, compared),
    ]
    return "\n\n".join(parts) + "\n"


_NOT_KEPT = """\
- What three or more columns and the class do together, beyond what follows from their pairs.
- Rare values and rare pairs, below the noise that is stated above; a column's rare values may come up too often.
- Where numbers lie inside a part of their range: they are uniform there. Peaks, such as round numbers, are gone.
- Order of rows, identifiers, and whatever the declaration leaves out. Rows do not stand for persons, and cannot be
  joined with other tables."""


def _guarantee(experiment: Experiment, summary: dict[str, Any]) -> list[str]:
    if not experiment.privacy.noisy:
        return ["**None.** No noise was added: the table shows the records that it was learnt from. Do not publish it."]
    whose = (
        "every client added the noise itself, so the promise holds against the server too"
        if experiment.privacy.local
        else "the server saw the sum of all records without noise, and is trusted not to tell"
    )
    found = [
        f"{summary['guarantee']['statement']}",
        f"Trust model `{experiment.privacy.trust}`: {whose}. Everything in the table is computed from that release: "
        "more rows and other tables of the same run cost nothing further. Whoever releases something else of the same "
        "records adds its epsilon.",
        "Public, and not protected: the declared columns, bounds and values, the number of records, and the settings.",
    ]
    if experiment.seed is not None:
        found.insert(0, "**Nominal**: the noise is reproducible from a seed. Do not publish this table.")
    return found


def _kept(experiment: Experiment, summary: dict[str, Any], coded: tuple[Coded, ...]) -> list[str]:
    sketch, about = experiment.sketch, summary["sketch"]
    where = [word for word, asked in (("class", sketch.labels), ("group", sketch.groups)) if asked]
    within = f", within each {' and '.join(where)}" if where else ""
    count = len(coded)
    single = sketch.singles if count > 1 else 1.0
    pairs = max(1, count * (count - 1) // 2)
    sigma = float(about["sigma"])
    lines = [
        f"How often every value of a column occurs, and every pair of values of two columns{within}. Noise of a "
        f"standard deviation of {sigma / math.sqrt(single / count):.0f} records is in every count of a value"
        + (f", and of {sigma / math.sqrt((1 - single) / pairs):.0f} in every count of a pair" if count > 1 else "")
        + f"; there were {about['records']} records. The generator finds rows that fit all of them together.",
        table(
            ["column", "codes", "written as"],
            [[each.name, each.size, _written(each)] for each in coded],
        ),
    ]
    if sketch.independent:
        lines.append(
            "**Labels do not depend on the group**, as was asked for: each label and group is generated as often as if "
            "they were independent, with the records' own law inside each. It is not a copy of how things were, and "
            "other columns may still tell the group."
        )
    return lines


def _written(column: Coded) -> str:
    if column.values:
        text = "its values"
    elif column.whole and column.size - (column.missing is not None) == column.edges[-1] - column.edges[0]:
        text = "every whole number"
    else:
        text = f"{len(column.edges) - 1} parts of its range"
    return text + (", or missing" if column.missing is not None else "")


def _compared(experiment: Experiment, summary: dict[str, Any], found: Fidelity | None) -> list[str]:
    if found is None:
        return [
            "Not measured: the experiment names no `data.held_out` table. Private records are never compared with: a "
            "distance to them would be one more release, without noise."
        ]
    marked = (
        ["**epsilon = infinity for the reader of this section**: held-out rows may be private ones too."]
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
    parts = [
        *marked,
        f"On {found.records} records of {summary['measured_on']}. Beside each number is what one half of the held-out "
        "records is for the other: nobody can expect less distance, and rows much closer than that would be copies.",
        table(["", "synthetic", "real half"], [[name, f"{a:.4f}", f"{b:.4f}"] for name, a, b in rows]),
        f"The column that differs most is {worst!r} ({found.marginals[worst]:.3f})."
        + (
            f" The correlation (Cramer's V) that changed most is that of {one!r} and {other!r}: by {change:.3f}."
            if one
            else ""
        ),
    ]
    if found.usefulness:
        parts += [
            "Models trained on the synthetic rows, and on one half of the held-out records; tested on the other half:",
            table(
                ["model and score", "trained on synthetic rows", "trained on real ones"],
                [
                    [name, *(_score(each, origin) for origin in ("synthetic", "real"))]
                    for name, each in found.usefulness.items()
                ],
            ),
        ]
    if len(found.rates) > 1:
        parts += [
            "How often the last declared class occurs, by group:",
            table(
                ["group", "synthetic", "held-out"],
                [[name, f"{a:.3f}", f"{b:.3f}"] for name, (a, b) in found.rates.items()],
            ),
        ]
    return parts


def _score(scores: dict[str, float], origin: str) -> str:
    return f"{scores[origin]:.3f}" if origin in scores else "one class only"


def _mean(values: dict[str, float]) -> float:
    return sum(values.values()) / len(values)
