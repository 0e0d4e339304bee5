"""Cases of cells, columns, rows and persons in private tables."""

from __future__ import annotations

from benchmarks.malformed.case import Case
from benchmarks.malformed.inputs import edited, folders, nothing, semicolons, shared_visits, table, visits

TABLES = (
    Case("a cell is NaN", "run own.toml", table((11, 0, "NaN")), ("train.csv", "row 13", "'age'", "'NaN'")),
    Case("a cell is infinite", "run own.toml", table((11, 0, "-inf")), ("row 13", "'age'", "'-inf'")),
    Case("a cell is empty", "run own.toml", table((3, 2, "")), ("row 5", "'sex' is empty")),
    Case("a cell is above its declared bound", "run own.toml", table((0, 0, 100.5)), ("row 2", "'100.5'", "0 to 100")),
    Case("an unknown category", "run own.toml", table((39, 1, "Public")), ("row 41", "'Public'", "'public'")),
    Case("a table with semicolons", "run own.toml", semicolons, ("train.csv", "semicolons", 'separator = ";"')),
    Case("a number with a decimal comma", "run own.toml", table((0, 0, "20,5")), ("'20,5'", 'decimal = ","')),
    Case(
        "a number that is not whole",
        "run own.toml",
        edited(('name = "age",', 'name = "age", kind = "integer",'), cell=(0, 0, "20.5")),
        ("row 2", "'20.5'", "whole number"),
    ),
    Case(
        "a date written otherwise",
        "run own.toml",
        edited(('name = "age", low = 0, high = 100', 'name = "age", kind = "date"')),
        ("row 2", "'20'", "a date as 2024-05-31 is declared"),
    ),
    Case(
        "no truth value",
        "run own.toml",
        edited(('name = "age", low = 0, high = 100', 'name = "age", kind = "boolean"')),
        ("row 2", "'20'", "truth value"),
    ),
    Case(
        "missing values and nothing to fill them with",
        "run own.toml",
        edited(("high = 100", 'high = 100, missing = [""]')),
        ("'age'", "give fill"),
    ),
    Case(
        "a fill outside the bounds",
        "run own.toml",
        edited(("high = 100", 'high = 100, missing = [""], fill = 120')),
        ("fill 120", "0 to 100"),
    ),
    Case("a separator of two characters", "run own.toml data.columns.separator=;;", table(), ("';;'", "one character")),
    Case(
        "blanks that nobody filled in",
        "run own.toml",
        edited(("high = 100", 'high = "FILL IN"')),
        ("own.toml has blanks", "line 7", "public bounds"),
    ),
    Case("blanks, seen by check", "check own.toml", edited(("high = 100", 'high = "FILL IN"')), ("line 7", "blanks")),
    Case(
        "no word of where files are", "run own.toml", edited(('data_dir = "data"', "")), ("own.toml", "--data-dir DIR")
    ),
    Case(
        "no word of where files are, deployed",
        "deploy local own.toml",
        edited(('data_dir = "data"', "")),
        ("--data-dir",),
    ),
    Case(
        "no word of where files are, to check", "check own.toml", edited(('data_dir = "data"', "")), ("--data-dir DIR",)
    ),
    Case("more clients than folders", "run own.toml --clients 3", folders(0, 1), ("3 clients", "--clients 2")),
    Case(
        "fewer clients than folders, deployed", "deploy local own.toml", folders(0, 1, 2), ("2 clients", "--clients 3")
    ),
    Case(
        "a bad cell of a deployed client",
        "deploy local own.toml",
        folders(0, 1, spoiled=True),
        ("data/1/train.csv", "row 9", "'x'"),
    ),
    Case(
        "records kept out of a named data set",
        "run fair-classification data.held_out_fraction=0.2",
        nothing,
        ("held_out_fraction", "'synthetic'"),
    ),
    Case(
        "counts of kept records, where none are kept",
        "run own.toml data.held_out_to=everybody",
        table(),
        ("held_out_to", "held_out_fraction is 0"),
    ),
    Case("a unit that no file has", "run own.toml data.unit=patient", table(), ("data/train.csv", "'patient'")),
    Case("a unit that is an input", "run own.toml data.unit=age", table(), ("'age'", "one role")),
    Case("a unit of a named data set", "run fair-classification data.unit=patient", nothing, ("unit", "'synthetic'")),
    Case(
        "a row of nobody",
        "run own.toml data.unit=patient",
        visits((5, 4, "")),
        ("row 7", "'patient'", "empty", "whose"),
    ),
    Case(
        "a person of two groups",
        "run own.toml data.unit=patient",
        visits((5, 2, "male")),
        ("row 7", "'male'", "row 6", "'female'", "'patient'"),
    ),
    Case(
        "a person of two classes, which are public",
        "run own.toml data.unit=patient objective.penalty=equality-of-odds",
        visits(),
        ("rows 0 and 1", "'patient'", "class"),
    ),
    Case(
        "a person held out and in training",
        "run own.toml data.unit=patient data.held_out=held-out.csv",
        visits(held=2),
        ("held-out.csv", "2 values", "'patient'"),
    ),
    Case(
        "persons at two clients",
        "run own.toml data.unit=patient federation.clients=2",
        shared_visits(),
        ("20 values", "'patient'", "clients 0 and 1", "give them to one client"),
    ),
    Case(
        "one file for two clients",
        "run own.toml federation.clients=2",
        shared_visits(copied=True),
        ("clients 0 and 1 bring one file", "give each client its own records"),
    ),
    Case(
        "a draft with a unit that there is not",
        "init data --group sex --target income --unit patient -o new.toml",
        folders(0, 1),
        ("--unit", "'patient'"),
    ),
)
