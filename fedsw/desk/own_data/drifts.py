"""Distances between clients' records, by the sketches that a run released, and to a public table."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from fedsw.desk.own_data.apart import other_table
from fedsw.experiment import ExperimentError
from fedsw.learning.sketches.drift import Drift, Means, drift, drift_of_means
from fedsw.learning.sketches.from_settings import table_of
from fedsw.learning.sketches.noised import NoisedSketch, pooled
from fedsw.learning.sketches.table_counts import cell_means, column_means
from fedsw.learning.tasks.measures import law_of_problem, sketch_of_records
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.directory import RunDirectory
from fedsw.runs.releases import Releases, stored_sketch
from fedsw.runs.run_files import RunFile, read_json

REST = "the other clients"

Side = tuple[str, NoisedSketch]


@dataclass(frozen=True)
class Between:
    """Two sides by name, and how far apart their records are, or the frequencies of the values of one column."""

    one: str
    other: str
    drift: Drift
    column: str | None = None


@dataclass(frozen=True)
class Drifts:
    """Distances between the sides of a run, why their reader has no guarantee (empty if there is one), who asserts it.

    The ``word`` is that rows of a reference which equal private ones are of other people.
    """

    between: list[Between]
    doubt: str = ""
    word: str = ""

    def plain(self) -> list[dict[str, Any]]:
        """Distances as plain values, in order."""
        return [
            {"one": pair.one, "other": pair.other}
            | ({} if pair.column is None else {"column": pair.column})
            | asdict(pair.drift)
            | {"differ": pair.drift.differ}
            for pair in self.between
        ]


def drifts(
    directory: Path,
    *,
    reference: Path | None,
    confidence: float,
    by_column: bool = False,
    allow_modules: Collection[str] = (),
    data_dir: Path | None = None,
    others: bool = False,
) -> Drifts:
    """The drift between every two clients of a run, or between each and a public table.

    By column it is that of every declared column of every client against all other clients together, or against the
    public table: between the frequencies of the column's codes, the values or parts of its range that the sketch tells
    apart, 0 for equal ones, sqrt(2) where each side has one value and the two differ. The surest drift comes first: the
    least probability of so large a distance where there is none (`Drift.doubt`), then the largest lower end.

    Guarantee: post-processing of what the run released; it costs nothing. The reference is not protected at all, and is
    held against the clients' files in `data_dir`; without these ``doubt`` says so. With `others` the user
    answers for its rows that equal private ones.

    The run is of trust model `sketch-local`; or of `sketch`, with all clients as one side and a reference, a *public*
    table; by column it is one that measured a declared table. All intervals hold together at that confidence.
    ExperimentError if it has no such sketch, names a module that is not allowed, or for a reference that is a client's
    table or shares rows with one; BadRecords, FileNotFoundError for a reference that cannot be read.
    """
    problem, sides, public, (doubt, word) = _released_sides(directory, reference, data_dir, others, allow_modules)
    if by_column:
        return Drifts(_drifts_by_column(directory, problem, list(_pairs(sides, public)), confidence), doubt, word)
    pairs = list(combinations(sides.items(), 2) if public is None else ((side, public) for side in sides.items()))
    level = of_each(confidence, len(pairs))
    return Drifts([Between(a, b, drift(one, other, confidence=level)) for (a, one), (b, other) in pairs], doubt, word)


def _drifts_by_column(
    directory: Path, problem: Problem, pairs: list[tuple[Side, Side]], confidence: float
) -> list[Between]:
    if table_of(problem.experiment) is None:
        raise ExperimentError(
            f"{directory} measured kind {problem.experiment.sketch.kind!r}, which has no columns by themselves: only "
            "the sketch of a table has, as of `fedsw synthesize`"
        )
    compared = [
        (name, against, column, means, _means(rest, problem)[column])
        for (name, sketch), (against, rest) in pairs
        for column, means in _means(sketch, problem).items()
    ]
    level = of_each(confidence, len(compared))
    pairs_apart = [
        Between(name, against, drift_of_means(means, theirs, confidence=level), column)
        for name, against, column, means, theirs in compared
    ]
    return sorted(pairs_apart, key=lambda pair: (pair.drift.doubt, -pair.drift.populations[0], -pair.drift.distance))


def of_each(confidence: float, count: int) -> float:
    """The confidence of each of `count` intervals that hold all together with the given one (Bonferroni)."""
    return 1 - (1 - confidence) / max(1, count)


def _released_sides(
    directory: Path, reference: Path | None, data_dir: Path | None, others: bool, allow_modules: Collection[str]
) -> tuple[Problem, Mapping[str, NoisedSketch], Side | None, tuple[str, str]]:
    experiment, _ = RunDirectory(directory).read_config(allow_modules)
    if not experiment.stages:
        raise ExperimentError(
            f"{directory} is a run under trust {experiment.privacy.trust!r}, which releases no sketch: give one of "
            "'sketch-local', as of `fedsw synthesize --trust sketch-local`"
        )
    problem = Problem.from_experiment(experiment.on_host())
    sides = _sides(directory, problem)
    if reference is not None:
        if (columns := experiment.data.columns) is None:
            raise ExperimentError("--reference is a table of declared columns, and the run has none: leave it out")
        other = other_table(reference, columns, data_dir, option="--reference", others=others)
        # a public table has no noise, and the law of the run's sketches
        law, records = law_of_problem(problem), other.records
        public = NoisedSketch(law, sketch_of_records(problem, records), 0.0, len(records))
        return problem, sides, (str(reference), public), (other.doubt, other.word)
    if data_dir is not None or others:
        option = "--other-people is a word about" if data_dir is None else "--data-dir is what is compared with"
        raise ExperimentError(f"{option} --reference, and there is none: leave it out")
    if len(sides) < 2:
        raise ExperimentError(
            f"{directory} has one sketch, of all clients together: name a public table with --reference, or run "
            "with --trust sketch-local, where each client releases its own"
        )
    return problem, sides, None, ("", "")


def _sides(directory: Path, problem: Problem) -> Mapping[str, NoisedSketch]:
    """The sketches of a run by owner: each client's own, or one of all."""
    law, run = law_of_problem(problem), RunDirectory(directory)
    releases = Releases(run.releases)
    held = (read_json(directory / RunFile.SUMMARY) or {}).get("sketch", {}).get("records_by_client", {})
    clients = sorted(releases.clients)
    if clients and set(held) == {str(client) for client in clients}:
        released = zip(clients, releases.read(), strict=True)
        return {
            f"client {client}": NoisedSketch(law, release["noised"], float(release["sigma"]), int(held[str(client)]))
            for client, release in released
        }
    stored = stored_sketch(run, law)
    if clients or stored is None:
        raise ExperimentError(
            f"{directory} has not ended: `fedsw resume {directory}` goes on, then its sketches are read"
        )
    return {"all clients": stored.sketch}


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
    """Return means by column: of columns written as codes, then of classes and groups where the sketch parts them."""
    columns, blocks = problem.experiment.data.columns, problem.experiment.sketch
    coded = table_of(problem.experiment)
    assert columns is not None and coded is not None
    means = dict(zip((column.name for column in coded), column_means(sketch), strict=True))
    labels, groups = cell_means(sketch)
    if blocks.labels and columns.target is not None:
        means[columns.target.name] = labels
    if blocks.groups and columns.sensitive is not None:
        means[columns.sensitive.name] = groups
    return means
