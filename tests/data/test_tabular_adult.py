"""Adult: its encoding from public constants, its split, its published counts, and rows it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsw.data import Dataset, adult
from fedsw.data.tabular import CATEGORIES, COLUMNS, NUMERIC, read_rows

ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, "
    "40, United-States, <=50K"
)
WOMAN = (
    "28, Private, 338409, Bachelors, 13, Married-civ-spouse, Prof-specialty, Wife, Black, Female, 0, "
    "1902, 40, Cuba, >50K"
)
MISSING = "30, ?, 100000, HS-grad, 9, Divorced, ?, Unmarried, White, Male, 0, 0, 40, United-States, <=50K"
NEVER = MISSING.replace("?", "Never-worked", 1)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    (tmp_path / "adult.data").write_text("\n".join([MISSING, *[ROW, WOMAN] * 4, NEVER, ""]))
    test = [f"{row}." for row in [ROW, WOMAN] * 4]
    (tmp_path / "adult.test").write_text("\n".join(["|1x3 Cross validator", *test, "", ""]))
    return tmp_path


@pytest.fixture(scope="module")
def folder() -> Path:
    given = Path(os.environ.get("FEDSW_DATA", Path(__file__).parents[3] / "shared" / "data"))
    for place in (given / "adult", given):
        if (place / "adult.data").is_file() and (place / "adult.test").is_file():
            return place
    pytest.skip(f"the Adult files are not in {given}; set FEDSW_DATA to test against them")


@pytest.fixture(scope="module")
def real(folder: Path) -> Dataset:
    return adult(folder)


def changed(column: str, value: str, row: str = ROW) -> str:
    fields = row.split(", ")
    fields[COLUMNS.index(column)] = value
    return ", ".join(fields)


def test_a_row_is_encoded_by_hand_computed_values(tiny: Path) -> None:
    dataset = adult(tiny)
    assert len(dataset.train) + len(dataset.test) == 16
    row = int((dataset.train.sensitive == 1).nonzero()[0])
    seen = dict(zip(dataset.feature_names, dataset.train.features[row].tolist(), strict=True))
    assert seen["age"] == pytest.approx(-1 + 2 * (39 - 17) / 28)
    assert seen["fnlwgt"] == pytest.approx(0.077516)
    assert seen["education-num"] == pytest.approx(0.6)
    assert seen["capital-gain"] == 0  # 2174, below the clamp
    assert seen["capital-loss"] == 0
    assert seen["hours-per-week"] == pytest.approx(-1 + 2 * 39 / 98)
    ones = {name for name, value in seen.items() if "=" in name and value == 1}
    assert ones == {
        "workclass=State-gov",
        "education=Bachelors",
        "marital-status=Never-married",
        "occupation=Adm-clerical",
        "relationship=Not-in-family",
        "race=White",
        "native-country=United-States",
    }
    assert dataset.train.target[row] == 0
    assert dataset.classes == ("<=50K", ">50K")


def test_the_sensitive_attribute_is_no_input_and_the_inputs_are_102(tiny: Path) -> None:
    dataset = adult(tiny)
    assert dataset.groups == ("Female", "Male")
    assert dataset.train.features.shape[1] == len(dataset.feature_names) == 102
    assert not any(name.startswith("sex=") for name in dataset.feature_names)
    assert [len(CATEGORIES[c]) for c in COLUMNS if c in CATEGORIES and c != "sex"] == [7, 16, 7, 14, 6, 5, 41]
    women = dataset.train.sensitive == 0
    assert set(dataset.train.target[women].tolist()) == {1}


def test_the_encoding_depends_on_no_other_record(tiny: Path) -> None:
    before = adult(tiny)
    text = (tiny / "adult.data").read_text().splitlines()
    text[1] = changed("age", "90", changed("capital-gain", "99999", changed("native-country", "Laos")))
    (tiny / "adult.data").write_text("\n".join(text))
    after = adult(tiny)
    for old, new in ((before.train, after.train), (before.test, after.test)):
        others = old.ids != 1
        torch.testing.assert_close(old.features[others], new.features[others], rtol=0, atol=0)
        assert torch.equal(old.ids, new.ids)
    assert before.feature_names == after.feature_names


def test_numbers_beyond_their_public_range_are_clamped() -> None:
    for column, scaler in NUMERIC.items():
        low, high = scaler(np.array([0, 10**9]))
        assert (low, high) == (scaler.start, 1.0), column


def test_ids_are_places_in_the_files_with_incomplete_rows_counted(tiny: Path) -> None:
    dataset = adult(tiny)
    ids = torch.cat([dataset.train.ids, dataset.test.ids]).sort().values
    assert ids.tolist() == [*range(1, 9), *range(10, 18)]


def test_incomplete_rows_and_those_that_never_worked_are_none(tiny: Path) -> None:
    rows = read_rows(tiny / "adult.data")
    assert [row is None for row in rows] == [True, *[False] * 8, True]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (changed("age", "?"), r"line 1, column age: '\?' is not a whole number"),
        (changed("age", "39.5"), "column age: '39.5' is not a whole number"),
        (changed("capital-gain", "-1"), "column capital-gain: '-1' is not a whole number"),
        (changed("fnlwgt", "nan"), "column fnlwgt: 'nan' is not a whole number"),
        (changed("age", "²"), "column age: '²' is not a whole number"),
        (changed("fnlwgt", "9" * 30), "column fnlwgt: '9+' is not a whole number of at most 9 digits"),
        (changed("sex", "?"), r"column sex: '\?' is not one of Female, Male"),
        (changed("workclass", "Priv"), "column workclass: 'Priv' is not one of Private, "),
        (changed("income", "50K"), "column income: '50K' is not one of <=50K, >50K"),
        (ROW.removesuffix(", <=50K"), r"line 1: 14 fields; an Adult record has 15 \(age, workclass"),
        (ROW + ", 1", "line 1: 16 fields"),
    ],
)
def test_a_malformed_row_is_refused_by_line_and_column(tmp_path: Path, row: str, reason: str) -> None:
    (tmp_path / "adult.data").write_text(row + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=reason):
        read_rows(tmp_path / "adult.data")


def test_too_few_rows_and_an_unknown_sensitive_attribute_are_refused(tiny: Path) -> None:
    with pytest.raises(ValueError, match="sensitive 'age' is unknown: choose 'sex' or 'race'"):
        adult(tiny, sensitive="age")
    (tiny / "adult.test").write_text("")
    (tiny / "adult.data").write_text(MISSING + "\n" + ROW + "\n")
    with pytest.raises(ValueError, match="1 of 2 rows are complete"):
        adult(tiny)


def test_the_published_counts(real: Dataset) -> None:
    assert (len(real.train), len(real.test)) == (33_916, 11_306)
    assert real.train.features.shape == (33_916, 102)
    everyone = torch.cat([real.train.ids, real.test.ids])
    assert int(everyone.max()) == 48_841
    assert int((everyone < 32_561).sum()) == 30_162
    assert int((everyone >= 32_561).sum()) == 15_060
    # 24.78% earn more, without unknowns (adult.names).
    rich = int(real.train.target.sum() + real.test.target.sum())
    assert rich / 45_222 == pytest.approx(0.2478, abs=5e-5)
    assert float(real.train.features.abs().max()) == 1.0


def test_the_split_is_the_one_of_pandas(real: Dataset) -> None:
    pandas = pytest.importorskip("pandas")
    places = np.sort(torch.cat([real.train.ids, real.test.ids]).numpy())
    sampled = pandas.DataFrame({"id": places}).sample(frac=0.75, random_state=100)
    assert sorted(sampled["id"]) == real.train.ids.tolist()


def test_the_encoding_agrees_with_pandas_indicators(folder: Path, real: Dataset) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(
        folder / "adult.data", header=None, names=COLUMNS, skipinitialspace=True, na_values="?"
    ).dropna()
    dummies = pandas.get_dummies(frame[[c for c in COLUMNS if c in CATEGORIES and c != "sex"]], prefix_sep="=")
    assert set(dummies.columns) <= set(real.feature_names)
    ids = real.train.ids[real.train.ids < 32_561].numpy()
    for name in dummies.columns:
        column = real.train.features[: len(ids), real.feature_names.index(name)].numpy()
        np.testing.assert_array_equal(column, dummies[name].to_numpy(dtype=np.float32)[np.isin(frame.index, ids)])


def test_race_gives_five_groups_and_makes_sex_an_input(tiny: Path) -> None:
    with pytest.raises(ValueError, match="no record of group .*Amer-Indian-Eskimo"):
        adult(tiny, sensitive="race")
    rows = [changed("race", race) for race in CATEGORIES["race"]] * 12
    (tiny / "adult.data").write_text("\n".join(rows))
    dataset = adult(tiny, sensitive="race")
    assert len(dataset.groups) == 5
    assert {"sex=Female", "sex=Male"} <= set(dataset.feature_names)
    assert not any(name.startswith("race=") for name in dataset.feature_names)
