"""How far apart clients' records are, by the sketches that a run released; and how far from a public table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from fedsw.experiment import ExperimentError
from fedsw.runs.files import SUMMARY, read_json
from fedsw.transport.noised_sketches import NoisedSketch
from fedsw.transport.sketch_drift import Drift, drift, exact_sketch

if TYPE_CHECKING:
    from fedsw.tasks.problem import Problem


@dataclass(frozen=True)
class Between:
    """Two sides by name, and how far apart their records are."""

    one: str
    other: str
    found: Drift


def drifts(directory: Path, *, reference: Path | None, confidence: float) -> list[Between]:
    """The drift between every two clients of a run, or between each and a public table.

    Guarantee: post-processing of what the run released; it costs nothing. The reference is not protected at all.

    Args:
        directory: a run of trust model `sketch-local`; or of `sketch`, whose clients are one side, with a reference.
        reference: a *public* table of the declared columns.
        confidence: of every interval by itself.

    Raises:
        ExperimentError: if the run released no sketch, or has one side only.
        BadRecords, FileNotFoundError: for a reference that cannot be read.
    """
    _, sides, public = released_sides(directory, reference)
    pairs = combinations(sides.items(), 2) if public is None else ((side, public) for side in sides.items())
    return [Between(a, b, drift(one, other, confidence=confidence)) for (a, one), (b, other) in pairs]


def released_sides(
    directory: Path, reference: Path | None
) -> tuple[Problem, Mapping[str, NoisedSketch], tuple[str, NoisedSketch] | None]:
    """A run's problem, its sketches by whose they are, and that of a public table with its name, where there is one.

    Raises:
        ExperimentError, BadRecords, FileNotFoundError: see `drifts`.
    """
    from fedsw.runs.directory import RunDirectory
    from fedsw.tasks.problem import Problem

    experiment, _ = RunDirectory(directory).read_config()
    if not experiment.privacy.sketch:
        raise ExperimentError(
            f"{directory} is a run under trust {experiment.privacy.trust!r}, which releases no sketch: give one of "
            "'sketch-local', as of `fedsw synthesize --trust sketch-local`"
        )
    problem = Problem.from_experiment(experiment)
    sides = _sides(directory, problem)
    if reference is not None:
        return problem, sides, (str(reference), _public(problem, reference, next(iter(sides.values()))))
    if len(sides) < 2:
        raise ExperimentError(
            f"{directory} has one sketch, of all clients together: name a public table with --reference, or run "
            "with --trust sketch-local, where each client releases its own"
        )
    return problem, sides, None


def _public(problem: Problem, reference: Path, like: NoisedSketch) -> NoisedSketch:
    """The exact sketch of a public table."""
    from fedsw.tasks.sketch_sums import law_of_problem, sums_of

    columns = problem.experiment.data.columns
    if columns is None:
        raise ExperimentError("--reference is a table of declared columns, and the run has none: leave it out")
    from fedsw.data import read_table

    records = read_table(reference, columns)
    assert like.law == law_of_problem(problem)
    return exact_sketch(like, sums_of(problem, records), len(records))


def _sides(directory: Path, problem: Problem) -> Mapping[str, NoisedSketch]:
    """The sketches of a run by whose they are: each client's own, or one of all."""
    from fedsw.runs.directory import RunDirectory
    from fedsw.runs.releases import Releases
    from fedsw.runs.sketches import stored_sketch
    from fedsw.tasks.sketch_sums import law_of_problem

    law, run = law_of_problem(problem), RunDirectory(directory)
    releases = Releases(run.releases)
    held = (read_json(directory / SUMMARY) or {}).get("sketch", {}).get("records_by_client", {})
    clients = sorted(releases.clients)
    if clients and set(held) == {str(client) for client in clients}:
        own = zip(clients, releases.read(), strict=True)
        return {
            f"client {client}": NoisedSketch(law, kept["noised"], float(kept["sigma"]), int(held[str(client)]))
            for client, kept in own
        }
    stored = stored_sketch(run, law)
    if clients or stored is None:
        raise ExperimentError(
            f"{directory} has not ended: `fedsw resume {directory}` goes on, then its sketches are read"
        )
    return {"all clients": stored.sketch}
