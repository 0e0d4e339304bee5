"""Communities and Crime, and Law School: numbers to predict, two groups."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedsw.data.files import find_data
from fedsw.data.records import Dataset, Records


def held_out_split(records: Records, fraction: float, seed: int, name: str) -> tuple[Records, Records]:
    """Private records, and the given fraction held out, in their order in the file.

    The seed is no secret: which records are private is public, and nothing else uses it.

    Raises:
        ValueError: if a part would be empty, naming the data.
    """
    held = round(fraction * len(records))
    if not 0 < held < len(records):
        raise ValueError(f"{name}: {len(records)} records; holding out {fraction:g} of them leaves an empty part")
    shuffled = np.random.default_rng(seed).permutation(len(records))
    return records.take(np.sort(shuffled[held:])), records.take(np.sort(shuffled[:held]))


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


RACES = ("asian", "black", "hisp", "white")

LOWEST, HIGHEST = 1.0, 4.0
"""Of the undergraduate grade, which is the target."""

_FILE = "bar_pass_prediction.csv"
_LSAT = (11.0, 48.0)
_Z = 3.5  # standardised grades beyond it are clamped
_INCOMES, _TIERS = range(1, 6), range(1, 7)

FEATURES = (
    "lsat", "zfygpa", "zgpa", "male", "parttime",
    *(f"fam_inc={level}" for level in _INCOMES), *(f"tier={level}" for level in _TIERS),
)  # fmt: skip


def law_school(data_dir: str | Path | None = None, *, split_seed: int = 0) -> Dataset:
    """Law students of four races: 15 388 private, 6 595 held out; the target is the undergraduate grade.

    The target (n, 1) is (ugpa - 1) / 3 in [0, 1]. Inputs (n, 16) are the LSAT score and two standardised law-school
    grades in [-1, 1], and indicators of sex, part-time study, family income and tier of the school. Every scale is a
    public constant; what a row does not have is 0, which for a standardised grade is its mean. Race is the group and no
    input. A record's id is its row in the file.

    Args:
        data_dir: where bar_pass_prediction.csv is; see `find_data`.
        split_seed: of the split into 70 and 30 per cent.

    Raises:
        FileNotFoundError: if the file is not found and cannot be downloaded.
        ValueError: if a row is malformed: file, line, column and value are named.

    Source: L. Wightman, LSAC 1998; target, groups and split sizes of Xian, Li, Kamath, Zhao 2024.
    """
    path = find_data("law-school", data_dir) / _FILE
    rows = [(place, row) for place, row in enumerate(_candidates(path)) if row["race1"] in RACES]
    inputs = np.array([_inputs(row, f"{path}, line {place + 2}") for place, row in rows], dtype=np.float32)
    grades = np.array([_number(row, "ugpa", f"{path}, line {place + 2}", LOWEST, HIGHEST) for place, row in rows])
    records = Records(
        features=torch.from_numpy(inputs.reshape(-1, len(FEATURES))),
        sensitive=torch.tensor([RACES.index(row["race1"]) for _, row in rows], dtype=torch.int64),
        target=torch.from_numpy(_in_unit(grades).astype(np.float32)[:, None]),
        ids=torch.tensor([place for place, _ in rows], dtype=torch.int64),
    )
    train, test = held_out_split(records, 0.3, split_seed, str(path))
    return Dataset(name="law-school", train=train, test=test, feature_names=FEATURES, groups=RACES, classes=())


def _candidates(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        needed = {"lsat", "zfygpa", "zgpa", "male", "parttime", "fam_inc", "tier", "race1", "ugpa"}
        if missing := sorted(needed - set(reader.fieldnames or ())):
            raise ValueError(f"{path}: no column {', '.join(missing)}; the Law School file has them")
        return list(reader)


def _inputs(row: Mapping[str, str], where: str) -> Sequence[float]:
    numbers = [
        2 * (_number(row, "lsat", where, *_LSAT) - _LSAT[0]) / (_LSAT[1] - _LSAT[0]) - 1,
        *(min(1.0, max(-1.0, _number(row, name, where, -10, 10) / _Z)) for name in ("zfygpa", "zgpa")),
        *(_number(row, name, where, 0, 1) for name in ("male", "parttime")),
    ]
    levels = [(_number(row, name, where, 0, 6), among) for name, among in (("fam_inc", _INCOMES), ("tier", _TIERS))]
    return [*numbers, *(float(level == each) for level, among in levels for each in among)]


def _number(row: Mapping[str, str], column: str, where: str, low: float, high: float) -> float:
    """The number in a column; 0 where there is none, except for grades and scores that every row has."""
    text = (row[column] or "").strip()
    if not text and column not in ("lsat", "ugpa"):
        return 0.0
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise ValueError(f"{where}, column {column}: {text!r} is not a number from {low:g} to {high:g}")
    return value


def _in_unit(grades: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return (grades - LOWEST) / (HIGHEST - LOWEST)
