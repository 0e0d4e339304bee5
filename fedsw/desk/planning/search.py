"""Settings searched on public twins: candidates, their scores, the best; a search on screens and as plain values."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsw._tools.randomness import Stream
from fedsw._tools.text import number, to_float
from fedsw.data.sources import declared_columns, require_one_client_each
from fedsw.desk.own_data.examine import examine
from fedsw.desk.planning.public_rows import LAWS, drawn, known_sizes, spread_evenly
from fedsw.experiment import Experiment, ExperimentError, load_experiment, parse_experiment
from fedsw.experiment.task_kinds import task_facts
from fedsw.federation.engines import driver
from fedsw.federation.server.settling import settled
from fedsw.runs.report.document import Conclusion, Document, Listed, Note

Score = Callable[[Experiment], float]
"""Scores an experiment; the higher the better."""

MOST = 10_000
"""Combinations of values that a search tries at most."""
_FACTORS = (1 / 3, 1.0, 3.0)
"""Learning rates that are tried if no values are named, in the planned one."""


@dataclass(frozen=True)
class Candidate:
    """One way to set the experiment: settings as on the command line, and what comes of them."""

    settings: tuple[str, ...]
    experiment: Experiment

    @property
    def words(self) -> str:
        """The settings in one line."""
        return ", ".join(self.settings) or "as written"


def candidates(path: Path, tries: Sequence[str], settings: Sequence[str] = ()) -> list[Candidate]:
    """Every combination of the values to try; without any, learning rates around the experiment's own.

    Each of the ``tries`` is `section.key=value,value,...`; all share the settings. ExperimentError for a combination
    that is not an experiment, before anything is run.
    """
    base = load_experiment(path, settings)
    axes = list[list[str]]()
    for text in tries:
        key, sign, values = text.partition("=")
        choices = [value.strip() for value in values.split(",") if value.strip()]
        if not sign or not key.strip() or not choices:
            raise ExperimentError(f"--try {text!r} cannot be read; write --try section.key=value,value")
        axes.append([f"{key.strip()}={value}" for value in choices])
    if not axes:  # around the experiment's rate: with `preset = "auto"` around the planned one
        planned = settled(base).training.learning_rate
        axes = [[f"training.learning_rate={planned * factor:.3g}" for factor in _FACTORS]]
    if (count := math.prod(map(len, axes))) > MOST:
        raise ExperimentError(f"--try asks for {count} combinations, above {MOST}; give fewer values")
    return [
        Candidate(tuple(chosen), load_experiment(path, [*settings, *chosen])) for chosen in itertools.product(*axes)
    ]


def metric_of(experiment: Experiment, named: str | None) -> tuple[str, float]:
    """The held-out metric that is the score, and its sign: 1 where higher is better.

    It is named `NAME`, or `-NAME` where lower is better; the task's own by default.
    """
    if named is not None:
        return (named[1:], -1.0) if named.startswith("-") else (named, 1.0)
    task = experiment.objective.task
    judged = task_facts(task).judged
    if judged is None:
        raise ExperimentError(f"objective.task {task!r} has no score of its own: add --metric NAME (-NAME: lower wins)")
    return judged.metric, judged.sign


def score_of(summary: Mapping[str, Any], metric: str, sign: float) -> float:
    """The score in a run's summary; a run that diverged scores -inf."""
    held_out = summary["held_out"]
    if metric not in held_out:
        known = ", ".join(held_out) or "none, since data.held_out is missing"
        raise ExperimentError(f"the run has no held-out metric {metric!r}; it has {known}")
    value = to_float(held_out[metric])
    return -math.inf if value is None or math.isnan(value) else sign * value


_HELD_OUT = 4000
"""Held-out twins of each law, of all groups together."""
_SEED = 1
"""Seed of every try: all meet the same draws, so that scores differ by the settings and not by chance."""


def score_on_twins(sizes: Sequence[Mapping[str, int]], metric: str, sign: float) -> Score:
    """A score that trains on twins of the public sizes with the planned noise, the mean over the laws of a plan."""

    def score(experiment: Experiment) -> float:
        # on Python objects, one a unit, outside every account; seeded, so that all meet the same draws
        raw = experiment.model_dump(mode="json")
        raw["data"]["columns"]["unit"] = None
        none = dict.fromkeys(("data_dir", "held_out", "account", "unit"))
        raw["data"] |= {"source": "object", "held_out_to": "operator", **none}
        raw["data"]["held_out_overlap"] = "allow"  # twins are nobody: equal rows give nothing away
        raw["federation"]["clients"], raw["seed"] = len(sizes), _SEED
        ready = parse_experiment(raw)
        columns = declared_columns(ready.data)
        apart = spread_evenly(columns.groups, _HELD_OUT)
        scores = []
        for law in LAWS:
            twins = [drawn(columns, by_group, law, seed=client) for client, by_group in enumerate(sizes)]
            held_out = drawn(columns, apart, law, seed=len(sizes))
            with tempfile.TemporaryDirectory() as folder:
                result = driver.run(ready, data=twins, held_out=held_out, runs=Path(folder))
            scores.append(score_of(result.summary, metric, sign))
        return sum(scores) / len(scores)

    return score


@dataclass(frozen=True)
class Tried:
    """A candidate with its score, and why it has none."""

    candidate: Candidate
    score: float
    fault: str | None = None


def search(
    offered: Sequence[Candidate],
    score: Score,
    *,
    most: int,
    said: Callable[[Tried], None] = lambda tried: None,
) -> list[Tried]:
    """Score candidates, the best first; of more than `most` a random choice of that many.

    A candidate that cannot be run scores -inf and says why: the others go on. The score must not look at private
    records. ExperimentError if no candidate has one, with the first one's reason.
    """
    tried = []
    for candidate in _chosen(offered, most):
        try:
            result = Tried(candidate, score(candidate.experiment))
        except (ValueError, RuntimeError) as fault:
            result = Tried(candidate, -math.inf, f"{type(fault).__name__}: {fault}")
        tried.append(result)
        said(result)
    if all(math.isinf(scored.score) for scored in tried):
        why = next((scored.fault for scored in tried if scored.fault), "every one of them diverged")
        raise ExperimentError(f"none of the {len(tried)} settings tried has a score, so none is recommended: {why}")
    return sorted(tried, key=lambda scored: -scored.score)


def _chosen(offered: Sequence[Candidate], most: int) -> list[Candidate]:
    if len(offered) <= most:
        return list(offered)
    keys = Stream.seeded(0, "tuning").words(len(offered))
    return [offered[index] for index in sorted(range(len(offered)), key=lambda index: int(keys[index]))[:most]]


def on_twins(
    tried: list[Candidate], most: int, metric: str, sign: float, said: Callable[[Tried], None]
) -> dict[str, Any]:
    """The tries of a search on twins with the sizes of clients' own files, the best first, as plain values."""
    own_files = tried[0].experiment.data.own_files
    if own_files is None or own_files.folder is None:
        raise ExperimentError("twins have the sizes of clients' own files, and nothing says where they are: --data-dir")
    require_one_client_each(tried[0].experiment.data, tried[0].experiment.federation.clients)
    read = examine(tried[0].experiment, own_files.folder).files
    strictest = max((candidate.experiment for candidate in tried), key=lambda candidate: candidate.stages)
    sizes = [known_sizes(strictest, file.groups) for file in read]
    results = search(tried, score_on_twins(sizes, metric, sign), most=most, said=said)
    rows = [
        {
            "settings": list(result.candidate.settings),
            "words": result.candidate.words,
            metric: sign * result.score if math.isfinite(result.score) else None,
            "fault": result.fault,
        }
        for result in results
    ]
    return {"on": "public twins", "metric": metric, "cost": 0.0, "best": rows[0]["settings"], "tried": rows}


def tried_view(record: Mapping[str, Any]) -> Document:
    """The table of a free search."""
    metric, best = record["metric"], "  ".join(record["best"]) or "as written"
    rows = [(row["words"], number(row[metric], 4), row["fault"] or "") for row in record["tried"]]
    return Document(
        "",
        begins=(
            Listed.of("Tried", ("settings", metric.replace("_", " "), ""), rows, left=("settings", "")),
            Conclusion(f"best on public twins: {best}"),
            "`fedsw plan` and `fedsw run` take these settings after the experiment",
            Note("cost: ε = 0, no record was looked at. Records may follow another law than their twins"),
        ),
    )
