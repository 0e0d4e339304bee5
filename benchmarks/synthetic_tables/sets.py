"""Declared tables with private and held-out records: Adult, and census figures of communities."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsw.data import Records
from fedsw.data.codes import records_of_table
from fedsw.data.columns.declaration import Coded, Columns, coded_columns
from fedsw.data.downloads import find_data
from fedsw.data.tabular import CATEGORIES, CLASSES, COLUMNS, communities, read_rows

BOUNDS = {
    "age": (17, 90),
    "education-num": (1, 16),
    "capital-gain": (0, 99_999),
    "capital-loss": (0, 5_000),
    "hours-per-week": (1, 99),
}
LEFT_OUT = ("fnlwgt", "education", "income")

FIGURES = (
    "agePct12t29", "medIncome", "PctPopUnderPov", "PctNotHSGrad", "PctUnemployed", "PctKids2Par", "PctPersOwnOccup",
    "PctSameHouse85",
)  # fmt: skip
"""Of the 1990 census, one of each subject; chosen by their names, before anything was measured."""
MEDIAN = 0.15
"""Of the violent crimes per population, as communities.names states it."""


@dataclass(frozen=True)
class Table:
    """A declaration, its columns' codes, and records of it.

    Attributes:
        held_out: real records, of which none is private or public.
    """

    columns: Columns
    coded: tuple[Coded, ...]
    private: Records
    held_out: Records

    @property
    def sizes(self) -> list[int]:
        """Codes of every column, the class last."""
        return [*(each.size for each in self.coded), len(self.columns.classes)]

    def codes(self, records: Records) -> torch.Tensor:
        """The codes (n, columns + 1) of records, the class last."""
        from fedsw.data.codes import codes_of

        return torch.cat([codes_of(records, self.coded), records.target.unsqueeze(1)], dim=1)


def adult_table(data_dir: Path, public: int, *, finer: bool = False) -> Table:
    """Adult as somebody's own table, by the split of `fedsw.data.tabular`; bounds and categories are documented ones.

    Args:
        public: so many held-out records are declared public, and numbers are cut at their quantiles; 0 for equal bins.
        finer: see `cut_at_quantiles`.
    """
    features: list[dict[str, Any]] = []
    for name in COLUMNS:
        if name in BOUNDS:
            low, high = BOUNDS[name]
            features.append({"name": name, "kind": "integer", "low": low, "high": high})
        elif name not in LEFT_OUT:
            features.append({"name": name, "categories": CATEGORIES[name]})
    target = {"name": "income", "values": CLASSES}
    columns = Columns.model_validate(
        {"features": features, "sensitive": {"name": "sex", "values": CATEGORIES["sex"]}, "target": target}
    )
    folder = find_data("adult", data_dir)
    rows = np.array(
        [row for name in ("adult.data", "adult.test") for row in read_rows(folder / name) if row is not None]
    )
    shuffled, cut = np.random.RandomState(100).permutation(len(rows)), round(0.75 * len(rows))

    def records(places: Any) -> Records:
        cells = {}
        for name in columns.names:
            values = rows[places, COLUMNS.index(name)].tolist()
            known = CLASSES if name == "income" else CATEGORIES.get(name)
            cells[name] = [str(value) if known is None else known[value] for value in values]
        return records_of_table(cells, columns)

    private, held_out = records(np.sort(shuffled[:cut])), records(np.sort(shuffled[cut:]))
    if public:
        known = held_out.take(torch.arange(public))
        held_out = held_out.take(torch.arange(public, len(held_out)))
        columns = cut_at_quantiles(columns, known, finer=finer)
    return Table(columns, coded_columns(columns, bins=16, group_in_cell=False), private, held_out)


def communities_table(data_dir: Path, public: int) -> Table:
    """Eight census figures of communities in bins of [0, 1], a group, and whether violent crimes are above the median.

    1 396 private records and 598 held-out ones; nothing of it needs public records.
    """
    if public:
        raise SystemExit("communities has bins of its own and too few records for public ones: --public 0")
    found = communities(data_dir)
    columns = Columns.model_validate(
        {
            "features": [{"name": name, "low": 0, "high": 1} for name in FIGURES],
            "sensitive": {"name": "racepctblack", "values": list(found.groups)},
            "target": {"name": "crimes", "values": ["low", "high"]},
        }
    )

    def records(of: Records) -> Records:
        cells = {
            name: [f"{value:.2f}" for value in of.features[:, found.feature_names.index(name)].tolist()]
            for name in FIGURES
        }
        cells["racepctblack"] = [found.groups[group] for group in of.sensitive.tolist()]
        cells["crimes"] = ["high" if value > MEDIAN else "low" for value in of.target[:, 0].double().tolist()]
        return records_of_table({name: cells[name] for name in columns.names}, columns)

    coded = coded_columns(columns, bins=8, group_in_cell=False)
    return Table(columns, coded, records(found.train), records(found.test))


TABLES: Mapping[str, Callable[[Path, int], Table]] = {
    "adult": adult_table,
    "adult-finer": functools.partial(adult_table, finer=True),
    "communities": communities_table,
}
"""How a table is made of the data's folder and a number of public records."""


def cut_at_quantiles(columns: Columns, known: Records, parts: int = 12, *, finer: bool = False) -> Columns:
    """The declaration with numbers cut at quantiles of public records: a value that many have by itself, others evenly.

    Args:
        finer: where one value has most of the records, others are cut as if they were a column.
    """
    plain = columns.model_dump(exclude_defaults=True)
    for coded in coded_columns(columns, bins=16, group_in_cell=False):
        number = coded.number
        if number is None or number.low is None or number.high is None:
            continue
        values = (known.features[:, coded.first].double().numpy() * (number.high - number.low) + number.low).round()
        edges = _edges(values, parts)
        usual, count = np.unique(values, return_counts=True)
        if finer and 2 * count.max() > len(values):
            most = float(usual[count.argmax()])
            edges = {most, most + 1, *_edges(values[values != most], parts)}
        feature = next(each for each in plain["features"] if each["name"] == coded.name)
        feature["edges"] = sorted(float(edge) for edge in edges if number.low < edge <= number.high)
    return Columns.model_validate(plain)


def _edges(values: NDArray[np.float64], parts: int) -> set[float]:
    each, count = np.unique(values, return_counts=True)
    many = each[count >= len(values) / parts]
    rest = values[~np.isin(values, many)]
    evenly = max(round(parts * len(rest) / len(values)), 5)
    return {*many.tolist(), *(many + 1).tolist(), *np.ceil(np.quantile(rest, np.arange(1, evenly) / evenly)).tolist()}
