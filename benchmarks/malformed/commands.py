"""Cases of folders, drafts, budgets, presets and plans."""

from __future__ import annotations

from benchmarks.malformed.case import Case
from benchmarks.malformed.inputs import (
    HEADER,
    OWN,
    arrays,
    folders,
    held_out,
    images,
    nothing,
    one_group,
    parquet,
    table,
    two_files,
    undecodable,
    written,
)

COMMANDS = (
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
    Case(
        "a budget without delta", "budget -p 0.1 --epsilon 1 --steps 10", nothing, ("delta is not given", "--records")
    ),
    Case("a budget of no records", "budget --records 0 --epsilon 1", nothing, ("records is 0", "at least 1")),
    Case("a missing column", "run own.toml", table(header=HEADER[:3]), ("train.csv", "'income'")),
    Case("a CSV file that is not UTF-8", "run own.toml", undecodable, ("train.csv", "line 12", "UTF-8")),
    Case("a header and no record", "run own.toml", table(count=0), ("train.csv", "no records")),
    Case("two files of records", "run own.toml", two_files, ("keep the one",)),
    Case("no such data directory", "run own.toml --data-dir nowhere", table(), ("nowhere",)),
    Case("a truncated IDX file", "run images.toml", images, ("train-images-idx3-ubyte", "announces 640 bytes")),
    Case("npz with Python objects", "run own.toml", arrays(objects=True), ("train.npz", "'age'", "never loaded")),
    Case("a truncated npz file", "run own.toml", arrays(kept=0.7), ("train.npz", "not a whole npz file")),
    Case("a truncated Parquet file", "run own.toml", parquet, ("train.parquet", "not a whole Parquet file")),
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
)
