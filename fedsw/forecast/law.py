"""Public twins of private records: the same columns and sizes, drawn from a public law or from a public table.

Nothing here takes a private record. What the law assumes where nothing is declared is in docs/plan.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw.columns import Columns, Feature
from fedsw.data import DeclaredRecords

Float = NDArray[np.float64]

_FACTORS = 4
"""Hidden traits of a record, which its columns show and its target follows."""
_CLARITY = 0.6
"""Share of a column's variance that the traits make."""
_APART = 0.5
"""How far the traits of the groups are apart, in standard deviations."""
_SPREAD = 0.2
"""Standard deviation of a number between its bounds, as a share of what is between them."""
_MISSING = 0.05


@dataclass(frozen=True)
class Law:
    """How much there is to learn.

    Attributes:
        explained: share of the target's variance that the hidden traits make.
        common: share of the most frequent of two classes.
        middle, spread: mean and standard deviation of a number that is predicted, its bounds being 0 and 1.
    """

    name: str
    explained: float
    common: float
    middle: float
    spread: float
    seed: int


LAWS = (
    Law("little", explained=0.2, common=0.6, middle=0.7, spread=0.12, seed=1),
    Law("some", explained=0.5, common=0.75, middle=0.3, spread=0.2, seed=2),
    Law("much", explained=0.9, common=0.5, middle=0.5, spread=0.2, seed=3),
)
"""Laws that a forecast averages over: which of them the records are like is not known."""


class PublicRecords(DeclaredRecords):
    """Records that are nobody's secret: twins, or rows of a table that its owner says is public.

    What trains on them charges no ledger, and takes nothing else.
    """


def drawn(columns: Columns, by_group: Mapping[str, int], law: Law, *, seed: int) -> PublicRecords:
    """Records of the declared columns, as many of every group as are asked for.

    A record has four hidden traits, normal, with other means in every group. Numbers, categories and truth values
    follow them and chance; the target follows one combination of the traits, and chance. All coefficients come from
    the law's own seed, so that records drawn with another `seed` are of the same law.

    Args:
        by_group: number of records by group; public.
        seed: of the draw.
    """
    fixed, chance = np.random.default_rng([7, law.seed]), np.random.default_rng([8, law.seed, seed])
    groups = np.repeat(np.arange(len(columns.groups)), [by_group[name] for name in columns.groups])
    means = _APART * fixed.standard_normal((len(columns.groups), _FACTORS)) / np.sqrt(_FACTORS)
    traits = means[groups] + chance.standard_normal((len(groups), _FACTORS))
    score = _target_score(traits, law, fixed, chance)
    target = _target(columns, score, law, fixed, chance)
    features = np.hstack([_feature(feature, traits, fixed, chance) for feature in columns.features])
    order = chance.permutation(len(groups))
    return PublicRecords(
        features=torch.from_numpy(features[order].astype(np.float32)),
        sensitive=torch.from_numpy(groups[order]),
        target=torch.from_numpy(target[order]),
        ids=torch.arange(len(groups)),
        columns=columns,
        kind="public twins",
    )


def halves(table: PublicRecords) -> tuple[PublicRecords, PublicRecords]:
    """Every other row of a public table, group by group, and the rest: to train on, and to measure on."""
    order = torch.argsort(table.sensitive, stable=True)
    return _rows(table, order[::2]), _rows(table, order[1::2])


def _rows(table: PublicRecords, rows: Tensor | NDArray[np.int64]) -> PublicRecords:
    taken = table.take(rows)
    ids = torch.arange(len(taken))
    return PublicRecords(taken.features, taken.sensitive, taken.target, ids, table.columns, table.kind)


def resampled(table: PublicRecords, by_group: Mapping[str, int], *, seed: int) -> PublicRecords:
    """Records drawn with replacement from a public table, as many of every group as are asked for.

    Raises:
        ValueError: if the table has none of a group.
    """
    chance = np.random.default_rng([9, seed])
    rows = []
    for place, name in enumerate(table.columns.groups):
        own = np.flatnonzero(table.sensitive.numpy() == place)
        if not len(own) and by_group[name]:
            raise ValueError(f"the public table has no record of the group {name!r}, and the plan is for some")
        rows.append(chance.choice(own, by_group[name]) if by_group[name] else own[:0])
    return _rows(table, chance.permutation(np.concatenate(rows)))


def _target_score(traits: Float, law: Law, fixed: np.random.Generator, chance: np.random.Generator) -> Float:
    weights = fixed.standard_normal(_FACTORS)
    signal = traits @ (weights / np.linalg.norm(weights))
    noise = chance.standard_normal(len(traits))
    return np.asarray(np.sqrt(law.explained) * signal + np.sqrt(1 - law.explained) * noise)


def _target(
    columns: Columns, score: Float, law: Law, fixed: np.random.Generator, chance: np.random.Generator
) -> NDArray[np.float32] | NDArray[np.int64]:
    if columns.targets:
        return _numbers_to_predict(columns, score, law, fixed, chance)
    return _classes(columns, score, law.common)


def _numbers_to_predict(
    columns: Columns, score: Float, law: Law, fixed: np.random.Generator, chance: np.random.Generator
) -> NDArray[np.float32]:
    """Targets (n, t) in [0, 1]: the first follows the score, others follow it and chance."""
    found = []
    for place in range(len(columns.targets)):
        share = 1.0 if place == 0 else fixed.uniform(0.5, 1.0)
        value = np.sqrt(share) * score + np.sqrt(1 - share) * chance.standard_normal(len(score))
        found.append(np.clip(law.middle + law.spread * value, 0.0, 1.0))
    return np.stack(found, axis=1).astype(np.float32)


def _classes(columns: Columns, score: Float, common: float) -> NDArray[np.int64]:
    """Classes (n,) by the rank of the score: of two the first has the common share, of more each 70 % of the last."""
    sizes = np.array([common, 1 - common]) if len(columns.classes) == 2 else 0.7 ** np.arange(len(columns.classes))
    ranks = (np.argsort(np.argsort(score)) + 0.5) / len(score)
    return np.searchsorted(np.cumsum(sizes / sizes.sum())[:-1], ranks).astype(np.int64)


def _feature(feature: Feature, traits: Float, fixed: np.random.Generator, chance: np.random.Generator) -> Float:
    """The inputs (n, k) that come of a column."""
    count = len(traits)
    if feature.categories:
        values = _categories(len(feature.categories), traits, fixed, chance)
    else:
        values = np.hstack([_number(feature, traits, fixed, chance)[:, None] for _ in range(feature.count or 1)])
    if not feature.missing:
        return values
    absent = (chance.random(count) < _MISSING).astype(np.float64)[:, None]
    return np.hstack([values * (1 - absent), absent])


def _shown(traits: Float, fixed: np.random.Generator, chance: np.random.Generator) -> Float:
    """What one column shows of the traits: standard normal, one trait more than the others."""
    loading = fixed.standard_normal(_FACTORS) ** 3
    signal = traits @ (loading / np.linalg.norm(loading))
    return np.asarray(np.sqrt(_CLARITY) * signal + np.sqrt(1 - _CLARITY) * chance.standard_normal(len(traits)))


def _number(feature: Feature, traits: Float, fixed: np.random.Generator, chance: np.random.Generator) -> Float:
    shown = _shown(traits, fixed, chance)
    if feature.kind == "boolean":
        return (shown > fixed.normal(0.5, 0.5)).astype(np.float64)
    if feature.low is None:
        return shown
    unit = np.clip(fixed.uniform(0.2, 0.6) + _SPREAD * shown, 0.0, 1.0)
    return 2 * unit - 1 if feature.scale == "signed" else unit


def _categories(k: int, traits: Float, fixed: np.random.Generator, chance: np.random.Generator) -> Float:
    """One-hot rows (n, k): a few categories are frequent, most are rare, and the traits move which."""
    frequency = fixed.permutation(-np.log1p(np.arange(k)))
    moved = traits @ (0.7 * fixed.standard_normal((_FACTORS, k)))
    value = frequency + moved - np.log(-np.log(chance.random((len(traits), k))))
    return np.asarray(np.eye(k)[value.argmax(axis=1)], dtype=np.float64)
