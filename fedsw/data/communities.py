"""Communities and Crime (UCI): violent crimes per population, by share of Black population, as published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedsw.data.files import find_data
from fedsw.data.records import Dataset, Records
from fedsw.data.split import held_out_split

GROUPS = ("racepctblack<=0.06", "racepctblack>0.06")

_COLUMNS = 128
_FIRST_INPUT, _TARGET = 5, 127  # before them are place names and a fold number
_GROUP = "racepctblack"
_THRESHOLD = 0.06
# The columns that communities.names lists with missing values: police statistics, and one income.
_INCOMPLETE = frozenset([30, *range(101, 118), *range(121, 125), 126])


def communities(data_dir: str | Path | None = None, *, split_seed: int = 0) -> Dataset:
    """Communities of the United States: 1 396 private, 598 held out; the target is violent crimes per population.

    The target (n, 1) and the 98 inputs (n, 98) are in [0, 1] as the data set was published: its authors normalised
    every column, which no run does. Left out are place names, the fold, the columns with missing values, and
    racepctblack, which makes the groups: above 0.06 or not. A record's id is its row in the file.

    Args:
        data_dir: where communities.data and communities.names are; see `find_data`.
        split_seed: of the split into 70 and 30 per cent.

    Raises:
        FileNotFoundError: if the files are not found and cannot be downloaded.
        ValueError: if a row or a value is not as documented: file, line, column and value are named.

    Source: M. Redmond, UCI 2009; groups, target and split sizes of Xian, Li, Kamath, Zhao 2024.
    """
    folder = find_data("communities", data_dir)
    names = _names(folder / "communities.names")
    group = names.index(_GROUP)
    kept = [place for place in range(_FIRST_INPUT, _TARGET) if place not in _INCOMPLETE and place != group]
    rows = _rows(folder / "communities.data", [*kept, group, _TARGET], names)
    records = Records(
        features=torch.from_numpy(rows[:, : len(kept)].astype(np.float32)),
        sensitive=torch.from_numpy((rows[:, -2] > _THRESHOLD).astype(np.int64)),
        target=torch.from_numpy(rows[:, -1:].astype(np.float32)),
        ids=torch.arange(len(rows), dtype=torch.int64),
    )
    train, test = held_out_split(records, 0.3, split_seed, str(folder))
    features = tuple(names[place] for place in kept)
    return Dataset(name="communities", train=train, test=test, feature_names=features, groups=GROUPS, classes=())


def _names(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    names = [line.split()[1] for line in lines if line.startswith("@attribute") and len(line.split()) > 1]
    if len(names) != _COLUMNS or _GROUP not in names:
        raise ValueError(f"{path}: {len(names)} attributes; Communities and Crime has {_COLUMNS}, {_GROUP} among them")
    return names


def _rows(path: Path, columns: list[int], names: list[str]) -> npt.NDArray[np.float64]:
    """The given columns of every line (n, c), each in [0, 1]."""
    found = []
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        fields = text.split(",")
        if not text.strip():
            continue
        if len(fields) != _COLUMNS:
            raise ValueError(f"{path}, line {number}: {len(fields)} fields; a community has {_COLUMNS}")
        found.append([_unit(fields[place], f"{path}, line {number}, column {names[place]}") for place in columns])
    return np.array(found, dtype=np.float64).reshape(-1, len(columns))


def _unit(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:
        raise ValueError(f"{where}: {text.strip()!r} is not a number from 0 to 1")
    return value
