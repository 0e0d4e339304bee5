"""Laws of a code book: one file says what many flags would, and what it cannot mean is refused with its line."""

from __future__ import annotations

import csv
import io
import json
import tomllib
from pathlib import Path

import pytest

from fedsw.cli.app import main
from fedsw.desk.own_data.code_book import FIELDS, read_code_book, template
from fedsw.experiment import ExperimentError

BOOK = """\
column,role,kind,low,high,categories,missing,unit
pid,leave out,,,,,,
age,,integer,18,90,,NA|?,years
income,input,number,-100,200.5,,,kEUR
rooms,,integer,1,4,,,
job,,,,,clerk|nurse,,
since,,date,1990-01-01,2024-12-31,,,
member,,boolean,,,,,
sex,group,,,,f|m,,
good,target,,,,no|yes,,
"""
NAMES = [line.split(",")[0] for line in BOOK.splitlines()[1:]]


def tables(tmp_path: Path) -> Path:
    (tmp_path / "DATA").mkdir()
    (tmp_path / "DATA" / "records.csv").write_text(",".join(NAMES) + "\n")
    return tmp_path / "DATA"


def book(tmp_path: Path, text: str, name: str = "codes.csv") -> Path:
    (tmp_path / name).write_text(text)
    return tmp_path / name


def test_a_code_book_declares_every_column_and_its_role_and_nothing_is_left_open(tmp_path, capsys):
    data, codes = tables(tmp_path), book(tmp_path, BOOK)
    assert main(["init", str(data), "--code-book", str(codes), "-o", str(tmp_path / "own.toml")]) == 0
    assert "nothing left to fill in" in capsys.readouterr().out
    columns = tomllib.loads((tmp_path / "own.toml").read_text())["data"]["columns"]
    features = {each["name"]: each for each in columns["features"]}
    assert set(features) == {"age", "income", "rooms", "job", "since", "member"}
    assert features["age"] == {
        "name": "age", "kind": "integer", "low": 18, "high": 90, "missing": ["NA", "?"], "fill": 54,
        "units": "years",
    }  # fmt: skip
    assert features["income"] == {"name": "income", "low": -100, "high": 200.5, "units": "kEUR"}
    assert features["job"]["categories"] == ["clerk", "nurse"] and features["member"]["kind"] == "boolean"
    assert columns["sensitive"] == {"name": "sex", "values": ["f", "m"]}
    assert columns["target"] == {"name": "good", "values": ["no", "yes"], "positive": "yes"}
    assert 'units = "years"' in (tmp_path / "own.toml").read_text()


def test_json_and_csv_of_one_content_are_one_code_book(tmp_path):
    rows = [{key: value for key, value in row.items() if value} for row in csv.DictReader(io.StringIO(BOOK))]
    rows[1]["missing"] = ["NA", "?"]
    as_json = read_code_book(book(tmp_path, json.dumps(rows), "codes.json")).entries
    as_csv = read_code_book(book(tmp_path, BOOK)).entries
    assert {key: (each.role, each.answer.low, each.answer.missing) for key, each in as_json.items()} == {
        key: (each.role, each.answer.low, each.answer.missing) for key, each in as_csv.items()
    }


def test_what_the_command_line_says_wins(tmp_path):
    data, codes, own = tables(tmp_path), book(tmp_path, BOOK), tmp_path / "own.toml"
    assert main(["init", str(data), "--code-book", str(codes), "--bounds", "age=0:120", "-o", str(own)]) == 0
    (age,) = (each for each in tomllib.loads(own.read_text())["data"]["columns"]["features"] if each["name"] == "age")
    assert (age["low"], age["high"]) == (0, 120)


def test_a_template_has_every_column_of_the_tables_and_reads_as_a_code_book_of_blanks(tmp_path, capsys):
    data, codes = tables(tmp_path), tmp_path / "codes.csv"
    assert main(["init", str(data), "--group", "sex", "--code-book-template", str(codes)]) == 0
    found = read_code_book(codes)
    assert list(found.entries) == NAMES and found.with_role("group") == "sex" and found.left_out == ("pid",)
    assert "pid looks like an identifier and is left out" in capsys.readouterr().out
    assert main(["init", str(data), "--unit", "pid", "--code-book-template", str(codes), "--force"]) == 0
    assert read_code_book(codes).with_role("person") == "pid"
    assert all(each.answer.kind is None for each in found.entries.values())
    assert not (tmp_path / "own.toml").exists()


def test_a_target_with_bounds_is_a_number_to_predict_and_edges_cut_a_group(tmp_path):
    text = "column,role,low,high,edges,outside\nage,group,,,30|50,\nincome,target,0,100,,cut\nrooms,,1,4,,cut\n"
    data, own = tables(tmp_path), tmp_path / "own.toml"
    assert main(["init", str(data), "--code-book", str(book(tmp_path, text)), "-o", str(own)]) == 0
    found = tomllib.loads(own.read_text())
    assert found["objective"]["task"] == "regression"
    assert found["data"]["columns"]["sensitive"] == {"name": "age", "edges": [30, 50]}
    assert found["data"]["columns"]["targets"] == [{"name": "income", "low": 0, "high": 100, "outside": "cut"}]
    (rooms,) = (each for each in found["data"]["columns"]["features"] if each["name"] == "rooms")
    assert rooms == {"name": "rooms", "low": 1, "high": 4, "outside": "cut"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("column,hgih\nage,3\n", "has the field 'hgih'.*'high'"),
        ("name,low\nage,3\n", "a code book has column"),
        ("column,low,high\nage,3\n", "line 2 has not as many cells"),
        ("column,low,high\nage,3,\n", "line 2: column 'age' has one bound"),
        ("column,low,high\nage,three,4\n", "line 2: a bound of 'age' is 'three'; write a number"),
        ("column,kind,low,high\nborn,date,1,2\n", "write a date, as 2024-05-31"),
        (
            "column,kind\nage,numeric\n",
            "the kind of 'age' is 'numeric'; write one of text, boolean, code, date",
        ),
        ("column,role\nage,sensitive\n", "the role of 'age' is 'sensitive'; write one of input, group"),
        ("column,role\nsex,group\nrace,group\n", "line 3 gives 'race' the role 'group', which 'sex' has already"),
        ("column,low,high\nage,1,2\nage,1,3\n", "line 3 describes column 'age' a second time"),
        ("column,low,high,categories\nage,1,2,a|b\n", "bounds and categories"),
        ("column,kind,categories\nage,number,a|b\n", "has categories, and kind 'number'; write 'text'"),
        ("column,kind,low,high\nsex,boolean,0,1\n", "of kind 'boolean', which has no bounds"),
        ("column,role,edges\nage,group,young|old\n", "an edge of 'age' is 'young'; write numbers"),
        ("column,categories\njob,skilled;unskilled\n", r"one value with ';' in it; part several by '\|': skilled\|uns"),
        ('column,categories\njob,"a, b"\n', r"one value with ',' in it; part several by '\|': a\|b"),
        ("column,categories\njob,clerk\n", "column 'job' has one category, 'clerk', which tells nothing"),
        ("column,kind,missing\nage,number,NA;?\n", r"missing of 'age' are 'NA;\?', one value with ';'"),
        ("column,low,high,outside\nage,1,2,clip\n", "the outside of 'age' is 'clip'; write one of refuse, cut"),
        ("column,outside\nage,cut\n", "column 'age' has outside and no bounds"),
        ("column,low\n", "describes no column"),
        ("column,low,high\n,1,2\n", "line 2 names no column"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_line(tmp_path, text, said):
    with pytest.raises(ExperimentError, match=said):
        read_code_book(book(tmp_path, text))


def test_a_code_book_that_is_not_there_or_no_json_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="--code-book-template"):
        read_code_book(tmp_path / "nowhere.csv")
    for text in ("{", '{"age": 3}', "[3]"):
        with pytest.raises(ExperimentError, match="codes.json is no"):
            read_code_book(book(tmp_path, text, "codes.json"))


def test_without_a_target_init_says_what_to_add(tmp_path, capsys):
    assert main(["init", str(tables(tmp_path)), "-o", str(tmp_path / "own.toml")]) == 2
    assert "add --target COLUMN, or a code book's role" in capsys.readouterr().err
    assert template(["a"], {}).splitlines()[0].split(",") == list(FIELDS)


@pytest.mark.parametrize(("written", "meant"), [("|", ("",)), ("true", ("",)), ("false", ()), ("|NA", ("", "NA"))])
def test_the_empty_cell_is_a_bar_or_true_as_in_a_declaration(tmp_path, written, meant):
    text = f"column,kind,low,high,missing\nage,integer,0,90,{written}\n"
    assert read_code_book(book(tmp_path, text)).entries["age"].answer.missing == meant
    if written in ("true", "false"):
        said = [{"column": "age", "low": 0, "high": 90, "missing": written == "true"}]
        assert read_code_book(book(tmp_path, json.dumps(said), "c.json")).entries["age"].answer.missing == meant


def test_what_a_person_lists_or_bounds_is_an_input_whatever_its_name_its_values_and_their_number(tmp_path):
    values = {
        "job": [f"job {number}" for number in range(150)],
        "since": ["08:00", "16:00"],
        "rooms": ["10%", "20%"],
        "member": ["a", "b"],
    }
    listed = "".join(f"{name},,,,{'|'.join(cells)}\n" for name, cells in values.items())
    text = f"column,role,low,high,categories\npid,input,0,500,\n{listed}sex,leave out,,,\ngood,target,,,no|yes\n"
    data, own = tables(tmp_path), tmp_path / "own.toml"
    said = ["--bounds", "age=0:99", "--bounds", "income=0:9"]
    assert main(["init", str(data), "--code-book", str(book(tmp_path, text)), *said, "-o", str(own)]) == 0
    features = {each["name"]: each for each in tomllib.loads(own.read_text())["data"]["columns"]["features"]}
    assert set(features) == {"pid", "age", "income", *values} and (features["pid"]["low"], features["pid"]["high"]) == (
        0,
        500,
    )
    assert all(features[name]["categories"] == cells for name, cells in values.items())


REDCAP = """\
"Variable / Field Name","Form Name","Field Type","Field Label","Choices, Calculations, OR Slider Labels",\
"Text Validation Type OR Show Slider Number","Text Validation Min","Text Validation Max","Identifier?","Required Field?"
record_id,f,text,Id,,,,,,
age,f,text,Age,,integer,18,90,,y
seen,f,text,Seen,,date_dmy,2019-01-01,2019-12-31,,y
sex,f,radio,Sex,"1, Male | 2, Female",,,,,y
drug,f,checkbox,Drugs,"a, Aspirin | b, Beta blocker",,,,,
mood,f,slider,Mood,,,,,,
address,f,text,Address,,,,,y,
ill,f,yesno,Ill,,,,,,y
"""
SCHEMA = {
    "missingValues": ["", "-9"],
    "primaryKey": "record_id",
    "fields": [
        {"name": "record_id", "type": "string"},
        {"name": "age", "type": "integer", "constraints": {"minimum": 18, "maximum": 90}},
        {
            "name": "seen",
            "type": "date",
            "format": "%d.%m.%Y",
            "constraints": {"minimum": "01.01.2019", "maximum": "31.12.2019", "required": True},
        },
        {"name": "sex", "type": "string", "constraints": {"enum": ["1", "2"], "required": True}},
        {"name": "elsewhere", "type": "number"},
    ],
}
SPSS = """* codes of a survey.
VALUE LABELS sex 1 'male' 2 'female, or "other"' 9 'no answer'
  /job boss 1 "clerk" 2 "nurse" 3 'own'.
VALUE LABELS age 999 'not known'.
MISSING VALUES sex (9) / age (998, 999).
"""


def test_dictionaries_of_redcap_frictionless_and_spss_are_read_as_they_are(tmp_path):
    redcap = read_code_book(book(tmp_path, REDCAP)).entries
    assert redcap["record_id"].role == redcap["address"].role == "leave out"
    assert (redcap["age"].answer.kind, redcap["age"].answer.low, redcap["age"].answer.missing) == ("integer", "18", ())
    assert (redcap["seen"].answer.kind, redcap["seen"].answer.high) == ("date", "2019-12-31")
    assert redcap["sex"].answer.categories == ("1", "2") and redcap["mood"].answer.missing == ("",)
    assert redcap["drug___a"].answer.kind == redcap["ill"].answer.kind == "boolean" and "drug" not in redcap

    schema = read_code_book(book(tmp_path, json.dumps(SCHEMA), "schema.json"))
    seen = schema.entries["seen"].answer
    assert (seen.low, seen.format, seen.missing) == ("2019-01-01", "%d.%m.%Y", ())
    assert schema.entries["age"].answer.missing == ("", "-9") and schema.left_out == ("record_id",)
    data = tmp_path / "DATA"
    data.mkdir()
    (data / "t.csv").write_text("record_id,age,seen,sex,ill\n")
    said = ["--target", "ill", "--group", "sex", "--categories", "ill=no,yes", "-o", str(tmp_path / "own.toml")]
    assert main(["init", str(data), "--code-book", str(tmp_path / "schema.json"), *said]) == 0

    spss = read_code_book(book(tmp_path, SPSS, "codes.sps")).entries
    assert (spss["sex"].answer.categories, spss["sex"].answer.missing) == (("1", "2"), ("9",))
    assert spss["job"].answer.categories == spss["boss"].answer.categories == ("1", "2", "3")
    assert (spss["age"].answer.kind, spss["age"].answer.missing) == ("number", ("998", "999"))


def test_dates_have_formats_roles_any_case_semicolons_decimal_commas_and_all_faults_are_told(tmp_path):
    text = "Column;Role;Kind;Low;High;Format\nadm;Input;;01.01.2019;31.12.2019;%d.%m.%Y\nhba;INPUT;Number;4,0;15,5;\n"
    entries = read_code_book(book(tmp_path, text)).entries
    adm, hba = entries["adm"].answer, entries["hba"].answer
    assert (adm.kind, adm.low, adm.high, adm.format) == ("date", "2019-01-01", "2019-12-31", "%d.%m.%Y")
    assert (hba.kind, hba.low, hba.high) == ("number", "4.0", "15.5")
    faulty = "column,role,kind,low,high\na,guest,,1,2\nb,,number,3,x\nc,,number,5,\n"
    with pytest.raises(ExperimentError) as told:
        read_code_book(book(tmp_path, faulty))
    assert [f"line {line}" in str(told.value) for line in (2, 3, 4)] == [True] * 3
