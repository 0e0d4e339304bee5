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
    from fedsw.runs.directory import RunDirectory
    from fedsw.tasks.problem import Problem
    from fedsw.tasks.sketch_sums import law_of_problem, sums_of

    experiment, _ = RunDirectory(directory).read_config()
    if not experiment.privacy.sketch:
        raise ExperimentError(
            f"{directory} is a run under trust {experiment.privacy.trust!r}, which releases no sketch: give one of "
            "'sketch-local', as of `fedsw synthesize --trust sketch-local`"
        )
    problem = Problem.from_experiment(experiment)
    sides = _sides(directory, problem)
    if reference is None:
        if len(sides) < 2:
            raise ExperimentError(
                f"{directory} has one sketch, of all clients together: name a public table with --reference, or run "
                "with --trust sketch-local, where each client releases its own"
            )
        pairs = combinations(sides.items(), 2)
        return [Between(a, b, drift(one, other, confidence=confidence)) for (a, one), (b, other) in pairs]
    columns = experiment.data.columns
    if columns is None:
        raise ExperimentError("--reference is a table of declared columns, and the run has none: leave it out")
    from fedsw.data import read_table

    records, like = read_table(reference, columns), next(iter(sides.values()))
    assert like.law == law_of_problem(problem)
    public = exact_sketch(like, sums_of(problem, records), len(records))
    return [Between(name, str(reference), drift(own, public, confidence=confidence)) for name, own in sides.items()]


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
