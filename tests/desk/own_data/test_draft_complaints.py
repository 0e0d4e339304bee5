"""Laws of tables that people complain of: a draft says what they hold, or asks, and check takes what it says.

The tables are in tests/data/complaints/, one for each kind of complaint; README.md there says what each shows.
"""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedsw.cli.app import main
from fedsw.data import BadRecords, read_table
from fedsw.data.sources import require_runnable
from fedsw.desk.own_data.answers import Words, form_of, read_bounds, read_format, read_list
from fedsw.desk.own_data.draft import Draft, DraftRequest, draft
from fedsw.desk.own_data.examine import examine
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.experiment.load import BLANK, blank_lines
from fedsw.federation.engines.driver import run

TABLES = Path(__file__).parents[2] / "data" / "complaints"


def drafted(tmp_path: Path, name: str, *, group: str = "sex", target: str = "y", **more) -> tuple[Path, Draft]:
    """A folder with the table of a complaint, and the draft for it, its cells public."""
    folder = tmp_path / name
    folder.mkdir()
    shutil.copy(TABLES / f"{name}.csv", folder)
    settings = {"words": Words(), "from_public": True} | more
    return folder, draft(DraftRequest(folder, group, target, **settings), name="own")


def columns_of(folder: Path, made: Draft):
    """The declared columns of a draft without blanks, which check finds no fault with."""
    assert not made.blanks
    experiment = parse_experiment(tomllib.loads(made.text))
    found = examine(experiment, folder)
    assert found.fits, found
    return experiment.data.columns


def features_of(folder: Path, made: Draft):
    return {feature.name: feature for feature in columns_of(folder, made).features}


def test_commas_before_three_digits_are_asked_about_and_read_as_a_person_says(tmp_path):
    folder, made = drafted(tmp_path, "thousands", target="income")
    ((row, line),) = made.blanks.items()
    assert line == f'thousands = "{BLANK}"'
    said = made.text.splitlines()[row - 1]
    assert 'write "," if 34,093 is 34093' in said and 'set decimal = ","' in said
    filled = Draft(made.text.replace(f'thousands = "{BLANK}"', 'thousands = ","'))
    columns = columns_of(folder, filled)
    assert (columns.targets[0].low, columns.targets[0].high) == (999, 89_560)
    incomes = read_table(folder / "thousands.csv", columns).target[:, 0].numpy() * (89_560 - 999) + 999
    assert incomes.max() == pytest.approx(89_560) and np.median(incomes) > 20_000

    (tmp_path / "asked").mkdir()
    _, told = drafted(tmp_path / "asked", "thousands", target="income", doubt=_first)
    assert not told.blanks and 'thousands = ","' in told.text
    (tmp_path / "given").mkdir()
    _, decimals = drafted(tmp_path / "given", "thousands", target="income", words=Words(decimal=","))
    assert not decimals.blanks and 'decimal = ","' in decimals.text and "high = 999" in decimals.text


def _first(question: str) -> str:
    """The first of the two numbers that a question names."""
    return question.split("the number ")[1].split(" or ")[0]


@pytest.mark.parametrize(
    ("name", "lines", "low"),
    [
        ("thousands_decided", ['thousands = ","'], 24_938),
        ("thousands_points", ['decimal = ","', 'thousands = "."'], 24_481.5),
        ("thousands_blanks", ['thousands = " "'], 24_673),
    ],
)
def test_thousands_that_leave_no_doubt_are_declared(tmp_path, name, lines, low):
    folder, made = drafted(tmp_path, name)
    assert all(f"\n{line}" in made.text for line in lines)
    assert features_of(folder, made)["income"].low == low


def test_of_private_cells_none_is_quoted_where_a_separator_is_in_doubt(tmp_path):
    folder, made = drafted(tmp_path, "thousands", target="income", from_public=False, guess=True)
    cells = {line.split('"')[1] for line in (folder / "thousands.csv").read_text().splitlines() if '"' in line}
    assert cells and not any(cell in made.text for cell in cells)
    assert f'thousands = "{BLANK}"' in made.blanks.values()


@pytest.mark.parametrize("words", [{}, {"bounds": {"bmi": ("10", "60")}}, {"categories": {"drinks": ("beer", "wine")}}])
def test_how_often_a_private_cell_is_missing_is_in_no_draft(tmp_path, words):
    _, made = drafted(tmp_path, "dashes_are_missing", words=Words(**words), from_public=False, guess=True)
    assert 'missing = ["-"]' in made.text and "taken for missing" not in made.text + str(made.understood)


def test_codes_keep_their_zeros(tmp_path):
    folder, made = drafted(tmp_path, "codes")
    features = features_of(folder, made)
    assert features["ward"].kind == features["zip"].kind == "code"
    assert features["ward"].categories == ("007", "012", "120", "7")
    assert features["zip"].categories == ("01067", "10115", "99084")
    records = read_table(folder / "codes.csv", columns_of(folder, made))
    assert len(records.features.unique(dim=0)) > 4 and records.features.sum(dim=1).unique().tolist() == [2.0]


@pytest.mark.parametrize(
    ("name", "group", "target", "value"),
    [("none_is_a_class", "sex", "alcohol", "None"), ("na_is_a_group", "region", "y", "NA")],
)
def test_a_class_or_group_is_never_missing_whatever_it_is_called(tmp_path, name, group, target, value):
    folder, made = drafted(tmp_path, name, group=group, target=target)
    columns = columns_of(folder, made)
    assert value in (*columns.classes, *columns.groups)
    assert len(read_table(folder / f"{name}.csv", columns)) == 40


def test_a_draft_says_which_cells_it_took_for_missing_and_how_many_there_are(tmp_path):
    folder, made = drafted(tmp_path, "dashes_are_missing")
    features = features_of(folder, made)
    assert features["bmi"].missing == ("-",) and set(features["visits"].missing) == {"n/a", "."}
    assert set(features["drinks"].missing) == {"NA", "None"}
    assert "taken for missing: 12 '-'" in made.text and "10 'NA', 13 'None' (if 'NA' is a value" in made.text
    kept = {"drinks": ("None", "beer", "wine", "NA")}
    (tmp_path / "kept").mkdir()
    features = features_of(*drafted(tmp_path / "kept", "dashes_are_missing", words=Words(categories=kept)))
    assert features["drinks"].categories == kept["drinks"] and not features["drinks"].missing


def test_dates_whose_day_and_month_are_ambiguous_are_asked_about(tmp_path):
    folder, made = drafted(tmp_path, "dates_day_or_month")
    ((row, line),) = made.blanks.items()
    assert f'format = "{BLANK}"' in line and '"%m/%d/%Y" or "%d/%m/%Y"' in made.text.splitlines()[row - 1]
    for written in ("%m/%d/%Y", "%d/%m/%Y"):
        filled = made.text.replace(f'"{BLANK}"', f'"{written}"')
        assert features_of(folder, Draft(filled))["visit"].format == written
    (tmp_path / "said").mkdir()
    features = features_of(*drafted(tmp_path / "said", "dates_day_or_month", words=Words(dates={"visit": "%d/%m/%Y"})))
    assert features["visit"].format == "%d/%m/%Y"
    (tmp_path / "wrong").mkdir()
    with pytest.raises(ExperimentError, match=r"--dates visit=%d.%m.%Y: '.*/2023' is no date that is written so"):
        drafted(tmp_path / "wrong", "dates_day_or_month", words=Words(dates={"visit": "%d.%m.%Y"}))


def test_dates_of_digits_and_times_behind_dates_are_dates_and_times_alone_are_left_out(tmp_path):
    assert features_of(*drafted(tmp_path, "dates_of_digits"))["visit"].format == "%Y%m%d"
    folder, made = drafted(tmp_path, "times_of_day")
    features = features_of(folder, made)
    assert list(features) == ["seen"] and features["seen"].kind == "date" and features["seen"].format is None
    assert "left out: it holds times of day" in made.text


@pytest.mark.parametrize(
    ("name", "inputs", "said"),
    [
        ("row_numbers", ["age"], "left out: it numbers the rows"),
        ("blank_names", ["age"], "left out: it has no name"),
        ("long_names", ["age"], "its name has 246 letters, over 200"),
        ("break_in_a_name", ["age\nin years"], ""),
        ("commas_in_names", ["How old, in years, are you, today?"], 'separator = ";"'),
        ("sep_line", ["age"], 'separator = ";"'),
        ("decomposed", ["âge", "métier"], 'categories = ["privé", "public"]'),
        ("identifiers", ["age"], "left out: it looks like an identifier"),
    ],
)
def test_a_draft_of_an_odd_header_says_what_it_left_out_and_check_takes_the_rest(tmp_path, name, inputs, said):
    folder, made = drafted(tmp_path, name)
    assert list(features_of(folder, made)) == inputs and said in made.text
    assert len(read_table(folder / f"{name}.csv", columns_of(folder, made))) == 40


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("double_names", "has two columns 'age'; rename one"),
        ("one_class", "'y', the target, has the one value 'no'"),
        ("packed_by_gzip", "is packed by gzip: unpack it first"),
        ("packed_by_zip", "is a zip archive"),
        ("utf16", "is UTF-16: save it as UTF-8"),
    ],
)
def test_a_table_that_cannot_be_drafted_is_named_with_the_remedy_and_nothing_is_written(tmp_path, capsys, name, said):
    folder = tmp_path / "DATA"
    folder.mkdir()
    shutil.copy(TABLES / f"{name}.csv", folder)
    output = tmp_path / "own.toml"
    assert main(["init", str(folder), "--group", "sex", "--target", "y", "--from-public", "-o", str(output)]) != 0
    assert said in " ".join(capsys.readouterr().err.split()) and not output.exists()


def test_a_person_is_one_however_the_identifier_is_spelled_and_in_whatever_client_it_is(tmp_path):
    folder, made = drafted(tmp_path, "identifiers", unit="patient")
    records = read_table(folder / "identifiers.csv", columns_of(folder, made))
    assert len(records.unit.unique()) == 3
    two = tmp_path / "TWO"
    for client, spelled in enumerate(("012", "12.0")):
        (two / str(client)).mkdir(parents=True)
        (two / str(client) / "t.csv").write_text(f"patient,age,sex,y\n{spelled},50,f,no\n{90 + client},51,m,yes\n")
    experiment = parse_experiment(tomllib.loads(made.text) | {"federation": {"clients": 2}})
    assert any("'patient'" in said for said in examine(experiment, two).together)


def test_one_file_given_as_two_clients_is_a_fault_by_link_or_copy(tmp_path):
    _, made = drafted(tmp_path, "sep_line")
    raw = tomllib.loads(made.text) | {"federation": {"clients": 2}}
    for how in (shutil.copy, lambda one, other: other.symlink_to(one)):
        data = tmp_path / f"DATA{len(list(tmp_path.iterdir()))}"
        for client in range(2):
            (data / str(client)).mkdir(parents=True)
        shutil.copy(TABLES / "sep_line.csv", data / "0" / "t.csv")
        how(data / "0" / "t.csv", data / "1" / "t.csv")
        together = examine(parse_experiment(raw), data).together
        assert any("clients 0 and 1 bring one file" in said for said in together)
        running = parse_experiment(raw | {"data": raw["data"] | {"data_dir": str(data)}})
        with pytest.raises(BadRecords, match="clients 0 and 1 bring one file"):
            require_runnable(running.data, running.federation.clients, named="own.toml", elsewhere=False)
        with pytest.raises(BadRecords, match="clients 0 and 1 bring one file"):
            run(running, runs=tmp_path / "runs")


def test_init_lists_what_is_missing_with_its_line(tmp_path, capsys):
    folder = tmp_path / "DATA"
    folder.mkdir()
    shutil.copy(TABLES / "dates_day_or_month.csv", folder)
    output = tmp_path / "own.toml"
    assert main(["init", str(folder), "--group", "sex", "--target", "y", "--from-public", "-o", str(output)]) == 0
    said = capsys.readouterr().out
    (row,) = blank_lines(output.read_text())
    assert f"line {row}: " in " ".join(said.split()) and "1 line to fill in" in " ".join(said.split())


@pytest.mark.parametrize("text", ["age=90:17", "age=17:17", "born=2020-01-01:1990-01-01"])
def test_bounds_in_the_wrong_order_are_refused_before_anything_is_written(text):
    with pytest.raises(ExperimentError, match="not below the upper one"):
        read_bounds(text)


def test_formats_of_dates_may_have_commas_and_need_a_sign(tmp_path):
    assert read_format("born=%d %b, %Y") == ("born", "%d %b, %Y")
    with pytest.raises(ExperimentError, match="COLUMN=FORMAT"):
        read_format("born=dd.mm.yyyy")


@pytest.mark.parametrize(
    ("written", "low", "odd"),
    [
        ("%d.%m.%y", "1930-01-01", "1930-01-01"),
        ("%m/%Y", "2020-01-15", "2020-01-15"),
        ("%Y", "2020-01-01", "2020-01-02"),
    ],
)
def test_a_format_that_cannot_write_a_day_of_its_bounds_is_refused_when_it_is_declared(written, low, odd):
    from fedsw.data.columns.declared_kinds import Feature

    with pytest.raises(ValueError, match=f"writes {odd} as"):
        Feature(name="born", kind="date", format=written, low=low, high="2023-06-30")


def test_a_number_as_group_is_cut_at_edges_that_somebody_names(tmp_path):
    folder = tmp_path / "DATA"
    folder.mkdir()
    lines = [f"{18 + row},{'ab'[row % 2]},{('no', 'yes')[row % 3 == 0]}" for row in range(60)]
    (folder / "t.csv").write_text("\n".join(["age,w,y", *lines]))
    with pytest.raises(ExperimentError, match=r"'age', the group, has 60 different numbers.*--edges age=30,50"):
        draft(DraftRequest(folder, "age", "y", Words(), from_public=True), name="own")
    made = draft(DraftRequest(folder, "age", "y", Words(edges={"age": ("30", "50")}), from_public=True), name="own")
    assert columns_of(folder, made).groups == ("age<30", "30<=age<50", "age>=50")


def test_the_form_of_a_column_is_that_of_its_values_and_no_guess_between_two():
    assert form_of(["007", "012"]).kind == "code" and form_of(["0", "12"]).kind == "integer"
    assert form_of(["31/12/2020", "01/02/2020"]).formats == ("%d/%m/%Y",)
    assert len(form_of(["03/12/2020", "01/02/2020"]).formats) == 2
    assert form_of(["Yes", "no", "1"]).kind == "boolean" and form_of(["1e-3", "-0.0", "2.5E+2"]).kind == "number"
    assert form_of(["None", "Some"], labels=True).missing == {} and form_of(["None", "Some"]).missing == {"None": 1}


def test_a_column_called_row_is_an_input_where_its_values_number_nothing(tmp_path):
    folder = tmp_path / "DATA"
    folder.mkdir()
    rows = [f"{row % 4},{row + 7},{9_007_199_254_740_993 + row},{20 + row},{'fm'[row % 2]},no" for row in range(20)]
    (folder / "t.csv").write_text("\n".join(["row,index,account number,age,sex,y", *rows, "1,3,5,50,f,yes"]))
    made = draft(DraftRequest(folder, "sex", "y", Words(), from_public=True), name="own")
    assert list(features_of(folder, made)) == ["row", "age"]
    assert 'name = "index"},   left out: it numbers the rows' in made.text and "over 15 digits" in made.text
    private = draft(DraftRequest(folder, "sex", "y", Words()), name="own")
    assert 'name = "row"},   left out: it numbers the rows' in private.text


def test_columns_that_are_written_in_two_ways_are_each_read_in_their_own(tmp_path):
    folder = tmp_path / "DATA"
    folder.mkdir()
    rows = [f"1.{row};{row},5;2.000,{row};{'fm'[row % 2]};{row // 3 % 2}" for row in range(12)]
    (folder / "t.csv").write_text("\n".join(["a;b;c;sex;y", *rows]))
    made = draft(DraftRequest(folder, "sex", "y", Words(), from_public=True), name="own")
    features = features_of(folder, made)
    assert (features["b"].decimal, features["c"].decimal, features["c"].thousands) == (",", ",", ".")
    assert [features[name].low for name in "abc"] == [1.0, 0.5, 2000.0]
    again = read_table(folder / "t.csv", columns_of(folder, made)).features
    assert again.min() == 0.0 and again.max() == 1.0


def test_a_kind_of_another_package_is_drafted_and_may_stand_in_a_code_book(tmp_path, monkeypatch):
    from fedsw.data.columns.registered import KINDS
    from fedsw.desk.own_data.code_book import read_code_book
    from tests.data.columns.test_kind import Percent

    monkeypatch.setattr(KINDS, "_things", dict(KINDS.items()))
    KINDS.register("percent", Percent())
    folder = tmp_path / "DATA"
    folder.mkdir()
    rows = [f"{20 + row}%,{'fm'[row % 2]},{row // 3 % 2}" for row in range(12)]
    (folder / "t.csv").write_text("\n".join(["fat,sex,y", *rows]))
    feature = features_of(folder, draft(DraftRequest(folder, "sex", "y", Words(), from_public=True), name="own"))["fat"]
    assert (feature.kind, feature.low, feature.high) == ("percent", 20, 31)
    (tmp_path / "codes.csv").write_text("column,kind,low,high\nfat,percent,0,60\n")
    assert read_code_book(tmp_path / "codes.csv").entries["fat"].answer.kind == "percent"


def test_days_and_months_stay_in_doubt_whatever_else_is_said_of_a_column(tmp_path):
    bounds = {"visit": ("2023-01-01", "2023-12-31")}
    for place, more in enumerate([{"words": Words(bounds=bounds)}, {"words": Words(bounds=bounds), "guess": True}]):
        (tmp_path / str(place)).mkdir()
        settings = more | ({"from_public": False} if "guess" in more else {})
        _, made = drafted(tmp_path / str(place), "dates_day_or_month", **settings)
        assert any(f'format = "{BLANK}"' in line for line in made.blanks.values())
    (tmp_path / "said").mkdir()
    asked = {"words": Words(bounds=bounds), "doubt": lambda question: "%d/%m/%Y"}
    assert features_of(*drafted(tmp_path / "said", "dates_day_or_month", **asked))["visit"].format == "%d/%m/%Y"


def test_columns_are_named_in_any_form_of_unicode(tmp_path):
    apart = "me\u0301tier"
    words = Words(drop=("âge",), categories=dict([read_list("métier=privé,public", "--categories")]))
    folder, made = drafted(tmp_path, "decomposed", group=apart, words=words)
    assert columns_of(folder, made).groups == ("privé", "public")
    assert 'sensitive = {name = "métier"' in made.text and made.text.count("left out: as asked") == 1
