"""Which columns differ between clients, by the sketches of tables that a run released."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedsw.experiment import ExperimentError
from fedsw.owndata.drifts import released_sides
from fedsw.transport.marginals import cell_means, column_means
from fedsw.transport.noised_sketches import NoisedSketch, pooled
from fedsw.transport.sketch_drift import Drift, Means, drift_of_means

if TYPE_CHECKING:
    from fedsw.tasks.problem import Problem

REST = "the other clients"


@dataclass(frozen=True)
class ColumnDrift:
    """Two sides by name, a declared column, and how far apart the frequencies of its values are."""

    one: str
    other: str
    column: str
    found: Drift


def column_drifts(directory: Path, *, reference: Path | None, confidence: float) -> list[ColumnDrift]:
    """Every declared column of every client against all other clients together, or against a public table.

    A distance is between the frequencies of a column's codes, the values or parts of its range that the sketch tells
    apart: 0 for equal ones, sqrt(2) where each side has one value and the two differ. The surest drift comes first:
    the least probability of so large a distance where there is none (`Drift.doubt`), then the largest lower end.

    Guarantee: post-processing of what the run released; it costs nothing. The reference is not protected at all.

    Args:
        directory: a run that measured a declared table, as `fedsw synthesize` does; see `fedsw.owndata.drifts.drifts`.
        reference: a *public* table of the declared columns.
        confidence: of every interval by itself.

    Raises:
        ExperimentError: if the run's sketch is none of a table, or as `drifts` says.
        BadRecords, FileNotFoundError: for a reference that cannot be read.
    """
    problem, sides, public = released_sides(directory, reference)
    if problem.experiment.sketch.kind != "table":
        raise ExperimentError(
            f"{directory} measured kind {problem.experiment.sketch.kind!r}, which has no columns by themselves: only "
            "the sketch of a table has, as of `fedsw synthesize`"
        )
    found = []
    for (name, sketch), (against, rest) in _pairs(sides, public):
        own, theirs = _means(sketch, problem), _means(rest, problem)
        for column, means in own.items():
            found.append(
                ColumnDrift(name, against, column, drift_of_means(means, theirs[column], confidence=confidence))
            )
    return sorted(found, key=lambda each: (each.found.doubt, -each.found.populations[0], -each.found.distance))


Side = tuple[str, NoisedSketch]


def _pairs(sides: Mapping[str, NoisedSketch], public: Side | None) -> Iterator[tuple[Side, Side]]:
    """Each side, and what it is compared with; two clients are compared once."""
    everyone = list(sides.items())
    if public is not None:
        yield from ((side, public) for side in everyone)
    elif len(everyone) == 2:
        yield everyone[0], everyone[1]
    else:
        for side in everyone:
            yield side, (REST, pooled([sketch for name, sketch in everyone if name != side[0]]))


def _means(sketch: NoisedSketch, problem: Problem) -> dict[str, Means]:
    """By column: those that are written as codes, then what the blocks tell apart."""
    from fedsw.tasks.sketched import table_of

    columns, blocks = problem.experiment.data.columns, problem.experiment.sketch
    coded = table_of(problem.experiment)
    assert columns is not None and coded is not None
    found = dict(zip((each.name for each in coded), column_means(sketch), strict=True))
    labels, groups = cell_means(sketch)
    if blocks.labels and columns.target is not None:
        found[columns.target.name] = labels
    if blocks.groups and columns.sensitive is not None:
        found[columns.sensitive.name] = groups
    return found
