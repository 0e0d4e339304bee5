"""Histograms of a table's columns from one noised release: the experiment that makes it, and what it says.

`as_description` is the experiment, `described` reads a finished run of it into a `Description` of `DescribedColumn`s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsw._tools.later import imported_later
from fedsw.data.columns.declaration import Columns
from fedsw.desk.own_data.described_column import DescribedColumn
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.experiment.trust import trust_models
from fedsw.runs.directory import RunDirectory
from fedsw.runs.run_files import RunFile, read_json, write_json

if TYPE_CHECKING:  # its torch takes longer than all else here, and columns that were kept need none of it
    from fedsw.desk.own_data import _histograms as histograms

globals().update(imported_later(__spec__))

__all__ = [
    "DescribedColumn",
    "Description",
    "as_description",
    "released_columns",
    "described",
    "trust_once",
    "guarded_once",
    "keep_description",
]

BINS = 20
"""Equal parts of a range; finer ones at its low end come to them."""
SINGLES = 0.7
"""Part of the squared norm that columns have; columns by class have the rest."""
SUFFIX = "-described"
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_KEPT = ("title", "data", "partition", "federation", "seed")


def released_columns(experiment: Experiment, why: str) -> Columns:
    """Declared columns of tables that are released once, by a sum that is bounded for replacements only.

    ExperimentError if there are none, or the number of records is secret, which such a release shows.
    """
    if experiment.privacy.hides_sizes:
        raise ExperimentError(
            f"privacy.relation is {experiment.privacy.relation!r}, which hides how many records there are, and this "
            "release is bounded for a replacement and says how many: both together would show it. Use a copy of the "
            "experiment without privacy.relation, sampling and records, where the number may be known"
        )
    if experiment.data.columns is None:
        raise ExperimentError(
            f"data.source {experiment.data.source!r} has no declared columns, and {why}: declare [data.columns] "
            "(`fedsw init DATA` drafts it)"
        )
    return experiment.data.columns


def trust_once(experiment: Experiment, trust: str | None) -> str:
    """The trust model of one release of tables: the given one, or that with the same trust in all parties as the own.

    ExperimentError if there is none: any other one trusts a party that the experiment does not.
    """
    once = trust or experiment.privacy.model.once
    if once is None:
        able = ", ".join(sorted({model.once for model in trust_models().values() if model.once is not None}))
        raise ExperimentError(
            f"privacy.trust is {experiment.privacy.trust!r}, under which no table is released once; choose --trust "
            f"among {able} (under sketch the server is trusted)"
        )
    return once


def guarded_once(experiment: Experiment, trust: str, epsilon: float | None) -> dict[str, Any]:
    """Settings of the guarantee of one release of an experiment's tables: its own, or with another epsilon."""
    privacy = experiment.privacy
    made: dict[str, Any] = {"privacy": {"delta": privacy.delta, "device": privacy.device, "trust": trust}}
    if trust == privacy.trust:
        # how many may collude; bins are those of tables of outputs, which no release of records has
        local = experiment.model_dump().get("local", {})
        made["local"] = {name: value for name, value in local.items() if name != "bins"}
    if epsilon is None and privacy.noise_multiplier is not None:
        made["privacy"] |= {"noise_multiplier": privacy.noise_multiplier, "epsilon": None}
    else:
        made["privacy"]["epsilon"] = privacy.epsilon if epsilon is None else epsilon
    return made


def as_description(experiment: Experiment, *, trust: str | None = None, epsilon: float | None = None) -> Experiment:
    """Make the experiment that releases histograms of all declared columns of another one's tables, once.

    A record adds the root of w_j to its bin of column j, and the root of v_j to its bin of column j and its class, with
    sum w_j + sum v_j = 1: no number of its vector is negative, so replacing it moves the sum by at most sqrt(2)
    (docs/guarantees/sketches.md). Declaration, files, account, clients, partition, seed, epsilon and delta stay; the
    trust model is the experiment's own, or of the same trust where records leave once.

    Raises:
        ExperimentError: if there are no declared columns, the number of records is secret, no noise is asked for, or no
            such release exists under the trust model.
    """
    released_columns(experiment, "histograms are of these")
    once, raw = trust_once(experiment, trust), experiment.model_dump()
    settings: dict[str, Any] = {name: raw[name] for name in _KEPT}
    settings["name"] = experiment.name + SUFFIX  # its runs are no runs of the model that the experiment trains
    settings["model"], settings["training"] = {"kind": "table-generator", "latent": 4}, {"rounds": 1}
    settings["sketch"] = {
        "kind": "table",
        "crossed": "class",
        "singles": SINGLES,
        "balance": "codes",
        "bins": BINS,
        "labels": False,
        "batch": 20,
    }
    settings["data"] |= {"held_out": None, "held_out_overlap": "refuse", "held_out_to": "operator"}
    settings["objective"] = {"task": "synthesis", "penalty": "distribution-matching", "alpha": 1.0}
    settings["evaluate_every"] = 1
    made = parse_experiment(settings | guarded_once(experiment, once, epsilon))
    if made.privacy.guarantee.unprotected:
        raise ExperimentError(
            "privacy.epsilon is inf: counts of records without noise are not released; set a finite epsilon"
        )
    return made


@dataclass(frozen=True)
class Description:
    """Noised histograms of a table from one release.

    Attributes:
        columns: in the declared order, the classes last.
        classes: their names; none without classes.
        records: their public number.
        summary: of the run.
    """

    experiment: Experiment
    columns: tuple[DescribedColumn, ...]
    classes: tuple[str, ...]
    records: int
    summary: dict[str, Any]

    @property
    def findings(self) -> list[str]:
        """Advice on the declaration, a sentence each."""
        return [advice for column in self.columns if (advice := column.advice) is not None]

    def plain(self) -> dict[str, Any]:
        """Everything as numbers and texts."""
        return {
            "records": self.records,
            "epsilon_spent": self.summary["epsilon_spent"],
            "guarantee": self.summary["guarantee"]["statement"],
            "columns": [
                {
                    "name": column.name,
                    "role": column.role,
                    "bins": list(column.labels),
                    "edges": list(column.edges),
                    "shares": column.shares.tolist(),
                    "half_width": column.half_width,
                    "class_half_width": column.class_half_width,
                    "by_class": dict(zip(self.classes, column.by_class.tolist(), strict=False)),
                    "quantiles": {f"{part:g}": column.quantile(part) for part in QUANTILES} if column.edges else {},
                }
                for column in self.columns
            ],
            "findings": self.findings,
        }


def described(directory: Path, modules: Collection[str] = ()) -> Description:
    """Read what a finished run of `as_description` released: its histograms as they are kept, or made anew.

    Raises:
        ExperimentError: if the run is of something else, or has not ended.
        ValueError: naming the run's file that is damaged.
    """
    if not (directory / RunFile.CONFIG).is_file():
        raise ExperimentError(f"{directory} is no run of `fedsw describe`: it has no {RunFile.CONFIG}")
    experiment, _ = RunDirectory(directory).read_config(modules)
    columns = experiment.data.columns
    if columns is None or (experiment.sketch.kind, experiment.sketch.crossed) != ("table", "class"):
        raise ExperimentError(f"{directory} is no run of `fedsw describe`")
    summary = read_json(directory / RunFile.SUMMARY) or {}
    counted = _kept(directory) or histograms.columns_of(experiment, directory)
    if summary.get("status") != "completed" or counted is None:
        raise ExperimentError(f"{directory} has not ended ({summary.get('status')}): `fedsw resume {directory}`")
    return Description(experiment, counted[0], columns.classes, counted[1], summary)


def keep_description(directory: Path, description: Description) -> None:
    """Store the histograms in their run's folder, with the digest of the sketch that they were read off."""
    content = {
        "of": _digest(directory),
        "records": description.records,
        "columns": [column.content() for column in description.columns],
    }
    write_json(directory / RunFile.DESCRIPTION, content)


def _kept(directory: Path) -> tuple[tuple[DescribedColumn, ...], int] | None:
    """The columns that are kept of the sketch in a folder, and the number of records; None if there are none."""
    path = directory / RunFile.DESCRIPTION
    content = read_json(path)
    if content is None or content.get("of") != _digest(directory):
        return None
    try:
        return tuple(DescribedColumn.of_content(column) for column in content["columns"]), int(content["records"])
    except (LookupError, TypeError, ValueError) as fault:
        raise ValueError(f"{path} is damaged: {fault}") from None


def _digest(directory: Path) -> str | None:
    path = directory / RunFile.SKETCH
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
