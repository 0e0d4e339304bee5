"""What people complain of in public about other tools' reading of tables, tried here as a stranger would: `fedsw init`.

    python -m benchmarks.complaints

Each table is made up, small, of two clients, and public. A verdict is *right* if the draft declares what the table is,
*asked* if a person is asked, by a blank, a line to look at or a refusal that names what is meant, and else *wrong*.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from fedsw._tools.text import table as markdown_table
from fedsw.experiment.load import BLANK
from tests.laws.malformed_inputs import folder, invoke

RESULT = Path(__file__).parent / "results" / "complaints.json"
_ROWS = 400
Draft = Mapping[str, Any]
Right = Callable[[Draft], bool]


@dataclass(frozen=True)
class Complaint:
    """One table, and what is right about it.

    Attributes:
        kind: what a table has, in words.
        what: what became of it elsewhere.
        report: the public report; empty for a variant of one.
        prepare: makes the tables in DATA of the current directory.
        options: options of `init` beside the target.
        right: says whether the draft's [data] is right; None if a person must be asked.
        asks: words that are said where a person is asked.
    """

    kind: str
    what: str
    report: str
    prepare: Callable[[], None]
    options: str = ""
    right: Right | None = None
    asks: tuple[str, ...] = ()


def people(**columns: Iterable[object]) -> dict[str, list[object]]:
    """A table of ages, some columns and a target that follows from age, `_ROWS` rows."""
    ages: list[object] = [18 + (row * 37) % 72 for row in range(_ROWS)]
    chosen: list[object] = ["yes" if (row * 37) % 72 > 30 + (row % 7) else "no" for row in range(_ROWS)]
    return {"age": ages, **{name: list(cells) for name, cells in columns.items()}, "chosen": chosen}


def cycled(cells: Sequence[object]) -> list[object]:
    """These cells over and over, in an order that no other column has."""
    return [cells[(row * 13 + row // 7) % len(cells)] for row in range(_ROWS)]


def text(
    table: Mapping[str, Sequence[object]],
    *,
    separator: str = ",",
    before: str = "",
    after: str = "",
    encoding: str = "utf-8",
    header: Sequence[str] | None = None,
) -> Callable[[], None]:
    """Write a table of two clients as text, with lines before the header and after the rows."""

    def prepare() -> None:
        rows = list(zip(*table.values(), strict=True))
        for client in range(2):
            made = io.StringIO()
            writer = csv.writer(made, delimiter=separator, lineterminator="\n")
            writer.writerow(header or list(table))
            writer.writerows(rows[client::2])
            path = Path("DATA") / str(client) / "table.csv"
            path.parent.mkdir(parents=True)
            path.write_bytes((before + made.getvalue() + after).encode(encoding))

    return prepare


def parquet(table: Mapping[str, Sequence[object]]) -> Callable[[], None]:
    """Write a table of two clients as Parquet."""

    def prepare() -> None:
        import pandas

        for client in range(2):
            path = Path("DATA") / str(client) / "table.parquet"
            path.parent.mkdir(parents=True)
            pandas.DataFrame(dict(table)).iloc[client::2].to_parquet(path)

    return prepare


def column(draft: Draft, name: str) -> Mapping[str, Any]:
    """A column's declaration among the inputs; empty if it is none."""
    found: Mapping[str, Any] = next((f for f in draft["columns"]["features"] if f["name"] == name), {})
    return found


def bounded(name: str, low: object, high: object, **keys: object) -> Right:
    """Right if an input has these bounds, as they are written in TOML, and other keys."""
    wanted = {"low": low, "high": high, **keys}
    return lambda draft: {key: column(draft, name).get(key) for key in wanted} == wanted


def listed(name: str, values: Iterable[str], **keys: object) -> Right:
    """Right if an input or the target has these values in any order, and other keys."""

    def right(draft: Draft) -> bool:
        said = draft["columns"]["target"] if name == "chosen" else column(draft, name)
        found = said.get("values", said.get("categories", ()))
        return sorted(map(str, found)) == sorted(values) and all(said.get(key) == value for key, value in keys.items())

    return right


def no_input(name: str) -> Right:
    """Right if a column is no input."""
    return lambda draft: not column(draft, name)


def days(written: str, years: Sequence[int]) -> list[object]:
    """Dates of these years as a format writes them."""
    return [
        datetime.date(years[row % len(years)], 1 + row % 12, 1 + row % 28).strftime(written) for row in range(_ROWS)
    ]


def _sites(first: Sequence[str], second: Sequence[str], name: str = "sex") -> Callable[[], None]:
    """Write one column in the values of each of two sites."""
    rows = [(first, second)[row % 2][(row // 2 * 5 + row // 14) % len(first)] for row in range(_ROWS)]
    return text({**people(), name: rows})


def _workbook() -> None:
    """A workbook's first bytes: it is refused by its name."""
    Path("DATA/0").mkdir(parents=True)
    Path("DATA/0/table.xlsx").write_bytes(b"PK\x03\x04")


def _spss() -> None:
    Path("DATA/0").mkdir(parents=True)
    Path("DATA/0/table.sav").write_bytes(b"$FL2@(#) SPSS")


def persons(name: str, cells: Callable[[int], object]) -> dict[str, list[object]]:
    """A table in which persons have four rows each, and stay of one sex; `cells` are their numbers."""
    person = [row // 4 for row in range(_ROWS)]
    sex = ["f" if (each * 7) % 5 < 2 else "m" for each in person]
    born = [1930 + (each * 11) % 60 for each in person]
    return people(**{name: map(cells, person)}, sex=sex, born=born, dose=[(row * 7) % 50 for row in range(_ROWS)])


def outcome(complaint: Complaint) -> dict[str, str]:
    """Try one, to `check` where the draft is whole: its verdict, and what was said about it."""
    with folder():
        complaint.prepare()
        target = "" if "--target" in complaint.options else "--target chosen"
        ended = invoke(f"init DATA --from-public {target} {complaint.options} -o own.toml --json")
        draft = Path("own.toml").read_text(encoding="utf-8") if Path("own.toml").is_file() else ""
        lines = [line for line in draft.splitlines() if not line.startswith("#")]
        blanks = [line.strip() for line in lines if BLANK in line]
        checked = invoke("check own.toml --data-dir DATA --no-estimate") if draft and not blanks else ended
    said = [ended.error.strip(), *blanks]
    if draft:
        found = json.loads(ended.output)
        looked_at = [line for line in found["understood"] if line["look"]]
        said += [*found["notes"], *(f"{line['column']}: {line['look']}: {line['understood']}" for line in looked_at)]
        if (
            complaint.right is not None
            and not blanks
            and not checked.code
            and complaint.right(tomllib.loads(draft)["data"])
        ):
            return {"verdict": "right", "said": ""}
    about = [words for words in said if any(word in words for word in complaint.asks)]
    asked = bool(about) and all(word in " ".join(about) for word in complaint.asks)
    return {"verdict": "asked" if asked else "wrong", "said": " / ".join(about or filter(None, said))}


_PANDAS, _POLARS = "https://github.com/pandas-dev/pandas/issues/", "https://github.com/pola-rs/polars/issues/"
_COSTS = [f"{1 + row % 40},{row % 100:02d}" for row in range(_ROWS)]
_VALUES = [round(1 + (row * 0.37) % 9, 2) for row in range(_ROWS)]

REPORTED = (
    Complaint(
        "decimal commas, and points between thousands in a few cells",
        "a cell without a point is blamed",
        f"{_PANDAS}59299",
        text(people(cost=[*_COSTS[2:], "1.234,56", "2.100,50"]), separator=";"),
        "",
        bounded("cost", 1.0, 2100.5),
        ("cost",),
    ),
    Complaint(
        "NA, the country code of Namibia",
        "rows of one country have none",
        "https://github.com/datasets/country-codes/issues/38",
        text(people(country=cycled(["ZA", "NA", "BW", "ZW"]))),
        "",
        listed("country", ["ZA", "NA", "BW", "ZW"], missing=None),
        ("country", "'NA'"),
    ),
    Complaint(
        "postcodes with leading zeros",
        "08028 is the number 8028",
        "https://github.com/molgenis/molgenis-service-armadillo/pull/1029",
        text(people(postcode=cycled(["08028", "01067", "10115", "04109"]))),
        "",
        listed("postcode", ["08028", "01067", "10115", "04109"]),
        ("postcode",),
    ),
    Complaint(
        "years of two digits",
        "who was born in 1965 is born in 2065",
        "https://github.com/tidyverse/lubridate/issues/1048",
        text(people(born=days("%m-%d-%y", range(1925, 2004)))),
        "",
        None,
        ("born", "--dates"),
    ),
    Complaint(
        "a code that SPSS declared as missing",
        "99 is averaged with 1 to 10",
        "https://github.com/tidyverse/haven/issues/588",
        text(people(pain=cycled([*range(1, 11), *range(1, 11), 99]))),
        "",
        lambda draft: column(draft, "pain").get("high") == 10 and "99" in column(draft, "pain")["missing"],
        ("pain", "'99'"),
    ),
    Complaint(
        "REDCap: boxes, states of forms, events of one record",
        "an empty form counts as ticked off; a person has several rows",
        "https://github.com/OuhscBbmc/REDCapR/issues/420",
        text(
            {
                "record_id": [1 + row // 4 for row in range(_ROWS)],
                "redcap_event_name": cycled(["baseline_arm_1", "month_3_arm_1"]),
                "symptoms___1": cycled([0, 1, 0]),
                "sex": [str(row // 4 % 2) for row in range(_ROWS)],
                "visit_complete": cycled([0, 2, 2]),
                **people(),
            }
        ),
        "",
        None,
        ("record_id",),
    ),
    Complaint(
        "a first line sep=; for Excel",
        "it is the header",
        "https://github.com/mechatroner/vscode_rainbow_csv/issues/108",
        text(people(cost=_COSTS), separator=";", before="sep=;\n"),
        "",
        bounded("cost", 1.0, 40.99),
        ("sep=",),
    ),
    Complaint(
        "words in a column of numbers, far below the first rows",
        "the type is that of the first hundred rows",
        f"{_POLARS}10544",
        text(people(weight=[*(50 + row % 40 for row in range(_ROWS - 2)), "Bad Input", "see notes"])),
        "",
        None,
        ("weight", "'Bad Input'"),
    ),
    Complaint(
        "two columns of one name",
        "one of them is lost",
        f"{_PANDAS}14704",
        text(people(a=cycled([1, 2, 3]), b=cycled([4, 5])), header=["age", "a", "a", "chosen"]),
        "",
        None,
        ("two columns 'a'",),
    ),
    Complaint(
        "the index of a frame as a column without a name",
        "it is learnt from",
        "https://github.com/cpadavis/billy/issues/18",
        text({"Unnamed: 0": [*range(_ROWS)], **people(dose=cycled([1, 5, 9]))}),
        "",
        no_input("Unnamed: 0"),
    ),
    Complaint(
        "an individual in more than one row",
        "the distance of data sets is 1 all the same",
        "https://github.com/opendp/dpcreator/issues/512",
        text(persons("member", lambda person: 5000 + 3 * person)),
        "",
        None,
        ("member", "100 values"),
    ),
    Complaint(
        'a formula that keeps a number a text: =("0844")',
        "cells are parted at its marks",
        f"{_PANDAS}55105",
        text(people(cod=[f'="{code}"' for code in cycled(["0844", "0212", "0878"])]), separator=";"),
        "",
        None,
        ("cod", "formulas"),
    ),
    Complaint(
        "whole numbers of twenty digits",
        "they do not fit 64 bits",
        f"{_POLARS}12473",
        text(people(number=[f"1{row * 7919 % 997:03d}" + "4" * 17 for row in range(_ROWS)])),
        "",
        no_input("number"),
        ("number",),
    ),
    Complaint(
        "infinite numbers, and NaN, in Parquet",
        "no bounds can be inferred, and no column is named",
        "https://github.com/opendp/opendp/issues/2312",
        parquet(people(level=[*_VALUES[3:], float("inf"), float("-inf"), float("nan")])),
        "",
        None,
        ("level",),
    ),
)
"""Public reports, and their tables."""


VARIANTS = (
    Complaint(
        "persons: Czech name, semicolons",
        "",
        "",
        text(persons("číslo_pacienta", lambda n: f"CZ{n:04d}"), separator=";"),
        "",
        None,
        ("číslo_pacienta",),
    ),
    Complaint(
        "persons: Russian name, tabs",
        "",
        "",
        text(persons("номер", lambda n: 70000 + n * 17), separator="\t"),
        "",
        None,
        ("номер",),
    ),
    Complaint(
        "persons: a name that says nothing, Parquet",
        "",
        "",
        parquet(persons("k_7", lambda n: 9000 + n * 13)),
        "",
        None,
        ("k_7",),
    ),
    Complaint(
        "persons: emails",
        "",
        "",
        text(persons("contact", lambda n: f"p{n * 37 % 101:03d}@example.org")),
        "",
        None,
        ("contact",),
    ),
    Complaint(
        "numbers: points behind three digits, whole ones beside",
        "",
        "",
        text(people(cost=[f"{1 + row % 9}.{row * 7 % 1000:03d}" for row in range(_ROWS)], beds=cycled([505, 90, 77]))),
        "",
        None,
        ("thousands",),
    ),
    Complaint(
        "numbers: commas behind three digits, quoted",
        "",
        "",
        text(people(cost=[f"{1 + row % 9},{row * 7 % 1000:03d}" for row in range(_ROWS)], beds=cycled([505, 90, 77]))),
        "",
        None,
        ("thousands",),
    ),
    Complaint(
        "numbers: an apostrophe between thousands",
        "",
        "",
        text(people(cost=[f"{1 + row % 9}'{row * 7 % 1000:03d}.50" for row in range(_ROWS)])),
        "",
        bounded("cost", 1000.5, 9946.5),
        ("cost",),
    ),
    Complaint(
        "numbers: a blank between thousands, commas",
        "",
        "",
        text(people(cost=[f"{1 + row % 9} {row * 7 % 1000:03d},5" for row in range(_ROWS)]), separator=";"),
        "",
        bounded("cost", 1000.5, 9946.5),
        ("cost",),
    ),
    Complaint(
        "one thing twice: oui and 1, non and 0",
        "",
        "",
        text(people(fume=cycled(["oui", "1", "non", "0"]))),
        "",
        lambda draft: len(column(draft, "fume").get("categories", "....")) == 2,
        ("fume",),
    ),
    Complaint(
        "one thing twice: letters' case and blanks",
        "",
        "",
        text(people(ward=cycled(["North ", "north", "South", "SOUTH"]))),
        "",
        lambda draft: len(column(draft, "ward").get("categories", "....")) == 2,
        ("ward",),
    ),
    Complaint(
        "one thing twice: sí, si, no, 0, 1",
        "",
        "",
        text(people(fuma=cycled(["sí", "si", "no", "0", "1"]))),
        "",
        lambda draft: len(column(draft, "fuma").get("categories", ".....")) == 2,
        ("fuma",),
    ),
    Complaint(
        "boxes: x or empty",
        "",
        "",
        text(people(smoker=cycled(["x", "", ""]))),
        "",
        lambda draft: column(draft, "smoker").get("empty") == "no",
    ),
    Complaint(
        "boxes: a tick or empty",
        "",
        "",
        text(people(smoker=cycled(["✓", "", ""]))),
        "",
        lambda draft: column(draft, "smoker").get("empty") == "no",
    ),
    Complaint(
        "boxes: Checked and Unchecked",
        "",
        "",
        text(people(smoker=cycled(["Checked", "Unchecked"]))),
        "",
        listed("smoker", ["Checked", "Unchecked"]),
    ),
    Complaint(
        "words among numbers: below a limit",
        "",
        "",
        text(people(crp=[*_VALUES[20:], *["<0.5"] * 15, *["k.A."] * 5])),
        "",
        lambda draft: {"<0.5", "k.A."} <= set(column(draft, "crp")["missing"]),
    ),
    Complaint(
        "words among numbers: Spanish, Polish",
        "",
        "",
        text(people(crp=[*_VALUES[20:], *["s/d"] * 10, *["brak danych"] * 10])),
        "",
        lambda draft: {"s/d", "brak danych"} <= set(column(draft, "crp")["missing"]),
    ),
    Complaint(
        "words among numbers: SAS .A and .B",
        "",
        "",
        text(people(crp=[*_VALUES[20:], *[".A"] * 10, *[".B"] * 10])),
        "",
        lambda draft: {".A", ".B"} <= set(column(draft, "crp")["missing"]),
    ),
    Complaint(
        "words among dates: an unknown day",
        "",
        "",
        text(people(seen=[*days("%Y-%m-%d", range(2010, 2020))[12:], *["2015-00-00"] * 6, *["unknown"] * 6])),
        "",
        lambda draft: {"2015-00-00", "unknown"} <= set(column(draft, "seen")["missing"]),
    ),
    Complaint(
        "negative numbers in brackets",
        "",
        "",
        text(people(change=[f"({value})" if row % 40 == 0 else value for row, value in enumerate(_VALUES)])),
        "",
        None,
        ("change",),
    ),
    Complaint(
        "no records: three header rows of Qualtrics",
        "",
        "",
        text(
            {
                name: [f"What is {name}?", json.dumps({"ImportId": name}), *cells]
                for name, cells in people(q1=cycled([1, 2, 3, 4, 5, 6, 7])).items()
            }
        ),
        "",
        None,
        ("--skip-rows",),
    ),
    Complaint(
        "no records: a total in Portuguese",
        "",
        "",
        text(people(dose=cycled([1, 5, 9])), after="Total geral,9999,\n"),
        "",
        None,
        ("total",),
    ),
    Complaint(
        "no records: a footer",
        "",
        "",
        text(people(dose=cycled([1, 5, 9])), after="Source: registry 2024\n"),
        "",
        None,
        ("1 cells",),
    ),
    Complaint(
        "no records: rows of semicolons only",
        "",
        "",
        text(people(dose=cycled([1, 5, 9])), separator=";", after=";;\n;;\n"),
        "",
        None,
        ("no cell",),
    ),
    Complaint(
        "the target in two codings",
        "",
        "",
        text({**people(), "chosen": cycled(["ja", "1", "nein", "0"])}),
        "",
        lambda draft: len(draft["columns"]["target"]["values"]) == 2,
        ("chosen",),
    ),
    Complaint(
        "the target of many texts",
        "",
        "",
        text({**people(), "chosen": [f"report {row}" for row in range(_ROWS)]}),
        "",
        None,
        ("texts",),
    ),
    Complaint(
        "the target holds counts, most of them 0",
        "",
        "",
        text({**people(), "chosen": [0 if row % 4 else row // 4 % 9 for row in range(_ROWS)]}),
        "--bounds chosen=0:9",
        None,
        ("chosen", "most numbers are small"),
    ),
    Complaint(
        "favourable: death, in French",
        "",
        "",
        text({**people(), "décès": cycled(["oui", "non"])}),
        "--target décès --drop chosen",
        None,
        ("décès",),
    ),
    Complaint(
        "favourable: 死亡",
        "",
        "",
        text({**people(), "死亡": cycled(["1", "0"])}),
        "--target 死亡 --drop chosen",
        None,
        ("死亡",),
    ),
    Complaint(
        "a code of missing cells widens bounds",
        "",
        "",
        text(people(income=[*(1000 + row * 7 % 900 for row in range(_ROWS - 20)), *["9999"] * 20])),
        "",
        None,
        ("income",),
    ),
    Complaint(
        "dates: months by name, as SAS and Oracle write them",
        "",
        "",
        text(people(seen=days("%d%b%Y", range(2010, 2020)), left=days("%d-%b-%Y", range(2010, 2020)))),
        "",
        lambda draft: all(column(draft, name).get("kind") == "date" for name in ("seen", "left")),
    ),
    Complaint(
        "dates: months by name, in German",
        "",
        "",
        text(people(seen=[f"{1 + row % 28}. März {2010 + row % 10}" for row in range(_ROWS)])),
        "",
        None,
        ("seen", "--dates"),
    ),
    Complaint(
        "dates: Chinese",
        "",
        "",
        text(people(seen=[f"{2010 + row % 10}年3月{1 + row % 28}日" for row in range(_ROWS)])),
        "",
        None,
        ("seen", "--dates"),
    ),
    Complaint(
        "dates: with hours and zone",
        "",
        "",
        text(people(seen=[f"{day}T10:30:00Z" for day in days("%Y-%m-%d", range(2010, 2020))])),
        "",
        lambda draft: column(draft, "seen").get("kind") == "date",
    ),
    Complaint(
        "dates: days or months first",
        "",
        "",
        text(people(seen=[f"{1 + row % 12:02d}/{1 + row * 5 % 12:02d}/{2010 + row % 10}" for row in range(_ROWS)])),
        "",
        None,
        ("seen",),
    ),
    Complaint(
        "amounts of money",
        "",
        "",
        text(people(cost=[f"€ {1 + row % 300}" for row in range(_ROWS)])),
        "",
        None,
        ("cost", "money"),
    ),
    Complaint(
        "percents", "", "", text(people(part=[f"{row % 100} %" for row in range(_ROWS)])), "", None, ("part", "percent")
    ),
    Complaint(
        "ages that end at 90+",
        "",
        "",
        text(people(old=[*(40 + row % 50 for row in range(_ROWS - 20)), *["90+"] * 20])),
        "",
        None,
        ("old", "90+"),
    ),
    Complaint(
        "numbers with their unit",
        "",
        "",
        text(people(weight=[f"{50 + row % 60} kg" for row in range(_ROWS)])),
        "",
        None,
        ("weight",),
    ),
    Complaint(
        "numbers as fractions, as 120/80",
        "",
        "",
        text(people(pressure=[f"{100 + row % 60}/{60 + row % 40}" for row in range(_ROWS)])),
        "",
        None,
        ("pressure",),
    ),
    Complaint(
        "hours and minutes",
        "",
        "",
        text(people(at=[f"{row % 24:02d}:{row * 7 % 60:02d}" for row in range(_ROWS)])),
        "",
        None,
        ("at", "times of day"),
    ),
    Complaint(
        "None, the word, among degrees of pain",
        "",
        "",
        text(people(pain=cycled(["None", "Mild", "Severe"]))),
        "",
        listed("pain", ["None", "Mild", "Severe"]),
        ("pain", "'None'"),
    ),
    Complaint(
        "the same words at two sites, in two languages",
        "",
        "",
        _sites(["male", "female"], ["männlich", "weiblich"]),
        "",
        None,
        ("sex",),
    ),
    Complaint(
        "one site codes the target 1 and 0",
        "",
        "",
        _sites(["yes", "no"], ["1", "0"], name="chosen"),
        "",
        lambda draft: len(draft["columns"]["target"]["values"]) == 2,
        ("chosen",),
    ),
    Complaint("a workbook of Excel", "", "", _workbook, "", None, ("xlsx", "CSV UTF-8")),
    Complaint("a file of SPSS", "", "", _spss, "", None, ("sav", "read_spss")),
    Complaint(
        "a table without a header",
        "",
        "",
        text(people(dose=cycled([1, 5, 9])), header=["18", "1", "no"]),
        "",
        None,
        ("chosen",),
    ),
    Complaint(
        "units in a row below the header",
        "",
        "",
        text(
            {
                name: [unit, unit, *cells]
                for (name, cells), unit in zip(
                    people(dose=[float(row % 70) for row in range(_ROWS)]).items(), ("years", "mg", ""), strict=True
                )
            }
        ),
        "",
        None,
        ("'mg'",),
    ),
    Complaint(
        "a sheet saved in Latin-1",
        "",
        "",
        text(people(stadt=cycled(["Köln", "München"])), separator=";", encoding="latin-1"),
        "",
        None,
        ("UTF-8",),
    ),
    Complaint(
        "a sheet saved in UTF-16",
        "",
        "",
        text(people(stadt=cycled(["Köln", "München"])), separator="\t", encoding="utf-16"),
        "",
        None,
        ("UTF-8",),
    ),
)
"""Variants of these and other kinds: of other languages, separators and formats."""

COMPLAINTS = (*REPORTED, *VARIANTS)


def content(stored: Mapping[str, Any] | None = None) -> str:
    """The table of what was measured last, as Markdown, with the number of each verdict: reports, then variants."""
    stored = json.loads(RESULT.read_text(encoding="utf-8")) if stored is None else stored
    rows = []
    for row in stored["rows"]:
        report = f"[{row['what']}]({row['report']})" if row["report"] else "–"
        rows.append((row["kind"], report, row["verdict"], row["said"][:_MOST_SAID].replace("|", "/") or "–"))
    counts = Counter(row["verdict"] for row in stored["rows"])
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("right", "asked", "wrong"))
    return f"{said}.\n\n" + markdown_table(("a table has", "elsewhere", "`init` and `check`", "what they say"), rows)


_MOST_SAID = 160


def main() -> None:
    """Try all, print the table and store it."""
    rows = [{"kind": each.kind, "what": each.what, "report": each.report, **outcome(each)} for each in COMPLAINTS]
    stored = {"machine": describe(), "rows": rows}
    RESULT.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(content(stored))


if __name__ == "__main__":
    main()
