"""Laws of what init and check understand of a table: in doubt they ask, in every format, and never in silence."""

from __future__ import annotations

import json
import random
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedsw
from fedsw.cli.app import main
from fedsw.data import BadRecords
from fedsw.data.persons import Marks, persons_in
from fedsw.desk.own_data.answers import Words, read_bounds
from fedsw.desk.own_data.described_column import DescribedColumn
from fedsw.desk.own_data.draft import Draft, DraftRequest, draft
from fedsw.desk.own_data.examine import examine
from fedsw.desk.own_data.screen import examination_view
from fedsw.experiment import parse_experiment
from fedsw.experiment.load import BLANK
from fedsw.runs.report.run_documents import card
from fedsw.runs.view import read_run

FORMATS = ("csv", "parquet", "npz")


def write(path: Path, table: pd.DataFrame, separator: str = ",") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        table.to_csv(path, index=False, sep=separator)
    elif path.suffix == ".parquet":
        table.to_parquet(path, index=False)
    else:
        np.savez(path, **{name: np.array(table[name].tolist()) for name in table.columns})


def drafted(folder: Path, group: str | None = "sex", target: str = "ill", **more) -> Draft:
    return draft(DraftRequest(folder, group, target, **{"words": Words(), "from_public": True, **more}), name="own")


def features_of(made: Draft) -> dict[str, dict]:
    return {feature["name"]: feature for feature in tomllib.loads(made.text)["data"]["columns"]["features"]}


def stays(named: str, *, letters: bool = False) -> pd.DataFrame:
    """120 patients with one to seven stays each: sex and year of birth are the patient's."""
    draw, rows = random.Random(8), []
    for person in draw.sample(range(100_000, 999_999), 120):
        sex, born = draw.choice("wm"), draw.randint(1930, 2000)
        for _ in range(draw.randint(1, 7)):
            name = f"K{person}" if letters else person
            rows.append([name, born, sex, draw.randint(1, 30), draw.choice(["no", "yes"])])
    return pd.DataFrame(rows, columns=[named, "born", "sex", "days", "ill"])


@pytest.mark.parametrize("named", ["Patientennummer", "num_patient", "病历号", "k7"])
@pytest.mark.parametrize("letters", [False, True])
def test_a_column_of_persons_is_asked_about_by_its_values_and_is_no_input(tmp_path, named, letters):
    write(tmp_path / "0" / "r.csv", stays(named, letters=letters))
    made = drafted(tmp_path)
    ((_, line),) = made.blanks.items()
    assert line == f'unit = "{BLANK}"' and f'"{named}"' in made.text and named not in features_of(made)
    assert {"born", "days"} <= set(features_of(made))
    asked: list[str] = []
    told = drafted(tmp_path, doubt=lambda question: (asked.append(question), "y")[1])
    assert named in asked[0] and "one person" in asked[0] and f'unit = "{named}"' in told.text
    assert f'unit = "{named}"' in drafted(tmp_path, unit=named).text
    if not letters:
        said = drafted(tmp_path, words=Words(bounds=dict([read_bounds(f"{named}=0:1000000")])))
        assert not said.blanks and named in features_of(said)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("declared", [False, True])
def test_check_names_a_column_of_persons_in_every_format_declared_or_not(tmp_path, form, declared):
    write(tmp_path / "0" / f"r.{form}", stays("PatNr"))
    inputs = [{"name": "days", "low": 1, "high": 30}, {"name": "born", "low": 1900, "high": 2020}]
    columns = {
        "features": [*inputs, *[{"name": "PatNr", "low": 0, "high": 1_000_000}] * declared],
        "sensitive": {"name": "sex", "values": ["m", "w"]},
        "target": {"name": "ill", "values": ["no", "yes"]},
    }
    raw = {"name": "own", "data": {"source": "files", "columns": columns}, "federation": {"clients": 1}}
    said = examine(parse_experiment(raw), tmp_path).files[0].warnings
    assert any("'PatNr' seems to identify persons" in one and "set unit = 'PatNr'" in one for one in said)
    with_unit = {**raw, "data": {**raw["data"], "unit": "PatNr"}}
    if not declared:
        assert not examine(parse_experiment(with_unit), tmp_path).files[0].warnings


def test_in_python_a_column_of_persons_is_no_input_unasked(tmp_path):
    frame = stays("PatNr")
    with pytest.raises(BadRecords, match="'PatNr' seems to identify persons.*pass unit='PatNr'"):
        fedsw.as_records(frame, group="sex", target="ill")
    with pytest.warns(UserWarning, match="epsilon is else that of one row"):
        fedsw.as_records(frame, group="sex", target="ill", features=["days", "born"])
    assert fedsw.as_records(frame, group="sex", target="ill", unit="PatNr").unit is not None
    named = fedsw.as_records(frame.to_dict("list"), group="sex", target="ill", features=["PatNr", "days"])
    assert named.columns.inputs == 2


def test_what_repeats_by_chance_or_is_cut_from_another_column_names_nobody():
    draw = np.random.default_rng(1)
    born = draw.integers(1930, 2000, 600)
    table = {
        "born": born,
        "age_group": (2020 - born) // 20,  # stays the same within a year of birth, since it is cut from it
        "age": 2020 - born,  # the same in other numbers
        "amount": draw.integers(0, 300, 600),
        "sex": draw.integers(0, 2, 600),
        "day": np.array([f"2019-01-{day:02d}" for day in draw.integers(1, 31, 600)]),
    }
    marks = {name: Marks.of(cells) for name, cells in table.items()}
    assert persons_in(marks, list(marks)) == []
    person = draw.integers(0, 150, 600)
    marks |= {"person": Marks.of(person), "sex": Marks.of(draw.integers(0, 2, 150)[person])}
    (found,) = persons_in(marks, list(marks))
    assert (found.column, found.rows, found.constant) == ("person", 600, ("sex",))


def pointed(mark: str, *, beside: bool = True) -> list[str]:
    """Numbers from 1000 to 99 999 with a mark between thousands, beside smaller ones."""
    draw = random.Random(4)
    numbers = [draw.randint(1_000, 99_999) for _ in range(60)] + [draw.randint(100, 999) for _ in range(40)] * beside
    return [f"{number:,}".replace(",", mark) for number in numbers]


def priced(mark: str, **more: object) -> pd.DataFrame:
    prices = pointed(mark)
    draw = np.random.default_rng(3)
    ages, sexes, ills = (draw.integers(0, most, len(prices)) for most in (60, 2, 2))
    base = {"price": prices, "age": 20 + ages, "sex": np.array(["f", "m"])[sexes]}
    return pd.DataFrame({**base, "ill": np.array(["no", "yes"])[ills], **more})


@pytest.mark.parametrize("mark", [".", ","])
@pytest.mark.parametrize("public", [True, False])
def test_three_digits_behind_every_mark_are_asked_about_whatever_stands_beside(tmp_path, mark, public):
    write(tmp_path / "0" / "r.csv", priced(mark), ";")
    made = drafted(tmp_path, from_public=public, guess=not public)
    assert f'thousands = "{BLANK}"' in made.blanks.values()
    bounded = drafted(tmp_path, from_public=public, guess=not public, words=Words(bounds={"price": ("0", "100000")}))
    assert f'thousands = "{BLANK}"' in " ".join(bounded.blanks.values())


def test_a_doubt_is_per_column_and_decimal_commas_elsewhere_decide_it(tmp_path):
    odd = [f"{row % 9},{row % 7}" for row in range(100)]
    write(tmp_path / "0" / "r.csv", priced(".", dose=odd), ";")
    price = features_of(made := drafted(tmp_path))["price"]
    assert not made.blanks and (price["low"], price["high"]) == (144, 96_930)
    (tmp_path / "0" / "r.csv").unlink()
    write(tmp_path / "0" / "r.csv", priced(".", dose=[cell.replace(",", ".") for cell in odd]), ";")
    (line,) = drafted(tmp_path).blanks.values()
    assert line.startswith('{name = "price"') and f'thousands = "{BLANK}"' in line
    told = drafted(tmp_path, doubt=lambda question: question.split("or ")[1].rstrip("?"))
    assert features_of(told)["price"]["decimal"] == "." and not told.blanks
    assert examine(parse_experiment(tomllib.loads(told.text)), tmp_path).fits


@pytest.mark.parametrize("mark", [".", ","])
@pytest.mark.parametrize("end", ["\n", "\r"])
def test_check_looks_at_the_form_of_numbers_on_the_private_path(tmp_path, mark, end, capsys):
    write(tmp_path / "0" / "r.csv", priced(mark), ";")
    path = tmp_path / "0" / "r.csv"
    path.write_bytes(path.read_bytes().replace(b"\n", end.encode()))  # either reader
    columns = {
        "separator": ";",
        "decimal": mark,
        "features": [{"name": "price", "low": 0, "high": 100_000}, {"name": "age", "low": 18, "high": 90}],
        "sensitive": {"name": "sex", "values": ["f", "m"]},
        "target": {"name": "ill", "values": ["no", "yes"]},
    }

    def found(**more: str):
        features = [{**columns["features"][0], **more}, columns["features"][1]]
        data = {"source": "files", "columns": {**columns, "features": features}}
        return examine(parse_experiment({"name": "own", "data": data, "federation": {"clients": 1}}), tmp_path)

    (said,) = found().files[0].doubts
    assert not found().fits and "column 'price'" in said and f'decimal = "{mark}"' in said
    assert found(decimal=mark).fits
    other = {".": ",", ",": "."}[mark]
    assert found(decimal=other, thousands=mark).fits


def test_numbers_with_decimals_are_in_no_doubt(tmp_path):
    draw = random.Random(0)
    table = priced(".", dose=[f"{draw.uniform(1, 99):.3f}" for _ in range(50)] + ["0.125"] * 50)
    write(tmp_path / "0" / "r.csv", table.assign(price=[f"{row}.5" for row in range(100)]))
    made = drafted(tmp_path)
    assert not made.blanks and examine(parse_experiment(tomllib.loads(made.text)), tmp_path).fits
    assert main(["check", str(_written(tmp_path, made)), "--data-dir", str(tmp_path)]) == 0


def _written(folder: Path, made: Draft) -> Path:
    path = folder / "own.toml"
    path.write_text(made.text)
    return path


def coded(*parts: list[str], seed: int = 0) -> list[pd.DataFrame]:
    """A table for each client, whose classes are those listed."""
    draw = np.random.default_rng(seed)
    return [
        pd.DataFrame(
            {
                "age": draw.integers(18, 90, 200),
                "sex": np.array(["f", "m"])[draw.integers(0, 2, 200)],
                "ill": np.array(values)[draw.integers(0, len(values), 200)],
            }
        )
        for values in parts
    ]


@pytest.mark.parametrize(
    ("first", "second", "values"),
    [
        (["yes", "no"], ["1", "0"], ["no", "yes"]),
        (["ja", "nein"], ["1", "0", "TRUE", "FALSE"], ["nein", "ja"]),
        (["Female", "Male"], ["female", "male"], None),
        (["01067", "10115"], ["1067", "10115"], None),
    ],
)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_one_thing_coded_in_two_ways_is_drafted_as_one(tmp_path, first, second, values, form):
    for client, table in enumerate(coded(first, second)):
        write(tmp_path / str(client) / f"r.{form}", table)
    made = drafted(tmp_path, positive=None)
    columns = tomllib.loads(made.text)["data"]["columns"]
    assert len(columns["target"]["values"]) == 2 and "taken for one value each" in made.text
    assert values is None or sorted(columns["target"]["values"]) == sorted(values)
    found = examine(parse_experiment(tomllib.loads(made.text)), tmp_path)
    assert found.fits and not any("alone" in said for said in found.warnings)


def test_check_names_the_values_that_one_client_alone_has(tmp_path):
    for client, table in enumerate(coded(["yes", "no"], ["1", "0"])):
        write(tmp_path / str(client) / "r.csv", table.assign(ward=["A", "B"][client], rare=["u"] * 199 + ["v"]))
    columns = {
        "features": [
            {"name": "age", "low": 18, "high": 90},
            {"name": "ward", "categories": ["A", "B"]},
            {"name": "rare", "categories": ["u", "v"]},
        ],
        "sensitive": {"name": "sex", "values": ["f", "m"]},
        "target": {"name": "ill", "values": ["0", "1", "no", "yes"]},
    }

    def said(**target) -> str:
        declared = {**columns, "target": {**columns["target"], **target}}
        raw = {"name": "own", "data": {"source": "files", "columns": declared}, "federation": {"clients": 2}}
        found = examine(parse_experiment(raw), tmp_path)
        assert found.fits
        return " ".join(found.warnings)

    assert "column 'ill' has 'no', 'yes' at client 0 alone; '0', '1' at client 1 alone" in said()
    assert "'ward'" in said() and "'rare'" not in said()
    assert "'ill'" not in said(values=["no", "yes"], same={"no": ["0"], "yes": ["1"]})


def test_other_spellings_are_declared_once_and_read_alike_in_every_format(tmp_path):
    columns = {
        "features": [
            {"name": "job", "categories": ["clerk", "head nurse"], "letters": "any"},
            {"name": "smoker", "categories": ["no", "x"], "empty": "no"},
        ],
        "sensitive": {"name": "zip", "values": ["01067", "10115"], "kind": "code", "same": {"01067": ["1067"]}},
        "target": {"name": "ill", "values": ["no", "yes"], "same": {"no": ["nein", "0"], "yes": ["ja"]}},
    }
    table = pd.DataFrame(
        {
            "job": ["Clerk", "HEAD  nurse", "clerk ", "Head Nurse"],
            "smoker": ["x", "", "", "x"],
            "zip": ["01067", "1067", "10115", "10115"],
            "ill": ["nein", "ja", "0", "yes"],
        }
    )
    declared = parse_experiment(
        {"name": "own", "data": {"source": "files", "columns": columns}, "federation": {"clients": 1}}
    ).data.columns
    for form in FORMATS:
        write(tmp_path / f"t.{form}", table)
        records = fedsw.data.read_table(tmp_path / f"t.{form}", declared)
        assert records.features.tolist() == [[1, 0, 0, 1], [0, 1, 1, 0], [1, 0, 1, 0], [0, 1, 0, 1]]
        assert records.sensitive.tolist() == [0, 0, 1, 1] and records.target.tolist() == [0, 1, 0, 1]
    gaps = table.assign(smoker=["x", None, np.nan, "x"])
    assert fedsw.as_records(gaps, columns=declared).features[:, 2:].tolist() == [[0, 1], [1, 0], [1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"same": {"nie": ["never"]}}, "same or empty for 'nie'"),
        ({"same": {"no": ["x"], "yes": ["x"]}}, "'x' as two values"),
        ({"empty": "none"}, "same or empty for 'none'"),
        ({"values": ["No", "no", "yes"], "letters": "any"}, "'no' as two values"),
    ],
)
def test_spellings_of_what_is_not_declared_or_of_two_values_are_refused(more, said):
    with pytest.raises(ValueError, match=said):
        fedsw.data.columns.declaration.Columns.model_validate(
            {"features": [{"name": "a"}], "target": {"name": "y", "values": ["no", "yes"], **more}}
        )


@pytest.mark.parametrize("tick", ["x", "1", "ja"])
@pytest.mark.parametrize("role", ["input", "target"])
def test_a_box_that_is_ticked_or_empty_is_a_column_of_two_values(tmp_path, tick, role):
    (table,) = coded(["no", "yes"])
    box = np.where(np.random.default_rng(2).integers(0, 2, len(table)) > 0, tick, "")
    write(tmp_path / "0" / "r.csv", table.assign(**{"ill" if role == "target" else "smoker": box}))
    made = drafted(tmp_path)
    columns = tomllib.loads(made.text)["data"]["columns"]
    drawn = columns["target"] if role == "target" else features_of(made)["smoker"]
    assert drawn["empty"] in drawn.get("values", drawn.get("categories")) and not made.blanks
    assert examine(parse_experiment(tomllib.loads(made.text)), tmp_path).fits
    said = Words(categories={"smoker": (tick,), "ill": ("no", "yes"), "sex": ("f", "m")}, bounds={"age": ("18", "90")})
    if role == "input":
        private = drafted(tmp_path, from_public=False, words=said)
        assert features_of(private)["smoker"]["empty"] in ("no", "0")
        assert examine(parse_experiment(tomllib.loads(private.text)), tmp_path).fits


def people(rows: int = 900) -> pd.DataFrame:
    """Few of them are of race c, and all of those women."""
    draw = np.random.default_rng(5)
    race = np.array(["a", "b"])[draw.integers(0, 2, rows)]
    sex = np.array(["f", "m"])[draw.integers(0, 2, rows)]
    race[:30], sex[:30] = "c", "f"
    table = pd.DataFrame({"age": draw.integers(18, 90, rows), "sex": sex, "race": race})
    return table.assign(ill=np.array(["no", "yes"])[draw.integers(0, 2, rows)])


def test_groups_of_several_columns_are_their_combinations_the_small_ones_together(tmp_path, capsys):
    table = people()
    for client in range(2):
        write(tmp_path / "DATA" / str(client) / "r.csv", table[client::2])
    own = tmp_path / "own.toml"
    named = ["init", str(tmp_path / "DATA"), "--from-public", "--group", "sex", "--group", "race", "--target", "ill"]
    assert main([*named, "-o", str(own)]) == 0
    sensitive = tomllib.loads(own.read_text())["data"]["columns"]["sensitive"]
    assert sensitive["values"] == ["f × a", "f × b", "m × a", "m × b", "other"] and sensitive["other"] == "other"
    experiment = parse_experiment(tomllib.loads(own.read_text()))
    found = examine(experiment, tmp_path / "DATA")
    assert found.fits and sum(file.groups["other"] for file in found.files) == 30
    assert main([*named, "--least-group", "10", "-o", str(tmp_path / "ten.toml")]) == 0
    values = tomllib.loads((tmp_path / "ten.toml").read_text())["data"]["columns"]["sensitive"]["values"]
    assert "f × c" in values and "m × c" not in values
    settings = ["training.rounds=2", "objective.alpha=0.2", f'data.data_dir="{tmp_path / "DATA"}"']
    result = fedsw.run(str(own), *settings, runs=tmp_path / "runs")
    assert set(result.summary["held_out_by_group"]) == {*experiment.data.columns.groups}
    cells, columns = result.summary["held_out_by_group"], result.summary["held_out_by_column"]
    women = [cells["f × a"], cells["f × b"]]
    of_women = sum(cell["count"] * cell["accuracy"] for cell in women) / sum(cell["count"] for cell in women)
    assert columns["sex = f"]["accuracy"] == pytest.approx(of_women)
    gap = abs(columns["sex = f"]["selection_rate"] - columns["sex = m"]["selection_rate"])
    assert columns["sex: largest gap"]["selection_rate"] == pytest.approx(gap)
    low, high = result.summary["held_out_by_column_intervals"]["sex: largest gap"]["selection_rate"]
    assert 0 <= low <= gap <= high <= 1 and columns["race = c"]["count"] == 0  # noise decides how large it is, even 1
    page = card(read_run(result.directory)).markdown()
    assert "| sex: largest gap |" in page and "| race = b |" in page


def test_in_python_two_names_of_columns_make_groups_of_their_combinations():
    table = people()
    records = fedsw.as_records(table, group=["sex", "race"], target="ill")
    assert records.columns.groups == ("f × a", "f × b", "f × c", "m × a", "m × b")
    sizes = table.groupby(["sex", "race"]).size()
    assert records.rows_by_group["f × c"] == 30 == sizes["f", "c"] and records.columns.inputs == 1
    lists = fedsw.as_records(table, columns=records.columns.model_validate(records.columns.model_dump(mode="json")))
    assert (lists.sensitive == records.sensitive).all()
    with pytest.raises(BadRecords, match="beside the 'sex' of its row it is no group"):
        fedsw.as_records(table.assign(sex="m"), columns=records.columns)


class Terminal:
    """A person who answers what is asked of each column, and first, once, what cannot be read."""

    def __init__(self, wrong: dict[str, str]) -> None:
        self.asked: list[str] = []
        self._wrong = dict(wrong)
        self._right = {"ill": "yes,no", "sex": "m,w", "age": "18:110", "hba": "4:15", "ward": "A1,B2"}
        self._right |= {"adm": "2019-01-01:2019-12-31"}

    def __call__(self, question: str) -> str:
        self.asked.append(question)
        column = question.partition("column ")[2].partition(":")[0]
        if "favourable" in question:
            return "no"
        return self._wrong.pop(column, self._right.get(column, ""))


@pytest.mark.parametrize(
    ("column", "wrong", "hint"),
    [
        ("age", "18-110", "17:90"),
        ("age", "110:18", "lower bound"),
        ("hba", "4,0:15,5", "decimals with a point"),
        ("ward", "A1|B2", "parted by commas"),
        ("ward", "A1;B2", "parted by commas"),
        ("adm", "01.01.2019:31.12.2019", "days as 2019-01-31"),
    ],
)
def test_a_wrong_answer_at_a_terminal_is_asked_again_and_loses_nothing(tmp_path, column, wrong, hint):
    (tmp_path / "r.csv").write_text("age,hba,ward,adm,sex,ill\n")
    person = Terminal({column: wrong})
    made = drafted(tmp_path, from_public=False, ask=person, doubt=person)
    plainly = drafted(tmp_path, from_public=False, ask=Terminal({}), doubt=Terminal({}))
    assert made == plainly and not made.blanks
    (again,) = [question for question in person.asked if hint in question]
    assert f"column {column}" in again


def test_what_was_understood_stands_on_the_screen_in_the_draft_and_in_json(tmp_path, capsys):
    (table,) = coded(["no", "yes"])
    box = np.where(np.random.default_rng(2).integers(0, 2, len(table)) > 0, "x", "")
    table = table.assign(smoker=box, always="a", town=[f"town {row % 150}" for row in range(len(table))])
    write(tmp_path / "DATA" / "0" / "r.csv", table)
    own = tmp_path / "own.toml"
    named = ["init", str(tmp_path / "DATA"), "--from-public", "--group", "sex", "--target", "ill", "-o", str(own)]
    assert main(named) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "understood as" in screen and "changed by" in screen
    assert "nothing left to fill in" not in screen and "lines above to look at" in screen
    head = own.read_text().partition("name = ")[0]
    assert "# What I understood" in head and "always" in head and "smoker" in head
    assert main([*named, "--force", "--json"]) == 0
    lines = {line["column"]: line for line in json.loads(capsys.readouterr().out)["understood"]}
    assert set(lines) == {"(rows)", *table.columns} and lines["always"]["look"] == lines["town"]["look"] == "left out"
    assert (
        "--bounds age=LOW:HIGH" in lines["age"]["change"] and "an empty cell is 'no'" in lines["smoker"]["understood"]
    )
    assert "--positive" in lines["ill"]["change"] and lines["ill"]["look"] and not lines["age"]["look"]
    assert main([*named, "--force", "--positive", "no", "--drop", "always", "--drop", "town"]) == 0
    assert "nothing left to fill in. Next" in " ".join(capsys.readouterr().out.split())
    assert main(["check", str(own), "--data-dir", str(tmp_path / "DATA"), "--json"]) == 0
    checked = {line["column"]: line for line in json.loads(capsys.readouterr().out)["understood"]}
    assert {"(rows)", "age", "smoker", "sex", "ill"} == set(checked)
    assert "favourable: 'no'" in checked["ill"]["understood"] and "positive" in checked["ill"]["change"]


@pytest.mark.parametrize("odd", [["<0.5"], ["k.A.", "unknown"], [".A", "(73)"]])
@pytest.mark.parametrize("of", ["numbers", "dates"])
def test_numbers_and_dates_with_a_few_words_are_what_they_are_and_the_words_are_named(tmp_path, odd, of):
    (table,) = coded(["no", "yes"])
    draw = np.random.default_rng(7)
    cells = [f"2019-{month:02d}-{day:02d}" for month, day in draw.integers(1, 12, (200, 2))]
    values = np.array(cells if of == "dates" else [f"{value:.1f}" for value in draw.uniform(4, 12, 200)], dtype=object)
    values[:12] = [*odd, "2015-00-00" if of == "dates" else odd[0]][0]
    values[12 : 12 + len(odd)] = odd
    write(tmp_path / "0" / "r.csv", table.assign(lab=values))
    made = drafted(tmp_path)
    lab = features_of(made)["lab"]
    assert set(odd) <= set(lab["missing"]) and not made.blanks
    assert lab.get("kind", "number") == ("date" if of == "dates" else "number")
    (line,) = [line for line in made.understood if line.column == "lab"]
    assert all(repr(cell) in line.look for cell in odd)
    assert examine(parse_experiment(tomllib.loads(made.text)), tmp_path).fits
    guessed = drafted(tmp_path, from_public=False, guess=True)
    assert not any(cell in guessed.text for cell in odd)  # of private cells none is quoted


def test_rows_that_are_no_records_are_named_by_their_line_and_left_out(tmp_path):
    (table,) = coded(["no", "yes"])
    (tmp_path / "0").mkdir()
    lines = table.assign(ill=np.where(np.arange(len(table)) < 20, "", table.ill)).to_csv(index=False).splitlines()
    head = [lines[0], "How old?,Which sex?,Ill?", '"{""ImportId"":""Q1""}",x,y']
    path = tmp_path / "0" / "r.csv"
    path.write_text("\n".join([*head, *lines[1:], ",,", "Total,,"]))
    said = " ".join(line.understood for line in drafted(tmp_path).understood)
    assert "line 3 has Qualtrics' import ids: --skip-rows 2" in said
    made = drafted(tmp_path, skip_rows=2)
    said = " ".join(line.understood for line in made.understood)
    assert "ImportId" not in made.text and f"line {len(lines) + 3} has no cell" in said
    assert f"line {len(lines) + 4} has a total" in said
    columns = tomllib.loads(made.text)["data"]["columns"]
    assert columns["skip_rows"] == 2 and columns["rows"] == "leave out where the target is empty"
    path.write_text("\n".join([*head, *lines[1:], ",,"]))
    experiment = parse_experiment(tomllib.loads(drafted(tmp_path, skip_rows=2).text))
    (file,) = examine(experiment, tmp_path).files
    assert file.fits and file.rows == 180 == len(fedsw.data.read_table(path, experiment.data.columns))
    path.write_text("\n".join([*head, *lines[1:], *["30,f,"] * 100]))
    assert " of 180 rows equal another" in examine(experiment, tmp_path).files[0].warnings[0]  # no records do not count
    path.write_text(path.read_text().replace(",f,no", ",q,no", 1))
    (fault,) = examine(experiment, tmp_path).files[0].faults
    assert path.read_text().splitlines()[fault.row - 1].endswith(",q,no")


def coarse(rows: int, seed: int) -> pd.DataFrame:
    """People of few different kinds, as in a survey."""
    draw = np.random.default_rng(seed)
    columns = {"age": 20 + np.clip(draw.normal(10, 6, rows), 0, 29).astype(int)}
    columns |= {name: np.array(["a", "b", "c"])[draw.integers(0, 3, rows)] for name in ("country", "faith")}
    columns |= {"sex": np.array(["f", "m"])[draw.integers(0, 2, rows)]}
    return pd.DataFrame(columns | {"ill": np.array(["no", "yes"])[draw.integers(0, 2, rows)]})


def test_held_out_rows_that_chance_makes_equal_to_private_ones_are_said_and_an_extract_is_refused(tmp_path):
    private, others = coarse(1000, 1), coarse(1000, 2)
    for client in range(2):
        write(tmp_path / "DATA" / str(client) / "r.csv", private[client::2])
    held = tmp_path / "held-out.csv"
    write(held, others)
    text = drafted(tmp_path / "DATA", held_out=held, positive="no").text
    found = examine(parse_experiment(tomllib.loads(text)), tmp_path / "DATA")
    assert found.fits and any("as many as chance makes in so coarse a table" in said for said in found.warnings)
    refused = "whose metrics would be published without noise"
    for extract in (1000, 999, 500, 150):
        write(held, pd.concat([others[: 1000 - extract], private[:extract]]))
        assert refused in " ".join(examine(parse_experiment(tomllib.loads(text)), tmp_path / "DATA").together), extract
    coarsest = [table.assign(age=20 + table.age % 3) for table in (private, others)]  # 54 kinds: all equal by chance
    for client in range(2):
        write(tmp_path / "DATA" / str(client) / "r.csv", coarsest[0][client::2])
    write(held, pd.concat([coarsest[0][:999], coarsest[1][:1].assign(age=40)]))
    assert refused in " ".join(examine(parse_experiment(tomllib.loads(text)), tmp_path / "DATA").together)
    fine = np.random.default_rng(3)
    for client in range(2):
        path = tmp_path / "DATA" / str(client) / "r.csv"
        write(path, pd.read_csv(path).assign(pay=fine.uniform(0, 1, 500)))
    write(held, pd.concat([others.assign(pay=fine.uniform(0, 1, 1000)), pd.read_csv(path)[:20]]))
    text = drafted(tmp_path / "DATA", held_out=held, positive="no").text
    assert "20 of its 1020 rows" in " ".join(examine(parse_experiment(tomllib.loads(text)), tmp_path / "DATA").together)


def test_a_held_out_table_that_is_given_is_within_the_bounds(tmp_path):
    table = coarse(200, 1)
    write(tmp_path / "DATA" / "0" / "r.csv", table)
    held = tmp_path / "held-out.csv"
    write(held, coarse(50, 2).assign(age=90))
    assert features_of(drafted(tmp_path / "DATA", held_out=held))["age"]["high"] == 90


@pytest.mark.parametrize("code", ["9999", "-9", "999"])
def test_a_code_for_missing_cells_is_proposed_and_widens_no_bounds(tmp_path, code):
    (table,) = coded(["no", "yes"])
    ages = table.age.astype(str).to_numpy(dtype=object)
    ages[:15] = code
    write(tmp_path / "0" / "r.csv", table.assign(age=ages))
    age = features_of(made := drafted(tmp_path))["age"]
    assert age["missing"] == [code] and 18 <= age["low"] < age["high"] <= 90
    assert any(code in line.look for line in made.understood)
    assert examine(parse_experiment(tomllib.loads(made.text)), tmp_path).fits


def test_described_bounds_that_a_code_widens_are_said_to_hold_one():
    edges = (0.0, 50.0, 100.0, *np.linspace(600, 10_000, 18))
    shares = np.zeros(len(edges) - 1)
    shares[:2], shares[-1] = (0.5, 0.42), 0.08

    def column(shares: np.ndarray) -> DescribedColumn:
        labels = tuple(map(str, range(len(shares))))
        return DescribedColumn("age", "feature", labels, edges, shares, 0.004, np.empty((0, len(shares))), 0.0, False)

    said = column(shares).advice
    assert said is not None and "'age' lie at or near 10000" in said and "declare it in missing" in said
    spread = np.full(len(shares), 1 / len(shares))
    assert "code" not in (column(spread).advice or "")


def test_on_the_private_path_check_says_how_case_and_empty_boxes_are_declared(tmp_path, capsys):
    (table,) = coded(["no", "yes"])
    write(tmp_path / "0" / "r.csv", table.assign(job=["Clerk", "nurse"] * 100, box=["x", ""] * 100))
    columns = {
        "features": [{"name": "job", "categories": ["clerk", "nurse"]}, {"name": "box", "categories": ["no", "x"]}],
        "sensitive": {"name": "sex", "values": ["f", "m"]},
        "target": {"name": "ill", "values": ["no", "yes"]},
    }
    raw = {"name": "own", "data": {"source": "files", "columns": columns}, "federation": {"clients": 1}}
    view = examination_view(parse_experiment(raw), examine(parse_experiment(raw), tmp_path), None)
    said = " ".join(view.markdown().split())
    assert 'letters = "any" in the declaration' in said and 'or empty = "no" if an empty cell is a value' in said
