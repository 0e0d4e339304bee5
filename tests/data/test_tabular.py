"""Law School and Communities: their encoding from public constants, their published counts, and rows they refuse."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fedsw.data import communities, law_school

HEAD = "lsat,zfygpa,zgpa,male,parttime,fam_inc,tier,race1,ugpa"
STUDENT = "44,1.75,-7.0,1,0,5,4,white,3.5"


def law_file(folder: Path, *rows: str) -> Path:
    others = [STUDENT.replace("white", race) for race in ("asian", "black", "hisp")]
    lines = [HEAD, *rows, *[row for row in (*others, STUDENT) for _ in range(12)], STUDENT.replace("white", "other")]
    (folder / "bar_pass_prediction.csv").write_text("\n".join(lines) + "\n")
    return folder


def community_files(folder: Path, *changed: tuple[int, str]) -> Path:
    names = ["racepctblack" if place == 7 else f"c{place}" for place in range(128)]
    (folder / "communities.names").write_text("".join(f"@attribute {name} numeric\n" for name in names))
    lines = []
    for row in range(20):
        fields = ["?" if place in (1, 2, 30, 101, 126) else "0.25" for place in range(128)]
        fields[3], fields[7], fields[127] = "Town", "0.06" if row % 2 else "0.07", f"{row / 20:g}"
        for place, value in changed if row == 3 else ():
            fields[place] = value
        lines.append(",".join(fields))
    (folder / "communities.data").write_text("\n".join(lines) + "\n")
    return folder


def real(name: str, file: str) -> Path:
    given = Path(os.environ.get("FEDSW_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (given / name / file).is_file():
        pytest.skip(f"{name}/{file} is not in {given}; set FEDSW_DATA to test against it")
    return given / name


def test_a_student_is_encoded_by_hand_computed_values(tmp_path):
    dataset = law_school(law_file(tmp_path))
    assert len(dataset.train) + len(dataset.test) == 48 and dataset.groups == ("asian", "black", "hisp", "white")
    seen = dict(zip(dataset.feature_names, dataset.train.features[0].tolist(), strict=True))
    assert seen["lsat"] == pytest.approx(2 * 33 / 37 - 1) and seen["zfygpa"] == pytest.approx(0.5)
    assert seen["zgpa"] == -1 and seen["male"] == 1 and seen["parttime"] == 0
    assert {name for name, value in seen.items() if "=" in name and value == 1} == {"fam_inc=5", "tier=4"}
    assert dataset.train.target[0].tolist() == pytest.approx([2.5 / 3])


def test_what_a_student_does_not_say_is_zero(tmp_path):
    dataset = law_school(law_file(tmp_path, *["44,,,1,,,,asian,1.0"] * 40))
    rows = torch.cat([dataset.train.features, dataset.test.features])[
        torch.cat([dataset.train.target, dataset.test.target])[:, 0] == 0
    ]
    assert len(rows) == 40 and not rows[:, [1, 2, *range(4, 16)]].any()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("50,0,0,1,0,5,4,white,3.5", "line 2, column lsat: '50' is not a number from 11 to 48"),
        ("44,0,0,1,0,5,4,white,", "line 2, column ugpa: '' is not a number from 1 to 4"),
        ("44,0,0,2,0,5,4,white,3", "line 2, column male"),
    ],
)
def test_a_student_out_of_range_is_refused(tmp_path, row, words):
    with pytest.raises(ValueError, match=words):
        law_school(law_file(tmp_path, row))


def test_a_community_keeps_its_complete_columns_and_its_group_is_no_input(tmp_path):
    dataset = communities(community_files(tmp_path))
    assert dataset.train.features.shape == (14, 98) and "racepctblack" not in dataset.feature_names
    assert not {"c1", "c3", "c30", "c101", "c127"} & set(dataset.feature_names)
    row = int((dataset.train.ids == dataset.train.ids[0]).nonzero()[0])
    assert dataset.train.sensitive[row] == (0 if int(dataset.train.ids[row]) % 2 else 1)
    assert dataset.train.target[row].tolist() == pytest.approx([int(dataset.train.ids[row]) / 20])


@pytest.mark.parametrize(("place", "value"), [(127, "1.5"), (5, "?"), (50, "x")])
def test_a_community_out_of_range_is_refused(tmp_path, place, value):
    with pytest.raises(ValueError, match=r"communities.data, line 4, column .* is not a number from 0 to 1"):
        communities(community_files(tmp_path, (place, value)))


@pytest.mark.parametrize(
    "load",
    [lambda f, s: law_school(law_file(f), split_seed=s), lambda f, s: communities(community_files(f), split_seed=s)],
)
def test_the_split_is_the_seeds_and_holds_out_three_tenths(tmp_path, load):
    first, again, other = load(tmp_path, 0), load(tmp_path, 0), load(tmp_path, 1)
    assert torch.equal(first.test.ids, again.test.ids) and not torch.equal(first.test.ids, other.test.ids)
    assert len(first.test) == round(0.3 * (len(first.train) + len(first.test)))


def test_the_published_counts_of_law_school():
    dataset = law_school(real("law_school", "bar_pass_prediction.csv"))
    both = dataset.train.sensitive.bincount() + dataset.test.sensitive.bincount()
    assert both.tolist() == [897, 1343, 1027, 18716]  # Xian and others, law.ipynb


def test_the_published_counts_of_communities():
    dataset = communities(real("communities", "communities.data"))
    both = dataset.train.sensitive.bincount() + dataset.test.sensitive.bincount()
    assert both.tolist() == [1024, 970]  # Xian and others, communities.ipynb
    assert dataset.train.features.shape[1] == 98
