"""Cases of finished runs: predictions, cards, resuming."""

from __future__ import annotations

from pathlib import Path

from benchmarks.malformed.case import Case
from benchmarks.malformed.finished import damage, finished, trained, unreadable
from benchmarks.malformed.inputs import table

MODELS = (
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
    Case("a column that is missing, to predict", "predict own table.csv", trained("age", "30"), ("no column 'work'",)),
    Case(
        "no group, to predict with a threshold for each",
        "predict own table.csv --threshold female=0.4 --threshold male=0.5",
        trained("age,work", "30,private"),
        ("no column 'sex'",),
    ),
    Case(
        "a threshold for one group of two",
        "predict own table.csv --threshold female=0.4",
        trained("age,work,sex", "30,private,male"),
        ("'female', 'male'", "each needs one"),
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
