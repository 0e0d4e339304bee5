"""What is public of an experiment's records: their columns, and how many there are of every group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw.columns.declaration import Columns
from fedsw.columns.kinds import Feature, Group, Label, Number
from fedsw.data import DeclaredRecords
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.sources import declared_columns, load_dataset


def public_columns(experiment: Experiment) -> Columns:
    """The declared columns; of a named data set those that the names of its inputs tell.

    Inputs named "column=value" are the values of one column. Other inputs of a named data set are numbers from -1 to 1;
    of one that is drawn from a law, numbers without bounds.
    """
    if experiment.data.own:
        return declared_columns(experiment)
    dataset = load_dataset(experiment)
    return columns_named(
        dataset.feature_names,
        groups=dataset.groups,
        classes=dataset.classes,
        targets=dataset.targets,
        bounded=not experiment.data.drawn,
    )


def has_bounds(experiment: Experiment) -> bool:
    """Whether a column is declared with bounds, of which records may use a small part."""
    return any(feature.low is not None for feature in public_columns(experiment).features)


def columns_named(
    names: Sequence[str], *, groups: Sequence[str], classes: Sequence[str], targets: int, bounded: bool
) -> Columns:
    """Columns behind inputs of these names, see `public_columns`."""
    blocks: dict[str, list[str]] = {}
    for name in names:
        column, sign, value = name.partition("=")
        blocks.setdefault(column if sign else name, []).extend([value] if sign else [])
    features = [_public_feature(name, tuple(values), bounded=bounded) for name, values in blocks.items()]
    return Columns(
        features=tuple(features),
        sensitive=Group(name="the group", values=tuple(groups)) if len(groups) > 1 else None,
        target=Label(name="the class", values=tuple(classes)) if classes else None,
        targets=tuple(Number(name=f"the target {place}", low=0, high=1) for place in range(targets)),
    )


def _public_feature(name: str, values: tuple[str, ...], *, bounded: bool) -> Feature:
    if len(values) > 1:
        return Feature(name=name, categories=values)
    return Feature(name=name, low=-1, high=1, scale="signed") if bounded else Feature(name=name)


def spread_evenly(groups: Sequence[str], records: int) -> dict[str, int]:
    """So many records, 2 of a group at least, evenly over the groups: what is assumed where no sizes are known."""
    if records < 2 * len(groups):
        raise ExperimentError(
            f"--records is {records}, and there are {len(groups)} groups; a plan takes at least 2 records of each"
        )
    return scaled(dict.fromkeys(groups, 1), records)


def known_sizes(experiment: Experiment, by_group: Mapping[str, int]) -> dict[str, int]:
    """What is public of private records' numbers by group: all of it, or under a sketch their sum, spread evenly."""
    return spread_evenly([*by_group], sum(by_group.values())) if experiment.privacy.sketch else dict(by_group)


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
"""How far the traits of the groups are apart, in standard deviations."""
_WIDE = 4.0
"""Standard deviations that a column's values take of what they use of its bounds."""
_MISSING = 0.05


@dataclass(frozen=True)
class TwinLaw:
    """How much there is to learn.

    Hidden traits make the ``explained`` share of the target's variance; ``common`` is that of the more frequent of two
    classes, ``middle`` and ``spread`` are of a number between 0 and 1 that is predicted, and ``used`` the least and the
    most that a column uses of what is between its bounds.
    """

    name: str
    explained: float
    common: float
    middle: float
    spread: float
    seed: int
    used: tuple[float, float] = (0.1, 0.8)


LAWS = (
    TwinLaw("little", explained=0.2, common=0.6, middle=0.85, spread=0.08, seed=1),
    TwinLaw("some", explained=0.5, common=0.75, middle=0.3, spread=0.2, seed=2),
    TwinLaw("much", explained=0.9, common=0.5, middle=0.5, spread=0.2, seed=3),
)
"""Laws that a forecast averages over: which of them the records are like is not known.

They have columns that use little of their bounds, and a number far from its middle; classes are not rare, as nobody
knows before moments are released.
"""


TIGHT = TwinLaw("tight", explained=0.5, common=0.6, middle=0.5, spread=0.2, seed=4, used=(0.02, 0.06))
"""Columns that use a small part of their bounds: nobody knows it before moments are released, and without these steps
learn little from them."""


_RARE = 0.02


def with_rare_class(law: TwinLaw) -> TwinLaw:
    """The law with one class in fifty records: nobody knows before moments are released how frequent classes are."""
    return replace(law, name="rare", common=1 - _RARE)


def rarest_share(laws: Sequence[TwinLaw], classes: int) -> float:
    """The share of the least frequent class that a plan by these laws assumes, of so many classes."""
    return min(float(_shares(law, classes).min()) for law in laws)


class PublicRows(DeclaredRecords):
    """Records that are nobody's secret, twins or rows of a table that is public: training on them charges no ledger."""


def drawn(columns: Columns, by_group: Mapping[str, int], law: TwinLaw, *, seed: int) -> PublicRows:
    """Records of the declared columns, as many of every group as are asked for.

    A record has four hidden traits, normal, with other means in every group. Numbers, categories and truth values
    follow them and chance; the target follows one combination of the traits, and chance. All coefficients come from
    the law's own seed, so that records drawn with another `seed` are of the same law.
    """
    fixed, chance = np.random.default_rng([7, law.seed]), np.random.default_rng([8, law.seed, seed])
    groups = np.repeat(np.arange(len(columns.groups)), [by_group[name] for name in columns.groups])
    means = _APART * fixed.standard_normal((len(columns.groups), _FACTORS)) / np.sqrt(_FACTORS)
    traits = means[groups] + chance.standard_normal((len(groups), _FACTORS))
    score = _target_score(traits, law, fixed, chance)
    target = _target(columns, score, law, fixed, chance)
    features = np.hstack([_feature(feature, traits, law, fixed, chance) for feature in columns.features])
    order = chance.permutation(len(groups))
    return PublicRows(
        features=torch.from_numpy(features[order].astype(np.float32)),
        sensitive=torch.from_numpy(groups[order]),
        target=torch.from_numpy(target[order]),
        ids=torch.arange(len(groups)),
        columns=columns,
        kind="public twins",
    )


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
    for place, name in enumerate(table.columns.groups):
        own = np.flatnonzero(table.sensitive.numpy() == place)
        if not len(own) and by_group[name]:
            raise ValueError(f"the public table has no record of the group {name!r}, and the plan is for some")
        rows.append(chance.choice(own, by_group[name]) if by_group[name] else own[:0])
    return _rows(table, chance.permutation(np.concatenate(rows)))


def _target_score(traits: Float, law: TwinLaw, fixed: np.random.Generator, chance: np.random.Generator) -> Float:
    weights = fixed.standard_normal(_FACTORS)
    signal = traits @ (weights / np.linalg.norm(weights))
    noise = chance.standard_normal(len(traits))
    return np.asarray(np.sqrt(law.explained) * signal + np.sqrt(1 - law.explained) * noise)


def _target(
    columns: Columns, score: Float, law: TwinLaw, fixed: np.random.Generator, chance: np.random.Generator
) -> NDArray[np.float32] | NDArray[np.int64]:
    if columns.targets:
        return _numbers_to_predict(columns, score, law, fixed, chance)
    return _classes(columns, score, law)


def _numbers_to_predict(
    columns: Columns, score: Float, law: TwinLaw, fixed: np.random.Generator, chance: np.random.Generator
) -> NDArray[np.float32]:
    """Targets (n, t) in [0, 1]: the first follows the score, others follow it and chance."""
    numbers = []
    for place in range(len(columns.targets)):
        share = 1.0 if place == 0 else fixed.uniform(0.5, 1.0)
        value = np.sqrt(share) * score + np.sqrt(1 - share) * chance.standard_normal(len(score))
        numbers.append(np.clip(law.middle + law.spread * value, 0.0, 1.0))
    return np.stack(numbers, axis=1).astype(np.float32)


def _classes(columns: Columns, score: Float, law: TwinLaw) -> NDArray[np.int64]:
    """Classes (n,) by the rank of the score: of two the first has the common share, of more each 70 % of the last."""
    ranks = (np.argsort(np.argsort(score)) + 0.5) / len(score)
    return np.searchsorted(np.cumsum(_shares(law, len(columns.classes)))[:-1], ranks).astype(np.int64)


def _shares(law: TwinLaw, classes: int) -> Float:
    """Of all records, the share of every class (classes,)."""
    sizes = np.array([law.common, 1 - law.common]) if classes == 2 else 0.7 ** np.arange(classes)
    shares: Float = sizes / sizes.sum()
    return shares


def _feature(
    feature: Feature, traits: Float, law: TwinLaw, fixed: np.random.Generator, chance: np.random.Generator
) -> Float:
    """The inputs (n, k) that come of a column."""
    count = len(traits)
    if feature.categories:
        values = _categories(len(feature.categories), traits, fixed, chance)
    else:
        values = np.hstack([_number(feature, traits, law, fixed, chance)[:, None] for _ in range(feature.count or 1)])
    if not feature.missing:
        return values
    absent = (chance.random(count) < _MISSING).astype(np.float64)[:, None]
    return np.hstack([values * (1 - absent), absent])


def _shown(traits: Float, fixed: np.random.Generator, chance: np.random.Generator) -> Float:
    """What one column shows of the traits: standard normal, one trait more than the others."""
    loading = fixed.standard_normal(_FACTORS) ** 3
    signal = traits @ (loading / np.linalg.norm(loading))
    return np.asarray(np.sqrt(_CLARITY) * signal + np.sqrt(1 - _CLARITY) * chance.standard_normal(len(traits)))


def _number(
    feature: Feature, traits: Float, law: TwinLaw, fixed: np.random.Generator, chance: np.random.Generator
) -> Float:
    shown = _shown(traits, fixed, chance)
    if feature.kind == "boolean":
        return (shown > fixed.normal(0.5, 0.5)).astype(np.float64)
    if feature.low is None:
        return shown
    middle, used = fixed.uniform(0.2, 0.6), fixed.uniform(*law.used)
    unit = np.clip(middle + used / _WIDE * shown, 0.0, 1.0)
    return 2 * unit - 1 if feature.scale == "signed" else unit


def _categories(k: int, traits: Float, fixed: np.random.Generator, chance: np.random.Generator) -> Float:
    """One-hot rows (n, k): a few categories are frequent, most are rare, and the traits move which."""
    frequency = fixed.permutation(-np.log1p(np.arange(k)))
    moved = traits @ (0.7 * fixed.standard_normal((_FACTORS, k)))
    value = frequency + moved - np.log(-np.log(chance.random((len(traits), k))))
    return np.asarray(np.eye(k)[value.argmax(axis=1)], dtype=np.float64)
