"""Laws of a draft: nothing but names is read without the operator's word, and every line says where it came from."""

from __future__ import annotations

import csv
import shutil
import tomllib
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from fedsw.data import BadRecords, read_table
from fedsw.data.places import places
from fedsw.desk.own_data.answers import Words, form_of, read_bounds, read_list
from fedsw.desk.own_data.draft import DraftRequest, account_name, draft
from fedsw.desk.own_data.examine import named_as_identifier
from fedsw.experiment import ExperimentError, load_experiment, resolve_delta
from fedsw.experiment.load import BLANK
from fedsw.privacy.accounting.composition import SMALLEST_DELTA

HEADER = ["id", "age", "job", "born", "member", "sex", "income"]
BORN = [f"{day + 1:02}.05.1980" for day in range(20)]
ROWS = [
    [i, "" if i == 3 else 20 + i, ("clerk", "nurse")[i % 2], BORN[i], ("yes", "no")[i % 2], "fm"[i // 2 % 2], i % 2]
    for i in range(20)
]


def folder(tmp_path: Path, rows=ROWS, separator=",") -> Path:
    for client in range(2):
        (tmp_path / "DATA" / str(client)).mkdir(parents=True)
        with (tmp_path / "DATA" / str(client) / "train.csv").open("w", newline="") as file:
            csv.writer(file, delimiter=separator).writerows([HEADER, *rows[client::2]])
    return tmp_path / "DATA"


def drafted(data: Path, words: Words = Words(), **more) -> str:  # noqa: B008
    return draft(DraftRequest(data, "sex", "income", words, **more), name="own").text


def test_without_a_word_of_its_operator_a_draft_says_the_same_whatever_the_records_hold(tmp_path):
    other = [["x", "secret", "é", "?", "7", "z", "q"]] * 9
    one = drafted(folder(tmp_path))
    shutil.rmtree(tmp_path / "DATA")
    two = drafted(folder(tmp_path, other))
    assert one == two
    columns = tomllib.loads(one)["data"]["columns"]
    assert [feature["name"] for feature in columns["features"]] == ["age", "job", "born", "member"]
    assert columns["sensitive"]["values"] == columns["target"]["values"] == [BLANK]


def test_without_a_group_there_is_none_and_outputs_are_compared_with_nothing(tmp_path):
    data = folder(tmp_path)
    asked = DraftRequest(data, None, "income", Words(), from_public=True)
    (tmp_path / "own.toml").write_text(draft(asked, name="own").text)
    experiment = load_experiment(tmp_path / "own.toml")
    assert experiment.data.columns.sensitive is None and experiment.objective.alpha == 0
    assert "sex" in experiment.data.columns.feature_names[0] or "sex=f" in experiment.data.columns.feature_names


def test_a_penalty_is_drafted_for_who_asks_however_many_records_there_are(tmp_path):
    data = folder(tmp_path, [["41", "a", "2001-01-01", "yes", "7", "f", "low"]] * 6_000)
    unasked = drafted(data, from_public=False)
    assert "\nalpha = 0.0  " in unasked and "`fedsw plan` with objective.alpha=0.2 says what that buys" in unasked
    assert "where predictions may read the group;\n" in unasked and "is for where they may not" in unasked
    assert "\nalpha = 0.2  " in drafted(data, alpha=0.2)
    with pytest.raises(ExperimentError, match="--alpha 0.2 weighs equal outputs .* add --group COLUMN"):
        draft(DraftRequest(data, None, "income", Words(), alpha=0.2), name="own")


def test_the_drafted_part_of_kept_records_follows_records_times_epsilon_and_says_what_it_costs(tmp_path):
    row = ["41", "a", "2001-01-01", "yes", "7", "f", "low"]

    def kept(records: int, **more) -> tuple[float, str]:
        shutil.rmtree(tmp_path / "DATA", ignore_errors=True)
        text = drafted(folder(tmp_path, [row] * records), **more)
        assert "costs it what a" in text, "what they cost stands beside them"
        return tomllib.loads(text)["data"]["held_out_fraction"], text

    assert [kept(records)[0] for records in (20, 998, 1_000, 39_998, 40_000)] == [0.1, 0.1, 0.2, 0.2, 0.1]
    assert "write 0.2 above that" in kept(20)[1] and "what a tenth less ε would" in kept(20)[1]
    persons = kept(20, unit="id")
    assert persons[0] == 0.2 and "persons times ε" in persons[1], "how many rows a person has is not public"


def test_blanks_are_refused_with_their_lines(tmp_path):
    (tmp_path / "own.toml").write_text(drafted(folder(tmp_path)))
    with pytest.raises(ExperimentError, match=r'(?s)own.toml has blanks.*line \d+: .*"age".*line \d+: target') as fault:
        load_experiment(tmp_path / "own.toml")
    assert str(fault.value).count("\n") == 6


def test_what_is_public_is_read_off_and_every_line_says_so(tmp_path):
    data = folder(tmp_path)
    (tmp_path / "own.toml").write_text(drafted(data, from_public=True))
    experiment = load_experiment(tmp_path / "own.toml")
    age, job, born, member = experiment.data.columns.features
    assert (age.kind, age.low, age.high, age.missing, age.fill) == ("integer", 20, 39, ("",), 30)
    assert job.categories == ("clerk", "nurse") and member.kind == "boolean"
    assert (born.kind, born.format, born.high - born.low) == ("date", "%d.%m.%Y", 19)
    assert experiment.federation.clients == 2 and experiment.data.columns.groups == ("f", "m")
    for client in range(2):
        assert len(read_table(data / str(client) / "train.csv", experiment.data.columns)) == 10
    lines = (tmp_path / "own.toml").read_text().splitlines()
    declared = [line for line in lines if line.strip().startswith(("{name", "sensitive", "target"))]
    assert len(declared) == 6 and all("their operator says are public" in line for line in declared)


def test_what_is_given_is_declared_and_nothing_is_asked_twice(tmp_path):
    words = Words(
        bounds={"age": ("17", "90"), "born": ("1900-01-01", "2020-12-31")},
        categories={"job": ("clerk", "nurse"), "sex": ("f", "m"), "income": ("0", "1")},
        dates={"born": "%d.%m.%Y"},
        booleans=("member",),
    )
    data = folder(tmp_path)
    text = drafted(data, words)
    assert BLANK not in text and "given with --bounds" in text
    (tmp_path / "own.toml").write_text(text)
    columns = load_experiment(tmp_path / "own.toml").data.columns
    assert columns.features[0].high == 90 and columns.features[2].kind == "date"


def test_a_public_table_says_what_private_ones_need_not(tmp_path):
    data = folder(tmp_path, [["x"] * 7])
    with (tmp_path / "public.csv").open("w", newline="") as file:
        csv.writer(file).writerows([HEADER, *ROWS])
    text = drafted(data, public_table=tmp_path / "public.csv")
    assert "low = 20, high = 39" in text and f"read off the public table {tmp_path / 'public.csv'}" in text


def test_answers_of_a_person_fill_what_is_open_and_an_empty_one_leaves_a_blank(tmp_path):
    said = {"age": "17:90", "job": "clerk, nurse", "born": "", "member": "yes,no", "sex": "f,m", "income": "0,1"}
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return said.get(question.split()[1].rstrip(":"), "")

    text = drafted(folder(tmp_path), ask=ask)
    assert 'name = "age", low = 17, high = 90' in text and 'categories = ["clerk", "nurse"]' in text
    assert text.count(f'"{BLANK}"') == 1 and '{name = "born", kind = "FILL IN"}' in text


def test_semicolons_and_decimal_commas_are_declared(tmp_path):
    rows = [[i, f"{i},5", *row[2:]] for i, row in enumerate(ROWS)]
    text = drafted(folder(tmp_path, rows, ";"), from_public=True)
    assert 'separator = ";"' in text and 'decimal = ","' in text and "low = 0.5, high = 19.5" in text

    private = drafted(tmp_path / "DATA")
    assert '# decimal = ","' in private and "\ndecimal" not in private
    assert "decimal = " not in drafted(folder(tmp_path / "points"))


def test_a_parquet_table_is_drafted_as_the_same_table_in_text_is(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    data = folder(tmp_path, [[*row[:3], f"1980-05-{place + 1:02}", *row[4:]] for place, row in enumerate(ROWS)])
    drafts = {look: drafted(data, **{look: True}) for look in ("from_public", "guess")} | {"": drafted(data)}
    for table in data.glob("*/train.csv"):
        frame = pandas.read_csv(table, parse_dates=["born"])
        frame["age"] = frame["age"].astype("Int64")
        frame.to_parquet(table.with_suffix(".parquet"), index=False)
        table.unlink()
    assert {look: drafted(data, **({look: True} if look else {})) for look in drafts} == drafts


def test_groups_cut_at_edges_and_numbers_to_predict(tmp_path):
    words = Words(bounds={"age": ("0", "100")}, edges={"age": ("30", "50")})
    text = draft(DraftRequest(folder(tmp_path), "age", "income", words, from_public=True), name="own").text
    assert 'sensitive = {name = "age", edges = [30, 50]}' in text
    assert '{name = "age", low = 0, high = 100, missing = [""], fill = 50}' in text
    words = Words(bounds={"age": ("0", "100")})
    text = draft(DraftRequest(tmp_path / "DATA", "sex", "age", words, from_public=True), name="own").text
    assert 'targets = [{name = "age", low = 0, high = 100}]' in text and 'task = "regression"' in text


def test_a_column_that_is_not_there_is_named_with_the_nearest(tmp_path):
    with pytest.raises(ExperimentError, match="--target names 'incme'.*nearest: 'income'"):
        draft(DraftRequest(folder(tmp_path), "sex", "incme", Words()), name="own")
    with pytest.raises(ExperimentError, match="'jobs', and the tables have no such column; nearest: 'job'"):
        drafted(tmp_path / "DATA", Words(drop=("jobs",)))


@pytest.mark.parametrize("text", ["age", "age=17", "age=a:b", "=1:2"])
def test_bounds_that_cannot_be_read_are_refused(text):
    with pytest.raises(ExperimentError, match="COLUMN=LOW:HIGH"):
        read_bounds(text)
    with pytest.raises(ExperimentError, match="COLUMN=A,B,C"):
        read_list("age", "--categories")


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "2", ""], "integer"),
        (["1.5", "2"], "number"),
        (["1,5", "2,25"], "number"),
        (["yes", "No"], "boolean"),
        (["0", "1"], "integer"),
        (["2024-05-31", "NA"], "date"),
        (["31.05.2024"], "date"),
        (["a", "1"], "category"),
        (["", "NA"], "category"),
    ],
)
def test_the_form_of_cells_is_the_narrowest_kind_that_all_of_them_are_of(cells, kind):
    assert form_of(cells).kind == kind


def test_two_data_sets_have_two_accounts_though_both_experiments_are_called_own(tmp_path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    accounts = {tomllib.loads(drafted(folder(tmp_path / place)))["data"]["account"] for place in ("a", "b")}
    assert len(accounts) == 2 and all(name.startswith("DATA-") for name in accounts)
    assert account_name(tmp_path / "a" / ".." / "a" / "DATA") in accounts


def test_all_drafts_of_one_folder_count_in_one_account_whatever_they_predict_and_for_whom(tmp_path):
    data = folder(tmp_path)
    drafts = [
        drafted(data),
        drafted(data, unit="id"),
        draft(DraftRequest(data, "member", "job", Words()), name="another").text,
        draft(DraftRequest(data, "sex", "age", Words(bounds={"age": ("0", "90")}, drop=("job",))), name="own").text,
    ]
    assert len({tomllib.loads(text)["data"]["account"] for text in drafts}) == 1


def test_a_file_of_another_encoding_is_named_with_what_to_do(tmp_path):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "records.csv").write_text("a,sex,income\n1,f,0\n", encoding="utf-16")
    with pytest.raises(BadRecords, match=r"records.csv is UTF-16: save it as UTF-8"):
        drafted(tmp_path)


@pytest.mark.parametrize("name", ["pid", "PID", "subject#", "caseid", "patient_id", "customerID", "uuid"])
def test_columns_that_name_somebody_are_no_inputs(name):
    assert named_as_identifier(name)


@pytest.mark.parametrize("name", ["paid", "acid", "income", "age", "humid", "valid"])
def test_columns_that_end_like_an_identifier_and_are_none_stay_inputs(name):
    assert not named_as_identifier(name)


def test_the_one_table_of_a_folder_is_found_whatever_its_name_and_two_are_refused(tmp_path):
    data = folder(tmp_path)
    for client in range(2):
        (data / str(client) / "train.csv").rename(data / str(client) / "Records 2024.CSV")
    (data / "held-out.csv").write_text("beside the clients' folders\n")
    assert [place.table.name for place in places(data)] == ["Records 2024.CSV"] * 2
    (data / "0" / "notes.csv").write_text("x\n1\n")
    with pytest.raises(BadRecords, match="Records 2024.CSV and notes.csv; keep the one .* or call it train"):
        places(data)
    (data / "0" / "train.csv").write_text("x\n1\n")
    assert places(data)[0].table.name == "train.csv"


def test_folders_with_names_are_refused_with_the_command_that_renames_them_also_beside_a_table(tmp_path):
    data = folder(tmp_path)
    for client, name in enumerate(("north", "the south")):
        (data / str(client)).rename(data / name)
    with pytest.raises(ExperimentError) as fault:
        places(data)
    assert str(fault.value).endswith(f"called 0, 1, ...: cd {data} && mv north 0 && mv 'the south' 1")
    (data / "held-out.csv").write_text("x\n1\n")
    with pytest.raises(ExperimentError, match="mv north 0"):
        places(data)
    (data / "train.csv").write_text("x\n1\n")
    assert [place.client for place in places(data)] == [None]


def test_what_a_folder_has_in_place_of_tables_is_said(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "records.xlsx").write_text("x")
    with pytest.raises(
        FileNotFoundError, match=r"no table \(.csv, .tsv, .*it has old/, records.xlsx: save its sheet as CSV UTF-8$"
    ):
        places(tmp_path)


@pytest.mark.parametrize(("end", "separator"), [(".tsv", "\t"), (".txt", "|"), (".TXT", ",")])
def test_tables_of_text_are_read_by_their_separator_whatever_their_names_end_in(tmp_path, end, separator):
    data = folder(tmp_path, separator=separator)
    for client in range(2):
        (data / str(client) / "train.csv").rename(data / str(client) / f"people{end}")
    (tmp_path / "own.toml").write_text(drafted(data, from_public=True))
    columns = load_experiment(tmp_path / "own.toml").data.columns
    assert columns.separator == separator
    assert [len(read_table(place.table, columns)) for place in places(data)] == [10, 10]


def test_a_note_beside_a_table_is_no_second_table(tmp_path):
    data = folder(tmp_path)
    (data / "0" / "train.csv").rename(data / "0" / "people.csv")
    (data / "0" / "README.txt").write_text("about these records\n")
    assert places(data)[0].table.name == "people.csv"


@pytest.mark.parametrize("records", [2, 1000, 10**5 + 1, 10**6, 10**8])
def test_the_drafted_delta_fits_any_number_of_records(tmp_path, records):
    delta = tomllib.loads(drafted(folder(tmp_path)))["privacy"]["delta"]
    with warnings.catch_warnings():
        warnings.simplefilter("error" if records >= 1000 else "ignore")
        assert SMALLEST_DELTA <= resolve_delta(delta, records=records) < 1 / records


def test_a_column_that_some_clients_have_is_left_out_and_said_as_a_run_ignores_it(tmp_path):
    data = folder(tmp_path)
    table = data / "1" / "train.csv"
    lines = table.read_text().splitlines()
    more = [f"{lines[0]},extra", *(f"{line},7" for line in lines[1:])]
    table.write_text("\n".join(more))
    found = draft(DraftRequest(data, "sex", "income", Words(), from_public=True), name="own")
    assert found.notes == ("column 'extra' is in some of the clients' tables only, and is left out",)
    assert '# {name = "extra"},   left out: only some of the clients' in found.text
    (tmp_path / "own.toml").write_text(found.text)
    columns = load_experiment(tmp_path / "own.toml").data.columns
    assert columns is not None and len(read_table(table, columns)) == 10
    with pytest.raises(ExperimentError, match="--target names 'extra', which only some of the clients' tables have"):
        draft(DraftRequest(data, "sex", "extra", Words()), name="own")


def test_persons_are_looked_for_among_the_columns_that_all_public_tables_have(tmp_path):
    rows = [[i % 15, 0, "xyz"[i % 15 % 3], BORN[i % 20], "no", "fm"[i % 15 % 2], i * 7 % 2] for i in range(60)]
    table = folder(tmp_path, rows) / "1" / "train.csv"
    table.write_text("".join(f"{line},{at or 'extra'}\n" for at, line in enumerate(table.read_text().splitlines())))
    text = drafted(tmp_path / "DATA", from_public=True)
    assert 'name = "id"},   left out: it may identify persons' in text and 'name = "extra"},   left out: only' in text


def test_a_column_without_any_cell_is_left_out_of_a_draft(tmp_path):
    data = folder(tmp_path, [[*row[:2], "", *row[3:]] for row in ROWS])
    assert '# {name = "job"},   left out: it is empty' in drafted(data, from_public=True)


def test_a_public_table_may_lack_the_target_and_the_groups_that_are_given(tmp_path):
    (tmp_path / "public.csv").write_text("age\n20\n30\n")
    words = Words(categories={"income": ("a", "b"), "sex": ("m", "f"), "job": ("x", "y")})
    made = drafted(folder(tmp_path), words, public_table=tmp_path / "public.csv", crossed=("sex", "job"))
    assert 'target = {name = "income", values = ["a", "b"]' in made and "a group for each combination" in made


@pytest.mark.parametrize(
    ("cells", "refused"),
    [
        ([f"name {i}" for i in range(101)], "over 100 different texts, no classes: predict another column"),
        ([f"2020-01-{i:02d}" for i in range(1, 12)], "over 10 different dates, .*--bounds t=LOW:HIGH"),
        ([f"{i}%" for i in range(11)], "over 10 different numbers with signs of money or percent, no classes: write"),
        (
            [str(i) for i, times in enumerate((40, 12, 5, 0, 1, 2)) for _ in range(times or 3)],
            "'t' holds 6 different whole numbers, which may be codes",
        ),
        ([f"name {i}" for i in range(100)], None),
        ([str(i % 4) for i in range(40)], None),
    ],
)
def test_texts_dates_and_counts_are_no_classes_until_somebody_says_so(tmp_path, cells, refused):
    (tmp_path / "D").mkdir()
    rows = "".join(f"{20 + i % 9},{'fm'[i % 2]},{cell}\n" for i, cell in enumerate(cells * 2))
    (tmp_path / "D" / "t.csv").write_text(f"age,sex,t\n{rows}")
    asked = DraftRequest(tmp_path / "D", "sex", "t", Words(), from_public=True)
    said = replace(asked, words=Words(categories={"t": tuple(dict.fromkeys(cells))}))
    for request in [said] if refused else [said, asked]:
        assert 'task = "classification"' in draft(request, name="own").text
    if refused:
        with pytest.raises(ExperimentError, match=refused):
            draft(asked, name="own")


@pytest.mark.parametrize(("count", "task"), [(10, "classification"), (12, None), (101, "regression")])
def test_whole_numbers_that_may_be_codes_are_asked_for(tmp_path, count, task):
    rows = [[f"p{i}", 20 + i % 9, "ab"[i % 2], "fm"[i // 2 % 2], 100 + i % count] for i in range(3 * count)]
    (tmp_path / "D").mkdir()
    with (tmp_path / "D" / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["pid", "age", "job", "sex", "grade"], *rows])
    asked = DraftRequest(tmp_path / "D", "sex", "grade", Words(), from_public=True)
    if task is not None:
        assert f'task = "{task}"' in draft(asked, name="own").text
        return
    with pytest.raises(ExperimentError, match="'grade' holds 12 different whole numbers, which may be codes"):
        draft(asked, name="own")
    for said, known in (("c", "classification"), ("", "regression")):

        def ask(question: str, said: str = said) -> str:
            return said if "different whole numbers" in question else ""

        again = DraftRequest(tmp_path / "D", "sex", "grade", Words(), guess=True, ask=ask)
        assert f'task = "{known}"' in draft(again, name="own").text
