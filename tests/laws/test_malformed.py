"""Every malformed input ends in a short message that names it, before anything is spent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.laws.malformed_inputs import (
    OWN,
    Case,
    damage,
    edited,
    finished,
    folders,
    held_out,
    images,
    limited,
    nothing,
    one_group,
    outcome_of,
    semicolons,
    shared_visits,
    table,
    trained,
    unreadable,
    visits,
    written,
)

CASES = (
    # Cells, columns, rows and persons in private tables
    Case("a cell is NaN", "run own.toml", table((11, 0, "NaN")), ("train.csv", "row 13", "'age'", "'NaN'")),
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
        ("row 7", "'patient'", "empty", "privacy unit"),
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
    # Folders, drafts, budgets, presets and plans
    Case("a client's folder is missing", "check own.toml", folders(0, 2), ("folder 2", "none called 1")),
    Case("a client that there is not", "check own.toml --client 5", folders(0, 1), ("--client is 5", "folders 0 to 1")),
    Case(
        "an experiment without files to check", "check ring --data-dir .", nothing, ("'ring'", "data.source = 'files'")
    ),
    Case(
        "a draft over a file that is there",
        "init data --group sex --target income",
        folders(0, 1),
        ("own.toml is there already", "--force"),
    ),
    Case(
        "a draft for a column that there is not",
        "init data --group sex --target incom -o new.toml",
        folders(0, 1),
        ("'incom'", "nearest: 'income'"),
    ),
    Case(
        "bounds that cannot be read",
        "init data --group sex --target income --bounds age=17 -o new.toml",
        folders(0, 1),
        ("'age=17'", "age=17:90"),
    ),
    Case("a draft from no folder", "init nowhere --group sex --target income", nothing, ("no folder nowhere",)),
    Case("a budget of no records", "budget --records 0 --epsilon 1", nothing, ("records is 0", "at least 1")),
    Case("a header and no record", "run own.toml", table(count=0), ("train.csv", "no records")),
    Case("no such data directory", "run own.toml --data-dir nowhere", table(), ("nowhere",)),
    Case("a truncated IDX file", "run images.toml", images, ("train-images-idx3-ubyte", "announces 640 bytes")),
    Case(
        "a held-out file that is the private one",
        "run own.toml data.held_out=data/train.csv",
        table(),
        ("data/train.csv", "is the private file"),
    ),
    Case(
        "held-out rows that are private",
        "run own.toml data.held_out=held-out.csv",
        held_out(4),
        ("held-out.csv", "4 of its 10 rows", "'allow'"),
    ),
    Case(
        "an overlap allowed of no file",
        "run own.toml data.held_out_overlap=allow",
        table(),
        ("held_out_overlap", "leave it out"),
    ),
    Case(
        "a preset for a task without rules",
        "run ring training.preset=auto",
        nothing,
        ("training.preset", "'generation'", "leave it out"),
    ),
    Case(
        "a preset, and nobody to count the records",
        "tune own.toml training.preset=auto",
        written("own.toml", OWN.replace('data_dir = "data"\n', "")),
        ("training.preset", "`fedsw plan EXPERIMENT --records N`"),
    ),
    Case(
        "a plan without records",
        "plan own.toml",
        written("own.toml", OWN.replace('data_dir = "data"\n', "")),
        ("not at hand", "--records N", "--data-dir DIR"),
    ),
    Case(
        "a plan for a folder that is not there", "plan own.toml --data-dir nowhere", table(), ("no folder", "nowhere")
    ),
    Case(
        "a plan for sizes that are none",
        "plan own.toml --records female=20",
        table(),
        ("'female=20'", "female=N,male=N"),
    ),
    Case("a group without a record", "run own.toml", one_group, ("group A=1 is empty",)),
    Case("a batch larger than its group", "run own.toml training.batch_size=30", table(), ("30", "group A=0", "20")),
    Case("more clients than records", "run own.toml --clients 9", table(count=8), ("9 clients for 8 records",)),
    # Settings, accounts and searches
    Case(
        "a source that there is not",
        "run fair-classification data.source=adlt",
        nothing,
        ("data.source", "nearest: 'adult'", "module:name"),
    ),
    Case(
        "a module that there is not",
        "run own.toml data={source='nowhere_at_all:table'}",
        table(),
        ("nowhere_at_all", "PYTHONPATH"),
    ),
    Case(
        "an edge outside the bounds",
        "run own.toml data.columns.sensitive={name='age',edges=[30,130]}",
        table(),
        ("the edge 130", "0 and 100"),
    ),
    Case("broken TOML", "run broken.toml", written("broken.toml", 'name = "x"\n[data\n'), ("broken.toml", "line 2")),
    Case("brackets without end", "run deep.toml", written("deep.toml", "a = " + "[" * 9000), ("deep.toml",)),
    Case(
        "a model that the task does not have", "run fair-classification model.kind=generator", nothing, ("'generator'",)
    ),
    Case(
        "a trust model that cannot run the task",
        "run fair-classification privacy.trust=local-release",
        nothing,
        ("local-release",),
    ),
    Case(
        "a flow with Adam",
        "run gaussians privacy.trust=local-slices local.algorithm=flow model.kind=particles training.optimizer=adam",
        nothing,
        ("training.optimizer", "'sgd'"),
    ),
    Case("a data set's name that names no file", "run own.toml data.account=a/b", table(), ("'a/b'",)),
    Case(
        "a run beyond the limit of its data set",
        "run own.toml data.account=people",
        limited,
        ("'people'", "its limit is 0.1", "still fits"),
    ),
    Case("a limit that is none", "account limit people --epsilon inf --delta 1e-6", nothing, ("inf",)),
    Case("an account that there is not", "account show peeple", limited, ("'peeple'", "'people'")),
    Case("values to try that cannot be read", "tune own.toml --try training.rounds", table(), ("'training.rounds'",)),
    Case(
        "a search on records with nothing to score on",
        "tune own.toml --on-records --try training.rounds=2,3",
        table(),
        ("data.held_out",),
    ),
    # Finished runs: predictions, cards, resuming
    Case(
        "a category that was never seen, to predict",
        "predict own table.csv",
        trained("age,work", "30,private", "31,own"),
        ("table.csv: row 3", "'work' is 'own'", "'private', 'public'"),
    ),
    Case(
        "a missing value, to predict",
        "predict own table.csv",
        trained("age,work", ",private"),
        ("table.csv: row 2", "'age' is empty", "from 0 to 100"),
    ),
    Case(
        "a threshold of records that nobody holds out",
        "predict own table.csv --threshold parity",
        trained("age,work,sex", "30,private,male"),
        ("'parity'", "held-out records", "give numbers"),
    ),
    Case(
        "a run without a model, to predict",
        "predict own table.csv",
        lambda: [trained("age,work")(), Path("runs/own/first/model.safetensors").unlink()],
        ("model.safetensors", "fedsw show runs/own/first progress"),
    ),
    Case(
        "a card of what has not ended",
        "show own card",
        lambda: [trained("age,work")(), Path("runs/own/first/summary.json").unlink()],
        ("runs/own/first", "has not ended"),
    ),
    Case("a client's state that there is not", "show data client", table(), ("data", "--state-dir")),
    Case("resuming what is no run", "resume data", table(), ("'data'",)),
    Case("a damaged ledger", "resume runs/own/first --go-on", finished(damage), ("ledger.sqlite",)),
    Case("a damaged configuration", "resume runs/own/first", finished(unreadable), ("config.json",)),
)


@pytest.mark.parametrize("case", CASES, ids=[case.what for case in CASES])
def test_a_malformed_input_is_named_and_nothing_is_spent(case):
    outcome = outcome_of(case)
    assert outcome.code == 2
    assert "Traceback" not in outcome.error and "pydantic.dev" not in outcome.error
    for word in case.named:
        assert word in outcome.error
    assert len(outcome.error) < 600 and outcome.error.startswith("fedsw: ")
    assert outcome.ledgers == () and "resume" not in outcome.error


def test_no_case_stands_twice():
    assert len({case.what for case in CASES}) == len(CASES) >= 60
