"""Public facts of an experiment's records (columns, numbers by group), and twins that are drawn from these.

Then twins of what a run has released: records of its moments' law, to plan the rounds that are left, for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.text import number
from fedsw.data import DeclaredRecords
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.declared_kinds import Feature, Group, Label, Number
from fedsw.data.sources import declared_columns, load_dataset, load_shape, require_runnable
from fedsw.desk.own_data.apart import other_table
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.compatibility import relation_of
from fedsw.experiment.trust import Law, trust_model
from fedsw.federation.server.settling import sizes_at_hand
from fedsw.federation.trust import budget_shares as split
from fedsw.learning.models import flatten
from fedsw.learning.moments.beside_rounds import binned, histograms_of
from fedsw.learning.moments.column_counts import ColumnCounts, Histograms
from fedsw.learning.moments.moments_sum import STEP, Layout, layout_of, sums_of
from fedsw.learning.moments.preparation import prepare, residual_of, started, whitening_of
from fedsw.learning.moments.released_moments import Moments, constant_of
from fedsw.learning.objectives import Clip, histograms
from fedsw.learning.tasks.objective import ClippedObjective
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.score_counts import ScoreCounts
from fedsw.mathematics.transport.sliced import orthogonal_spread
from fedsw.runs.directory import RunDirectory
from fedsw.runs.releases import kept_moments
from fedsw.runs.run_files import RunFile, read_json


def public_columns(experiment: Experiment) -> Columns:
    """The declared columns; of a named data set those that the names of its inputs tell.

    Inputs named "column=value" are the values of one column. Other inputs of a named data set are numbers from -1 to 1;
    of one that is drawn from a law, numbers without bounds.
    """
    if experiment.data.own:
        return declared_columns(experiment.data)
    dataset = load_dataset(experiment.record_source)
    return columns_named(
        dataset.feature_names,
        groups=dataset.groups,
        classes=dataset.classes,
        targets=dataset.targets,
        bounded=not experiment.data.drawn,
    )


def has_bounds(experiment: Experiment) -> bool:
    """Say whether a column is declared with bounds, of which records may use a small part."""
    return any(feature.low is not None for feature in public_columns(experiment).features)


def columns_named(
    names: Sequence[str], *, groups: Sequence[str], classes: Sequence[str], targets: int, bounded: bool
) -> Columns:
    """Columns behind inputs of these names, see `public_columns`."""
    blocks: dict[str, list[str]] = {}
    for name in names:
        column, sign, value = name.partition("=")
        blocks.setdefault(column if sign else name, []).extend([value] if sign else [])
    signed: dict[str, Any] = {"low": -1, "high": 1, "scale": "signed"} if bounded else {}
    return Columns(
        features=tuple(
            Feature(name=name, categories=tuple(values)) if len(values) > 1 else Feature(name=name, **signed)
            for name, values in blocks.items()
        ),
        sensitive=Group(name="the group", values=tuple(groups)) if len(groups) > 1 else None,
        target=Label(name="the class", values=tuple(classes)) if classes else None,
        targets=tuple(Number(name=f"the target {index}", low=0, high=1) for index in range(targets)),
    )


def spread_evenly(groups: Sequence[str], records: int) -> dict[str, int]:
    """So many records, 2 of a group at least, evenly over the groups: what is assumed where no sizes are known."""
    if records < 2 * len(groups):
        raise ExperimentError(
            f"--records is {records}, and there are {len(groups)} groups; a plan takes at least 2 records of each"
        )
    return scaled(dict.fromkeys(groups, 1), records)


def known_sizes(experiment: Experiment, by_group: Mapping[str, int]) -> dict[str, int]:
    """Return the public numbers of private records by group; under a sketch only their sum is, spread evenly here."""
    known = dict(experiment.privacy.model.public_groups(by_group))
    return known or spread_evenly([*by_group], sum(by_group.values()))


def scaled(by_group: Mapping[str, int], records: int) -> dict[str, int]:
    """So many records in the same proportions, at least 2 of every group that has any."""
    total = sum(by_group.values())
    return {name: max(2, round(size * records / total)) if size else 0 for name, size in by_group.items()}


Float = NDArray[np.float64]

_FACTORS = 4
"""Hidden traits of a record, which its columns show and its target follows."""
_CLARITY = 0.6
"""Share of a column's variance that the traits make."""
_APART = 0.5
"""Distance between the traits of the groups, in standard deviations."""
_WIDE = 4.0
"""Standard deviations that a column's values take of what they use of its bounds."""
_MISSING = 0.05
"""Share of missing cells in a column of twins that may have them."""
_ALIKE = 0.7
"""How far columns follow what the target follows, of 1: people gather columns because they tell of it."""


@dataclass(frozen=True)
class TwinLaw:
    """Law of public twins: how much there is to learn, and how much of their bounds columns use.

    Hidden traits make the ``explained`` share of the target's variance; ``common`` is that of the more frequent of two
    classes and ``most`` that of the most frequent of several (each has 70 % of the last if it is None). A predicted
    number, between 0 and 1, has a ``middle`` and a ``spread``; a column uses from the least to the most that is
    ``used`` of what is between its bounds. Numbers show any traits alike where ``alike`` is 0, and only
    those that the target follows where it is 1. With a ``tail`` the logarithm of the predicted number is normal, of
    that deviation, and ``middle`` its mean: a few are far larger than the rest.
    """

    name: str
    explained: float
    common: float
    middle: float
    spread: float
    seed: int
    used: tuple[float, float] = (0.1, 0.8)
    alike: float = 0.0
    tail: float = 0.0
    most: float | None = None


LAWS = (
    TwinLaw("little", explained=0.2, common=0.6, middle=0.85, spread=0.08, seed=1, alike=_ALIKE),
    TwinLaw("some", explained=0.5, common=0.75, middle=0.3, spread=0.2, seed=2, alike=_ALIKE),
    TwinLaw("much", explained=0.9, common=0.5, middle=0.5, spread=0.2, seed=3, alike=_ALIKE),
)
"""Laws that a forecast averages over, by what each lets be learnt: which of them the records are like is not known.

They have columns that use little of their bounds, and a number far from its middle; classes are not rare, as nothing
is known before moments are released.
"""


SKEWED = tuple(
    TwinLaw("skewed", explained=0.1, common=0.5, middle=0.03, spread=0.0, seed=seed, alike=_ALIKE, tail=1.5)
    for seed in range(5, 11)
)
"""Numbers of which most are near the lower bound and a few far larger, as counts and costs are: two thirds of their
squares are of one record in fifty. Some columns show it and some do not, so that the least of these laws counts."""
TIGHT = TwinLaw("tight", explained=0.5, common=0.6, middle=0.5, spread=0.2, seed=4, used=(0.02, 0.06))
"""Columns that use a small part of their bounds: unknown before moments are released, and without these steps they
teach little."""
BARE = tuple(
    TwinLaw("bare", explained=0.08, common=0.6, middle=0.5, spread=0.2, seed=seed, alike=_ALIKE)
    for seed in range(12, 16)
)
"""Columns by which a model gains one or two points over a constant, or some hundredths of a number's variance: as
little as many tables let be learnt, which is unknown before something is released. There are several, as each is
mostly chance."""
RARE = 0.02
"""Share of the rarer class at which a plan says what would be left."""


def with_rare_class(law: TwinLaw, share: float = RARE) -> TwinLaw:
    """The law with a ``share`` of records outside of the most frequent class: unknown before moments."""
    return replace(law, name="rare", common=1 - share, most=1 - share)


def rarest_share(laws: Sequence[TwinLaw], classes: int) -> float:
    """The share of the least frequent class that a plan by these laws assumes, of so many classes."""
    return min(float(_shares(law, classes).min()) for law in laws)


def others_share(laws: Sequence[TwinLaw], classes: int) -> float:
    """The share of all but the most frequent class that a plan by these laws assumes, of so many classes."""
    return 1 - max(float(_shares(law, classes).max()) for law in laws)


class PublicRows(DeclaredRecords):
    """Records without privacy, twins or rows of a public table: training on them charges no ledger."""


def drawn(columns: Columns, by_group: Mapping[str, int], law: TwinLaw, *, seed: int) -> PublicRows:
    """Records of the declared columns, as many of every group as are asked for.

    A record has four hidden traits, normal, with other means in every group. Numbers, categories and truth values
    follow them and chance; the target follows one combination of the traits, and chance, and each of several classes
    one of its own. All coefficients come from the law's own seed, so that records drawn with another `seed` are of the
    same law.
    """
    fixed, chance = np.random.default_rng([7, law.seed]), np.random.default_rng([8, law.seed, seed])
    groups = np.repeat(np.arange(len(columns.groups)), [by_group[name] for name in columns.groups])
    means = _APART * fixed.standard_normal((len(columns.groups), _FACTORS)) / np.sqrt(_FACTORS)
    draw = _Draw(law, fixed, chance, means[groups] + chance.standard_normal((len(groups), _FACTORS)))
    directions = draw.directions(columns)
    target = draw.target(columns, directions)
    if len(columns.classes) > 2:
        draw = replace(draw, traits=draw.about(directions[target]))
    features = np.hstack([draw.inputs(feature, directions) for feature in columns.features])
    order = chance.permutation(len(groups))
    return PublicRows(
        features=torch.from_numpy(features[order].astype(np.float32)),
        sensitive=torch.from_numpy(groups[order]),
        target=torch.from_numpy(target[order]),
        ids=torch.arange(len(groups)),
        columns=columns,
        kind="public twins",
    )


@dataclass(frozen=True)
class _Draw:
    """Records that are drawn from a law: what the law fixes, chance, and their hidden traits (n, f)."""

    law: TwinLaw
    fixed: np.random.Generator
    chance: np.random.Generator
    traits: Float

    def directions(self, columns: Columns) -> Float:
        """Weights of the traits that the target follows, a row (f,): for each of several classes, else one."""
        rows = self.fixed.standard_normal((len(columns.classes) if len(columns.classes) > 2 else 1, _FACTORS))
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    def target(self, columns: Columns, directions: Float) -> NDArray[np.float32] | NDArray[np.int64]:
        """Targets (n, t) in [0, 1], the first by a score and others by it and chance; or classes (n,), the first of
        those with the lowest scores, and each next one of those left."""
        if not columns.targets:
            return self._classes(_shares(self.law, len(columns.classes)), directions)
        law, numbers = self.law, []
        score = self._mixed(law.explained, self._along(directions[0]))
        for index in range(len(columns.targets)):
            mixed = self._mixed(1.0 if index == 0 else self.fixed.uniform(0.5, 1.0), score)  # standard normal
            tailed = law.middle * np.exp(law.tail * mixed - law.tail**2 / 2)
            numbers.append(np.clip(tailed if law.tail else law.middle + law.spread * mixed, 0.0, 1.0))
        return np.stack(numbers, axis=1).astype(np.float32)

    def _classes(self, shares: Float, directions: Float) -> NDArray[np.int64]:
        """Classes (n,) of these shares: of two by a score, of several by chance."""
        total, ends = len(self.traits), np.round(np.cumsum(shares) * len(self.traits)).astype(np.int64)
        several = len(shares) > 2
        order = (
            self.chance.permutation(total)
            if several
            else np.argsort(self._mixed(self.law.explained, self._along(directions[0])), kind="stable")
        )
        target = np.empty(total, dtype=np.int64)
        target[order] = np.searchsorted(ends, np.arange(total), side="right").clip(max=len(shares) - 1)
        return target

    def about(self, middles: Float) -> Float:
        """The traits (n, f) about the middles of classes (n, f) of length 1, which make `explained` of the variance."""
        explained = self.law.explained
        return np.asarray(np.sqrt(explained * _FACTORS) * middles + np.sqrt(1 - explained) * self.traits)

    def inputs(self, feature: Feature, directions: Float) -> Float:
        """The inputs (n, k) that come of a column, where the target follows these directions."""
        if feature.categories:
            values = self._one_hot(len(feature.categories))
        else:
            values = np.stack([self._number(feature, directions) for _ in range(feature.count or 1)], axis=1)
        if not feature.missing:
            return values
        absent = (self.chance.random(len(values)) < _MISSING).astype(np.float64)[:, None]
        return np.hstack([values * (1 - absent), absent])

    def _number(self, feature: Feature, directions: Float) -> Float:
        """Return a column (n,) that shows the traits, one more than the others: standard normal, or within bounds."""
        weights = self.fixed.standard_normal(_FACTORS) ** 3
        if self.law.alike:
            follows = directions[self.fixed.integers(len(directions))] * self.fixed.choice((-1.0, 1.0))
            weights = (1 - self.law.alike) * weights / np.linalg.norm(weights) + self.law.alike * follows
        shown = self._mixed(_CLARITY, self._along(weights))
        used = (self.law.used[0] / _WIDE, self.law.used[1] / _WIDE)
        return feature.reader.twins(shown, feature, self.fixed, used)

    def _one_hot(self, k: int) -> Float:
        """One-hot rows (n, k): a few categories are frequent, most are rare, and the traits move which."""
        frequency = self.fixed.permutation(-np.log1p(np.arange(k)))
        moved = self.traits @ (0.7 * self.fixed.standard_normal((_FACTORS, k)))
        value = frequency + moved - np.log(-np.log(self.chance.random((len(moved), k))))
        return np.asarray(np.eye(k)[value.argmax(axis=1)], dtype=np.float64)

    def _along(self, weights: Float) -> Float:
        """One combination (n,) of the traits, of variance 1 within a group."""
        return np.asarray(self.traits @ (weights / np.linalg.norm(weights)))

    def _mixed(self, share: float, signal: Float) -> Float:
        """A signal (n,) that makes this share of the variance, and chance for the rest."""
        return np.asarray(np.sqrt(share) * signal + np.sqrt(1 - share) * self.chance.standard_normal(len(signal)))


def _shares(law: TwinLaw, classes: int) -> Float:
    """Return the share of every class (classes,) in all records: of more than two each has 70 % of the last."""
    sizes = np.array([law.common, 1 - law.common]) if classes == 2 else 0.7 ** np.arange(classes)
    if classes > 2 and law.most is not None:
        sizes[0] = law.most / (1 - law.most) * sizes[1:].sum()
    return np.asarray(sizes / sizes.sum())


def halves(table: PublicRows) -> tuple[PublicRows, PublicRows]:
    """Every other row of a public table, group by group, and the rest: to train on, and to measure on."""
    order = torch.argsort(table.sensitive, stable=True)
    return _rows(table, order[::2]), _rows(table, order[1::2])


def _rows(table: PublicRows, rows: Tensor | NDArray[np.int64]) -> PublicRows:
    taken = table.take(rows)
    ids = torch.arange(len(taken))
    return PublicRows(taken.features, taken.sensitive, taken.target, ids, table.columns, table.kind)


def resampled(table: PublicRows, by_group: Mapping[str, int], *, seed: int) -> PublicRows:
    """Records drawn with replacement from a public table, as many of every group as are asked for."""
    chance = np.random.default_rng([9, seed])
    rows = []
    for index, name in enumerate(table.columns.groups):
        members = np.flatnonzero(table.sensitive.numpy() == index)
        if not len(members) and by_group[name]:
            raise ValueError(f"the public table has no record of the group {name!r}, and the plan is for some")
        rows.append(chance.choice(members, by_group[name]) if by_group[name] else members[:0])
    return _rows(table, chance.permutation(np.concatenate(rows)))


def sizes_by_group(experiment: Experiment, records: str | None) -> tuple[dict[str, int], str]:
    """Private records of every group, and what of that was assumed; ExperimentError if neither option nor file says.

    Under additions and removals it is the number that the experiment declares, and no option says another.
    """
    if experiment.declared is not None:
        if records is not None and records != str(experiment.privacy.records):
            raise ExperimentError(
                f"--records {records}, and the experiment declares privacy.records = {experiment.privacy.records}, by "
                "which its sums are divided: leave the option out, or change the setting"
            )
        groups, assumed = (load_shape(experiment.record_source).groups, "the number of records is the declared one")
        if len(groups) > 1:
            assumed += ", and groups of one size are assumed"
        return spread_evenly(groups, experiment.declared[0]), assumed
    if records is None:
        if experiment.data.data_dir is not None:
            require_runnable(experiment.data, experiment.federation.clients, named=experiment.name, elsewhere=False)
        return known_sizes(experiment, sizes_at_hand(experiment)), experiment.privacy.model.hides_groups
    groups = load_shape(experiment.record_source).groups
    if records.isdecimal():
        said = f"groups of one size are assumed; --records {groups[0]}=N,... says others" if len(groups) > 1 else ""
        return spread_evenly(groups, int(records)), said
    pairs = [part.rpartition("=") for part in records.split(",")]
    sizes = {name.strip(): int(size) for name, _, size in pairs if size.strip().isdecimal()}
    if set(sizes) != set(groups) or len(pairs) != len(groups) or min(sizes.values()) < 2:
        raise ExperimentError(
            f"--records {records!r} cannot be read; write a number, or at least 2 for every group: "
            f"{','.join(f'{name}=N' for name in groups)}"
        )
    return {name: sizes[name] for name in groups}, ""


def twins_table(
    experiment: Experiment, path: Path | None, expect: str | None, *, others: bool = False
) -> tuple[PublicRows | None, str]:
    """The rows of a public table, and what there is to doubt about it, or who vouches for rows that equal private ones.

    See `fedsw.desk.own_data.apart.other_table` of ``others``.
    """
    if path is None and others:
        raise ExperimentError("--other-people is a word about --public-table, and there is none: leave it out")
    if path is None:
        return None, ""
    if expect is not None:
        raise ExperimentError("--expect chooses a law, and --public-table takes the place of the laws: keep one")
    columns = declared_columns(experiment.data)
    private = None if experiment.data.data_dir is None else Path(experiment.data.data_dir)
    other = other_table(path, columns, private, option="--public-table", others=others)
    read = other.records
    rows = PublicRows(read.features, read.sensitive, read.target, read.ids, columns, "public table")
    return rows, other.doubt or other.word


_TWINS = 8_000
_UNTOLD = (
    "whether the rounds that are left would do better than a constant cannot be told. More records, a larger ε or "
    "narrower bounds would tell"
)
_LEAST = 4
"""Twins of a cell, at least, so that both halves have some."""


@dataclass(frozen=True)
class AfterMoments:
    """Public numbers and twins from which a run that has released its moments is planned anew.

    Twins are drawn from the law that the moments tell. ``untold`` says in words why these cannot tell what a constant
    is worth; empty if they can.
    """

    experiment: Experiment
    by_group: dict[str, int]
    twins: PublicRows
    untold: str


def after_moments(path: Path, allow_modules: tuple[str, ...] = ()) -> AfterMoments:
    """A run's experiment, the numbers of its records by group, and twins of the law that its moments tell."""
    directory = RunDirectory(path)
    experiment, _ = directory.read_config(allow_modules)
    problem = Problem.from_experiment(experiment)
    if problem.coding is not None and problem.coding.line is None:
        raise ExperimentError(
            f"model.kind {experiment.model.kind!r} has moments of what filters see in images, from which no images can "
            "be drawn to plan with: `fedsw plan EXPERIMENT` says what public numbers tell"
        )
    moments = kept_moments(problem, directory)
    if moments is None:
        raise ExperimentError(
            f"{path} has released no moments to plan from: `fedsw run EXPERIMENT --moments-alone` releases them, where "
            "privacy.moments is above 0, and stops"
        )
    if not moments.layout.features:
        raise ExperimentError(
            f"{path} has released moments of its target alone (model.inputs 'constant-first'), which tell nothing of "
            "its columns: plan from the experiment"
        )
    cells = dict(zip(problem.objective.cells, moments.records, strict=True))
    stored = (read_json(path / RunFile.PLAN) or {}).get("groups", cells)
    by_group = _by_group(problem, [int(stored.get(name, size)) for name, size in cells.items()])
    twins = twins_of(moments, problem, public_columns(experiment))
    return AfterMoments(experiment, by_group, twins, hidden_by_noise(moments))


def sizes_of(path: Path, allow_modules: tuple[str, ...] = ()) -> tuple[Experiment, dict[str, int]]:
    """A run's experiment, and the public numbers of its records by group; none are public under a sketch."""
    experiment, _ = RunDirectory(path).read_config(allow_modules)
    stored = (read_json(path / RunFile.PLAN) or {}).get("groups")
    if not stored:
        raise ExperimentError(f"{path} has no public sizes of groups, from which other numbers could be forecast")
    return experiment, _by_group(Problem.from_experiment(experiment), [int(size) for size in stored.values()])


def hidden_by_noise(moments: Moments) -> str:
    """Say why released moments cannot tell what a constant is worth (noise hides it); empty if they can."""
    score = constant_of(moments).score
    if moments.layout.classes and score.high >= 1:
        return (
            f"the noise in the released moments hides how rare the rarer classes are (the most frequent has from "
            f"{number(100 * score.low)} to 100 % of the records); {_UNTOLD}"
        )
    if not moments.layout.classes and score.low <= 0:
        return (
            "the noise in the released moments hides how much the target varies (a constant's squared error is "
            f"between 0 and {number(score.high)}); {_UNTOLD}"
        )
    return ""


def twins_of(moments: Moments, problem: Problem, columns: Columns, *, seed: int = 0) -> PublicRows:
    """Records drawn from the law of released moments, as many in every cell as its share of all.

    Inputs are normal with the covariance within classes, as far as noise does not hide it, about the mean of their
    class, moved by their cell's own; numbers that are predicted follow the inputs by least squares, and chance by what
    these miss. Inputs are kept between 0 and 1 (signed ones between -1 and 1) where their columns are declared so.
    """
    chance, total = np.random.default_rng([12, seed]), max(1, moments.count)
    sizes = [max(_LEAST, round(_TWINS * size / total)) if size else 0 for size in moments.records]
    cell, apart = np.repeat(np.arange(len(sizes)), sizes), len(sizes) >= len(problem.groups)
    values, vectors = np.linalg.eigh(moments.within)
    root = (vectors * np.sqrt(np.maximum(values, moments.hidden))) @ vectors.T  # what noise hides counts as it
    target, middle = _targets_and_middles(moments, problem, cell, chance)
    inputs = middle + chance.standard_normal((len(cell), len(root))) @ root
    if not moments.layout.classes:
        target = _predicted(moments, inputs, chance)
    if problem.coding is not None:
        inputs = problem.coding.inputs(inputs)
    inputs = np.clip(inputs, *_limits(columns, inputs.shape[1]))
    return PublicRows(
        features=torch.from_numpy(inputs.astype(np.float32)),
        sensitive=torch.from_numpy((cell if apart else np.arange(len(cell))) % len(problem.groups)),
        target=torch.from_numpy(target.astype(np.int64 if moments.layout.classes else np.float32)),
        ids=torch.arange(len(cell)),
        columns=columns,
        kind="twins of released moments",
    )


def _apart(moments: Moments) -> Float:
    """Means of the inputs in every class less that of all, (classes, p), without what noise alone moves them apart."""
    whitening = whitening_of(moments)
    seen = np.sum((moments.class_shifts @ whitening) ** 2, axis=1)
    noise = moments.noise_of_products * np.linalg.norm(whitening) / moments.target_mean
    shrunk = np.maximum(0.0, 1 - noise**2 / np.maximum(seen, 1e-300))
    return np.asarray(moments.class_shifts * np.sqrt(shrunk)[:, None])


def _targets_and_middles(
    moments: Moments, problem: Problem, cell: NDArray[np.int64], chance: np.random.Generator
) -> tuple[Float, Float]:
    """Classes (n,) by the shares of every cell, and the means (n, p) of inputs for class and cell."""
    layout = moments.layout
    odds = layout.classes and len(problem.objective.cells) > len(problem.groups)
    shifts = _apart(moments) if layout.classes else np.zeros((1, layout.features))
    target, middle = np.zeros(len(cell)), np.tile(moments.mean, (len(cell), 1))
    for index in range(len(moments.records)):
        rows = np.flatnonzero(cell == index)
        if not len(rows):
            continue
        block, many = (index, moments.records[index]) if layout.cells > 1 else (0, moments.count)
        cell_mean = moments.block(block)[0, 1 : 1 + layout.features] / max(1, many)
        moved = cell_mean - moments.shift
        if odds:
            shares = np.eye(layout.targets)[index // len(problem.groups)]
        elif layout.classes:
            shares = np.clip(moments.shares_of(block), 1e-6, None)
            shares = shares / shares.sum()
        if layout.classes:
            target[rows] = chance.choice(layout.targets, len(rows), p=shares)
            moved = moved - shares @ shifts
            middle[rows] += shifts[target[rows].astype(int)]
        of_cell = moments.count / np.sqrt(layout.cells) / max(1, many)
        noise = moments.noise_of_inputs * of_cell * np.sqrt(layout.features)
        middle[rows] += moved * max(0.0, 1 - noise**2 / max(float(moved @ moved), 1e-300))
    return target, middle


def _predicted(moments: Moments, inputs: Float, chance: np.random.Generator) -> Float:
    """Numbers (n, t) between 0 and 1: least squares of the inputs, and chance by what these miss."""
    whitening = whitening_of(moments)
    slopes = whitening @ whitening @ moments.cross
    missed = residual_of(moments, whitening) / np.sqrt(moments.layout.targets)
    drawn = (inputs - moments.mean) @ slopes + moments.target_mean
    return np.asarray(np.clip(drawn + missed * chance.standard_normal(drawn.shape), 0.0, 1.0))


def _limits(columns: Columns, count: int) -> tuple[Float, Float]:
    """The least and the most (p,) that inputs can be."""
    least, most = [], []
    for feature in columns.features:
        missing = [1.0] * bool(feature.missing)
        width = feature.inputs - len(missing)
        low, high = feature.reader.limits(feature)
        least += [low] * width + [0.0] * len(missing)
        most += [high] * width + missing
    if len(least) != count:
        return np.full(count, -np.inf), np.full(count, np.inf)
    return np.array(least), np.array(most)


def _by_group(problem: Problem, sizes: Sequence[int]) -> dict[str, int]:
    """Records of every group, of those of every cell: the cells of a class are those of all groups in order.

    One stratum of all groups counts as equal parts: how many there are of each is not public.
    """
    groups = problem.groups
    if len(sizes) < len(groups):
        sizes = [len(range(index, sum(sizes), len(groups))) for index in range(len(groups))]
    return {name: sum(sizes[index :: len(groups)]) for index, name in enumerate(groups)}


def opened(problem: Problem, twins: PublicRows, *, one: float, seed: int) -> tuple[Problem, Tensor]:
    """The problem of prepared twins, and the parameters (r,) that training begins with.

    Where a run takes bins from its histograms, so do they; without `privacy.moments` nothing is prepared. ``one`` is
    the noise multiplier of one release of all records that spends the whole budget, 0 without noise, ``seed`` that of
    the noise in histograms and moments.
    """
    counts = histograms_of(problem)
    if counts is not None:
        exact, share = counts.counted(twins.features).double().numpy(), problem.experiment.privacy.histograms
        values, sigma = as_released(problem.experiment, counts, exact, share, one=one, seed=[15, seed])
        problem = Problem.from_experiment(binned(problem, Histograms(counts, values, sigma, len(twins))))
    moments = moments_of(problem, twins, one=one, seed=seed)
    if moments is None:
        return problem, flatten(problem.build_model())
    preparation = prepare(problem, moments)
    ready = problem.under(preparation)
    return ready, started(ready, preparation, moments, problem.build_model())


def moments_of(problem: Problem, twins: PublicRows, *, one: float, seed: int) -> Moments | None:
    """Moments of twins with the noise that a run's would have, as for `opened`; None if a run releases none."""
    experiment = problem.experiment
    share = float(experiment.privacy.moments)
    layout = layout_of(problem) if share else None
    if layout is None:
        return None
    exact = (sums_of(problem, layout, twins).double() * STEP).numpy()
    values, sigma = as_released(experiment, layout, exact, share, one=one, seed=[11, seed])
    cells = problem.objective.cell_of(twins.sensitive, twins.target).bincount(minlength=len(problem.objective.cells))
    return Moments(layout, torch.from_numpy(values), sigma, tuple(cells.tolist()), experiment.privacy.hides_sizes)


def as_released(
    experiment: Experiment,
    counted: Layout | ScoreCounts | ColumnCounts,
    exact: Float,
    share: float,
    *,
    one: float,
    seed: Sequence[int],
) -> tuple[Float, float]:
    """Sums over twins with the noise that a run's would have for a share of the budget, and its deviation."""
    together = trust_model(experiment.privacy.trust).summed(experiment)
    sigma = counted.moved_for(relation_of(experiment)) * one / math.sqrt(share) * together
    return exact + sigma * np.random.default_rng(seed).standard_normal(exact.shape), sigma


@dataclass(frozen=True)
class Summed:
    """Noise of all clients together, as deviations of a table's counts (`bins`, 0 without) and of the gradient."""

    count: float
    gradient: float
    bins: int


def summed_noise(
    problem: Problem, experiment: Experiment, clip: Clip, batch: Sequence[int], *, multiplier: float
) -> Summed:
    """Return the noise that clients add together to a batch of twins: each its own, or under masks a share of one.

    In a batch of so many twins of every stratum, at a noise multiplier of a client's tables and contribution together.
    """
    compared = problem.objective.between_groups()
    share, bins = 0.0, 0
    if split.asks_tables(experiment):
        share, bins = experiment.privacy.model.tables(replace(problem, experiment=experiment), batch, multiplier)
    divided = split.BudgetSplit.of(split.Shares(0.0, multiplier, 0.0), rate=1.0, share=share)
    k = problem.clipped.directions(0, 0)[0].shape[1]
    fixed = problem.dimension > 1 and experiment.slicing.scheme == "orthogonal"
    spread = orthogonal_spread(problem.dimension, k) if fixed else 1.0
    noise = split.noise(divided, compared, clip, sizes=batch, own_sizes=batch, spread=spread, k=k)
    together = trust_model(experiment.privacy.trust).summed(experiment)
    return Summed(together * noise.table, together * noise.contribution, bins)


SUMMED: Mapping[Law | None, Callable[..., Summed]] = dict.fromkeys(("masked sum", "clipped contribution"), summed_noise)
"""Noise of all clients together in a round, by what is noised: where a server adds that of all, its plan has it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TabledClipped(ClippedObjective):
    """An objective with one penalty, by ranks from noised histograms, as the server of `local-gradient` does."""

    bins: int
    deviation: float
    seed: int

    def pulled(self, strata: Sequence[Tensor], directions: Sequence[Tensor], round_: int, attempt: int) -> list[Tensor]:
        """Cotangents (n_s, d) by stratum, from tables with a round's noise."""
        theta, compared = directions[0].to(self.device), self.weighted.between_groups()
        chance, radius = np.random.default_rng([10, self.seed, round_]), self.clip.output
        counts = []
        for rows in strata:
            clean = histograms.histograms(rows, theta, radius, self.bins)
            noise = torch.from_numpy(chance.standard_normal(tuple(clean.shape)))
            counts.append(histograms.monotone(clean + self.deviation * noise, len(rows)))
        tables = histograms.matched(counts, compared, radius)
        return [
            histograms.cotangents(rows, theta, table, compared, cell=cell, size=len(rows), radius=radius)
            for cell, (rows, table) in enumerate(zip(strata, tables, strict=True))
        ]
