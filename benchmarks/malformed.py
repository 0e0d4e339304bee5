"""Malformed inputs: what each command line says and exits with, and that nothing was spent.

    python -m benchmarks.malformed

Runs every case in a folder of its own, prints the table and writes docs/errors.md.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import os
import re
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsw import markdown
from fedsw.cli.app import main as fedsw

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "errors.md"
OWN = """
name = "own"
[data]
source = "files"
data_dir = "data"
[data.columns]
features = [{name = "age", low = 0, high = 100}, {name = "work", categories = ["private", "public"]}]
sensitive = {name = "sex", values = ["female", "male"]}
target = {name = "income", values = ["low", "high"]}
[training]
rounds = 2
[privacy]
noise_multiplier = 2.0
[federation]
clients = 2
"""
IMAGES = """
name = "images"
[data]
source = "files"
data_dir = "data"
[data.columns]
features = [{name = "pixel", count = 64, low = 0, high = 255}]
target = {name = "kind", values = [0, 1]}
[model]
kind = "generator"
[objective]
task = "generation"
penalty = "distribution-matching"
alpha = 1.0
[federation]
clients = 2
"""
_LISTS = re.compile(r"(\b[Kk]nown(?: in \[\w+\])?:(?! ')).*")
"""What is left out on the page: names of all experiments or settings, which grow."""
HEADER = ["age", "work", "sex", "income"]


@dataclass(frozen=True)
class Case:
    """One malformed input.

    Attributes:
        what: the fault, in words.
        command: the words after `fedsw`.
        prepare: makes the files of the case in the current directory.
        named: what the message must name.
    """

    what: str
    command: str
    prepare: Callable[[], object]
    named: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """How a command line ended: its exit code, what it wrote, and the ledgers that appeared."""

    code: int
    output: str
    error: str
    ledgers: tuple[str, ...]


def rows(count: int = 40) -> list[list[object]]:
    work, sex, income = ("private", "public"), ("female", "male"), ("low", "high")
    return [[20 + i, work[i % 2], sex[i // 2 % 2], income[i % 2]] for i in range(count)]


def table(*changes: tuple[int, int, object], count: int = 40, header: list[str] = HEADER) -> Callable[[], None]:
    """own.toml and data/train.csv, with cells (record, column, value) replaced."""

    def prepare() -> None:
        Path("own.toml").write_text(OWN)
        Path("data").mkdir()
        cells = rows(count)
        for record, column, value in changes:
            cells[record][column] = value
        with Path("data/train.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header, *(row[: len(header)] for row in cells)])

    return prepare


def edited(*changes: tuple[str, str], cell: tuple[int, int, object] = (0, 0, 20)) -> Callable[[], None]:
    """The same as `table`, with texts of own.toml replaced, and a cell."""

    def prepare() -> None:
        table(cell)()
        text = OWN
        for before, after in changes:
            assert before in text, before
            text = text.replace(before, after)
        Path("own.toml").write_text(text)

    return prepare


def limited() -> None:
    """own.toml and its table, and an account of the data set `people` with next to no room."""
    from fedsw.accounting.lifetime import DatasetAccount, accounts_folder

    table()()
    DatasetAccount(accounts_folder(), "people").limit(0.1, 1e-6)


def folders(*numbers: int, spoiled: bool = False) -> Callable[[], None]:
    """own.toml and data/0, data/1, ... with a train.csv each; a cell of the last one may be none."""

    def prepare() -> None:
        table()()
        Path("data/train.csv").unlink()
        for number in numbers:
            Path(f"data/{number}").mkdir()
            cells = rows()
            cells[7][0] = "x" if spoiled and number == numbers[-1] else 30
            with Path(f"data/{number}/train.csv").open("w", newline="") as file:
                csv.writer(file).writerows([HEADER, *cells])

    return prepare


def visits(*changes: tuple[int, int, object], held: int = 0) -> Callable[[], None]:
    """Tables of persons with two rows each, with cells (record, column, value) replaced; the server's has `held`."""

    def prepare() -> None:
        table()()
        cells = [[*row[:2], ("female", "male")[i // 2 % 2], row[3], f"p{i // 2}"] for i, row in enumerate(rows())]
        for record, column, value in changes:
            cells[record][column] = value
        other = [[80, *row[1:4], row[4] if i < 2 * held else f"h{i}"] for i, row in enumerate(cells[:8])]
        for name, found in (("data/train.csv", cells), ("held-out.csv", other)):
            with Path(name).open("w", newline="") as file:
                csv.writer(file).writerows([[*HEADER, "patient"], *found])

    return prepare


def semicolons() -> None:
    table()()
    path = Path("data/train.csv")
    path.write_text(path.read_text().replace(",", ";"))


def one_group() -> None:
    table(*((record, 2, "female") for record in range(40)))()


def held_out(private: int) -> Callable[[], None]:
    """The same, and held-out.csv with that many of its 10 rows private."""

    def prepare() -> None:
        table()()
        cells = [[20.5 + i if i >= private else 20 + i, *row[1:]] for i, row in enumerate(rows(10))]
        with Path("held-out.csv").open("w", newline="") as file:
            csv.writer(file).writerows([HEADER, *cells])

    return prepare


def undecodable() -> None:
    table()()
    path = Path("data/train.csv")
    path.write_bytes(path.read_bytes().replace(b"30,private", b"30,priv\xe9"))


def arrays(*, objects: bool = False, kept: float = 1.0) -> Callable[[], None]:
    def prepare() -> None:
        table()()
        Path("data/train.csv").unlink()
        columns = {name: np.array([row[place] for row in rows()]) for place, name in enumerate(HEADER)}
        if objects:
            columns["age"] = columns["age"].astype(object)
        np.savez("data/train.npz", **columns)
        cut("data/train.npz", kept)

    return prepare


def parquet() -> None:
    from pyarrow import parquet as files
    from pyarrow import table as arrow

    table()()
    Path("data/train.csv").unlink()
    columns = {name: [row[place] for row in rows()] for place, name in enumerate(HEADER)}
    files.write_table(arrow(columns), "data/train.parquet")
    cut("data/train.parquet", 0.6)


def images() -> None:
    Path("images.toml").write_text(IMAGES)
    Path("data").mkdir()
    pixels = np.zeros((10, 8, 8), dtype=np.uint8)
    Path("data/train-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, *pixels.shape) + pixels.tobytes())
    Path("data/train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, 10) + bytes(10))
    cut("data/train-images-idx3-ubyte", 0.5)


def cut(path: str, kept: float) -> None:
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: int(kept * len(content))])


def written(name: str, text: str) -> Callable[[], object]:
    return lambda: Path(name).write_text(text)


def two_files() -> None:
    arrays()()
    Path("data/train.csv").touch()


def finished(spoil: Callable[[Path], object]) -> Callable[[], None]:
    """A finished run in runs/own/first, with one of its files spoiled."""

    def prepare() -> None:
        table()()
        outcome = invoke("run own.toml --quiet")
        assert outcome.code == 0, outcome.error
        (folder,) = Path("runs/own").iterdir()
        spoil(folder.rename("runs/own/first"))

    return prepare


def trained(*lines: str) -> Callable[[], None]:
    """What a finished run left but its ledger, in runs/own/first, and table.csv with these lines."""

    def prepare() -> None:
        table()()
        place = Path("runs/own/first")
        place.mkdir(parents=True)
        for name, content in _left_by_a_run().items():
            (place / name).write_bytes(content)
        Path("table.csv").write_text("\n".join(lines) + "\n")

    return prepare


@functools.cache
def _left_by_a_run() -> dict[str, bytes]:
    with folder():
        finished(lambda _: None)()
        place = Path("runs/own/first")
        return {name: (place / name).read_bytes() for name in ("config.json", "model.safetensors", "summary.json")}


def damage(folder: Path) -> None:
    path = folder / "ledger.sqlite"
    content = bytearray(path.read_bytes())
    content[: len(content) // 2] = bytes(len(content) // 2)
    path.write_bytes(content)


def unreadable(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def nothing() -> None:
    """No file is needed."""


CASES = (
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
        "a draft with a unit that there is not",
        "init data --group sex --target income --unit patient -o new.toml",
        folders(0, 1),
        ("--unit", "'patient'"),
    ),
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
        "server own.toml training.preset=auto --certs certs",
        table(),
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
    Case(
        "files without declared columns",
        "run bare.toml",
        written("bare.toml", 'name = "x"\ndata.source = "files"\n'),
        ("[data.columns]",),
    ),
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
    Case("epsilon 0", "run fair-classification --epsilon 0", nothing, ("privacy.epsilon", "above 0")),
    Case("epsilon -1", "run fair-classification --epsilon -1", nothing, ("privacy.epsilon", "-1", "above 0")),
    Case("delta 2", "run fair-classification privacy.delta=2", nothing, ("privacy.delta", "2", "between 0 and 1")),
    Case(
        "a delta that round-off uses up",
        "budget --delta 1e-10 -p 1e-4 --steps 1000000 --noise-multiplier 1",
        nothing,
        ("1e-10", "1000000 steps", "2.2e-10"),
    ),
    Case(
        "an unknown key", "run fair-classification training.roundz=3", nothing, ("training.roundz", "training.rounds")
    ),
    Case("a misspelt experiment", "run fair-clasification", nothing, ("'fair-clasification'", "'fair-classification'")),
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
    Case("too few clients", "run own.toml federation.min_clients=5", table(), ("min_clients is 5", "clients = 2")),
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
        ("model.safetensors", "fedsw status"),
    ),
    Case(
        "a card of what has not ended",
        "card own",
        lambda: [trained("age,work")(), Path("runs/own/first/summary.json").unlink()],
        ("runs/own/first", "has not ended"),
    ),
    Case("a client's state that there is not", "status --client data", table(), ("data", "--state-dir")),
    Case("resuming what is no run", "resume data", table(), ("'data'",)),
    Case("a damaged ledger", "resume runs/own/first", finished(damage), ("ledger.sqlite",)),
    Case("a damaged configuration", "resume runs/own/first", finished(unreadable), ("config.json",)),
)


def invoke(command: str) -> Outcome:
    """Run a command line in the current directory."""
    before = set(Path.cwd().rglob("*.sqlite"))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = fedsw(command.split())
    new = sorted(path.name for path in set(Path.cwd().rglob("*.sqlite")) - before)
    here = f"{Path.cwd()}/"
    return Outcome(code, out.getvalue().replace(here, ""), err.getvalue().replace(here, ""), tuple(new))


@contextlib.contextmanager
def folder() -> Iterator[None]:
    """A fresh current directory; wide enough for messages in one line."""
    before, kept = Path.cwd(), {name: os.environ.get(name) for name in ("COLUMNS", "FEDSW_ACCOUNTS")}
    with tempfile.TemporaryDirectory() as fresh:
        os.chdir(fresh)
        os.environ |= {"COLUMNS": "1000", "FEDSW_ACCOUNTS": "accounts"}
        try:
            yield
        finally:
            os.chdir(before)
            for name, value in kept.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def outcome_of(case: Case) -> Outcome:
    """Prepare a case in a folder of its own and run it."""
    with folder():
        case.prepare()
        return invoke(case.command)


def page(outcomes: dict[Case, Outcome]) -> str:
    """docs/errors.md."""
    lines = [
        "# Malformed inputs",
        "",
        "What a command says of an input it cannot use, and its exit code: 2 for bad input, 1 for a run that failed.",
        "All of it is found before anything is spent: no ledger was made in any of these. Generated by",
        "`python -m benchmarks.malformed`, which runs every line; `tests/test_malformed.py` runs them again.",
    ]
    shown = [
        (case.what, f"`fedsw {case.command}`", _LISTS.sub(r"\1 ...", outcome.error.strip()), outcome.code)
        for case, outcome in outcomes.items()
    ]
    return "\n".join(lines) + "\n\n" + markdown.table(("input", "command", "error", "exit code"), shown) + "\n"


def main() -> None:
    outcomes = {}
    for case in CASES:
        outcomes[case] = found = outcome_of(case)
        print(f"{found.code}  {case.what}: {found.error.strip()}")
    TABLE.write_text(page(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
